"""An app that behaves, and one that does another wrong thing in each round."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from flwr.app import ConfigRecord, Error, Message, RecordDict
from gated_site import App, Site, adding
from owned_clock import OwnedClock

from fl_dp.gate.flower_wire import CALLS, Parts, parts_of
from fl_dp.gate.kept import KeptMessage

Replies = Iterable[Message | Parts]


def misbehaving(here: Site, owned: OwnedClock) -> App:
    """An app of a site that does in turn all that its processes can do to a gate."""
    rounds: list[str] = []

    def app(message: Message) -> Replies:
        asked = str(message.metadata.message_id)
        if asked not in rounds:  # a SuperNode that was started again hands it over again
            rounds.append(asked)
        return WRONGS[len(rounds) % len(WRONGS)](here, owned, message)

    return app


def is_late(here: Site, owned: OwnedClock, message: Message) -> Replies:
    owned.sleep(18.7)
    return adding(1.0)(message)


def ends_its_supernode(here: Site, owned: OwnedClock, message: Message) -> Replies:
    here.node.call("activate-node")  # another one has come, and takes the message
    return []


def never_answers(here: Site, owned: OwnedClock, message: Message) -> Replies:
    return []


def sends_more(here: Site, owned: OwnedClock, message: Message) -> Replies:
    spare = Message(message.content, reply_to=message)
    spare.metadata.__dict__["_reply_to_message_id"] = "f" * 64
    return [spare, *adding(1.0)(message), *adding(1.0)(message)]


def floods_the_desk(here: Site, owned: OwnedClock, message: Message) -> Replies:
    for name in (*CALLS, "delete-everything"):
        for body in (b"", b"\xff" * 999):
            here.node.desk.answer(name, body)
    return adding(-1.0)(message)


def sends_a_tree_of_another_root(here: Site, owned: OwnedClock, message: Message) -> Replies:
    [reply] = adding(1.0)(message)
    assert isinstance(reply, Message)
    parts = parts_of(reply)
    parts.tree.object_id = "f" * 64
    return [parts._replace(contents={**parts.contents, "f" * 64: b"Message 0\x00"})]


def sends_too_much(here: Site, owned: OwnedClock, message: Message) -> Replies:
    texts = RecordDict({"texts": ConfigRecord({"secret": "x" * (4 << 20)})})
    return [Message(texts, reply_to=message)]


def says_a_secret(here: Site, owned: OwnedClock, message: Message) -> Replies:
    return [Message(Error(4711, "patient 4711" * 1000), reply_to=message)]


def fills_the_disk(here: Site, owned: OwnedClock, message: Message) -> Replies:
    put = here.keeper.put

    def full(message: KeptMessage) -> None:
        here.keeper.put = put  # type: ignore[method-assign]  # once, for the next message
        raise OSError(errno.ENOSPC, "No space left on device")

    here.keeper.put = full  # type: ignore[method-assign]  # as a full disk does
    return adding(1.0)(message)


WRONGS: list[Callable[[Site, OwnedClock, Message], Replies]] = [
    is_late,
    ends_its_supernode,
    never_answers,
    sends_more,
    floods_the_desk,
    sends_a_tree_of_another_root,
    sends_too_much,
    says_a_secret,
    fills_the_disk,
]
