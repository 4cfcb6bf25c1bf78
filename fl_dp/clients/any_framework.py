"""Records of a node in any framework that gives each record's gradient: JAX, TensorFlow, NumPy.

    >>> def records_fn(context, config, model):  # a `RecordsFn`
    ...     def gradients(rows):
    ...         return my_gradients(model.to_numpy_ndarrays(), features[rows], labels[rows])
    ...     return RecordsInBatches(model=model, count=len(labels), gradients=gradients)
    >>> app = numpy_client_app(records=records_fn)

Gradients are clipped and added up here, in float64, so that the bound does not rest on what a
framework rounds. In PyTorch `NodeRecords` does the same with Opacus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fl_dp.updates import VectorLayout


@dataclass(frozen=True, kw_only=True)
class RecordsInBatches:
    """The records of a node, and a function that gives the gradient of each: a `RecordsOfNode`.

    Attributes:
        model: As the message brought it.
        count: How many records there are; it does not leave the node.
        gradients: Takes the numbers of `at_once` records, int64, and returns the gradient of each:
            an array `(at_once, *shape)` for each floating-point array of the model, in its order. A
            record's gradient depends on no other record: no batch statistics.
        at_once: Records of a batch. The last is filled up with record 0, which is not added, so
            that a compiled function sees one shape, whatever number was drawn.
    """

    model: ArrayRecord
    count: int
    gradients: Callable[[NDArray[np.int64]], Sequence[NDArray[Any]]]
    at_once: int = 64

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range.
        """
        if self.count < 0 or self.at_once < 1:
            raise ValueError(
                f"count is {self.count} and at_once {self.at_once}; write at least 0 and 1"
            )

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def clipped_sum(
        self, rows: Sequence[int], clipping_norm: float
    ) -> tuple[dict[str, NDArray[np.float64]], int]:
        """Return the sum of some records' clipped gradients; see `RecordsOfNode.clipped_sum`.

        A record whose gradient is not finite counts as zero, alone.

        Raises:
            ValueError: If gradients have other shapes than one record's array for each record.
        """
        released = VectorLayout.of(self.model).released
        sums = {spec.name: np.zeros(spec.shape) for spec in released}
        contributing = 0
        for start in range(0, len(rows), self.at_once):
            taken = np.asarray(rows[start : start + self.at_once], np.int64)
            batch = np.concatenate([taken, np.zeros(self.at_once - len(taken), np.int64)])
            found = [np.asarray(each, np.float64) for each in self.gradients(batch)]
            expected = [(self.at_once, *spec.shape) for spec in released]
            if [each.shape for each in found] != expected:
                raise ValueError(
                    f"gradients have shapes {[each.shape for each in found]}, expected {expected}: "
                    "return one for each record of the batch, of each array"
                )
            flat = [each[: len(taken)].reshape(len(taken), -1) for each in found]
            norms = np.sqrt(sum(np.square(each).sum(axis=1) for each in flat))
            fit = np.isfinite(norms)
            factors = np.zeros(len(taken))
            factors[fit] = clipping_norm / np.maximum(norms[fit], clipping_norm)
            for spec, each in zip(released, flat, strict=True):
                each[~fit] = 0.0
                sums[spec.name] += (factors @ each).reshape(spec.shape)
            contributing += int(fit.sum())
        return sums, contributing
