"""Schedules of noise from round to round: shapes that do not depend on a budget.

A `NoiseSchedule` gives each round a weight in (0, 1], its relative spend; the round's noise
multiplier is `scale / weight`. Calibration finds the `scale` at which all rounds together spend
the target. Composition does not depend on order: an early shape costs exactly as much as its late
mirror.

    >>> schedule = NoiseSchedule(name="step")
    >>> schedule.weights_of(4)
    (0.5, 0.5, 1.0, 1.0)
    >>> schedule.multipliers(2.0, rounds=4)
    (4.0, 4.0, 2.0, 2.0)

A shape has few levels, as each distinct noise multiplier costs the accountant one privacy-loss
distribution. Rounded weights are both charged *and* drawn: rounding can cost a little accuracy,
never privacy.

References:
    Lee and Kifer 2018, "Concentrated differentially private gradient descent with adaptive
    per-iteration privacy budget", KDD. Yu et al. 2019, "Differentially private model publishing for
    deep learning", IEEE S&P (noise decay). Kiani et al. 2025, time-adaptive spending, ICLR,
    arXiv:2502.18706: saving early to spend late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError, require_positive

# Below this the squares of weights, and with them the noise, leave what float64 can hold safely.
SMALLEST_WEIGHT = 1e-6

_Weights = NDArray[np.float64]


def _constant(rounds: int, floor: float) -> _Weights:
    return np.ones(rounds)


def _seed_rule(rounds: int, floor: float) -> _Weights:
    # Early, for round t = 1..T: 1 while t <= T/2, then a line down to the floor at t = T.
    progress = np.arange(rounds, 0, -1) / rounds
    return 1.0 - (1.0 - floor) * np.maximum(0.0, 2.0 * progress - 1.0)


def _linear(rounds: int, floor: float) -> _Weights:
    return np.linspace(floor, 1.0, rounds)


def _exponential(rounds: int, floor: float) -> _Weights:
    return np.power(floor, 1.0 - np.linspace(0.0, 1.0, rounds))


def _cosine(rounds: int, floor: float) -> _Weights:
    half_turn = np.linspace(0.0, math.pi, rounds)
    return floor + (1.0 - floor) * (1.0 - np.cos(half_turn)) / 2.0


def _step(rounds: int, floor: float) -> _Weights:
    return np.where(np.arange(rounds) < rounds // 2, floor, 1.0)


# Each gives the late version: the weights never fall.
SHAPES: dict[str, Callable[[int, float], _Weights]] = {
    "constant": _constant,
    "seed_rule": _seed_rule,
    "linear": _linear,
    "exponential": _exponential,
    "step": _step,
    "cosine": _cosine,
}
_CUSTOM = "custom"
_EARLY, _LATE = "early", "late"


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule(Arguments):
    """The relative spend of each round, declared before the training.

    With progress u from 0 (first round) to 1 (last) and floor f, the late shapes are:

    - `constant`: 1;
    - `linear`: f + (1 - f) u;
    - `exponential`: f^(1 - u);
    - `cosine`: f + (1 - f) (1 - cos(pi u)) / 2;
    - `step`: f for the first half of the rounds (rounded down), then 1.

    `seed_rule` is early: 1 for the first half of the rounds, then a line down to f in the last.
    `custom` takes one weight per round.

    Attributes:
        name: The shape: constant, seed_rule, linear, exponential, step, cosine or custom.
        spend: Where the larger part goes, `early` or `late`; None is early for `seed_rule`, late
            for the others. `custom` has no such choice: its weights have an order.
        floor: Smallest relative spend of a round, in [1e-6, 1]; without effect on `constant` and
            `custom`.
        levels: Most distinct weights, and so noise multipliers; None gives each round its own,
            which is slow beyond some hundred rounds.
        weights: Relative spend of each round, required by `custom`, in any unit: the largest
            becomes 1, the smallest is at least 1e-6 of it.
    """

    name: str = "constant"
    spend: str | None = None
    floor: float = 0.5
    levels: int | None = 16
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the shape is unknown, a field out of range, or weights are missing,
                misplaced, or not positive and finite.
        """
        super().__post_init__()
        if self.name not in SHAPES and self.name != _CUSTOM:
            raise OptionError(
                f"no noise schedule is called {self.name!r}: use one of "
                f"{', '.join([*SHAPES, _CUSTOM])}",
                option="name",
            )
        if self.spend not in (None, _EARLY, _LATE):
            raise OptionError(
                f"spend must be 'early' or 'late', or None for the shape's own, got {self.spend!r}",
                option="spend",
            )
        if not SMALLEST_WEIGHT <= self.floor <= 1.0:
            raise OptionError(
                f"floor must lie in [{SMALLEST_WEIGHT:g}, 1], got {self.floor}", option="floor"
            )
        if self.levels is not None and self.levels < 1:
            raise OptionError(
                f"levels must be at least 1, got {self.levels}: use None for a weight of each "
                "round's own",
                option="levels",
            )
        if self.name == _CUSTOM:
            self._check_custom()
        elif self.weights is not None:
            raise OptionError(
                f"weights belong to the schedule 'custom', and this one is {self.name!r}: leave "
                "them out, or set name='custom'",
                option="weights",
            )

    def _check_custom(self) -> None:
        if self.spend is not None:
            raise OptionError(
                f"spend is {self.spend!r}, and the order of custom weights says it already: leave "
                "spend out",
                option="spend",
            )
        if not self.weights:
            raise OptionError(
                "the schedule 'custom' needs weights: give one weight a round", option="weights"
            )
        weights = tuple(float(weight) for weight in self.weights)
        object.__setattr__(self, "weights", weights)
        for index, weight in enumerate(weights):
            if not (math.isfinite(weight) and weight > 0.0):
                raise OptionError(
                    f"weights must be positive and finite, got {weight} in round {index + 1}",
                    option="weights",
                )
        if min(weights) / max(weights) < SMALLEST_WEIGHT:
            raise OptionError(
                f"the smallest weight, {min(weights):g}, is below {SMALLEST_WEIGHT:g} of the "
                f"largest, {max(weights):g}: raise it, or leave such rounds out",
                option="weights",
            )

    @property
    def spends_early(self) -> bool:
        """Whether most of the budget goes to the first rounds; False for custom."""
        if self.spend is None:
            return self.name == "seed_rule"
        return self.spend == _EARLY

    def weights_of(self, rounds: int) -> tuple[float, ...]:
        """Return the relative spend of each round.

        A shape with more than `levels` distinct weights becomes piecewise constant: rounds,
        ordered by weight, are cut into at most `levels` blocks of about equal size. Equal weights
        always share a block. A block's weight is its members' root mean square, which keeps the
        sum of squares. Then all are divided by the largest, so `scale` remains the smallest
        multiplier; calibration makes up for that factor.

        Returns:
            One weight per round, in (0, 1]; the largest is exactly 1, and a level's weights are
            exactly equal.

        Raises:
            ValueError: If rounds is below 1, or not the number of custom weights.
        """
        if rounds < 1:
            raise OptionError(f"rounds must be at least 1, got {rounds}", option="rounds")
        weights = self._shape(rounds)
        if self.levels is not None:
            weights = _rounded_to_levels(weights, self.levels)
        # A single round, or a top block of unequal weights, has its largest below 1.
        relative: list[float] = (weights / weights.max()).tolist()
        return tuple(relative)

    def _shape(self, rounds: int) -> _Weights:
        if self.weights is not None:
            if len(self.weights) != rounds:
                raise OptionError(
                    f"the schedule has {len(self.weights)} weights and the run {rounds} rounds: "
                    "give one weight a round",
                    option="weights",
                )
            # Before any squaring, which could overflow in the user's unit.
            return np.array(self.weights) / max(self.weights)
        late = SHAPES[self.name](rounds, self.floor)
        return late[::-1] if self.spends_early else late

    def multipliers(self, scale: float, rounds: int) -> tuple[float, ...]:
        """Each round's noise multiplier, `scale / weight`.

        `scale` is the smallest one: the standard deviation of the noise on the sum over its L2
        sensitivity.

        Raises:
            ValueError: If scale is not positive and finite, or as for `weights_of`.
        """
        require_positive(scale=scale)
        return tuple(scale / weight for weight in self.weights_of(rounds))


def _rounded_to_levels(weights: _Weights, levels: int) -> _Weights:
    values, level_of, counts = np.unique(weights, return_inverse=True, return_counts=True)
    if len(values) <= levels:
        return weights
    rounded = np.empty_like(values)
    top, rounds_left = len(values), len(weights)
    # From the largest weight down, each block takes its even share of the remaining rounds.
    for levels_left in range(levels, 0, -1):
        if top == 0:
            break
        share = rounds_left / levels_left
        bottom, size = top - 1, int(counts[top - 1])
        # A flat stretch that fills a share is a level of its own, so a block stops before it.
        while bottom > 0 and (levels_left == 1 or max(size, int(counts[bottom - 1])) < share):
            bottom -= 1
            size += int(counts[bottom])
        block = slice(bottom, top)
        rounded[block] = math.sqrt(float(counts[block] @ values[block] ** 2) / size)
        top, rounds_left = bottom, rounds_left - size
    return rounded[level_of]
