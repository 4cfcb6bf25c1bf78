"""The seam of attacks: an adversary's observations go in, images and labels come out."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
        features: Float32 `(n, channels, height, width)`, or int64 tokens `(n, length)`, as the
            model takes them.
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


@dataclass(frozen=True)
class PixelRange:
    """Smallest and largest value that a pixel can have, as the model takes them; public.

    Attributes:
        low: One value, or one for each channel: for example 0 for black.
        high: As many, each larger.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the range is empty.
        """
        if len(self.low) != len(self.high) or not all(map(operator.lt, self.low, self.high)):
            raise ValueError(f"pixels need a range, got {self.low} to {self.high}")

    def to_unit(self, features: Tensor) -> Tensor:
        """Return pixels from 0 to 1.

        Args:
            features: `(..., channels, height, width)`, as the model takes them.
        """
        low, high = self._bounds(features)
        return (features - low) / (high - low)

    def from_unit(self, pixels: Tensor) -> Tensor:
        """Return what the model takes for pixels from 0 to 1, in the same shape."""
        low, high = self._bounds(pixels)
        return low + pixels * (high - low)

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return both ends, `(channels, 1, 1)`."""
        low, high = (like.new_tensor(each).view(-1, 1, 1) for each in (self.low, self.high))
        return low, high


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovered:
    """What an attack makes of one observation.

    Attributes:
        features: Float32 `(observation.records, channels, height, width)`, or int64 tokens
            `(observation.records, length)`, as the model takes them.
        labels: Int64 `(observation.records,)`.
        occurring: Of text, the tokens that occur anywhere, int64 in rising order.
    """

    features: Tensor
    labels: Tensor
    occurring: Tensor | None = None


class Attack(ABC):
    """Recovers records from observations."""

    @abstractmethod
    def recover(
        self,
        observations: Sequence[Observation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Return what each observation gives away, each as if it were attacked alone.

        Args:
            observations: Of one model, trained in one way, with equally many records.
            input_shape: Of one record, channels first; public.
            pixels: Their range; public.
            seed: Of the attack's first guesses.

        Raises:
            ValueError: If the attack does not fit the model, or the observations differ in what is
                public.
        """


def require_alike(observations: Sequence[Observation]) -> Observation:
    """Return the first observation, after a check that all share what is public.

    Raises:
        ValueError: If there is none, or they do not.
    """
    if not observations:
        raise ValueError("there is nothing to attack: give an observation")
    first = observations[0]
    for each in observations:
        if (each.model, each.training, each.records, each.clipping_norm) != (
            first.model,
            first.training,
            first.records,
            first.clipping_norm,
        ):
            raise ValueError(
                "observations attacked together share the model, the training, the number of "
                "records and the clipping: attack others in a call of their own"
            )
    return first
