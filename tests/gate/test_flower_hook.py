"""The hook into Flower's SuperNode: what is not known is refused, and its own loop runs through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory
from gated_site import NODE, Server, Site, adding, all_ids

from fl_dp.gate.connection import GatedConnection
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


def never_opened(connection: Connection) -> GatedConnection:
    raise AssertionError("nothing was opened")


def test_this_flower_is_known() -> None:
    require_known_flower()


@pytest.mark.parametrize("version", ["1.40.0", "1.43.0", "1.42.0.dev20260101", "2.0.0"])
def test_a_flower_that_was_not_tested_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("flwr.__version__", version)
    with pytest.raises(FlowerChanged, match="that the gate was tested with"):
        supernode_behind_gate(never_opened)


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


def test_a_main_loop_that_sends_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_client_internal() -> None:
        flower._init_connection("superlink", True)

    monkeypatch.setattr(flower, "start_client_internal", start_client_internal)
    with pytest.raises(FlowerChanged, match="by _push_messages"):
        require_known_flower()


@pytest.mark.parametrize("parts", [None, (), (NODE,) + (print,) * 8, ("node",) + (print,) * 7])
def test_a_connection_of_other_parts_is_refused(parts: Any) -> None:
    with pytest.raises(FlowerChanged, match="a connection of"):
        checked_connection(parts)


def test_a_second_gate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_init_connection", "_push_messages"):
        monkeypatch.setattr(flower, name, getattr(flower, name))
    supernode_behind_gate(never_opened)
    with pytest.raises(FlowerChanged, match="_init_connection with the options"):
        supernode_behind_gate(never_opened)


class MainLoop:
    """Flower's own functions around a site's gate, as its main loop calls them."""

    def __init__(self, patch: pytest.MonkeyPatch, here: Site) -> None:
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

        def wrap(connection: Connection) -> GatedConnection:
            assert connection == real
            return here.gated

        patch.setattr(flower, "_init_connection", opened)
        patch.setattr(flower, "_push_messages", flower._push_messages)
        supernode_behind_gate(wrap)
        with flower._init_connection(server_address="superlink", insecure=True) as connection:
            self._ways = Connection(*connection)
        stores = ObjectStoreFactory()
        self.state = NodeStateFactory(objectstore_factory=stores).state()
        self.store = stores.store()
        self.state.set_node_id(NODE)
        self._here = here

    def pull(self) -> Message | None:
        """Take a message, and return it as the app gets it."""
        ways = self._ways
        run_id = flower._pull_and_store_message(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=ways.receive,
            get_run=ways.get_run,
            get_fab=ways.get_fab,
            pull_object=ways.pull_object,
            confirm_message_received=ways.confirm_message_received,
            trusted_entities=None,
        )
        if run_id is None:
            return None
        passed = self._here.gated._passed
        assert passed is not None
        tree = self.store.get_object_tree(passed.parts.tree.object_id)
        message = inflated(tree, {each: self.store.get(each) or b"" for each in all_ids(tree)})
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def take(self, reply: Message) -> None:
        """Take what an app sends."""
        parts = parts_of(reply)
        self.state.store_message(parts.shell)
        self.store.preregister(5, parts.tree)
        for object_id, content in parts.contents.items():
            self.store.put(object_id, content)

    def push(self) -> None:
        """Send what apps have sent."""
        ways = self._ways
        flower._push_messages(
            state=self.state,
            object_store=self.store,
            send=ways.send,
            push_object=ways.push_object,
        )


def test_flower_s_main_loop_gets_the_gate_s_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Flower's own functions pull a message, and push what an app has answered."""
    here = Site(tmp_path, adding(1e3))
    loop = MainLoop(monkeypatch, here)
    asked = here.server.train(MODEL)
    message = loop.pull()
    assert message is not None
    assert here.server.confirmed == [asked]
    loop.take(Message(RecordDict(dict(message.content)), reply_to=message))
    loop.push()
    [arrived] = here.server.arrived
    assert set(arrived.message.content) == {"arrays", "metrics"}
    assert arrived.message.metadata.reply_to_message_id == asked
    assert arrived.arrays["w"].any()
    assert here.charges() == 1


def replies(message: Message) -> Message:
    """Return what an app replies that trains: an update of length 1."""
    [reply] = adding(np.array([1.0, 0.0, 0.0]))(message)
    assert isinstance(reply, Message)
    return reply


def junk(message: Message) -> Message:
    """Return a reply to no message at all."""
    reply = replies(message)
    reply.metadata.__dict__["_reply_to_message_id"] = "f" * 64
    return reply


@pytest.mark.parametrize("spare", [replies, junk], ids=["a second reply", "a reply to nothing"])
def test_spare_messages_of_one_round_s_app_do_not_spoil_the_rounds_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, spare: Callable[[Message], Message]
) -> None:
    """An app that goes on after its reply sends more while the next one trains."""
    quiet = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}
    here = Site(tmp_path, adding(0.0), **quiet)
    loop = MainLoop(monkeypatch, here)
    earlier: list[Message] = []
    for number in range(3):
        here.server.train({"w": np.full(3, float(number), np.float32)})
        message = loop.pull()
        assert message is not None
        for before in earlier:
            loop.take(spare(before))
        left = [replies(message)]
        # The app's reply comes while Flower waits for it.

        def wait(seconds: float, left: list[Message] = left) -> None:
            if left:
                loop.take(left.pop())

        monkeypatch.setattr(flower, "time", SimpleNamespace(sleep=wait))
        loop.push()
        earlier.append(message)
    here.gated.receive()
    assert len(here.server.arrived) == 3
    for number, arrived in enumerate(here.server.arrived):
        # Eight standard deviations of the noise; without its update it would be 1 off.
        assert arrived.arrays["w"][0] - number == pytest.approx(1.0, abs=8e-4)


def test_a_server_of_these_tests_has_the_connection_of_flower_s() -> None:
    assert checked_connection(tuple(Server().connection())).node_id == NODE
