"""Who can be asked: privacy units, and the nodes that host them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .exchange import ATTEMPTS, RosterIncomplete
from .rehearsal import Answers, named

logger = logging.getLogger("flwr.fl_dp")

_SOME = 5  # so many nodes are listed in a line
_BY_ID = "node-"  # no lasting name starts like this


class Unit(NamedTuple):
    """One privacy unit.

    Attributes:
        node: Flower's id of the node that hosts it.
        number: Which of that node's units it is; 0 where a node is one unit.
    """

    node: int
    number: int = 0


def units_of(nodes: Iterable[int], units_per_node: int) -> list[Unit]:
    """Return every unit of these nodes, in one fixed order."""
    return [Unit(node, number) for node in sorted(nodes) for number in range(units_per_node)]


class DeclaredNodes:
    """The nodes that may take part when the roster may not grow: as many as were declared.

    Who connected first goes first, and a node that is gone makes room: both are public, so that
    leaving a node out never depends on data.
    """

    def __init__(self, most: int) -> None:
        """Let at most `most` nodes take part at once."""
        self._most = most
        self._seen: dict[int, None] = {}

    def among(self, nodes: Iterable[int]) -> list[int]:
        """Return those of the connected nodes that may take part."""
        there = set(nodes)
        self._seen.update(dict.fromkeys(sorted(there)))
        return sorted([node for node in self._seen if node in there][: self._most])


def by_node(units: Iterable[Unit]) -> dict[int, tuple[int, ...]]:
    """Return the units' numbers for each node that hosts any of them."""
    found: dict[int, list[int]] = {}
    for unit in units:
        found.setdefault(unit.node, []).append(unit.number)
    return {node: tuple(sorted(numbers)) for node, numbers in found.items()}


def require_countable(spoken_for: Collection[str]) -> None:
    """Check that participations can be counted on from those of the ledger.

    Raises:
        ValueError: If they were counted by ids of an earlier run.
    """
    if any(name.startswith(_BY_ID) for name in spoken_for):
        raise ValueError(
            "the ledger has counted participations by Flower's node ids, which change from run to "
            "run, so a cap can't go on: give each node a unit-name in its --node-config, and "
            "start a new ledger with what is left of the budget"
        )


def lasting_names(
    answers: Answers, nodes: Sequence[int], *, spoken_for: Collection[str]
) -> dict[int, str]:
    """Return the name of each node under which its participations are counted across runs.

    Flower's node ids change from run to run, so nodes are asked for a lasting name. Failing closed:
    whoever is not in the result can't be told from somebody who has used up its participations, and
    must take no part. That is a node whose name another one claims, too, and, if anybody has taken
    part before, one without a name. In a first run such a node goes by its id.

    Args:
        answers: Of the nodes to the identity query.
        nodes: Those that are there.
        spoken_for: Names under which the ledger has counted participations before.

    Raises:
        RosterIncomplete: If nodes did not answer, though others told their names or did before.
            Counted by its id, a node would be unknown to the next run, which could not go on.
    """
    claims = {node: name for node, name in named(answers).items() if not name.startswith(_BY_ID)}
    by_id = {node: f"{_BY_ID}{node}" for node in nodes}
    missing = [node for node in answers.asked if node not in answers.identities]
    if missing and (claims or spoken_for or answers.silent):
        raise RosterIncomplete(
            f"{len(missing)} of {len(nodes)} nodes did not tell their names within "
            f"{answers.timeout:.0f} s though asked {ATTEMPTS} times ({_listed(missing)}), and a "
            "participation cap counts by names: nothing is spent yet. Look at these nodes' logs, "
            "give them more time (roster_timeout), and start again"
        )
    if not claims and not spoken_for:
        logger.warning(
            "Clients tell no names: their participations are counted by Flower's node ids, and no "
            "other run can go on from this ledger. To change that, start each SuperNode with "
            "--node-config 'unit-name=\"...\"'"
        )
        return by_id
    claimants = Counter(claims.values())
    told = {node: name for node, name in claims.items() if claimants[name] == 1}
    if spoken_for:
        return told
    nameless = {node: name for node, name in by_id.items() if node not in claims}
    if nameless:
        logger.warning(
            "%d nodes tell no name (%s) and are counted by Flower's node ids, so that no other run "
            "can go on from this ledger: start them with --node-config 'unit-name=\"...\"'",
            len(nameless),
            _listed(list(nameless)),
        )
    return told | nameless


def _listed(nodes: Sequence[int]) -> str:
    more = ", ..." if len(nodes) > _SOME else ""
    return ", ".join(map(str, nodes[:_SOME])) + more


def unit_name(unit: Unit, names: Mapping[int, str], units_per_node: int) -> str:
    """Return the name of a unit in the ledger."""
    node = names.get(unit.node, f"{_BY_ID}{unit.node}")
    return node if units_per_node == 1 else f"{node}/{unit.number}"
