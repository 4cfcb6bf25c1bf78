"""The seam of attacks: observations go in, images and labels come out."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .observation import Observation


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
        features: Float32 `(observation.records, channels, height, width)`, as the model takes them.
        labels: Int64 `(observation.records,)`.
    """

    features: Tensor
    labels: Tensor


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
