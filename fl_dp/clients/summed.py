"""The values of a secure sum, read from a message and the node's own reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import Message, MessageType
from numpy.typing import NDArray

from fl_dp.accounting import NeighboringRelation
from fl_dp.codec import decode_text
from fl_dp.mechanisms import GaussianMechanism
from fl_dp.mechanisms.noise_share import MOST_UNITS
from fl_dp.promise import OF_RECORDS
from fl_dp.protocol.instruction import SumInstruction
from fl_dp.protocol.message_keys import (
    CONTRIBUTION_METRIC,
    SCALARS_METRIC,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
)
from fl_dp.protocol.secure_sum_messages import SUM_KEY
from fl_dp.secagg import Refused
from fl_dp.statistics.wire import query_from_json
from fl_dp.updates import BundleSum, only_array_record
from fl_dp.updates.narrow import widen

from .records import config_of, instruction_of, only_record

Values = list[NDArray[np.float64]]
"""A node's sums in their own units, one array per segment."""


@dataclass(frozen=True, kw_only=True)
class AskedSum:
    """Numbers that a message asks a node to add to a sum.

    Attributes:
        segments: Each one's size, and the largest L2 norm of one unit in it.
        sampling_rate: Rate at which each unit takes part.
        price: The sum's price to the node.
        of_one: Whether a failure of all the work can concern one unit only: of several, each would
            decide about all others.
        values: Reads them from the handler's reply, and bounds them once more.
    """

    segments: list[tuple[int, float]]
    sampling_rate: float
    price: SumInstruction
    of_one: bool
    values: Callable[[Message], Values]


def summed_of(message: Message) -> AskedSum:
    """Return what a message, its terms removed, asks for.

    Raises:
        Refused: `terms`, if it is nothing that can be summed.
        ValueError: It contradicts itself.
    """
    kind = message.metadata.message_type
    if kind.partition(".")[0] == MessageType.TRAIN:
        return _of_training(message)
    if kind in (f"{MessageType.QUERY}.{STATISTIC_ACTION}", MessageType.EVALUATE):
        return _of_statistic(message)
    raise Refused("terms", f"there is nothing to sum in a message of type '{kind}'")


def _of_training(message: Message) -> AskedSum:
    instruction = instruction_of(message)
    if instruction is None or instruction.bundle is None or instruction.secure_sum is None:
        raise Refused("terms", "the message does not say how units are clipped, and at what price")
    if instruction.sampling_rate is None or instruction.asks_each_unit:
        raise Refused("terms", "the units of a secure sum are told alike, and report nothing")
    if instruction.client_noise is not None or instruction.encoding.encodes:
        raise Refused("terms", "a secure sum has its own noise and its own encoding")
    # A record is charged for what it moves itself, or as what it moves of its client's update.
    if instruction.of_records != (instruction.secure_sum.unit in OF_RECORDS) and (
        instruction.of_records or instruction.secure_sum.neighboring_relation != "replace-one"
    ):
        raise Refused("terms", "what is charged for is not the unit that is clipped")
    _require_charged(instruction.secure_sum)
    _, model = only_record(message.content.array_records, "ArrayRecord")
    layout = instruction.layout_of(widen(model))
    bundle, most = instruction.bundle, instruction.max_units
    if most > min(bundle.max_units, MOST_UNITS):
        raise Refused(
            "terms", f"a node does not add up {most} units as exactly as they are charged"
        )
    norms = [mechanism.clipping_norm for mechanism in bundle.scalar_mechanisms]

    def values(reply: Message) -> Values:
        sums = BundleSum(bundle, layout, np.zeros(layout.size))
        _, metrics = only_record(reply.content.metric_records, "MetricRecord")
        scalars = cast(list[float], metrics.get(SCALARS_METRIC, []))
        # Clipped once more, as nobody bounds the sum after this.
        sums.add_node(only_array_record(reply.content), scalars, max_units=most)
        totals = [sums.updates.total * bundle.updates.grid]
        for total, mechanism in zip(sums.scalars, bundle.scalar_mechanisms, strict=True):
            totals.append(np.array([total * mechanism.grid]))
        return totals

    return AskedSum(
        segments=[(layout.size, bundle.updates.clipping_norm), *((1, norm) for norm in norms)],
        sampling_rate=instruction.sampling_rate,
        price=instruction.secure_sum,
        of_one=most == 1,
        values=values,
    )


def _of_statistic(message: Message) -> AskedSum:
    config = config_of(message)
    if STATISTIC_QUERY_KEY not in config or SUM_KEY not in config:
        raise Refused("terms", "the message does not say what is asked, and what it may cost")
    query = query_from_json(str(config[STATISTIC_QUERY_KEY]))
    size, norm = query.dimension, query.l2_sensitivity
    clipped = GaussianMechanism(noise_multiplier=1.0, clipping_norm=norm)

    def values(reply: Message) -> Values:
        _, metrics = only_record(reply.content.metric_records, "MetricRecord")
        vectors = np.array(metrics[CONTRIBUTION_METRIC], dtype=np.float64).reshape(-1, size)
        total = np.zeros(size)
        for vector in vectors:  # one per unit, in whole steps, whose sum is exact
            total += clipped.encode(vector)
        return [total * clipped.grid]

    price = decode_text(SumInstruction, str(config[SUM_KEY]))
    # One record can change its client's whole answer, which replace-one alone charges.
    if price.unit != "client" and price.neighboring_relation != "replace-one":
        raise Refused("terms", "what is charged for is not the unit that is clipped")
    _require_charged(price)
    return AskedSum(
        segments=[(size, norm)],
        sampling_rate=1.0,
        price=price,
        of_one=True,  # units are asked one by one, and all fail only if each does
        values=values,
    )


def _require_charged(price: SumInstruction) -> None:
    """Check that the price covers what one unit moves the sum by.

    A node sums its first units, up to a number that the server names; a unit may be alone.
    """
    if price.neighboring_relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise Refused(
            "terms",
            "add-or-remove-one neighbours are charged too little: a unit that leaves moves the "
            "next one in beyond max_units, and takes its node's share of the noise along if it is "
            "alone; ask for zero-out",
        )
