"""Verdict on a whole run by what its releases show of canary clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from fl_dp.accounting.trade_off import TradeOff

from .canaries import Canaries, one_shot_mu, privacy_losses
from .lower_bounds import gaussian_epsilon_of, most_that_clopper_pearson_shows
from .scores import bounds_of_scores
from .verdict import Finding

_SIMULATED = 20_000  # runs that keep the claim, on which a threshold is chosen

WHOLE_RUN = "canary clients over the whole run"


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRound:
    """One release, seen by an adversary that knows what all others sent.

    With correlated noise: what all releases show of participations (`correlated_run`).

    Attributes:
        along: The noisy sum without the others along every direction, in clipping norms.
        noise_multiplier: Multiplier of the noise on the sum: one number, or one per direction.
        eligible: Directions whose canary may publicly have taken part; None: all.
    """

    along: NDArray[np.float64]
    noise_multiplier: float | NDArray[np.float64]
    eligible: NDArray[np.bool_] | None = None

    def losses(self, sampling_rate: float) -> NDArray[np.float64]:
        """The privacy loss along each direction, 0 where no canary can have taken part."""
        losses = privacy_losses(self.along, self.noise_multiplier, sampling_rate)
        return losses if self.eligible is None else np.where(self.eligible, losses, 0.0)


def finding_of_run(
    canaries: Canaries,
    rounds: list[ObservedRound],
    *,
    sampling_rate: float,
    claim: float,
    delta: float,
    alpha: float,
    curve: TradeOff | None = None,
) -> Finding:
    """Return what a run's releases prove, beside its ledger's claim.

    `claim` is the ledger's epsilon at `delta` for all these rounds, `curve` the trade-off curve of
    its charges. Rates of true and false positives are compared with the curve; a Gaussian bound
    that contradicts a curve that holds is left out. The bound is too large with probability
    `alpha`. `sampling_rate` is a client's probability to be drawn; 1 if participation is known.

    Raises:
        ValueError: If no round was released, no canary was asked, or fewer than four directions
            are with, or without, a canary.
    """
    if not rounds:
        raise ValueError("no round was released: there is nothing to audit")
    losses = np.zeros(canaries.size)
    asked = np.zeros(canaries.size, dtype=np.bool_)
    for release in rounds:
        losses += release.losses(sampling_rate)
        if release.eligible is None:
            asked[:] = True
        else:
            asked |= release.eligible
    if not asked[: canaries.count].any():
        raise ValueError("no canary was asked in any round: train more rounds, or ask more clients")
    is_included = asked.copy()
    is_included[canaries.count :] = False
    is_included[: canaries.count] &= canaries.included
    with_canary, without = losses[is_included], losses[asked & ~is_included]
    # Shuffled: excluded canaries come first, and would choose the threshold for all others.
    without = np.random.default_rng(canaries.seed).permutation(without)
    bounds = bounds_of_scores(
        without,
        with_canary,
        alpha=alpha,
        delta=delta,
        expected=_expected(rounds, sampling_rate, asked),
    )
    counts = bounds.at_mu
    estimate = float(
        norm.ppf((counts.true_positives + 0.5) / (counts.positives + 1.0))
        - norm.ppf((counts.false_positives + 0.5) / (counts.negatives + 1.0))
    )
    claimed_mu = mu_of_epsilon(claim, delta)
    # The bound lies estimate - mu below the truth, and 1.645 deviations lower in 1 of 20 audits.
    slack = max(estimate - bounds.mu, 0.0) * (1.0 + norm.isf(0.05) / norm.isf(alpha / 8.0))
    detectable = gaussian_epsilon_of(claimed_mu + slack, delta=delta)
    most = most_that_clopper_pearson_shows(
        counts.positives, counts.negatives, alpha=alpha / 4.0, delta=delta
    )
    return Finding(
        name=WHOLE_RUN,
        alpha=alpha,
        claim=claim,
        delta=delta,
        bounds=bounds.beside(claim, curve),
        caught=curve is not None and bounds.violates(curve),
        observed=(
            f"{canaries.count} canaries, {len(with_canary)} of them there, "
            f"{len(without)} directions without one; mu at least {bounds.mu:.3g}"
        ),
        power=(
            f"catches a true epsilon above about {detectable:.3g}, 19 times of 20; Clopper-Pearson "
            f"shows {most:.3g} at most"
        ),
    )


def _expected(
    rounds: list[ObservedRound], sampling_rate: float, asked: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Privacy losses of simulated runs that keep their claim, without and with a canary."""
    # These runs only choose a threshold, so any seed will do.
    rng = np.random.default_rng(0)
    # If directions were asked in different rounds, each simulated run is that of one of them.
    alike = all(
        release.eligible is None and isinstance(release.noise_multiplier, float)
        for release in rounds
    )
    directions = np.zeros(1)
    if not alike:
        directions = rng.choice(np.flatnonzero(asked), size=_SIMULATED)
    losses, losses_with_canary = np.zeros(_SIMULATED), np.zeros(_SIMULATED)
    for release in rounds:
        z = release.noise_multiplier
        if not isinstance(z, float):
            z = z[directions]
        eligible = None if release.eligible is None else release.eligible[directions]
        without, with_canary = z * rng.normal(size=(2, _SIMULATED))
        with_canary += rng.random(_SIMULATED) < sampling_rate
        for total, along in ((losses, without), (losses_with_canary, with_canary)):
            simulated = ObservedRound(along=along, noise_multiplier=z, eligible=eligible)
            total += simulated.losses(sampling_rate)
    return losses, losses_with_canary


def one_shot_epsilon(canaries: Canaries, moved: NDArray[np.float64], *, delta: float) -> float:
    """Andrew et al.'s estimate at `delta` from the last model alone: no bound.

    `moved` is the last model less the first, flat.
    """
    length = float(np.linalg.norm(moved))
    cosines = np.zeros(1)
    if length:
        cosines = canaries.along(moved)[: canaries.count] / length
    return gaussian_epsilon_of(one_shot_mu(cosines[canaries.included], canaries.size), delta=delta)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """The mu of Gaussian DP with this epsilon at this delta."""
    if epsilon <= 0.0:
        return 0.0
    if math.isinf(epsilon):
        return math.inf
    return float(
        brentq(lambda mu: gaussian_epsilon_of(mu, delta=delta) - epsilon, 1e-6, 1e3, xtol=1e-9)
    )
