"""Keys of a training: nodes that nobody can use cost the others nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest
from fl_dp.strategies.node_answers import RehearsalFailed
from fl_dp.strategies.secure import OneSum, SecureSums, Summed
from flat_plans import noised_plan
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from secure_sums import segments

from fl_dp.mechanisms import NoiseShare
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.protocol.secure_sum_messages import terms_in, text_of, text_to_content
from fl_dp.secagg import (
    Directory,
    Identity,
    OpenSum,
    Refused,
    Roster,
    SecureNode,
    SecureSumFailed,
    SQLiteStore,
    SumTerms,
)
from fl_dp.secagg.directory import Entry
from fl_dp.secagg.opening import Blame
from fl_dp.secagg.roster import Member

Spoil = Callable[[Entry], Entry]


class Nodes:
    """Nodes by Flower's id, and the exchange with them."""

    def __init__(self, count: int, *, pinned: int = 0) -> None:
        identities = [Identity.generate() for _ in range(count)]
        members = [
            Member(name=f"node-{at}", identity=each.public)
            for at, each in enumerate(identities[:pinned])
        ]
        self.roster = Roster(federation="tests", members=tuple(members)) if pinned else None
        self.of = {
            at: SecureNode(each, SQLiteStore(None), name=f"node-{at}", roster=self.roster)
            for at, each in enumerate(identities)
        }
        self.spoils: dict[int, Spoil] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def ask(self, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        for message in messages:
            told, at = text_of(message.content), message.metadata.dst_node_id
            if (node := self.of.get(at)) is None:
                continue  # gone
            if message.metadata.message_type.endswith("_key"):
                asked = json.loads(told)
                entry = node.entry(asked["run"], epoch=asked["epoch"])
                if at in self.spoils:
                    entry = self.spoils[at](entry)
                answer = json.dumps(entry.to_dict())
            else:
                try:
                    answer = node.accept(Directory.from_json(told)).hex()
                except Refused:
                    answer = "refused"
            reply = Message(text_to_content(answer), reply_to=message)
            yield reply


def known(count: int) -> tuple[Nodes, SecureSums]:
    """Nodes and a server that has taken in the keys of all."""
    nodes, sums = Nodes(count), SecureSums()
    sums.set_up(range(count), nodes.ask)
    return nodes, sums


def blame(sums: SecureSums, node: int, *, certain: bool = True) -> None:
    """Let a sum have shown that a node lied, or that it may have."""
    liar, nobody = frozenset([sums.positions([node])[node]]), frozenset[int]()
    shown = Blame(liar, nobody, nobody) if certain else Blame(nobody, nobody, liar)
    sums.leave_out(cast(OpenSum, Ended(shown)))


def unsigned(entry: Entry) -> Entry:
    return replace(entry, signature=bytes(64))


@pytest.mark.parametrize("spoilt", ["signature", "epoch"])
def test_an_entry_that_nobody_would_accept_is_left_out(spoilt: str) -> None:
    nodes, sums = Nodes(4), SecureSums()
    spoils: dict[str, Spoil] = {
        "signature": unsigned,
        "epoch": lambda _: nodes.of[2].entry(sums.run, epoch=3),
    }
    nodes.spoils[2] = spoils[spoilt]
    sums.set_up(range(4), nodes.ask)
    assert set(sums.positions(range(4))) == {0, 1, 3}


def test_a_node_that_missed_the_directory_is_told_again() -> None:
    nodes, sums = Nodes(4), SecureSums()
    kinds: list[str] = []

    def ask(messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        for message in messages:
            kinds.append(message.metadata.message_type)
            busy = len(kinds) <= 8 and message.metadata.dst_node_id == 3
            if not (busy and kinds[-1].endswith("_directory")):
                yield from nodes.ask([message], timeout)

    sums.set_up(range(4), ask)
    assert set(sums.positions(range(4))) == {0, 1, 2}
    sums.set_up(range(3), ask)  # it is not asked for a sum without it
    assert len(kinds) == 8
    sums.set_up(range(4), ask)
    assert set(sums.positions(range(4))) == {0, 1, 2, 3}
    assert kinds[8:] == ["query.fl_dp_secagg_directory"]
    sums.set_up(range(4), ask)
    assert len(kinds) == 9


def test_too_few_keys_are_explained_by_silence_or_by_the_nodes_logs() -> None:
    nodes, sums = Nodes(4), SecureSums()
    del nodes.of[1], nodes.of[2]
    sums.set_up(range(4), nodes.ask, timeout=7)
    sums.require_enough(range(4), 2)
    with pytest.raises(RehearsalFailed, match=r"2 of 4.*2 did not answer within 7 s.*roster_timeo"):
        sums.require_enough(range(4), 3)
    nodes, sums = Nodes(4), SecureSums()
    nodes.spoils = {1: unsigned, 2: unsigned}
    sums.set_up(range(4), nodes.ask)
    with pytest.raises(RehearsalFailed, match="needs 3: their logs say why; nothing was charged"):
        sums.require_enough(range(4), 3)


def test_a_stranger_to_the_roster_is_left_out() -> None:
    nodes = Nodes(5, pinned=4)
    sums = SecureSums(nodes.roster)
    sums.set_up(range(5), nodes.ask)
    assert set(sums.positions(range(5))) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["node-0", "another name"])
def test_two_nodes_with_one_folder_of_keys_are_one_and_it_is_said(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, sums = Nodes(4), SecureSums()
    first = nodes.of[0]
    nodes.of[3] = SecureNode(first.identity, first.store, name=name)
    with caplog.at_level(logging.WARNING, logger="flwr.fl_dp"):
        sums.set_up(range(4), nodes.ask)
    assert set(sums.positions(range(4))) == {0, 1, 2}
    assert "a ledger in a folder, of its own" in caplog.text


def test_a_name_that_two_nodes_give_themselves_is_the_first_one_s() -> None:
    nodes, sums = Nodes(4), SecureSums()
    nodes.of[3] = SecureNode(Identity.generate(), SQLiteStore(None), name="node-0")
    sums.set_up(range(4), nodes.ask)
    assert set(sums.positions(range(4))) == {0, 1, 2}


def test_a_node_that_comes_back_under_another_id_keeps_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes, sums = known(4)
    before = sums.positions(range(4))
    nodes.of[9] = nodes.of.pop(3)
    sums.set_up([0, 1, 2, 9], nodes.ask)
    assert sums.positions([0, 1, 2, 9]) == {0: before[0], 1: before[1], 2: before[2], 9: before[3]}
    assert sums.positions([3]) == {}  # what it was
    assert "did not accept the directory" not in caplog.text


def test_a_node_that_lost_its_keys_is_appended() -> None:
    nodes, sums = known(4)
    nodes.of[9] = SecureNode(nodes.of.pop(3).identity, SQLiteStore(None), name="node-3")
    sums.set_up([0, 1, 2, 9], nodes.ask)
    assert sums.positions([0, 1, 2, 9])[9] == 4


def test_new_keys_bring_no_liar_back() -> None:
    nodes, sums = known(4)
    blame(sums, 3)
    assert sums.allowed(range(4), 3) == [0, 1, 2]
    nodes.of[9] = SecureNode(nodes.of.pop(3).identity, SQLiteStore(None), name="node-3")
    sums.set_up([0, 1, 2, 9], nodes.ask)
    assert sums.allowed([0, 1, 2, 9], 3) == [0, 1, 2]


@pytest.mark.parametrize("certain", [True, False], ids=["lied", "may have lied"])
def test_a_liar_under_another_id_is_not_in_the_next_sum(certain: bool) -> None:
    """Who it is shows only in its keys, which it is asked for when the sum has begun."""
    nodes, sums = known(6)
    blame(sums, 5, certain=certain)
    nodes.of[9] = SecureNode(nodes.of.pop(5).identity, SQLiteStore(None), name="node-5")
    one = sum_over(6, sums, least=5)
    one.open([0, 1, 2, 3, 4, 9], nodes.ask)
    asked = SumTerms.from_json(terms_in(one.content_for(RecordDict())) or "")
    assert {sums.known_directory.entries[place].name for place in asked.cohort} == {
        f"node-{at}" for at in range(5)
    }


def test_a_liar_under_another_id_ends_a_sum_that_needs_everybody_with_its_name() -> None:
    nodes, sums = known(5)
    blame(sums, 4)
    nodes.of[9] = nodes.of.pop(4)
    with pytest.raises(SecureSumFailed, match=r"1 of 5 .*'node-4'.*a sum needs 5"):
        sum_over(5, sums, least=5).open([0, 1, 2, 3, 9], nodes.ask)


def test_more_nodes_than_a_sum_was_charged_for_are_refused() -> None:
    """A server that lies could open a smaller sum of them."""
    nodes, sums = known(7)
    with pytest.raises(SecureSumFailed, match="was charged, which is for 6"):
        sum_over(6, sums).open(range(7), nodes.ask)


def sum_over(nodes: int, sums: SecureSums, **options: Any) -> OneSum:
    """The first sum of a training."""
    plan = noised_plan(
        1.0,
        delta=1e-5,
        rounds=3,
        num_clients=nodes,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=SecureSum(max_parameters=1000, **options),
    )
    assert isinstance(plan, DistributedPlan)
    share = NoiseShare(segments=segments(3), noise_scale=2.0)
    return OneSum(sums, plan.noise, Summed(purpose="train", share=share, bits=16), number=1)


def test_who_may_have_lied_sits_out_ever_more_sums_unless_it_is_needed() -> None:
    _, sums = known(4)
    places = sums.positions(range(4))
    doubted = Blame(frozenset(), frozenset(), frozenset([places[2]]))
    nobody = Blame(frozenset(), frozenset(), frozenset())
    there = []
    for ended in (doubted, nobody, doubted, nobody, nobody, nobody):
        sums.leave_out(cast(OpenSum, Ended(ended)))
        there.append(2 in sums.allowed(range(4), 3))
        assert sums.allowed(range(4), 4) == [0, 1, 2, 3]
    assert there == [False, True, False, False, True, True]


class Ended(NamedTuple):
    """A sum that has ended, with what it has shown."""

    shown: Blame

    def blame(self) -> Blame:
        return self.shown
