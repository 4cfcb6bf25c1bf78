"""A node whose units are its records: it answers with the sum of their clipped gradients.

    >>> app = numpy_client_app(
    ...     records=NodeRecords(
    ...         model_fn=lambda context, config: MyModel(),
    ...         loader_fn=lambda context, config: DataLoader(my_records()),
    ...     )
    ... )

The sum over all nodes, divided by its expected number of records, is the gradient of one DP-SGD
step on the union of their records. The server optimizer takes that step. A node's sum can be of a
single record, so it leaves only masked and noised (`secure_sum_mod`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray

from fl_dp.mechanisms import GaussianBundle, SecureRandom
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import SCALARS_METRIC
from fl_dp.user_code import own_chance

from .owner.slots import present_slots
from .records import Config

logger = logging.getLogger("flwr.fl_dp.client")

# Relative; ten times the error of sums of clipped gradients (`RecordsOfNode.clipped_sum`).
_MARGIN = 1e-5


class RecordsOfNode(Protocol):
    """A node's records and their gradients at one message's model."""

    def __len__(self) -> int:
        """Return the number of records; it does not leave the node."""

    def clipped_sum(
        self, rows: Sequence[int], clipping_norm: float
    ) -> tuple[Mapping[str, NDArray[np.float64]], int]:
        """Return the sum of some records' gradients, each clipped on its own.

        Privacy: leaving a record out moves the sum by at most `clipping_norm` (L2 over all arrays,
        to a relative 1e-6), the count by one, and nothing else.

        Args:
            rows: Numbers of the records; may be empty.
            clipping_norm: L2 bound on one gradient.

        Returns:
            An array for each floating-point array of the model, by its name in the message, and the
            number of records in the sum.
        """


RecordsFn = Callable[[Context, Config, ArrayRecord], RecordsOfNode]
"""Returns a node's records from its context, a message's config and its model."""


def sum_of_records(
    instruction: RoundInstruction,
    model: ArrayRecord,
    config: Config,
    context: Context,
    records_fn: RecordsFn,
) -> tuple[ArrayRecord, dict[str, list[float]]]:
    """Return the sum over the records whose secret coin came up, in grid steps.

    Privacy: for one record on this node, zero-out neighbours, the sums move by at most the bundle's
    clipping norms, as long as `RecordsOfNode.clipped_sum` keeps its promise. The reply has the same
    form for no record as for all, and does not tell their number. Where a node's time would show
    its coins, gradients of records not drawn are computed, too, and dropped. So the number of
    records is the same for every outcome of the coins. A physical batch size can make it a batch
    more or less per pass.

    The instruction has `of_records`, a `sampling_rate` and a bundle. Records beyond its
    `max_units` take no part. `records_fn` gets a copy of the config.

    Returns:
        The negative sum of gradients, as `ClippedSum.steps` gives a sum of updates, and the
        reply's metrics: the sums of scalars.

    Raises:
        ValueError: The instruction contradicts itself, the records are other units than the
            plan's, or the sum is not finite or not of this model.
    """
    bundle, rate = _bundle_of(instruction), instruction.sampling_rate
    assert rate is not None  # checked with the bundle
    layout = instruction.layout_of(model)
    norm = inner_norm(bundle, layout.size)
    with own_chance():
        records = records_fn(context, dict(config), model)
    asked, unit = instruction.secure_sum, getattr(records, "unit", "record")
    if unit != (asked.unit if asked is not None else "record"):
        raise ValueError(
            f"the sum is charged for another unit than this app's {unit}: write the plan's unit in "
            "NodeRecords(unit=...)"
        )
    coins = SecureRandom().bernoulli(rate, min(len(records), instruction.max_units))
    with own_chance():
        gradients, count = records.clipped_sum(np.flatnonzero(coins).tolist(), norm)
    if present_slots() is not None:
        # In parts of about the drawn number, which fits into memory.
        parts = min(math.ceil(1.0 / rate), max(1, len(coins)))
        for others in np.array_split(np.flatnonzero(~coins), parts):
            records.clipped_sum(others.tolist(), norm)
    total = np.empty(layout.size)
    for spec in layout.released:
        if spec.name not in gradients or gradients[spec.name].shape != spec.shape:
            raise ValueError(f"there is no gradient of array '{spec.name}' in its shape")
        total[spec.start : spec.stop] = gradients[spec.name].ravel()
    if not np.isfinite(total).all():
        raise ValueError("the sum of clipped gradients is not finite")
    # Negative, to descend. `inner_norm` allows for rounding to the grid, by less than a step.
    steps = np.trunc(total / -bundle.updates.grid)
    # A record in the sum counts as one in each scalar; there is at most one scalar, the count.
    scalars = bundle.scalar_steps([1.0] * bundle.scalars) * count
    arrays = layout.in_float64().unflatten(steps)
    return arrays, {SCALARS_METRIC: scalars.tolist()}


def inner_norm(bundle: GaussianBundle, size: int) -> float:
    """Return a gradient's clipping norm such that rounding stays within the charged norm.

    Args:
        bundle: The sum's charged release, with its grid.
        size: Number of coordinates.

    Raises:
        ValueError: Rounding that many coordinates would take more than half of the norm.
    """
    norm = bundle.updates.clipping_norm
    # Rounded sums of neighbours are less than a step further apart in each coordinate.
    rounding = bundle.updates.grid * math.sqrt(size)
    if rounding > norm / 2.0:
        raise ValueError(f"{size} coordinates are too many for a grid of {bundle.updates.grid:.3g}")
    return norm * (1.0 - _MARGIN) - rounding


def _bundle_of(instruction: RoundInstruction) -> GaussianBundle:
    """Return the bundle of an instruction about records, after checks."""
    bundle = instruction.bundle
    if bundle is None or instruction.sampling_rate is None:
        raise ValueError("to sum gradients a node needs a bundle and a sampling_rate")
    if instruction.units is not None:
        raise ValueError("the server does not know of single records, and can't name them")
    if len(bundle.clipping_norms) != 1 or bundle.unclipped_bit or instruction.asked_metrics:
        raise ValueError("a record's gradient has one clipping norm, and nothing goes with it")
    if instruction.weight_cap is not None:
        raise ValueError("a record has no weight")
    if instruction.max_units > bundle.max_units:
        raise ValueError(
            f"at this noise at most {bundle.max_units} records can be summed exactly, got "
            f"max_units {instruction.max_units}"
        )
    return bundle
