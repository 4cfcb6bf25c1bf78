"""Records of a node in any framework that gives each record's gradient: JAX, TensorFlow, NumPy.

    >>> def records_fn(context, config, model):  # a `RecordsFn`
    ...     def gradients(rows):
    ...         return my_gradients(model.to_numpy_ndarrays(), features[rows], labels[rows])
    ...     return RecordsInBatches(model=model, count=len(labels), gradients=gradients)
    >>> app = numpy_client_app(records=records_fn)

Gradients are clipped and added up here, in float64: the bound depends on no framework's rounding.
In PyTorch `NodeRecords` does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fl_dp.updates import VectorLayout
from fl_dp.user_code import Contained, own_chance


@dataclass(frozen=True, kw_only=True)
class RecordsInBatches:
    """A node's records, and a function that gives each one's gradient: a `RecordsOfNode`.

    Attributes:
        model: The model as the message brought it.
        count: Number of records; it does not leave the node.
        gradients: Maps the numbers of `at_once` records, int64, to their gradients: an array
            `(at_once, *shape)` for each floating-point array of the model, in its order.
        at_once: Records per batch, all of one shape for a compiled function. Copies of its records
            fill up the last batch, and are not added. More than 1 declares that a record's
            gradient depends on no other record of its batch, as in `jax.vmap(jax.grad(loss))`;
            batch statistics break it.
    """

    model: ArrayRecord
    count: int
    gradients: Callable[[NDArray[np.int64]], Sequence[NDArray[Any]]]
    at_once: int = 1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A number is out of range.
        """
        if self.count < 0 or self.at_once < 1:
            raise ValueError(
                f"count is {self.count} and at_once {self.at_once}; write at least 0 and 1"
            )

    def __len__(self) -> int:
        """Number of records."""
        return self.count

    def clipped_sum(
        self, rows: Sequence[int], clipping_norm: float
    ) -> tuple[dict[str, NDArray[np.float64]], int]:
        """See `RecordsOfNode.clipped_sum`.

        A record whose gradient can't be computed, has another shape or is not finite counts as
        zero, alone.
        """
        sums = {spec.name: np.zeros(spec.shape) for spec in VectorLayout.of(self.model).released}
        contributing = 0
        line: str | None = "a record has no gradient, and counts as zero"

        def add(rows: Sequence[int]) -> None:
            nonlocal contributing
            clipped, count = self._clipped(rows, clipping_norm)
            for total, part in zip(sums.values(), clipped, strict=True):
                total += part.reshape(total.shape)
            contributing += count

        with own_chance() as seed_again:
            for start in range(0, len(rows), self.at_once):
                batch = rows[start : start + self.at_once]
                seed_again()
                with Contained() as attempt:  # a record that fails shows when it is alone
                    add(batch)
                if attempt.failure is None:
                    continue
                for row in batch:
                    seed_again()
                    with Contained(line) as attempt:
                        add([row])
                    if attempt.failure is not None:
                        line = None  # it may be every record
        return sums, contributing

    def _clipped(
        self, rows: Sequence[int], clipping_norm: float
    ) -> tuple[list[NDArray[np.float64]], int]:
        """Each array's sum of clipped gradients, flat, and its number of records."""
        batch = np.resize(np.asarray(rows, np.int64), self.at_once)
        gradients = [np.asarray(gradient, np.float64) for gradient in self.gradients(batch)]
        released = VectorLayout.of(self.model).released
        expected = [(self.at_once, *spec.shape) for spec in released]
        shapes = [gradient.shape for gradient in gradients]
        if shapes != expected:
            raise ValueError(
                f"gradients have shapes {shapes}, expected {expected}: return one for each record "
                "of the batch, of each array"
            )
        flat = [gradient[: len(rows)].reshape(len(rows), -1) for gradient in gradients]
        norms = np.sqrt(sum(np.square(gradient).sum(axis=1) for gradient in flat))
        finite = np.isfinite(norms)
        factors = np.zeros(len(rows))
        factors[finite] = clipping_norm / np.maximum(norms[finite], clipping_norm)
        # Replaced by zeros, as 0 * inf is not zero.
        usable = [np.where(finite[:, np.newaxis], gradient, 0.0) for gradient in flat]
        return [factors @ gradient for gradient in usable], int(finite.sum())
