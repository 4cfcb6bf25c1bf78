"""The exponential mechanism: a private choice among candidates with utilities.

    >>> mechanism = ExponentialMechanism(epsilon=0.5, sensitivity=1.0, one_coordinate=True)
    >>> chosen = mechanism.select(utilities, SecureRandom())

References: McSherry and Talwar 2007, "Mechanism Design via Differential Privacy"; Dong, Durfee and
Rogers 2020, "Optimal Differential Privacy Composition for Exponential Mechanisms", for the range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError, require_positive

from .mechanism_events import ExponentialEvent
from .randomness import SecureRandom

_LARGEST_LOGIT = 1e300  # keeps every logit finite: an infinite one would tie


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism(Arguments):
    """Choose candidate `i` with probability proportional to `exp(rate * utility_i)`.

    Privacy: one draw is `epsilon`-bounded-range, hence `epsilon`-differentially private and
    `epsilon^2 / 8`-zCDP (Dong, Durfee and Rogers 2020), for one unit whose data moves the utilities
    by at most `sensitivity` (zero-out neighbours over a public list of candidates), against anyone
    who sees the choice. `select_top` with `k` is `k` such draws, one after another.

    Where a unit moves its own utility alone, by `d`, the log-ratio of two neighbours' laws is
    `rate * d - log(Z'/Z)` for its own candidate and `-log(Z'/Z)` for all others. Its range is
    `rate * |d|`, half of what it is when utilities move both ways.

    Attributes:
        epsilon: Bounded range of one draw: the most by which the log-ratios of two neighbours' laws
            differ between any two candidates.
        sensitivity: The most by which one unit moves any utility, in the utilities' units.
        one_coordinate: Whether one unit moves its own utility alone. If not, the rate is halved.
        null_utility: The utility of a unit whose data is left out; also stands in for NaN.
        utility_range: Public bounds that utilities are clipped to. Without them the caller has to
            ensure that no unit moves a utility by more than `sensitivity`.
    """

    epsilon: float
    sensitivity: float
    one_coordinate: bool = False
    null_utility: float = 0.0
    utility_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range, or, with `one_coordinate`, the sensitivity is
                below a unit's largest move of its own utility in `utility_range`.
        """
        super().__post_init__()
        require_positive(epsilon=self.epsilon, sensitivity=self.sensitivity)
        require_positive(rate=self.rate)
        if not math.isfinite(self.null_utility):
            raise OptionError(
                f"null_utility must be finite, got {self.null_utility}", option="null_utility"
            )
        if self.utility_range is None:
            return
        low, high = self.utility_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise OptionError(
                f"utility_range must be two finite numbers, the lower first, got ({low}, {high})",
                option="utility_range",
            )
        if not low <= self.null_utility <= high:
            raise OptionError(
                f"null_utility must lie in the utility_range ({low}, {high}), "
                f"got {self.null_utility}",
                option="null_utility",
            )
        reach = max(high - self.null_utility, self.null_utility - low)
        if self.one_coordinate and self.sensitivity < reach:
            raise OptionError(
                f"one unit can move its utility by {reach} within the utility_range "
                f"({low}, {high}), more than sensitivity={self.sensitivity}: write "
                f"sensitivity={reach}, or narrow the range",
                option="sensitivity",
            )

    @property
    def rate(self) -> float:
        """The factor on utilities: log-odds per unit of utility."""
        directions = 1.0 if self.one_coordinate else 2.0
        return self.epsilon / (self.sensitivity * directions)

    @property
    def zcdp_rho(self) -> float:
        """One draw's zCDP, `epsilon^2 / 8`."""
        return self.epsilon**2 / 8.0

    def event(self, *, draws: int = 1) -> ExponentialEvent:
        """The event that one selection of `draws` candidates is charged as."""
        alone = self.one_coordinate
        return ExponentialEvent(epsilon=self.epsilon, draws=draws, one_coordinate=alone)

    def log_probabilities(self, utilities: ArrayLike) -> NDArray[np.float64]:
        """Return each candidate's log-probability in one draw.

        These are not private: they are for tests and for explaining the mechanism.

        Args:
            utilities: One per candidate, shape `(N,)`, any real dtype; NaN and infinities
                included.

        Returns:
            Float64, shape `(N,)`.

        Raises:
            ValueError: If `utilities` is not a vector of at least one.
        """
        logits = self._logits(utilities)
        logits -= logits.max()
        log_probabilities: NDArray[np.float64] = logits - np.log(np.exp(logits).sum())
        return log_probabilities

    def select(self, utilities: ArrayLike, rng: SecureRandom) -> int:
        """Draw one candidate's index.

        Raises:
            ValueError: If `utilities` is not a vector of at least one.
        """
        return int(self.select_top(utilities, 1, rng)[0])

    def select_top(self, utilities: ArrayLike, k: int, rng: SecureRandom) -> NDArray[np.intp]:
        """Draw `k` different candidates: their indices in the order of draws, shape `(k,)`.

        The `k` largest of the logits plus Gumbel noise, in order, are exactly `k` draws without
        replacement (Plackett-Luce; Yellott 1977; Durfee and Rogers 2019). `utilities` are as in
        `log_probabilities`.

        Raises:
            ValueError: If `k` is outside 1 to N, or `utilities` is not a vector of at least one.
        """
        logits = self._logits(utilities)
        if not 1 <= k <= logits.size:
            raise ValueError(f"k must lie in [1, {logits.size}], the number of candidates, got {k}")
        noisy = logits + rng.gumbels(logits.size)
        top = np.argpartition(-noisy, k - 1)[:k]
        return top[np.argsort(-noisy[top])]

    def _logits(self, utilities: ArrayLike) -> NDArray[np.float64]:
        """The rate times each utility above the null one.

        Not relative to the largest: one unit's utility would then change the others' rounding.
        """
        with np.errstate(over="ignore"):
            values = np.array(utilities, dtype=np.float64)
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"utilities must have the shape (N,), N > 0, got {values.shape}")
        unusable = np.isnan(values) if self.utility_range is not None else ~np.isfinite(values)
        values[unusable] = self.null_utility
        if self.utility_range is not None:
            np.clip(values, *self.utility_range, out=values)
        with np.errstate(over="ignore"):
            logits = self.rate * (values - self.null_utility)
        return np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)
