"""Who can be asked: privacy units, and the nodes that host them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fl_dp.updates.instruction import IDENTITY_ACTION

from .exchange import exchange

logger = logging.getLogger("flwr.fl_dp")

_ASKED_FIRST = 3


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


def by_node(units: Iterable[Unit]) -> dict[int, tuple[int, ...]]:
    """Return the units' numbers for each node that hosts any of them."""
    found: dict[int, list[int]] = {}
    for unit in units:
        found.setdefault(unit.node, []).append(unit.number)
    return {node: tuple(sorted(numbers)) for node, numbers in found.items()}


def ask_names(
    grid: Grid, nodes: Sequence[int], *, window: int | None, timeout: float
) -> dict[int, str]:
    """Ask each node for the name under which it is known across runs.

    Flower's node ids change from run to run. Whoever does not answer, or answers what somebody else
    answered, goes by its id: then nothing is carried over for it.
    """
    # Of clients that know no such question each would log an error: some are asked first.
    if not any(
        not reply.has_error()
        for reply in exchange(
            grid, _name_queries(nodes[:_ASKED_FIRST], timeout), window=window, timeout=timeout
        )
    ):
        logger.info("Clients tell no names: across runs they are told apart by Flower's node ids")
        return {}
    messages = _name_queries(nodes, timeout)
    ids = {str(node) for node in nodes}
    claimed: dict[str, list[int]] = {}
    for reply in exchange(grid, messages, window=window, timeout=timeout):
        if reply.has_error():
            continue
        for record in reply.content.config_records.values():
            name = str(record.get("name", ""))
            # A name that is another node's id would make the two one unit in the ledger.
            if name and name.isprintable() and name not in ids:
                claimed.setdefault(name, []).append(reply.metadata.src_node_id)
    return {owners[0]: name for name, owners in claimed.items() if len(owners) == 1}


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
    node = names.get(unit.node, str(unit.node))
    return node if units_per_node == 1 else f"{node}/{unit.number}"
