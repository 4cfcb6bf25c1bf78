"""The desk: what a SuperNode and its apps may ask, and how little of it reaches the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from gated_site import NODE, PlayedSuperNode, Site, adding

from fl_dp.gate.desk import Desk, DeskAnswer
from fl_dp.gate.desk_server import DeskApp
from fl_dp.gate.flower_wire import CALLS, FLEET, Parts, in_protobuf, parts_of

MODEL = {"w": np.zeros(3, np.float32)}
QUIET = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}


def test_it_answers_the_calls_of_a_supernode_and_refuses_others() -> None:
    node = PlayedSuperNode(adding(0.0))
    assert node.call("register-node").node_id == NODE
    assert node.call("activate-node").node_id == NODE
    assert not node.call("pull-messages").messages_list
    for name in ("deactivate-node", "unregister-node", "confirm-message-received"):
        assert node.desk.answer(name, b"junk") == DeskAnswer(200)
    for name in ("delete-everything", "", "../control/start-run"):
        assert node.desk.answer(name, b"").status == 404
    for name in ("get-run", "get-fab", "pull-object", "push-messages", "push-object"):
        assert node.desk.answer(name, b"").status == 400
        assert node.desk.answer(name, b"\xff\xff").status == 400


def test_it_answers_nothing_before_its_gate_has_said_which_node_it_is() -> None:
    desk = Desk(lambda number, pieces: None)
    assert desk.answer("activate-node", b"").status == 404


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
    site: Any, spare: Callable[[Message], Message]
) -> None:
    """Flower's SuperNode takes one for the reply, and asks for the next message."""
    earlier: list[Message] = []

    def app(message: Message) -> Iterator[Message | Parts]:
        if len(here.seen) in (2, 4):  # the first time that this round's message comes
            yield spare(earlier[-1])
            return
        earlier.append(message)
        yield replies(message)

    here: Site = site(app, **QUIET)
    for number in range(3):
        here.server.train({"w": np.full(3, float(number), np.float32)})
        here.step()
    assert len(here.server.arrived) == 3
    for number, arrived in enumerate(here.server.arrived):
        # Eight standard deviations of the noise; without its update it would be 1 off.
        assert arrived.arrays["w"][0] - number == pytest.approx(1.0, abs=8e-4)


def test_a_message_goes_to_the_next_supernode_where_the_first_one_dies(site: Any) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        if len(here.seen) == 1:
            here.node.call("activate-node")
        else:
            yield replies(message)

    here: Site = site(app, **QUIET)
    [arrived] = here.answers(MODEL)
    assert arrived.arrays["w"][0] == pytest.approx(1.0, abs=8e-4)
    assert len(here.seen) == 2
    assert here.charges() == 1


def test_a_supernode_that_dies_within_its_reply_leaves_nothing_of_it(site: Any) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        if len(here.seen) > 1:
            yield replies(message)
            return
        parts = parts_of(replies(message))
        here.node.call(
            "push-messages",
            messages_list=[in_protobuf(parts.shell)],
            message_object_trees=[parts.tree],
        )
        here.node.call("activate-node")

    here: Site = site(app, **QUIET)
    [arrived] = here.answers(MODEL)
    assert arrived.arrays["w"][0] == pytest.approx(1.0, abs=8e-4)


def test_objects_of_another_reply_are_refused(site: Any) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        parts = parts_of(replies(message))
        object_id, content = next(iter(parts.contents.items()))
        for session in ("", parts.tree.object_id):
            here.node.call(
                "push-object", session_id=session, object_id=object_id, object_content=content
            )
        yield from ()

    here: Site = site(app)
    here.answers(MODEL)
    assert here.node.refused == ["push-object"] * 2


def called(app: DeskApp, path: str, body: list[bytes], method: str = "POST") -> list[Any]:
    sent: list[Any] = []
    pieces = list(body)

    async def receive() -> Any:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": method, "path": path}
    asyncio.run(app(scope, receive, send))
    assert len(sent) == 2
    return [sent[0]["status"], sent[1]["body"], len(pieces)]


def test_a_call_that_is_too_long_is_not_read_to_its_end() -> None:
    app = DeskApp(PlayedSuperNode(adding(0.0)).desk)
    piece = bytes(1 << 20)
    status, _, left = called(app, f"{FLEET}push-object", [piece] * 100)
    assert status == 413
    assert left > 80


@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/control/start-run", "POST"), (f"{FLEET}activate-node", "GET"), ("/health", "POST")],
)
def test_it_has_no_other_path(path: str, method: str) -> None:
    app = DeskApp(PlayedSuperNode(adding(0.0)).desk)
    assert called(app, path, [b""], method)[0] == 404


def test_a_call_over_http_is_answered_in_protobuf() -> None:
    app = DeskApp(PlayedSuperNode(adding(0.0)).desk)
    status, body, _ = called(app, f"{FLEET}activate-node", [b""])
    assert status == 200
    assert CALLS["activate-node"].response.FromString(body).node_id == NODE
    assert called(app, f"{FLEET}get-run", [b""])[:2] == [400, b'{"detail": "refused"}']


def test_a_reply_with_an_empty_tree_is_none(site: Any) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        parts = parts_of(Message(RecordDict(), reply_to=message))
        parts.tree.Clear()
        yield parts._replace(contents={"": b"x"})

    here: Site = site(app)
    [arrived] = here.answers(MODEL)
    assert not arrived.message.has_error()
