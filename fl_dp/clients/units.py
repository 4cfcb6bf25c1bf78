"""A node that hosts several privacy units and answers with one sum of their clipped updates.

    >>> units = NodeUnits(
    ...     client_fn=lambda context, unit: MyNumPyClient(context, unit),
    ...     count=lambda context, config: 50,
    ... )
    >>> app = numpy_client_app(lambda context: MyNumPyClient(context, 0), units=units)

Each unit is clipped on its own and on an integer grid, even if units are trained together
(`NodeUnits.train_many`). So the sum is exact, and a unit moves it by at most the clipping norm, as
on a node of its own. Where a node's time would show its secret coins, each is trained in its own
process and slot (`Slots`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import Client, NumPyClient
from numpy.typing import NDArray

from fl_dp.mechanisms import GaussianBundle, SecureRandom
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import SCALARS_METRIC, UTILITY_METRIC
from fl_dp.updates import BundleSum, RefusedUpdate
from fl_dp.updates.clipped_sum import Norms, Rows, read_norms
from fl_dp.user_code import Contained, own_chance

from .coins import coins_of
from .owner.cut_off import Apart
from .owner.slots import Slots, present_slots
from .records import Config
from .simulated_failures import note_failure, unless_simulated
from .trained_unit import TrainedRows, TrainedUnit, numpy_client_of, train_unit

logger = logging.getLogger("flwr.fl_dp.client")

_FAILED = "unit %d failed and contributes zero"

TrainMany = Callable[[Context, Sequence[int], ArrayRecord, Config], Iterable[TrainedRows]]
"""Trains units of a node: takes its context, their numbers, a model and a message's config."""


@dataclass(frozen=True, kw_only=True)
class NodeUnits:
    """The privacy units that a node hosts, numbered from 0.

    Attributes:
        client_fn: Makes one unit's client from the node's `Context` and the unit's index. It must
            use that unit's data only, and nothing that another unit left behind.
        count: Returns the number of units from the node's `Context` and the message's config. The
            server may learn it, so it must not depend on who takes part.
        train_many: Trains several units at once, for speed; None: one by one. `client_fn` trains
            units that it leaves out, and all remaining ones if it raises. A row, or its absence,
            must depend on that unit's data only, an exception on nobody's. Not used in slots:
            there one unit's time would decide about others.
    """

    client_fn: Callable[[Context, int], NumPyClient | Client]
    count: Callable[[Context, Config], int]
    train_many: TrainMany | None = None

    @classmethod
    def single(cls, client_fn: Callable[[Context], NumPyClient | Client]) -> NodeUnits:
        """The one unit of a node that is a unit itself."""
        return cls(client_fn=lambda context, _: client_fn(context), count=lambda *_: 1)

    def client_of(self, context: Context, unit: int) -> NumPyClient:
        """One unit's client.

        Raises:
            TypeError: `client_fn` returns no client.
        """
        return numpy_client_of(self.client_fn(context, unit))


def sum_of_units(
    instruction: RoundInstruction,
    model: ArrayRecord,
    config: Config,
    context: Context,
    units: NodeUnits,
) -> tuple[ArrayRecord, dict[str, list[float]]]:
    """Train the units that take part, clip each, and return their sums in grid steps.

    Privacy: for one unit on this node, zero-out neighbours, the sums move by at most the bundle's
    clipping norms, whatever the unit does. A unit that is not hosted, raises, or returns anything
    malformed or not finite contributes exactly zero to every sum, and only the node's log says so.
    This supposes that units do not meet in training, as `client_fn` and `train_many` promise. A
    unit's weight is applied before clipping, as on a node of one unit. The server, trusted with
    the sums, adds the noise. With a sampling rate it is not told who or how many took part. The
    coins are secret, and a reply has the same form for none as for all. In slots a unit that
    overruns its own contributes zero, alone. Without slots the time of training is not hidden from
    the server. A sum without any unit is zero, which is never hidden.

    The instruction has `units` or a `sampling_rate`, and a bundle. Hosted units beyond its
    `max_units` take no part. Each client gets a copy of the config; units share the context.

    Returns:
        The sum of updates as `ClippedSum.steps` gives it, and the reply's metrics. These are the
        sums of scalars and, if asked for, utilities: one per unit asked, NaN where there is none.

    Raises:
        ValueError: The instruction contradicts itself. It never depends on a unit.
        Overrun: A slot began late.
    """
    bundle = _bundle_of(instruction)
    hosted = min(units.count(context, config), instruction.max_units)
    node = _NodeSums(instruction, bundle, model)
    chosen = _chosen(instruction, hosted)
    for unit in chosen:
        if 0 <= unit < hosted:
            node.remaining.append(unit)  # until it is in the sums: no unit is added twice
        else:
            logger.warning("this node does not host unit %d, which contributes zero", unit)

    def train(unit: int) -> TrainedUnit:
        with own_chance(coins_of(context, config, unit)):
            return train_unit(units.client_of(context, unit), model, config)

    slots = present_slots()
    if slots is not None:
        node.add_in(slots, train)
    elif units.train_many is not None and hosted > 1:
        with Contained("training units together failed: those left are trained one by one"):
            for rows in units.train_many(context, tuple(node.remaining), model, dict(config)):
                node.add_rows(rows)
    line = unless_simulated(_FAILED)
    for unit in tuple(node.remaining):
        with Contained(line, unit) as attempt:
            node.add(unit, train(unit))
        if attempt.failure is not None:
            node.failures.append(attempt.failure)
    if node.failures:
        note_failure(node.failures[0], whole_node=len(node.failures) == len(chosen))
    node.log_norms()
    metrics = {SCALARS_METRIC: node.sums.scalars.tolist()}
    if instruction.asks_each_unit:
        metrics[UTILITY_METRIC] = [node.utilities.get(unit, math.nan) for unit in chosen]
    return node.sums.updates.steps(), metrics


class _NodeSums:
    """A node's sums over its units; a unit is in all of them or in none.

    Attributes:
        sums: Clipped updates and their scalars.
        utilities: Utilities of the trained units.
        remaining: Units that take part and are in no sum yet.
        failures: The exception of each failed unit.
    """

    def __init__(
        self, instruction: RoundInstruction, bundle: GaussianBundle, model: ArrayRecord
    ) -> None:
        """Start from zero."""
        layout = instruction.layout_of(model)
        self.instruction = instruction
        self.model = model
        self.sums = BundleSum(bundle, layout, layout.flatten(model))
        self.utilities: dict[int, float] = {}
        self.remaining: list[int] = []
        self.failures: list[BaseException] = []
        self._unread: list[tuple[list[int], Norms]] = []

    def add(self, unit: int, trained: TrainedUnit) -> None:
        """Add one unit; if that raises, it contributes zero."""
        measured = trained.measured(self.sums.bundle)
        # Before the arrays are checked: one record could spoil these, and not the report.
        self.utilities[unit] = trained.asked_of(self.instruction)
        arrays = trained.weighted_arrays(self.model, self.instruction.weight_cap)
        norm = self.sums.add(arrays, measured)  # nothing after it may fail
        self._log_unless_finite(unit, norm)

    def add_in(self, slots: Slots, train: Callable[[int], TrainedUnit]) -> None:
        """Train the remaining units, each in its own slot and process, and add them.

        Raises:
            Overrun: A slot began late.
        """
        layout = self.sums.updates.layout
        size = layout.size + self.sums.bundle.scalars
        sums: dict[int, NDArray[np.float64]] = {}
        # There are `max_units` slots, so that no unit's time depends on the number of units.
        for unit, until in slots.waited(self.instruction.max_units):
            if unit not in self.remaining:
                continue
            summed = Apart(partial(self._alone, unit, train), size, until=until).result()
            if summed is None:
                logger.error("unit %d failed or overran its slot, and contributes zero", unit)
            else:
                sums[unit] = summed
        self.remaining = []
        for unit, summed in sums.items():
            arrays = layout.in_float64().unflatten(summed[: layout.size])
            try:
                self.sums.add_node(arrays, summed[layout.size :].tolist(), max_units=1)
            except RefusedUpdate:
                logger.exception("unit %d contributes zero", unit)

    def _alone(self, unit: int, train: Callable[[int], TrainedUnit]) -> NDArray[np.float64]:
        node = _NodeSums(self.instruction, self.sums.bundle, self.model)
        node.add(unit, train(unit))
        return np.concatenate([node.sums.updates.total, node.sums.scalars])

    def add_rows(self, rows: TrainedRows) -> None:
        """Add units that were trained together; one with an invalid report contributes zero.

        Raises:
            ValueError: A unit is not remaining or comes twice, or rows are no models. Nothing was
                added.
        """
        if len(set(rows.units)) < len(rows.units) or not set(rows.units) <= set(self.remaining):
            raise ValueError("train_many returned a unit twice, or one that it was not asked for")
        accepted: list[tuple[int, int, dict[str, float]]] = []
        weights: list[float] = []
        utilities: dict[int, float] = {}
        for row, (unit, report) in enumerate(zip(rows.units, rows.reports, strict=True)):
            with Contained(unless_simulated(_FAILED), unit) as attempt:
                measured = report.measured(self.sums.bundle)
                utilities[unit] = report.asked_of(self.instruction)
                weights.append(report.weight(self.instruction.weight_cap))
                accepted.append((row, unit, measured))
            if attempt.failure is not None:
                self.failures.append(attempt.failure)
        vectors = rows.vectors
        if len(accepted) < len(rows.units):
            vectors = vectors[[row for row, _, _ in accepted]]
        norms = self.sums.add_rows(
            self._weighted(vectors, np.array(weights)),
            [measured for _, _, measured in accepted],
        )
        self.utilities |= utilities
        self.remaining = [unit for unit in self.remaining if unit not in set(rows.units)]
        self._unread.append(([unit for _, unit, _ in accepted], norms))

    def log_norms(self) -> None:
        """Log which rows were not finite; it waits for their device."""
        for units, norms in self._unread:
            for unit, norm in zip(units, read_norms(norms), strict=True):
                self._log_unless_finite(unit, norm)

    def _weighted(self, vectors: Rows, weights: NDArray[np.float64]) -> Rows:
        """The rows of `TrainedUnit.weighted_arrays`."""
        light = weights != 1.0
        if not light.any():
            return vectors
        origin = self.sums.updates.layout.flatten(self.model)
        if not isinstance(vectors, np.ndarray):
            from fl_dp.accelerator.device_sum import weighted_rows  # with torch

            return weighted_rows(vectors, origin, weights)
        weighted = vectors.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            update = vectors[light] - origin
            weighted[light] = origin + weights[light, np.newaxis] * update
        return weighted

    def _log_unless_finite(self, unit: int, norm: float) -> None:
        if not math.isfinite(norm):
            logger.warning("the update of unit %d is not finite and contributes zero", unit)


def _bundle_of(instruction: RoundInstruction) -> GaussianBundle:
    """Return the bundle of an instruction to several units, after checks."""
    if instruction.bundle is None:
        raise ValueError("to sum its units a node needs to know how to clip them: send a bundle")
    if instruction.units is not None:
        if instruction.sampling_rate is not None:
            raise ValueError("either the server names the units or the node draws them, not both")
        if len(set(instruction.units)) != len(instruction.units):
            raise ValueError("a unit takes part once: twice would double what it can move")
    elif instruction.asks_each_unit:
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
    """The units that take part: named, or those whose secret coin came up."""
    if instruction.units is not None:
        return instruction.units
    assert instruction.sampling_rate is not None  # it asks for a sum
    coins = SecureRandom().bernoulli(instruction.sampling_rate, max(hosted, 0))
    return tuple(int(unit) for unit in np.flatnonzero(coins))
