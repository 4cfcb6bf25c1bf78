"""Who can be asked: privacy units, and the nodes that host them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fl_dp.updates.instruction import IDENTITY_ACTION

from .exchange import exchange

logger = logging.getLogger("flwr.fl_dp")

_ASKED_FIRST = 3
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


def lasting_names(
    grid: Grid,
    nodes: Sequence[int],
    *,
    spoken_for: Collection[str],
    window: int | None,
    timeout: float,
) -> dict[int, str]:
    """Return the name of each node under which its participations are counted across runs.

    Flower's node ids change from run to run, so nodes are asked for a lasting name. Failing closed:
    whoever is not in the result can't be told from somebody who has used up its participations, and
    must take no part. That is a node whose name another one claims, too, and, if anybody has taken
    part before, one without a name. In a first run such a node goes by its id.

    Args:
        grid: Flower's grid.
        nodes: Those that are there.
        spoken_for: Names under which the ledger has counted participations before.
        window: As for `exchange`.
        timeout: Seconds to wait for the answers.

    Raises:
        ValueError: If participations were counted by ids of an earlier run.
    """
    if any(name.startswith(_BY_ID) for name in spoken_for):
        raise ValueError(
            "the ledger has counted participations by Flower's node ids, which change from run to "
            "run, so a cap can't go on: give each node a unit-name in its --node-config, and "
            "start a new ledger with what is left of the budget"
        )
    by_id = {node: f"{_BY_ID}{node}" for node in nodes}
    # Of clients that know no such question each would log an error: some are asked first.
    first = nodes[:_ASKED_FIRST]
    if not spoken_for and not _claims(grid, first, window=window, timeout=timeout):
        logger.info("Clients tell no names: their participations are counted by Flower's node ids")
        return by_id
    claims = _claims(grid, nodes, window=window, timeout=timeout)
    claimants = Counter(claims.values())
    named = {node: name for node, name in claims.items() if claimants[name] == 1}
    if spoken_for:
        return named
    return named | {node: name for node, name in by_id.items() if node not in claims}


def _claims(
    grid: Grid, nodes: Sequence[int], *, window: int | None, timeout: float
) -> dict[int, str]:
    """Return the name that each node claims, of those that answer with a usable one."""
    claims: dict[int, str] = {}
    queries = _name_queries(nodes, timeout)
    for reply in exchange(grid, queries, window=window, timeout=timeout):
        node = reply.metadata.src_node_id
        if reply.has_error() or node in claims or node not in nodes:
            continue
        for record in reply.content.config_records.values():
            name = str(record.get("name", ""))
            if name and name.isprintable() and not name.startswith(_BY_ID):
                claims[node] = name
    return claims


def _name_queries(nodes: Sequence[int], timeout: float) -> list[Message]:
    return [
        Message(
            RecordDict({"config": ConfigRecord()}),
            dst_node_id=node,
            message_type=f"query.{IDENTITY_ACTION}",
            ttl=timeout,
        )
        for node in nodes
    ]


def unit_name(unit: Unit, names: Mapping[int, str], units_per_node: int) -> str:
    """Return the name of a unit in the ledger."""
    node = names.get(unit.node, f"{_BY_ID}{unit.node}")
    return node if units_per_node == 1 else f"{node}/{unit.number}"
