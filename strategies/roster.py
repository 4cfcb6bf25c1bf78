"""Roster: privacy units, and the nodes that host them."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from flwr.serverapp import Grid

from .exchange import ATTEMPTS
from .rehearsal import Answers, named
from .run_log import RunLog

logger = logging.getLogger("flwr.fl_dp")

_SOME = 5  # so many nodes are listed in a line
_BY_ID = "node-"  # no lasting name starts like this


class RosterIncomplete(RuntimeError):
    """Fewer nodes connected than the plan declares."""


class RosterTooLarge(RuntimeError):
    """More nodes connected than the plan declares."""


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


class Roster:
    """Those who may take part: the connected nodes, or as many of them as were declared."""

    def __init__(
        self,
        num_clients: int = 1,
        *,
        units_per_node: int = 1,
        may_grow: bool = True,
        timeout: float,
    ) -> None:
        """Declare a roster.

        Args:
            num_clients: Units that have to be there.
            units_per_node: Units that a node hosts at most.
            may_grow: Whether more nodes than those may take part.
            timeout: Seconds to wait for them.
        """
        self.timeout = timeout
        self._num_clients = num_clients
        self._units_per_node = units_per_node
        self._declared: DeclaredNodes | None = None
        if not may_grow:
            self._declared = DeclaredNodes(declared_nodes(num_clients, units_per_node))

    def wait(self, grid: Grid) -> Sequence[int]:
        """Wait for the declared nodes. See `wait_for_roster`."""
        return wait_for_roster(
            grid,
            self._num_clients,
            timeout=self.timeout,
            units_per_node=self._units_per_node,
            roster_may_grow=self._declared is None,
        )

    def units(self, grid: Grid, log: RunLog) -> list[Unit]:
        """Return the units of the connected nodes that may take part; log if some may not."""
        nodes = list(grid.get_node_ids())
        if self._declared is not None:
            declared = self._declared.among(nodes)
            if len(declared) < len(nodes):
                log.warn_once(
                    "more nodes are connected than the plan declares (num_clients): those who came "
                    "last take no part"
                )
            nodes = declared
        return units_of(nodes, self._units_per_node)


def by_node(units: Iterable[Unit]) -> dict[int, tuple[Unit, ...]]:
    """Return the units of each node that hosts any of them, in order."""
    found: dict[int, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.node, []).append(unit)
    return {node: tuple(sorted(hosted)) for node, hosted in found.items()}


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


def declared_nodes(num_clients: int, units_per_node: int) -> int:
    """Return how many nodes host the declared clients, each as many as it can."""
    return math.ceil(num_clients / units_per_node)


def wait_for_roster(
    grid: Grid,
    num_clients: int,
    *,
    timeout: float,
    units_per_node: int = 1,
    roster_may_grow: bool = True,
) -> Sequence[int]:
    """Wait until the nodes of `num_clients` clients are connected and return all connected ids.

    Args:
        grid: Flower's grid.
        num_clients: Units that are declared.
        timeout: Seconds to wait.
        units_per_node: Units that a node hosts at most.
        roster_may_grow: Whether more nodes than those may be there.

    Raises:
        RosterIncomplete: If they are not there after `timeout` seconds.
        RosterTooLarge: If more are there and the roster may not grow.
    """
    wanted = declared_nodes(num_clients, units_per_node)
    declared = f"the plan declares {num_clients} clients"
    if units_per_node > 1:
        declared += f", up to {units_per_node} on each of {wanted} nodes"
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < wanted:
        if time.monotonic() >= deadline:
            lower = f", or declare num_clients={len(nodes) * units_per_node}" if nodes else ""
            raise RosterIncomplete(
                f"{declared}, but {len(nodes)} nodes are connected after {timeout:.0f} s: connect "
                f"the others (in a simulation, --federation-config 'num-supernodes={wanted}')"
                f"{lower}"
            )
        time.sleep(0.2)
    if len(nodes) > wanted and not roster_may_grow:
        hosted = len(nodes) * units_per_node
        raise RosterTooLarge(
            f"{declared}, but {len(nodes)} nodes are connected: the mean is divided by what is "
            f"declared and would come out up to {hosted / num_clients:.3g} times too large. "
            f"Declare num_clients={hosted}, or allow it with roster_may_grow=True"
        )
    return nodes
