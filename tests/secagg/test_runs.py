"""Many sums over a network that loses, delays, doubles and reorders; nodes that restart.

Hypothesis chooses what happens next. Whatever it is: a sum is exact or fails cleanly, no node does
its part twice, and no mask is opened that the view does not need. That each sum is on the ledger
before its answer leaves is looked at in `tests/clients/test_charged_sums.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from secure_sums import RUN, Federation, send

from fl_dp.secagg import OpenSum, Refused, SecureNode, SecureSumFailed, SQLiteStore, SumTerms
from fl_dp.secagg.client import MaskedMessage
from fl_dp.secagg.member import Opened
from fl_dp.secagg.opening import OpeningQuestion

NODES = 5


@dataclass
class Sum:
    """One sum, and everything on its way; what was sent once may arrive any number of times."""

    terms: SumTerms
    opening: OpenSum
    values: np.ndarray
    requests: list[int] = field(default_factory=list)  # to nodes
    replies: list[tuple[int, MaskedMessage, np.ndarray]] = field(default_factory=list)
    questions: dict[int, OpeningQuestion] = field(default_factory=dict)
    answers: list[tuple[int, Opened]] = field(default_factory=list)
    views: dict[int, bytes] = field(default_factory=dict)
    folded: dict[int, np.ndarray] = field(default_factory=dict)
    checked: bool = False


class Network(RuleBasedStateMachine):
    """A server, five nodes of which one may be missing at each step, and sums one after another."""

    @initialize(cross_check=st.booleans())
    def start(self, cross_check: bool) -> None:
        self.house = Federation.of(NODES)
        self.nodes = self.house.nodes  # by entry of the latest epoch, not by place
        self.directory = self.house.directory
        self.cross_check = cross_check
        self.sums: list[Sum] = []
        self.lost: list[SQLiteStore] = []
        self.marks: Counter[tuple[int, str, int]] = Counter()  # by store, role and number
        self.outcomes: Counter[str] = Counter()

    def node_at(self, place: int) -> int:
        return self.identities.index(self.directory.entries[place].identity)

    @property
    def identities(self) -> list[bytes]:
        return [node.identity.public for node in self.nodes]

    @rule()
    def ask(self) -> None:
        number = len(self.sums) + 1
        terms = Federation(self.nodes, self.directory).terms(
            number=number,
            cohort=self.directory.current,
            least=4,
            threshold=4,
            cross_check=self.cross_check,
        )
        values = np.random.default_rng(number).integers(-1000, 1000, (NODES, 20))
        opening = OpenSum(terms, self.directory)
        self.sums.append(Sum(terms, opening, values, list(terms.cohort)))

    def sum_of(self, data: st.DataObject) -> Sum:
        """Return some sum, mostly the latest."""
        back = data.draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
        return self.sums[max(0, len(self.sums) - 1 - back)]

    def attempt(self, node: int, role: str, number: int, work: Any) -> Any:
        """Let a node do its part, and count that it did; None: it refused."""
        try:
            done = work()
        except Refused as refused:
            self.outcomes[refused.code] += 1
            return None
        self.marks[id(self.nodes[node].store), role, number] += 1
        return done

    @precondition(lambda self: self.sums)
    @rule(data=st.data(), all_of_them=st.booleans())
    def deliver_requests(self, data: st.DataObject, all_of_them: bool) -> None:
        current = self.sum_of(data)
        if not current.requests:
            return
        places = current.requests if all_of_them else [data.draw(st.sampled_from(current.requests))]
        for place in places:
            node = self.node_at(place)

            def work(node: int = node) -> MaskedMessage:
                sent: MaskedMessage = send(self.nodes[node], current.terms, current.values[node])
                return sent

            message = self.attempt(node, "sum", current.terms.number, work)
            if message is not None:
                current.replies.append((place, message, current.values[node]))

    @precondition(lambda self: self.sums)
    @rule(data=st.data(), all_of_them=st.booleans())
    def deliver_replies(self, data: st.DataObject, all_of_them: bool) -> None:
        current = self.sum_of(data)
        if not current.replies:
            return
        for place, message, values in (
            current.replies if all_of_them else [data.draw(st.sampled_from(current.replies))]
        ):
            try:
                current.opening.fold(place, message)
            except Refused as refused:
                assert refused.code == "stale"
            else:
                current.folded[place] = values

    @precondition(lambda self: self.sums)
    @rule(data=st.data())
    def cut_off(self, data: st.DataObject) -> None:
        current = self.sum_of(data)
        try:
            current.opening.require_openable()
        except SecureSumFailed:
            self.outcomes["too few"] += 1
            return
        for member in current.terms.committee:
            current.questions[member] = current.opening.question(member)

    @precondition(lambda self: self.sums)
    @rule(data=st.data(), all_of_them=st.booleans())
    def deliver_questions(self, data: st.DataObject, all_of_them: bool) -> None:
        current = self.sum_of(data)
        if not current.questions:
            return
        text = current.terms.to_json()
        members = list(current.questions)
        for member in members if all_of_them else [data.draw(st.sampled_from(members))]:
            online, labels, _ = current.questions[member]
            node = self.node_at(member)
            if self.cross_check:
                try:
                    signature = self.nodes[node].view(text, online, labels)
                    current.views[member] = signature
                except Refused as refused:
                    self.outcomes[refused.code] += 1
        for member in members if all_of_them else [data.draw(st.sampled_from(members))]:
            node = self.node_at(member)

            def work(
                node: int = node, asked: OpeningQuestion = current.questions[member]
            ) -> Opened:
                return self.nodes[node].open(text, *asked, current.views)

            opened = self.attempt(node, "open", current.terms.number, work)
            if opened is not None:
                current.answers.append((member, opened))

    @precondition(lambda self: self.sums)
    @rule(data=st.data(), all_of_them=st.booleans())
    def deliver_answers(self, data: st.DataObject, all_of_them: bool) -> None:
        current = self.sum_of(data)
        if not current.answers:
            return
        for member, opened in (
            current.answers if all_of_them else [data.draw(st.sampled_from(current.answers))]
        ):
            current.opening.answer(member, opened)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, NODES - 1))
        old = self.nodes[at]
        self.nodes[at] = SecureNode(old.identity, old.store, name=old.name)

    @precondition(lambda self: self.directory.epoch < 3)
    @rule(data=st.data())
    def lose_a_store(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, NODES - 1))
        old = self.nodes[at]
        self.lost.append(old.store)  # kept, so that no other store gets its id
        self.nodes[at] = SecureNode(old.identity, SQLiteStore(None), name=old.name)
        entry = self.nodes[at].entry(RUN, epoch=self.directory.epoch + 1)
        self.directory = self.directory.extended([entry])
        for node in self.nodes:
            assert node.accept(self.directory) == self.directory.hash

    @invariant()
    def sums_are_exact_or_fail(self) -> None:
        for current in getattr(self, "sums", []):
            if current.checked or not current.opening.enough:
                continue
            current.checked = True
            plain = sum(current.folded.values())
            assert (current.opening.release() == plain).all()
            assert set(current.opening.online) == set(current.folded)

    @invariant()
    def nobody_does_a_part_twice(self) -> None:
        assert all(count == 1 for count in getattr(self, "marks", Counter()).values())

    @invariant()
    def nothing_is_opened_that_the_view_does_not_need(self) -> None:
        for current in getattr(self, "sums", []):
            online = set(current.opening.online)
            near = current.terms.neighbours
            for _, opened in current.answers:
                assert set(opened.shares) <= online  # no self seed of anybody else
                for place, share in opened.shares.items():
                    lost = [other for other in near[place] if other not in online]
                    assert len(share) == 16 * (1 + len(lost))  # no seed of two who replied


TestNetwork = pytest.mark.slow(Network.TestCase)
TestNetwork.settings = settings(max_examples=50, stateful_step_count=30)


def test_the_machine_gets_somewhere() -> None:
    # Power: in order, its rules release a sum; and a lost store leaves old messages behind.
    machine = Network()
    start: Any = machine.start
    start(cross_check=True)

    class Latest:
        def draw(self, strategy: Any) -> Any:
            return 0

    latest: Any = Latest()
    machine.ask()
    steps: list[Any] = [
        machine.deliver_requests,
        machine.deliver_replies,
        lambda data, all_of_them: machine.cut_off(data),
        machine.deliver_questions,
        machine.deliver_answers,
    ]
    for step in steps:
        step(latest, True)
    assert machine.sums[0].opening.enough
    machine.sums_are_exact_or_fail()
    machine.lose_a_store(latest)
    machine.deliver_requests(latest, True)
    assert machine.outcomes["directory"] == NODES
