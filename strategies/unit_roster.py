"""Roster: privacy units, and the nodes that host them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.serverapp import Grid

from fl_dp import clock
from fl_dp.option_errors import OptionError
from fl_dp.plan.hosting import Hosting
from fl_dp.protocol.flower_compat import is_simulation
from fl_dp.protocol.own_grid import OwnGrid

from .log import Log

logger = logging.getLogger("flwr.fl_dp")

_PAUSE = 0.2
_ONE_UNIT = Hosting()


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


@dataclass(eq=False)
class HostedUnits(Sequence[Unit]):
    """Units of nodes that host equally many, made on demand: there may be millions."""

    nodes: Sequence[int]
    per_node: int

    def __len__(self) -> int:
        """Number of units."""
        return len(self.nodes) * self.per_node

    def __getitem__(self, index: Any) -> Any:
        """The unit at an index, or a list for a slice."""
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        node, number = divmod(range(len(self))[index], self.per_node)
        return Unit(self.nodes[node], number)

    def __iter__(self) -> Iterator[Unit]:
        """Yield the units in order."""
        return (Unit(node, number) for node in self.nodes for number in range(self.per_node))


@dataclass(eq=False)
class DeclaredNodes:
    """Nodes that may take part if the roster may not grow: as many as declared.

    The first to connect come first, and a node that leaves makes room: both are public, so
    excluding a node never depends on data.
    """

    most: int
    _connected: dict[int, None] = field(default_factory=dict, init=False)

    def among(self, nodes: Iterable[int]) -> list[int]:
        """The connected nodes that may take part."""
        connected = set(nodes)
        self._connected.update(dict.fromkeys(sorted(connected)))
        return sorted([node for node in self._connected if node in connected][: self.most])


class UnitRoster:
    """Nodes that may take part: all that connect, or the first as many as declared."""

    def __init__(
        self,
        num_clients: int = 1,
        *,
        hosting: Hosting = _ONE_UNIT,
        may_grow: bool = True,
        timeout: float,
    ) -> None:
        """Declare a roster.

        Raises:
            ValueError: If the timeout is negative, or no number.
        """
        if not timeout >= 0.0:
            raise OptionError(
                f"roster_timeout must not be negative, in seconds, got {timeout}",
                option="roster_timeout",
            )
        self.timeout = timeout
        self._num_clients = num_clients
        self._hosting = hosting
        self._declared: DeclaredNodes | None = None
        if not may_grow:
            self._declared = DeclaredNodes(hosting.nodes_of(num_clients))

    def wait(self, grid: Grid) -> Sequence[int]:
        """Wait for the declared nodes. See `wait_for_roster`."""
        if self._declared is not None and isinstance(grid, OwnGrid):
            grid.host(self._declared.most)
        return wait_for_roster(
            grid,
            self._num_clients,
            timeout=self.timeout,
            hosting=self._hosting,
            roster_may_grow=self._declared is None,
        )

    def units(self, grid: Grid, log: Log) -> HostedUnits:
        """The connected units that may take part, in fixed order; warns if others may not."""
        nodes = list(grid.get_node_ids())
        if self._declared is not None:
            declared = self._declared.among(nodes)
            if len(declared) < len(nodes):
                log.warn_once(
                    "more nodes are connected than the plan declares (num_clients): the nodes "
                    "that connected last take no part"
                )
            nodes = declared
        return HostedUnits(sorted(nodes), self._hosting.distinct_units)


def nodes_of(roster: Sequence[Unit]) -> list[int]:
    """Nodes that host units, in order."""
    hosts = roster.nodes if isinstance(roster, HostedUnits) else (unit.node for unit in roster)
    return sorted(set(hosts))


def by_node(units: Iterable[Unit]) -> dict[int, tuple[Unit, ...]]:
    """The units of each node that hosts any, in order."""
    units_of: dict[int, list[Unit]] = {}
    for unit in units:
        units_of.setdefault(unit.node, []).append(unit)
    return {node: tuple(sorted(hosted)) for node, hosted in units_of.items()}


def wait_for_roster(
    grid: Grid,
    num_clients: int,
    *,
    timeout: float,
    hosting: Hosting = _ONE_UNIT,
    roster_may_grow: bool = True,
) -> Sequence[int]:
    """Wait until the nodes of `num_clients` clients connect; return all connected ids.

    `hosting` tells how many units a node has. `timeout` is in seconds. `roster_may_grow` lets more
    nodes than declared be connected.

    Raises:
        RosterIncomplete: If too few nodes are connected after the `timeout`.
        RosterTooLarge: If too many are and the roster may not grow; on real nodes, if they still
            are after the `timeout`.
    """
    wanted, hosted = hosting.nodes_of(num_clients), hosting.distinct_units
    declared = f"the plan declares {num_clients} clients"
    if hosted > 1:
        declared += f", up to {hosted} on each of {wanted} nodes"
    waited = f" after {timeout:.0f} s"
    instead = f"--federation-config 'num-supernodes={wanted}'"
    if isinstance(grid, OwnGrid):  # nobody comes or goes
        timeout, waited, instead = 0.0, "", "simulate(...) without num_nodes"
    deadline = clock.now() + timeout
    warned, most = False, 0
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) > most and is_simulation(grid):  # which are made one by one
            most, deadline = len(nodes), clock.now() + timeout
        if len(nodes) == wanted or (len(nodes) > wanted and roster_may_grow):
            return nodes
        late = clock.now() >= deadline
        if len(nodes) < wanted and late:
            lower = ""
            if nodes:
                lower = f", or declare num_clients={len(nodes) * hosted}"
            raise RosterIncomplete(
                f"{declared}, but {len(nodes)} nodes are connected{waited}: connect the others (in "
                f"a simulation, {instead}){lower}"
            )
        if len(nodes) > wanted and (late or is_simulation(grid)):  # whose nodes never leave
            connected = len(nodes) * hosted
            raise RosterTooLarge(
                f"{declared}, but {len(nodes)} nodes are connected: the mean is divided by what is "
                f"declared and would come out up to {connected / num_clients:.3g} times too large. "
                f"Declare num_clients={connected}, or allow it with roster_may_grow=True (in a "
                f"simulation, {instead})"
            )
        if len(nodes) > wanted and not warned:
            warned = True
            # A node that was restarted has two ids until Flower misses the first one's heartbeat.
            logger.warning(
                "%s, but %d nodes are connected: one that was restarted counts twice until Flower "
                "notices, about a minute; waiting for that, at most %.0f s",
                declared,
                len(nodes),
                deadline - clock.now(),
            )
        clock.sleep(_PAUSE)
