"""Canary clients: put into a training to measure what its releases show of them.

Each canary has its own direction and a fair coin. If the coin says so, its update is as long as
allowed along its direction, in every round that draws it; otherwise zero. An adversary that sees
every release and knows what all others sent sees each canary under noise alone: the worst pair of
neighbours of a Gaussian on a Poisson sample. Its best test sums the rounds' privacy losses.

    >>> canaries = Canaries(count=1000, size=8970, seed=0)
    >>> losses = sum(privacy_losses(canaries.along(mean) / norm, z, q) for mean in releases)

Directions are rows of a cosine basis with random signs, orthonormal to the last digit, never
stored. Those without a canary are trials with noise alone, at no cost to the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, idct

from fl_dp.accounting.gaussian_formulas import loss_of_mixture
from fl_dp.option_errors import require_count

_FEWEST = 8


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Directions and coins of canaries, the same wherever made from the same numbers.

    Attributes:
        count: Number of canaries, including those left out.
        size: Number of the model's coordinates.
        seed: Seed of directions and coins. They protect no client, so it is no secret.

    Raises:
        ValueError: If the count is below 8 or above half of the size.
    """

    count: int
    size: int
    seed: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_count(count=self.count, size=self.size)
        if self.count < _FEWEST:
            raise ValueError(f"{self.count} canaries show nothing: have at least {_FEWEST}")
        if 2 * self.count > self.size:
            raise ValueError(
                f"{self.count} canaries need a model of at least {2 * self.count} parameters, and "
                f"this one has {self.size}: have at most {self.size // 2} canaries, or train a "
                "larger model"
            )

    @cached_property
    def included(self) -> NDArray[np.bool_]:
        """Whether each canary contributes: fair coins, shape `(count,)`."""
        return self._generator(0).random(self.count) < 0.5

    @cached_property
    def _signs(self) -> NDArray[np.float64]:
        return np.where(self._generator(1).random(self.size) < 0.5, -1.0, 1.0)

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        return self._generator(2).permutation(self.size)

    def direction(self, canary: int) -> NDArray[np.float64]:
        """One canary's direction, length 1, shape `(size,)`."""
        return self.sum_of(np.arange(self.count) == canary)

    def sum_of(self, canaries: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The sum of some canaries' directions, shape `(size,)`."""
        coefficients = np.zeros(self.size)
        coefficients[self._rows[: self.count]] = canaries
        total: NDArray[np.float64] = idct(coefficients, norm="ortho") * self._signs
        return total

    def along(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """A vector's coordinates along all directions, the canaries' first."""
        coefficients: NDArray[np.float64] = dct(vector * self._signs, norm="ortho")
        return coefficients[self._rows]

    def _generator(self, part: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, 20230203, part))


def privacy_losses(
    along: NDArray[np.float64],
    noise_multiplier: float | NDArray[np.float64],
    sampling_rate: float,
) -> NDArray[np.float64]:
    """One round's privacy loss for each direction; several rounds' losses add up.

    `log(1 - q + q e^((2x - 1) / (2 z^2)))`, with z for `noise_multiplier` (one number, or one per
    direction), q for `sampling_rate` and x for `along`: the noisy sum without the others, in
    clipping norms.
    """
    return loss_of_mixture(along, noise_multiplier, sampling_rate)


def one_shot_mu(cosines: NDArray[np.float64], size: int) -> float:
    """Andrew et al.'s estimate of mu: no bound, and no confidence goes with it.

    With an independent vector, a random direction of `size` coordinates has a cosine of mean zero
    and variance `1 / size`. A contributing canary's cosine with the release is larger by mu
    deviations.

    Reference:
        Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning", arXiv
            2302.03098.
    """
    return float(np.sqrt(size) * cosines.mean())
