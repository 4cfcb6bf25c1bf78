"""What an adversary holds after a round, and what is public about how it was made."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A client's plain SGD of one round, which the adversary knows.

    Attributes:
        learning_rate: Step size, positive.
        epochs: Passes over the client's records.
        batch_size: Records of a step; None: all of them, so that an epoch is one step.
    """

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range.
        """
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise ValueError(
                f"learning_rate is {self.learning_rate}; write a positive one: an update of zero "
                "shows nothing"
            )
        if self.epochs < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise ValueError(
                f"epochs is {self.epochs} and batch_size {self.batch_size}; write at least 1"
            )

    def batches(self, records: int) -> list[slice]:
        """Return the records of each step of an epoch, in order."""
        size = self.batch_size or records
        return [slice(start, start + size) for start in range(0, records, size)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientRecords:
    """A client's private records.

    Attributes:
        features: Float32 `(n, channels, height, width)`, as the model takes them.
        labels: Int64 `(n,)`.
    """

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What an adversary sees of one round, as an update of the public model.

    Attributes:
        model: The public model before the round, on the CPU; an attack never changes it.
        update: Float64 `(d,)`: change of the trainable parameters, flat in the model's order; the
            mean over clients where the adversary sees a sum of them.
        training: How each client trains.
        records: Records that the update was computed from, of all clients in it together.
        clipping_norm: L2 bound that an update of one client was clipped to; None where nothing was
            clipped, or where several clients were clipped each on its own.
    """

    model: nn.Module
    update: Tensor
    training: LocalTraining
    records: int
    clipping_norm: float | None = None

    def parts(self) -> dict[str, Tensor]:
        """Return the update of each trainable parameter, float64, by its name."""
        trainable = {
            name: each for name, each in self.model.named_parameters() if each.requires_grad
        }
        split = torch.split(self.update, [each.numel() for each in trainable.values()])
        return {
            name: part.view_as(each)
            for (name, each), part in zip(trainable.items(), split, strict=True)
        }


def flat_parameters(model: nn.Module) -> Tensor:
    """Return the trainable parameters, float64 `(d,)`, in the model's order."""
    each = [one.detach().reshape(-1).double() for one in model.parameters() if one.requires_grad]
    return torch.cat(each)
