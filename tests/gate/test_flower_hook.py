"""The hook into Flower's SuperNode: what is not known is refused, and its own loop runs through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory
from gated_site import NODE, Server, Site, adding, all_ids

from fl_dp.gate.flower_hook import (
    Connection,
    checked_connection,
    inflated,
    parts_of,
    require_known_flower,
    supernode_behind_gate,
)
from fl_dp.protocol.flower_versions import FlowerChanged

MODEL = {"w": np.zeros(3, np.float32)}


def test_this_flower_is_known() -> None:
    require_known_flower()


@pytest.mark.parametrize("version", ["1.40.0", "1.43.0", "1.42.0.dev20260101", "2.0.0"])
def test_a_flower_that_was_not_tested_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("flwr.__version__", version)
    with pytest.raises(FlowerChanged, match="that the gate was tested with"):
        supernode_behind_gate(lambda connection: connection)


def test_a_connection_that_opens_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_init_connection", lambda server_address, insecure: None)
    with pytest.raises(FlowerChanged, match="_init_connection with the options"):
        require_known_flower()


def test_a_main_loop_with_another_way_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_client_internal() -> None:
        flower.http_request_response("superlink", True)  # type: ignore[attr-defined]  # its import

    monkeypatch.setattr(flower, "start_client_internal", start_client_internal)
    with pytest.raises(FlowerChanged, match="by _init_connection alone"):
        require_known_flower()


@pytest.mark.parametrize("parts", [None, (), (NODE,) + (print,) * 8, ("node",) + (print,) * 7])
def test_a_connection_of_other_parts_is_refused(parts: Any) -> None:
    with pytest.raises(FlowerChanged, match="a connection of"):
        checked_connection(parts)


def test_a_second_gate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_init_connection", flower._init_connection)
    supernode_behind_gate(lambda connection: connection)
    with pytest.raises(FlowerChanged, match="_init_connection with the options"):
        supernode_behind_gate(lambda connection: connection)


def test_flower_s_main_loop_gets_the_gate_s_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Flower's own functions pull a message, and push what an app has answered."""
    here = Site(tmp_path, adding(1e3))
    real = tuple(here.server.connection())

    @contextmanager
    def opened(
        server_address: str,
        insecure: bool,
        root_certificates: Any = None,
        authentication_keys: Any = None,
        max_retries: int | None = None,
        max_wait_time: float | None = None,
    ) -> Iterator[Any]:
        yield real

    monkeypatch.setattr(flower, "_init_connection", opened)
    wrapped: list[Connection] = []

    def wrap(connection: Connection) -> Connection:
        wrapped.append(connection)
        return here.connection

    supernode_behind_gate(wrap)
    with flower._init_connection(server_address="superlink", insecure=True) as connection:
        assert wrapped[0].node_id == NODE
        _, receive, send, get_run, get_fab, pull_object, push_object, confirm = connection
        stores = ObjectStoreFactory()
        state, store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
        state.set_node_id(NODE)
        asked = here.server.train(MODEL)
        run_id = flower._pull_and_store_message(
            state=state,
            object_store=store,
            node_config={},
            receive=receive,
            get_run=get_run,
            get_fab=get_fab,
            pull_object=pull_object,
            confirm_message_received=confirm,
            trusted_entities=None,
        )
        assert run_id == 5
        assert here.server.confirmed == [asked]
        [shell] = state.get_messages_legacy(is_reply=False)
        tree = store.get_object_tree(shell.metadata.message_id)
        message = inflated(tree, {each: store.get(each) or b"" for each in all_ids(tree)})
        message.metadata.__dict__["_message_id"] = shell.metadata.message_id
        reply = parts_of(Message(RecordDict(dict(message.content)), reply_to=message))
        state.store_message(reply.shell)
        store.preregister(5, reply.tree)
        for object_id, content in reply.contents.items():
            store.put(object_id, content)
        flower._push_messages(state=state, object_store=store, send=send, push_object=push_object)
    [arrived] = here.server.arrived
    assert set(arrived.message.content) == {"arrays", "metrics"}
    assert arrived.message.metadata.reply_to_message_id == asked
    assert arrived.arrays["w"].any()
    assert here.charges() == 1


def test_a_server_of_these_tests_has_the_connection_of_flower_s() -> None:
    assert checked_connection(tuple(Server().connection())).node_id == NODE
