"""A training's noise beside what it may teach: whether a model can learn at all.

    >>> left = noise_left(plan, size=11_181_642)
    >>> left.in_words
    'Error of the released sum: standard deviation 0.12 on each coordinate of a round's mean, ...'

Gaussian noise of standard deviation s on d numbers has length s sqrt(d), roughly. Over T rounds,
lengths of independent noise add up by squares, to sqrt(T) times that. The updates add up to at
most T times the clipping norm C, if all means are that long and point the same way. So the ratio
of the two sums is every training's best case, whatever the data. At ratio r, clients have a share
`1 / (1 + r^2)` of the squared length of the model's change.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.signal import lfilter

from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE

from .plan_base import Plan
from .record_plan import RecordPlan

HOPELESS = 3.0
"""Ratio of noise to updates from which on a training gets a warning.

Then at most a tenth of the squared length of the model's change comes from clients.
"""


@dataclass(frozen=True, kw_only=True)
class NoiseLeft:
    """Lengths of noise and of updates.

    Attributes:
        size: Number of trained parameters.
        releases: Number of rounds, or of steps of DP-SGD.
        of_one: Length of the noise on one of their means, root mean square over all.
        of_all: Length of the noise on the sum of their means.
        longest: Largest length of one mean: the first round's clipping norm.
        step: `round`, or `step`.
    """

    size: int
    releases: int
    of_one: float
    of_all: float
    longest: float
    step: str = "round"

    @property
    def ratio(self) -> float:
        """Length of the noise on the sum of all means, over that sum's largest length."""
        return self.of_all / (self.releases * self.longest)

    @property
    def std_of_one(self) -> float:
        """Standard deviation of the noise on each coordinate of one mean."""
        return self.of_one / math.sqrt(self.size)

    @property
    def std_of_all(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum of all means."""
        return self.of_all / math.sqrt(self.size)

    @property
    def in_words(self) -> str:
        """The released sum's error, and its length beside the longest sum of all means."""
        return (
            f"Error of the released sum: standard deviation {self.std_of_one:.3g} on each "
            f"coordinate of a {self.step}'s mean, {self.std_of_all:.3g} on the total of "
            f"{self.releases:,} {self.step}s. Its length over {self.size:,} parameters is "
            f"{self.of_all:.3g}; all means add up to at most {self.releases * self.longest:.3g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON values."""
        derived = {
            "ratio": self.ratio,
            "std_of_one": self.std_of_one,
            "std_of_all": self.std_of_all,
        }
        return asdict(self) | derived

    @property
    def warning(self) -> str | None:
        """Advice where noise hides all that could be learned; else None."""
        if self.ratio < HOPELESS:
            return None
        return (
            f"this model will hardly learn: over all {self.step}s the noise is {self.ratio:.3g} "
            "times as long as everything that is learned can be. Use more clients or records, "
            "train fewer parameters (a smaller model, features, adapters), or allow a larger "
            "epsilon"
        )


def noise_left(plan: Plan, size: int) -> NoiseLeft:
    """Return the noise of all planned rounds (at least one) beside the updates.

    `size` parameters are exchanged and trained. Where clipping follows a quantile, noise and
    updates change alike.
    """
    stds = [plan.noise_of_mean(multiplier) for multiplier in plan.noise_multipliers]
    root = math.sqrt(size)
    of_all = of_one = root * math.sqrt(sum(std * std for std in stds))
    if (coefficients := plan.coefficients) is not None:
        # The effect of one round's fresh noise from that round on: the first column of C^-1.
        impulse = np.eye(1, plan.rounds)[0]
        column = lfilter([1.0], np.array(coefficients) / COEFFICIENT_ONE, impulse)
        fresh = root * plan.bundle(plan.noise_multiplier, size=size).updates.noise_std
        fresh /= plan.denominator
        of_one = fresh * math.sqrt(float(np.cumsum(column**2).sum()))
        of_all = fresh * float(np.linalg.norm(np.cumsum(column)))
    return NoiseLeft(
        size=size,
        releases=plan.rounds,
        of_one=of_one / math.sqrt(plan.rounds),
        of_all=of_all,
        longest=plan.clipping_norm,
    )


def noise_left_of_records(
    plan: RecordPlan, size: int, *, batch_size: float, clients: float, rounds: int
) -> NoiseLeft:
    """Return the noise of DP-SGD at clients beside gradients, on the mean over a round's clients.

    `size` parameters are trained, `batch_size` is the public divisor of a step's sum, and a round
    averages the models of `clients` clients.
    """
    std = plan.noise_multiplier * plan.clipping_norm / batch_size / math.sqrt(clients)
    of_one, releases = math.sqrt(size) * std, rounds * plan.steps
    return NoiseLeft(
        size=size,
        releases=releases,
        of_one=of_one,
        of_all=math.sqrt(releases) * of_one,
        longest=plan.clipping_norm,
        step="step",
    )
