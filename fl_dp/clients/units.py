"""A node that hosts several privacy units and answers with one sum of their clipped updates.

    >>> units = NodeUnits(
    ...     client_fn=lambda context, unit: MyNumPyClient(context, unit),
    ...     count=lambda context, config: 50,
    ... )
    >>> app = numpy_client_app(lambda context: MyNumPyClient(context, 0), units=units)

Each unit is clipped on its own and on an integer grid, so the sum is exact and a unit moves it by
no more than the clipping norm, as if it had a node to itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient

from fl_dp.mechanisms import GaussianBundle, SecureRandom
from fl_dp.mechanisms.checks import require_positive
from fl_dp.updates import VectorLayout
from fl_dp.updates.clipped_sum import ClippedSum
from fl_dp.updates.instruction import SCALARS_METRIC, UTILITY_METRIC, RoundInstruction

from .records import Config
from .trained_unit import TrainedUnit, train_unit

logger = logging.getLogger("flwr.fl_dp.client")


@dataclass(frozen=True, kw_only=True)
class NodeUnits:
    """The privacy units that a node hosts, numbered from 0.

    Attributes:
        client_fn: Makes the client of one unit from the node's `Context` and the unit's index. It
            must use that unit's data only: neither another's, nor what another left behind.
        count: How many units the node hosts, from its `Context` and the message's config. The
            server may know the number, so it must not depend on who takes part.
    """

    client_fn: Callable[[Context, int], NumPyClient]
    count: Callable[[Context, Config], int]

    @classmethod
    def single(cls, client_fn: Callable[[Context], NumPyClient]) -> NodeUnits:
        """Return the one unit of a node that is a unit itself."""
        return cls(client_fn=lambda context, _: client_fn(context), count=lambda *_: 1)


def sum_of_units(
    instruction: RoundInstruction,
    model: ArrayRecord,
    config: Config,
    context: Context,
    units: NodeUnits,
) -> tuple[ArrayRecord, dict[str, list[float]]]:
    """Train the units that take part, clip each, and return their sums in grid steps.

    Privacy: for one unit on this node, zero-out neighbours, the sums move by at most the bundle's
    clipping norms whatever the unit does: a unit that is not hosted, raises, or returns anything
    malformed or not finite contributes exactly zero to every sum, and only the node's log says so.
    Its weight is applied before it is clipped, as on a node of one unit. The noise is added by the
    server, which is trusted with the sums. With a sampling rate the server is not told who took
    part or how many did: the coins are secret and a reply has the same form for none as for all.
    Neither how long it took is hidden from the server, nor that a sum without any unit is zero.

    Args:
        instruction: With `units` or a `sampling_rate`, and a bundle.
        model: As sent by the server.
        config: Of the message; each client gets a copy.
        context: The node's; shared by its units.
        units: Whom the node hosts; of more than `max_units` those beyond take no part.

    Returns:
        The sum of updates as `ClippedSum.steps` gives it, and the metrics of the reply: the sums of
        scalars and, if utilities are asked for, one a unit asked, NaN where there is none.

    Raises:
        ValueError: If the instruction contradicts itself. It never depends on a unit.
    """
    bundle = _bundle_of(instruction)
    hosted = min(units.count(context, config), instruction.max_units)
    layout = VectorLayout.of(model)
    total = ClippedSum(
        layout,
        layout.flatten(model),
        grid=bundle.updates.grid,
        clipping_norms=bundle.clipping_norms,
    )
    scalars = np.zeros(bundle.scalars)
    chosen = _chosen(instruction, hosted)
    utilities = [math.nan] * len(chosen)
    for place, unit in enumerate(chosen):
        if not 0 <= unit < hosted:
            logger.warning("this node does not host unit %d, which contributes zero", unit)
            continue
        try:
            trained = train_unit(units.client_fn(context, unit), model, config)
            measured = trained.measured(bundle)
            # A report does not depend on how training went: one record could spoil that alone.
            utilities[place] = _utility(trained, instruction)
            arrays = trained.weighted_arrays(model, instruction.weight_cap)
            norm = total.add(arrays)  # last of what may fail: a unit is in all sums or in none
        except Exception:
            logger.exception("unit %d failed and contributes zero", unit)
            continue
        if not math.isfinite(norm):
            logger.warning("the update of unit %d is not finite and contributes zero", unit)
            continue
        scalars += bundle.scalar_steps(bundle.scalar_values(norm, measured))
    metrics = {SCALARS_METRIC: scalars.tolist()}
    if instruction.utility is not None:
        metrics[UTILITY_METRIC] = utilities
    return total.steps(), metrics


def _bundle_of(instruction: RoundInstruction) -> GaussianBundle:
    """Check what is asked of a node with several units.

    Raises:
        ValueError: If it contradicts itself.
    """
    if instruction.bundle is None:
        raise ValueError("to sum its units a node needs to know how to clip them: send a bundle")
    if instruction.report_weight:
        raise ValueError(
            "a node that sums its units applies their weights itself: report_weight needs one "
            "unit a node"
        )
    if instruction.weight_cap is not None:
        require_positive(weight_cap=instruction.weight_cap)
    if instruction.units is not None:
        if instruction.sampling_rate is not None:
            raise ValueError("either the server names the units or the node draws them, not both")
        if len(set(instruction.units)) != len(instruction.units):
            raise ValueError("a unit takes part once: twice would double what it can move")
    elif instruction.utility is not None:
        raise ValueError(
            "utilities would tell how many units the node has drawn: ask without a sampling_rate"
        )
    if instruction.max_units > instruction.bundle.max_units:
        raise ValueError(
            f"at this noise at most {instruction.bundle.max_units} units can be summed "
            f"exactly, got max_units {instruction.max_units}"
        )
    return instruction.bundle


def _chosen(instruction: RoundInstruction, hosted: int) -> tuple[int, ...]:
    """Return the units that take part: the named ones, or those whose secret coin came up."""
    if instruction.units is not None:
        return instruction.units
    assert instruction.sampling_rate is not None  # it asks for a sum
    coins = SecureRandom().bernoulli(instruction.sampling_rate, max(hosted, 0))
    return tuple(int(unit) for unit in np.flatnonzero(coins))


def _utility(trained: TrainedUnit, instruction: RoundInstruction) -> float:
    return math.nan if instruction.utility is None else trained.utility(instruction.utility)
