"""Privacy units after training on the node, and what a server may learn of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.client import Client, NumPyClient

from fl_dp.documents import real_number
from fl_dp.mechanisms import GaussianBundle
from fl_dp.option_errors import require_positive
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.updates import VectorLayout
from fl_dp.updates.arrays import own_copy, plain_array
from fl_dp.updates.clipped_sum import Rows

from .records import Config, metrics_in, number_in

RECORDS_UTILITY = "records"
"""The utility that needs no metric: the unit's number of records."""


@dataclass(frozen=True, kw_only=True)
class UnitReport:
    """A unit's report on its training; it stays on the node unless asked for.

    Attributes:
        num_examples: Number of records trained on.
        metrics: Metrics of `NumPyClient.fit`; only those asked for are used.
    """

    num_examples: int
    metrics: Mapping[str, Any]

    def weight(self, cap: float | None) -> float:
        """Return `min(num_examples / cap, 1)`; 1 without a cap.

        Raises:
            ValueError: The cap is not positive, or the number of records is negative or no number.
        """
        if cap is None:
            return 1.0
        require_positive(weight_cap=cap)
        records = real_number(self.num_examples)
        if not records >= 0.0:  # NaN is refused, too
            raise ValueError(f"fit returned {self.num_examples!r} as its number of records")
        return min(records / cap, 1.0)

    def measured(self, bundle: GaussianBundle | None) -> dict[str, float]:
        """The metrics named by `bundle` that are numbers."""
        asked = () if bundle is None else bundle.metrics
        values = {metric.name: number_in(self.metrics, metric.name) for metric in asked}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def asked_of(self, instruction: RoundInstruction) -> float:
        """The utility that an instruction asks for, NaN if there is none.

        `records` is the number of records; any other name is a metric of `fit`.
        """
        name = instruction.utility
        if name == RECORDS_UTILITY:
            return real_number(self.num_examples)
        return math.nan if name is None else number_in(self.metrics, name)


@dataclass(frozen=True, kw_only=True)
class TrainedUnit(UnitReport):
    """Result of one `NumPyClient.fit`.

    Attributes:
        arrays: The trained model, under the message's names.
    """

    arrays: ArrayRecord

    def weighted_arrays(self, model: ArrayRecord, cap: float | None) -> ArrayRecord:
        """Return the model plus the update times the unit's weight, in the model's dtypes.

        Raises:
            ValueError: As `weight`, or the arrays are not the model's.
        """
        weight = self.weight(cap)
        if weight == 1.0:
            return self.arrays
        layout = VectorLayout.of(model)
        origin = layout.flatten(model)
        with np.errstate(over="ignore", invalid="ignore"):  # of a mask's infinities, too
            update = layout.flatten(self.arrays) - origin  # a weighted model would pull to zero
            weighted = origin + weight * update
        return layout.merge(layout.unflatten(weighted), self.arrays)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRows:
    """Several units that were trained together.

    Attributes:
        units: Their numbers on the node.
        reports: Their reports, in the same order.
        vectors: Their trained models, float32 or float64 of shape `(len(units), d)`: the message's
            floating-point arrays, flat, in its order. Never changed. A float32 tensor on a GPU is
            clipped and summed there; others are on the CPU.
    """

    units: Sequence[int]
    reports: Sequence[UnitReport]
    vectors: Rows

    def __post_init__(self) -> None:
        """Check the lengths.

        Raises:
            ValueError: There is not one report and one row per unit.
        """
        counts = len(self.units), len(self.reports), len(self.vectors)
        if len(set(counts)) > 1:
            raise ValueError(f"{counts} units, reports and rows: give one of each a unit")


def numpy_client_of(client: object) -> NumPyClient:
    """Return the `NumPyClient`, even if `to_client()` made it a `Client`.

    Raises:
        TypeError: It is another kind of `Client`, or can't be trained.
    """
    inner = getattr(client, "numpy_client", client)  # Flower's `to_client` stores it there
    if isinstance(inner, Client) or not hasattr(inner, "fit"):
        raise TypeError(
            "client_fn must return a NumPyClient, or what its to_client() returns, got "
            f"{type(client).__name__}: override fit of flwr.client.NumPyClient"
        )
    return cast(NumPyClient, inner)


def train_unit(client: NumPyClient, model: ArrayRecord, config: Config) -> TrainedUnit:
    """Train a client, on its own copies of arrays and config.

    Raises:
        ValueError: It returns another number of arrays than the model has, or the model lacks
            parameters that a client with a `require_sent` shares.
    """
    require_sent = getattr(client, "require_sent", None)
    if require_sent is not None:  # a `NumPyClient` sees no names
        require_sent(model.keys(), config)
    parameters, num_examples, metrics = client.fit(
        [own_copy(array) for array in model.values()], dict(config)
    )
    if len(parameters) != len(model):
        raise ValueError(f"fit returned {len(parameters)} arrays, the model has {len(model)}")
    arrays = {}
    for (name, received), values in zip(model.items(), parameters, strict=True):
        arrays[name] = _array_like(received, values)
    return TrainedUnit(
        arrays=ArrayRecord(arrays), num_examples=num_examples, metrics=metrics_in(metrics)
    )


def _array_like(received: Array, values: Any) -> Array:
    """A trained array; 16-bit integers that represent bfloat16 have its name again."""
    if str(getattr(values, "dtype", None)) == "torch.bfloat16":
        values = values.float()  # NumPy has no such dtype
    array = plain_array(np.asarray(values))
    if received.dtype == "bfloat16" and array.dtype in ("uint16", "int16"):
        array.dtype = received.dtype
    return array
