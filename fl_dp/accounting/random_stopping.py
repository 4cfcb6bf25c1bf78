"""The best of a random number of runs: the law of that number, and the price of the best run.

Keeping the best of several trained models spends more than one training, and far less than all, if
the number of trainings is random and secret.

    >>> law = RunsLaw(mean=5.0)  # geometric
    >>> law.divergences(orders, divergences_of_one_run)

Reference: Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential Privacy",
theorem 2 (truncated negative binomial) and definition 1 (the law).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_MOST_RUNS = 1_000_000  # the law's tail beyond is below any delta at the means that we allow
_LARGEST_MEAN = 1000.0
_LARGEST_SHAPE = 100.0


@dataclass(frozen=True, kw_only=True)
class RunsLaw:
    """Truncated negative binomial law of the number of runs, 1, 2, 3, ...

    Attributes:
        mean: Expected number of runs, above 1.
        shape: 1 is the geometric law, 0 the logarithmic one; smaller is cheaper and wider.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range.
        """
        if not 1.0 < self.mean <= _LARGEST_MEAN:
            raise ValueError(f"mean must be above 1 and at most {_LARGEST_MEAN:g}, got {self.mean}")
        if not 0.0 <= self.shape <= _LARGEST_SHAPE:
            raise ValueError(f"shape must lie in [0, {_LARGEST_SHAPE:g}], got {self.shape}")

    @cached_property
    def gamma(self) -> float:
        """The law's parameter in (0, 1): the smaller, the more runs."""
        if self.shape == 1.0:
            return 1.0 / self.mean

        from scipy.optimize import brentq  # a node that charges does not need it

        def excess(log_gamma: float) -> float:
            return math.log(_mean(self.shape, log_gamma) / self.mean)

        return math.exp(float(brentq(excess, -60.0, -1e-9, xtol=1e-14)))

    def probability(self, runs: int) -> float:
        """The probability of `runs` runs."""
        first, ratio = self._first(), 1.0 - self.gamma
        for done in range(1, runs):
            first *= ratio * (done + self.shape) / (done + 1.0)
        return first

    def draw(self, uniform: float) -> int:
        """The number of runs at a quantile of the law.

        Args:
            uniform: Quantile in (0, 1), from a secret source: an adversary who knows it knows the
                number, and then the guarantee does not hold.
        """
        chance, below, runs = self._first(), 0.0, 1
        while runs < _MOST_RUNS:
            below += chance
            if uniform <= below:
                break
            chance *= (1.0 - self.gamma) * (runs + self.shape) / (runs + 1.0)
            runs += 1
        return runs

    def divergences(
        self, orders: tuple[float, ...], of_one_run: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Bounds on the best run's divergences, shape `(len(orders),)`, if the others stay secret.

        By theorem 2. Renyi `orders` increase and are above 1; `of_one_run` bounds one run's
        divergence at each.
        """
        order = np.array(orders)
        at_another = (1.0 - 1.0 / order) * of_one_run - math.log(self.gamma) / order
        more = (1.0 + self.shape) * float(at_another.min())
        spent = of_one_run + more + math.log(self.mean) / (order - 1.0)
        # A divergence grows with its order, so that of a larger order bounds it, too.
        least: NDArray[np.float64] = np.minimum.accumulate(spent[::-1])[::-1]
        return least

    def _first(self) -> float:
        """The probability of one run."""
        if self.shape == 0.0:
            return -(1.0 - self.gamma) / math.log(self.gamma)
        return self.shape * (1.0 - self.gamma) / math.expm1(-self.shape * math.log(self.gamma))


def _mean(shape: float, log_gamma: float) -> float:
    """The expected number of runs."""
    complement = -math.expm1(log_gamma)
    if shape == 0.0:
        return math.exp(-log_gamma) * complement / -log_gamma
    return shape * complement * math.exp(-log_gamma) / -math.expm1(shape * log_gamma)
