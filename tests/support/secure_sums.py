"""A federation of secure sums in one process, for tests: nodes, a server, losses, and lies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fl_dp.mechanisms import Segment
from fl_dp.secagg import (
    Directory,
    Identity,
    OpenSum,
    Refused,
    Roster,
    SecureNode,
    SQLiteStore,
    SumTerms,
)
from fl_dp.secagg.member import Opened, needed_of, opened_seeds
from fl_dp.secagg.roster import Member

RUN, CONTENT, PURPOSE = 7, "ab" * 32, "train"

# What a server tells a member about who replied.
Tale = Callable[[int, frozenset[int]], Collection[int]]


@dataclass
class Federation:
    """Nodes in order of their places, and their directory."""

    nodes: list[SecureNode]
    directory: Directory

    @classmethod
    def of(cls, count: int, *, pinned: bool = False, **settings: Any) -> Federation:
        """Nodes that have accepted one directory."""
        identities = sorted((Identity.generate() for _ in range(count)), key=lambda x: x.public)
        names = [f"node-{position}" for position in range(count)]
        roster = None
        if pinned:
            members = (
                Member(name=name, identity=identity.public)
                for name, identity in zip(names, identities, strict=True)
            )
            roster = Roster(federation="tests", members=tuple(members))
        nodes = [
            SecureNode(identity, SQLiteStore(None), name=name, roster=roster, **settings)
            for name, identity in zip(names, identities, strict=True)
        ]
        return cls.meeting(nodes)

    @classmethod
    def meeting(cls, nodes: list[SecureNode]) -> Federation:
        """The nodes of one roster, once they have accepted a directory with keys of theirs."""
        entries = [node.entry(RUN) for node in nodes]
        roster = nodes[0].roster
        directory = Directory.first(RUN, entries, roster_hash=roster.hash if roster else "")
        assert {node.accept(directory) for node in nodes} == {directory.hash}
        return cls(nodes, directory)

    def terms(self, **changes: Any) -> SumTerms:
        """Terms of a sum over all nodes; a tenth, and a fifth of the committee, may be lost."""
        n = len(self.nodes)
        committee = self.directory.committee(changes.pop("members", n))
        usual: dict[str, Any] = {
            "run": RUN,
            "number": 1,
            "purpose": PURPOSE,
            "directory": self.directory.hash.hex(),
            "content": CONTENT,
            "cohort": tuple(range(n)),
            "committee": committee,
            "threshold": -(-4 * len(committee) // 5),
            "least": n - n // 10,
            "degree": n,
            "colluding": 0,
            "cross_check": False,
            "segments": segments(20),
            "bits": 16,
            "noise_scale": 2.0,
        }
        return SumTerms(**usual | changes)


def segments(size: int) -> tuple[Segment, ...]:
    return (Segment("updates", size, 1.0, 100.0, 1.0),)


@dataclass
class Asked:
    """One sum as a server ran it."""

    opening: OpenSum
    answers: dict[int, tuple[frozenset[int], Opened]] = field(default_factory=dict)
    refusals: dict[int, Refused] = field(default_factory=dict)
    needed: int = 0  # answers after which everything was open

    def release(self) -> np.ndarray:
        return self.opening.release()

    def opened(self) -> set[tuple[int, int | None]]:
        """The masks that enough members gave away: (i, None) own, (i, j) a pair's."""
        terms = self.opening.terms

        def count(i: int, j: int | None) -> int:
            return sum(
                i in online and (j is None or j not in online)
                for online, _ in self.answers.values()
            )

        return {
            (i, j)
            for i, near in terms.neighbours.items()
            for j in (None, *near)
            if count(i, j) >= terms.threshold
        }


def send(node: SecureNode, terms: SumTerms, values: np.ndarray) -> Any:
    """A client's message."""
    part = node.begin(terms.to_json(), content=terms.content, purpose=terms.purpose)
    return part.message(np.asarray(values, np.int64))


def ask(
    federation: Federation,
    terms: SumTerms,
    values: Sequence[np.ndarray] | np.ndarray,
    *,
    gone: Collection[int] = (),
    silent: Collection[int] = (),
    tell: Tale = lambda member, online: online,
) -> Asked:
    """Run a sum: everybody but the `gone` replies, members but the `silent` are told a tale."""
    asked = Asked(OpenSum(terms, federation.directory))
    for position in terms.cohort:
        if position not in gone:
            asked.opening.fold(position, send(federation.nodes[position], terms, values[position]))
    members = [member for member in terms.committee if member not in silent]
    told = {member: _told(asked.opening, member, tell) for member in members}
    quorum: dict[int, bytes] = {}
    for member, (online, labels, _) in told.items():
        if terms.cross_check:
            try:
                quorum[member] = federation.nodes[member].view(terms.to_json(), online, labels)
            except Refused as refused:
                asked.refusals[member] = refused
    for member, question in told.items():
        try:
            opened = federation.nodes[member].open(terms.to_json(), *question, quorum)
        except Refused as refused:
            asked.refusals[member] = refused
        else:
            asked.answers[member] = frozenset(question[0]), opened
            asked.opening.answer(member, opened)
            if asked.opening.enough and not asked.needed:
                asked.needed = len(asked.answers)
    return asked


def _told(
    opening: OpenSum, member: int, tell: Tale
) -> tuple[tuple[int, ...], dict[int, bytes], Mapping[int, bytes]]:
    labels, alive = opening.question(member).labels, frozenset(opening.online)
    online = tuple(sorted(tell(member, alive)))
    bundles = bundles_for(opening, member, online)
    return (
        online,
        {position: labels[position] for position in online if position in labels},
        bundles,
    )


def bundles_for(opening: OpenSum, member: int, online: Sequence[int]) -> dict[int, bytes]:
    """What a lying server hands to a member with a view of its own."""
    terms, alive = opening.terms, frozenset(online)
    at = terms.committee.index(member)
    return {
        position: needed_of(
            opening._heads[position].bundles[at], opened_seeds(terms, position, alive)
        )
        for position in online
        if position in opening._heads
    }
