"""The interface of attacks: observations go in, images and labels come out."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class KnownTraining:
    """A client's plain SGD of one round, which the adversary knows.

    Attributes:
        learning_rate: Step size, positive.
        epochs: Passes over the client's records.
        batch_size: Records of a step; None: all, so an epoch is one step.
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
        """The records of each step in an epoch, in order."""
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
        """The number of records."""
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundObservation:
    """The adversary's observation of one round, as an update of the public model.

    Attributes:
        model: Public model before the round, on the CPU; an attack never changes it.
        update: Float64 `(d,)`: change of the trainable parameters, flat in the model's order; the
            mean over clients if the adversary sees their sum.
        training: Training of each client.
        records: Number of records of all clients in the update.
        clipping_norm: L2 bound of one client's clipped update; None if nothing was clipped, or
            several clients are in it.
    """

    model: nn.Module
    update: Tensor
    training: KnownTraining
    records: int
    clipping_norm: float | None = None

    def parts(self) -> dict[str, Tensor]:
        """Each trainable parameter's update, float64, by name."""
        parameters = self.model.named_parameters()
        trainable = [(name, values) for name, values in parameters if values.requires_grad]
        split = torch.split(self.update, [values.numel() for _, values in trainable])
        return {
            name: part.view_as(values)
            for (name, values), part in zip(trainable, split, strict=True)
        }


def flat_parameters(model: nn.Module) -> Tensor:
    """The trainable parameters, float64 `(d,)`, in the model's order."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([parameter.detach().reshape(-1).double() for parameter in trainable])


@dataclass(frozen=True)
class PixelRange:
    """A pixel's smallest and largest value, as the model takes them; public.

    Attributes:
        low: One value, or one per channel: for example 0 for black.
        high: As many values, each larger.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the range is empty, or the numbers of values differ.
        """
        if len(self.low) != len(self.high) or not all(map(operator.lt, self.low, self.high)):
            raise ValueError(f"pixels need a range, got {self.low} to {self.high}")

    def to_unit(self, features: Tensor) -> Tensor:
        """Scale the model's pixels, `(..., channels, height, width)`, to the range from 0 to 1."""
        low, high = self._bounds(features)
        return (features - low) / (high - low)

    def from_unit(self, pixels: Tensor) -> Tensor:
        """Scale pixels from 0 to 1 to the model's, in the same shape."""
        low, high = self._bounds(pixels)
        return low + pixels * (high - low)

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both ends, `(channels, 1, 1)`."""
        return like.new_tensor(self.low).view(-1, 1, 1), like.new_tensor(self.high).view(-1, 1, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovered:
    """Records recovered from one observation.

    Attributes:
        features: Float32 `(observation.records, channels, height, width)`, or int64 tokens
            `(observation.records, length)`, as the model takes them.
        labels: Int64 `(observation.records,)`.
        occurring: For text, the tokens that occur anywhere, int64, rising; else None.
    """

    features: Tensor
    labels: Tensor
    occurring: Tensor | None = None


class Attack(ABC):
    """Recovers records from observations."""

    @abstractmethod
    def recover(
        self,
        observations: Sequence[RoundObservation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Recover each observation's records, as if it were attacked alone.

        Observations are of one model and training, with equally many records. `input_shape`, of
        one record with channels first, and `pixels` are public. `seed` is for the first guesses.

        Raises:
            ValueError: If the attack does not fit the model, or what is public differs.
        """


def require_alike(observations: Sequence[RoundObservation]) -> RoundObservation:
    """Return the first observation, after a check that all share what is public.

    Raises:
        ValueError: If there is none, or they differ.
    """
    if not observations:
        raise ValueError("there is nothing to attack: give an observation")
    public = operator.attrgetter("model", "training", "records", "clipping_norm")
    first = observations[0]
    for observation in observations:
        if public(observation) != public(first):
            raise ValueError(
                "observations attacked together share the model, the training, the number of "
                "records and the clipping: attack others in a call of their own"
            )
    return first
