"""A query's noise: the law with the smaller standard deviation, and its price.

>>> choice = choose_noise(Count(), epsilon=1.0, delta=1e-5)
>>> choice.events  # reserve these in the ledger before anything is released
(LaplaceEvent(noise_multiplier=1.0),)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from fl_dp.accounting.events import PrivacyEvent
from fl_dp.accounting.gaussian_formulas import gaussian_noise_multiplier
from fl_dp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from fl_dp.option_errors import OptionError, require_positive

from .quantiles import Quantiles
from .query import Query, SumQuery
from .votes import Vote

SumMechanism: TypeAlias = LaplaceMechanism | GaussianMechanism
Mechanism: TypeAlias = SumMechanism | ExponentialMechanism

_CONFIDENCE = 0.95


class NoiseLaw(StrEnum):
    """The law of the noise on a sum."""

    LAPLACE = "laplace"
    """Pure (delta = 0); scaled to the L1 sensitivity, best for single numbers and histograms."""

    GAUSSIAN = "gaussian"
    """Scaled to the L2 sensitivity: best for vectors."""


@dataclass(frozen=True, kw_only=True)
class NoiseChoice:
    """A query, the mechanisms that answer it, and the events to charge.

    The events are the mechanisms' own: they can't differ. Each release of the query is charged:
    reserve `events` in the ledger each time *before* `release_statistic`.

    Attributes:
        mechanisms: One for a sum or a vote. For quantiles one exponential mechanism per
            probability, or one Gaussian for the sum that gives them all.
        explanation: One sentence for people.
    """

    query: Query
    mechanisms: tuple[Mechanism, ...]
    explanation: str = ""

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: These mechanisms do not answer this query with their events' privacy.
        """
        kinds = " and ".join(type(mechanism).__name__ for mechanism in self.mechanisms) or "nothing"
        if isinstance(self.query, Quantiles):
            if not self._uses_one_sum:
                sensitivities = list(map(self.query.sensitivity, self.query.probabilities))
                self._check_draws(sensitivities, kinds)
        elif isinstance(self.query, Vote):
            self._check_draws([Vote.sensitivity], kinds)
        elif len(self.mechanisms) != 1 or not isinstance(self.mechanisms[0], SumMechanism):
            raise ValueError(
                f"a query '{self.query.kind}' is answered by one LaplaceMechanism or "
                f"GaussianMechanism, got {kinds}"
            )

    def _check_draws(self, sensitivities: Sequence[float], kinds: str) -> None:
        """Check that each draw has its own exponential mechanism, with enough sensitivity."""
        draws = [
            mechanism
            for mechanism in self.mechanisms
            if isinstance(mechanism, ExponentialMechanism)
        ]
        if not len(draws) == len(self.mechanisms) == len(sensitivities):
            raise ValueError(
                f"a query '{self.query.kind}' of {len(sensitivities)} draws is answered by as many "
                f"ExponentialMechanisms, got {kinds}"
            )
        for needed, mechanism in zip(sensitivities, draws, strict=True):
            if mechanism.one_coordinate or mechanism.sensitivity < needed:
                raise ValueError(
                    f"one client moves the utilities of a query '{self.query.kind}' both ways, by "
                    f"up to {needed}: write sensitivity={needed} and one_coordinate=False, got "
                    f"{mechanism}"
                )

    @property
    def _uses_one_sum(self) -> bool:
        """Whether the answer is computed from one sum with Gaussian noise."""
        return [type(mechanism) for mechanism in self.mechanisms] == [GaussianMechanism]

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """The events that one release is charged as."""
        return tuple(mechanism.event() for mechanism in self.mechanisms)

    @property
    def max_units(self) -> int:
        """Number of contributions that can be summed exactly."""
        return self.summed_by.max_units

    @property
    def summed_by(self) -> Quantiles | Vote | SumMechanism:
        """Query or mechanism that bounds each contribution and encodes it for an exact sum."""
        if isinstance(self.query, Vote):
            return self.query
        if isinstance(self.query, Quantiles) and not self._uses_one_sum:
            return self.query
        (mechanism,) = self.mechanisms
        assert isinstance(mechanism, SumMechanism)  # checked at construction
        return mechanism


def choose_noise(
    query: Query, epsilon: float, delta: float, *, law: NoiseLaw | str | None = None
) -> NoiseChoice:
    """Choose the mechanism for one (epsilon, delta)-private answer.

    Privacy: one release is (epsilon, delta)-DP on its own, for one client with all its records,
    zero-out (or add-or-remove) neighbours, against anyone who sees the answer. Sums get Laplace
    noise of scale `l1_sensitivity / epsilon` (delta is then not used) or analytic Gaussian noise
    (Balle and Wang 2018): the one with the smaller standard deviation per coordinate, Laplace if
    they are equal. Quantiles share epsilon evenly between exponential mechanisms; if the law is
    Gaussian, all are computed from one noisy sum.

    This compares single answers. Many releases in one ledger compose: Laplace noise of a small
    epsilon then spends about as much as Gaussian noise of multiplier `1 / epsilon`, whose standard
    deviation is 0.71 times its own where the two sensitivities are equal. To use that, build the
    `NoiseChoice` around a `GaussianMechanism` of your own multiplier, with the query's
    `l2_sensitivity` as its clipping norm.

    Epsilon is positive and finite. Delta lies in [0, 1): 0 asks for a pure guarantee, and so for
    Laplace noise. `law` is that of the noise on sums, by default the better one; secure sums need
    `gaussian`.

    Raises:
        ValueError: An argument is out of range, or `law` can't give the guarantee.
    """
    require_positive(epsilon=epsilon)
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    chosen = None if law is None else NoiseLaw(law)
    if isinstance(query, Quantiles) and chosen is not NoiseLaw.GAUSSIAN:
        if chosen is not None:
            raise OptionError(
                f"quantiles are drawn by exponential mechanisms, or read off a sum with "
                f"law='gaussian': leave out law={str(chosen)!r}",
                option="law",
            )
        return _choose_draws(query, epsilon)
    if isinstance(query, Vote):
        if chosen is not None:
            raise ValueError(
                f"a vote is drawn by the exponential mechanism: leave out law={str(chosen)!r}"
            )
        return _choose_vote(query, epsilon)
    if not isinstance(query, SumQuery):
        raise ValueError(f"there is no mechanism for a query '{query.kind}'")
    return _choose_sum(query, epsilon, delta, chosen)


def _choose_sum(query: SumQuery, epsilon: float, delta: float, law: NoiseLaw | None) -> NoiseChoice:
    laplace = LaplaceMechanism(noise_multiplier=1.0 / epsilon, clipping_norm=query.l1_sensitivity)
    if delta == 0.0:
        if law is NoiseLaw.GAUSSIAN:
            raise ValueError("Gaussian noise is not pure: give delta > 0, or law='laplace'")
        text = f"Laplace noise of standard deviation {laplace.noise_std:.4g} on each coordinate"
        text += " of the sum (only Laplace noise is pure)"
        return NoiseChoice(query=query, mechanisms=(laplace,), explanation=text)
    gaussian = GaussianMechanism(
        noise_multiplier=gaussian_noise_multiplier(epsilon, delta),
        clipping_norm=query.l2_sensitivity,
    )
    if law is None:
        # Both keep the promise, so the smaller deviation is the better answer.
        law, reason = NoiseLaw.GAUSSIAN, "the smaller"
        if laplace.noise_std <= gaussian.noise_std:
            law = NoiseLaw.LAPLACE
    else:
        reason = "as asked for"
    chosen: SumMechanism = gaussian
    other: SumMechanism = laplace
    name, other_name = "Gaussian", "Laplace"
    if law is NoiseLaw.LAPLACE:
        chosen, name, other, other_name = other, other_name, chosen, name
    text = (
        f"{name} noise of standard deviation {chosen.noise_std:.4g} on each coordinate of the sum, "
        f"{reason}: {other_name} noise would have {other.noise_std:.4g}"
    )
    return NoiseChoice(query=query, mechanisms=(chosen,), explanation=text)


def _choose_draws(query: Quantiles, epsilon: float) -> NoiseChoice:
    draws = len(query.probabilities)
    mechanisms = tuple(
        ExponentialMechanism(epsilon=epsilon / draws, sensitivity=query.sensitivity(probability))
        for probability in query.probabilities
    )
    worst = max(draw_error(query.dimension, mechanism) for mechanism in mechanisms)
    text = (
        f"one draw of the exponential mechanism for each of {draws} quantiles among "
        f"{query.dimension} grid points, with equal shares of epsilon: with probability "
        f"{_CONFIDENCE:g} the rank of each is off by at most {worst:.4g} clients"
    )
    return NoiseChoice(query=query, mechanisms=mechanisms, explanation=text)


def _choose_vote(query: Vote, epsilon: float) -> NoiseChoice:
    mechanism = ExponentialMechanism(epsilon=epsilon, sensitivity=Vote.sensitivity)
    text = (
        f"one draw of the exponential mechanism among {query.candidates} candidates, at the same "
        f"epsilon however many there are: with probability {_CONFIDENCE:g} the winner is short of "
        f"the best by at most {draw_error(query.candidates, mechanism):.4g} votes"
    )
    return NoiseChoice(query=query, mechanisms=(mechanism,), explanation=text)


def draw_error(candidates: int, mechanism: ExponentialMechanism) -> float:
    """Distance of a draw's utility from the best, not exceeded with probability 0.95.

    In units of utility: clients of a quantile's rank, or votes.

    Reference:
        Dwork and Roth 2014, theorem 3.11.
    """
    return math.log(candidates / (1.0 - _CONFIDENCE)) / mechanism.rate
