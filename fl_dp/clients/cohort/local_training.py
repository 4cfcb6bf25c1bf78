"""What clients do with a model and their records: a training, said as options, not as a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .cohort_optimizers import OptimizerFn, optimizer_of

LossFn: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns each record's loss, `(n,)`, from a model's outputs and the labels of `n` records."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitData:
    """Training data of one client.

    Attributes:
        features: What the model takes, `(n, ...)`.
        labels: What the loss takes, `(n, ...)`.
        seed: Seed of its order of records and of its dropout, at least 0.
    """

    features: Tensor
    labels: Tensor
    seed: int


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A client's training: mini-batches in a new order each epoch, on their mean loss.

    Attributes:
        loss: Gives each record's loss, such as `nn.CrossEntropyLoss(reduction="none")`.
        optimizer: Makes SGD, Adam, AdamW or Rprop of a list of parameters, new for each client.
        batch_size: Records a step; a smaller last batch counts like any other.
        epochs: Passes over the records.
    """

    loss: LossFn
    optimizer: OptimizerFn
    batch_size: int
    epochs: int = 1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: One is not as described; the text says what to write.
        """
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; write at least 1")
        if getattr(self.loss, "reduction", "none") != "none":
            name = type(self.loss).__name__
            raise ValueError(
                f"the loss is a {self.loss.reduction} over records: write "  # type: ignore[attr-defined]  # read above
                f"loss={name}(reduction='none'), which gives each record's own"
            )
        optimizer_of(self.optimizer, [nn.Parameter(torch.zeros(1))])

    def width(self, num_rows: int) -> int:
        """The rows of a step, padding included: few different numbers, and less than half padding.

        It depends on one client's number of records, which is at least 1.
        """
        if num_rows >= self.batch_size:
            return self.batch_size
        power: int = 1 << (num_rows - 1).bit_length()
        if num_rows <= 3 * power // 4:
            power = 3 * power // 4
        return min(power, self.batch_size)

    def steps(self, num_rows: int) -> int:
        """All steps of a client with so many records."""
        return self.epochs * -(-num_rows // self.batch_size)

    def batches(self, num_rows: int, seed: int) -> list[NDArray[np.int64]]:
        """The rows of each step of a client with at least one record."""
        generator = torch.Generator().manual_seed(seed)
        starts = range(0, num_rows, self.batch_size)
        batches: list[NDArray[np.int64]] = []
        for _ in range(self.epochs):
            # One batch with all rows has the same mean in any order.
            whole = num_rows <= self.batch_size
            order = None if whole else torch.randperm(num_rows, generator=generator)
            rows = np.arange(num_rows) if order is None else order.numpy()
            batches += [rows[start : start + self.batch_size] for start in starts]
        return batches


def require_one_a_record(losses: Tensor, num_rows: int) -> None:
    """Check the shape of losses.

    Raises:
        ValueError: There is not one number a record.
    """
    if losses.shape != (num_rows,):
        raise ValueError(
            f"the loss has shape {tuple(losses.shape)} for {num_rows} records: give one number a "
            "record, as with reduction='none'"
        )
