"""The server's question for noisy utilities, and the noise that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fl_dp.mechanisms import GaussianMechanism, SecureRandom


@dataclass(frozen=True, kw_only=True)
class UtilityQuery:
    """A question to units for their utility, each with noise of its own.

    Privacy: one answer is `1 / (2 noise_multiplier^2)`-zCDP for one unit, zero-out neighbours (its
    utility becomes the null, `high / 2`), against anyone who sees it, the server included.

    Attributes:
        utility: `loss`, `records` (their number), or a metric that `evaluate` returns.
        high: Utilities are clipped to [0, high].
        noise_multiplier: Standard deviation of the noise, divided by `high / 2`.
        units: Indices of the node's units. None: the node is one unit.
    """

    utility: str
    high: float
    noise_multiplier: float
    units: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A number is out of range, or a unit is asked twice.
        """
        _ = self.mechanism  # checks itself
        if self.units is not None and len(set(self.units)) != len(self.units):
            raise ValueError("a unit answers once: a second answer would be a second release")

    @cached_property
    def mechanism(self) -> GaussianMechanism:
        """The noise on a utility's distance from the null."""
        return GaussianMechanism(
            noise_multiplier=self.noise_multiplier, clipping_norm=self.high / 2.0
        )

    def privatize(self, utilities: Sequence[float], rng: SecureRandom) -> list[float]:
        """One noisy utility for each unit's own; NaN counts as the null."""
        null = self.high / 2.0
        measured = np.array(utilities, dtype=np.float64)
        bounded = np.where(np.isnan(measured), null, np.clip(measured, 0.0, self.high))
        # Encoded one by one, as a vector's entries would share one bound.
        steps = np.array([float(self.mechanism.encode(utility - null)) for utility in bounded])
        noise = self.mechanism.noise(steps.size, rng)
        return [float(noisy) + null for noisy in self.mechanism.release(steps, noise)]
