"""Lower bounds from scores: one number for each trial, larger where the secret seems to be there.

    >>> found = bounds_of_scores(out, there, alpha=0.05, delta=1e-5)
    >>> found.epsilon, found.gaussian_epsilon

Scores of any adversary will do: projections of released models, likelihood ratios, losses of
records under a trained model. A threshold must not be chosen on the scores that are counted at it.
So it comes from the first half of the scores and the bounds from the second, whose order must say
nothing; or from what the claim expects, and then every score counts. The latter is stronger where
the claim holds, and may be blind where it does not. Given both, both are used, at half of alpha
each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fl_dp.accounting.trade_off import TradeOff
from fl_dp.option_errors import require_probability

from .lower_bounds import (
    Confusion,
    epsilon_lower_bound,
    gaussian_epsilon_of,
    gdp_lower_bound,
    most_that_clopper_pearson_shows,
)
from .noise_findings import deviation_of
from .verdict import AuditReport, Finding

_CANDIDATES = 100  # thresholds that are tried
_FEWEST = 4

_Scores: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]  # without, with the secret


@dataclass(frozen=True, kw_only=True)
class ScoreBounds:
    """Lower bounds that scores are proof of; each fails with at most half of `alpha`.

    Attributes:
        epsilon: By Clopper-Pearson intervals, whatever the mechanism.
        mu: Of Gaussian DP.
        gaussian_epsilon: Epsilon of that mu: a bound where the mechanism's trade-off is Gaussian.
        delta: At which the epsilons hold.
        at_epsilon: Counts at the threshold of `epsilon`.
        at_mu: Counts at the threshold of `mu`.
        alpha: Of the intervals that the bounds are made of.
    """

    epsilon: float
    mu: float
    gaussian_epsilon: float
    delta: float
    at_epsilon: Confusion
    at_mu: Confusion
    alpha: float

    def violates(self, curve: TradeOff) -> bool:
        """Tell whether the counts lie above the trade-off curve that is claimed."""
        rates = (at.rates(self.alpha) for at in (self.at_epsilon, self.at_mu))
        return any(hit > float(curve(alarm)) for hit, alarm in rates)

    def beside(self, claim: float, curve: TradeOff | None) -> dict[str, float]:
        """Return the bounds by name, without a Gaussian one that contradicts a curve that holds."""
        bounds = {"gaussian": self.gaussian_epsilon, "clopper_pearson": self.epsilon}
        if curve is not None and self.gaussian_epsilon > claim and not self.violates(curve):
            del bounds["gaussian"]
        return bounds


def bounds_of_scores(
    out: NDArray[np.float64],
    there: NDArray[np.float64],
    *,
    alpha: float,
    delta: float,
    expected: _Scores | None = None,
) -> ScoreBounds:
    """Return the bounds that scores of trials without and with the secret are proof of.

    Args:
        out: Scores of trials without the secret, independent of each other.
        there: Scores of trials with it.
        alpha: Probability that any of the bounds is too large.
        delta: Of the guarantee.
        expected: Other scores without and with the secret to choose thresholds on, such as draws
            from the claimed law, besides the first halves of `out` and `there`.

    Raises:
        ValueError: If there are fewer than four scores of either kind, or one is not finite.
    """
    require_probability(alpha=alpha)
    for name, scores in (("without", out), ("with", there)):
        if scores.ndim != 1 or len(scores) < _FEWEST or not np.isfinite(scores).all():
            raise ValueError(
                f"need at least {_FEWEST} finite scores of trials {name} the secret, got "
                f"{scores.size}"
            )
    first = out[: len(out) // 2], there[: len(there) // 2]
    second = out[len(out) // 2 :], there[len(there) // 2 :]
    ways = [(first, second)] if expected is None else [(first, second), (expected, (out, there))]
    each = alpha / len(ways)
    found = [_bounds(*way, alpha=each, delta=delta) for way in ways]
    by_epsilon = max(found, key=lambda bounds: bounds.epsilon)
    by_mu = max(found, key=lambda bounds: bounds.mu)
    return replace(by_mu, epsilon=by_epsilon.epsilon, at_epsilon=by_epsilon.at_epsilon)


def _bounds(chosen_on: _Scores, counted_on: _Scores, *, alpha: float, delta: float) -> ScoreBounds:
    """Return the bounds at thresholds that were chosen on other scores."""
    out, there = counted_on
    each = alpha / 2.0
    tried = _thresholds(*chosen_on, negatives=len(out), positives=len(there))
    for_epsilon = max(tried, key=lambda t: epsilon_lower_bound(t[1], alpha=each, delta=delta))[0]
    for_mu = max(tried, key=lambda t: gdp_lower_bound(t[1], alpha=each))[0]
    at_epsilon = _confusion(out, there, for_epsilon)
    at_mu = _confusion(out, there, for_mu)
    mu = gdp_lower_bound(at_mu, alpha=each)
    return ScoreBounds(
        epsilon=epsilon_lower_bound(at_epsilon, alpha=each, delta=delta),
        mu=mu,
        gaussian_epsilon=gaussian_epsilon_of(mu, delta=delta),
        delta=delta,
        at_epsilon=at_epsilon,
        at_mu=at_mu,
        alpha=each,
    )


def _thresholds(
    out: NDArray[np.float64], there: NDArray[np.float64], *, negatives: int, positives: int
) -> list[tuple[float, Confusion]]:
    """Return thresholds, each with the counts that the other trials are expected to have."""
    tried = []
    for threshold in np.unique(np.quantile(there, np.linspace(0.0, 1.0, _CANDIDATES))):
        hit, alarm = (there >= threshold).mean(), (out >= threshold).mean()
        counts = Confusion(
            true_positives=math.floor(hit * positives),
            positives=positives,
            false_positives=math.ceil(alarm * negatives),
            negatives=negatives,
        )
        tried.append((float(threshold), counts))
    return tried


def mu_of_shift(
    out: NDArray[np.float64],
    there: NDArray[np.float64],
    idle: NDArray[np.float64],
    *,
    alpha: float,
) -> float:
    """Return a lower bound on mu for Gaussian noise that a secret shifts, 0 if nothing is shown.

    The distance of the means over the deviation of the noise, which is read where nothing is
    hidden: it uses every digit of the scores and not only on which side of a threshold they lie.
    Infinity without any noise.

    Args:
        out: Scores without the secret.
        there: Scores with it.
        idle: Draws of the same noise, of mean zero, independent of the scores.
        alpha: Probability that the bound is too large.

    Raises:
        ValueError: If alpha is not in (0, 1).
    """
    require_probability(alpha=alpha)
    # Var(mean_1 - mean_0) = 1/n_0 + 1/n_1 in deviations of the noise.
    # One half of alpha for the mean's error, the other for the deviation's.
    largest = deviation_of(idle, alpha=alpha)[1]
    apart = abs(float(there.mean() - out.mean()))
    if largest == 0.0:
        return math.inf if apart > 0.0 else 0.0
    error = float(norm.isf(alpha / 2.0)) * math.sqrt(1.0 / len(out) + 1.0 / len(there))
    return max(0.0, apart / largest - error)


def _confusion(out: NDArray[np.float64], there: NDArray[np.float64], threshold: float) -> Confusion:
    return Confusion(
        true_positives=int((there >= threshold).sum()),
        positives=len(there),
        false_positives=int((out >= threshold).sum()),
        negatives=len(out),
    )


def read_scores(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores without and with the secret that a `.npz` holds as `out` and `there`.

    Raises:
        OSError: If it can't be read.
        ValueError: If it has no such arrays.
    """
    with np.load(path, allow_pickle=False) as stored:
        for name in ("out", "there"):
            if name not in stored.files:
                raise ValueError(f"{path} has no array '{name}'")
        return stored["out"].astype(np.float64), stored["there"].astype(np.float64)


def report_of_scores(
    out: NDArray[np.float64],
    there: NDArray[np.float64],
    *,
    claim: float,
    delta: float,
    alpha: float,
    subject: str,
    seed: int = 0,
) -> AuditReport:
    """Return what scores are proof of, beside what their model claims.

    Args:
        out: Scores of units that the training did not see, larger where an attack believes that it
            did. Trials have to be independent: units of one model are so only approximately, and
            those of many independently trained models exactly.
        there: Scores of units that it saw.
        claim: Epsilon that it claims for one of them.
        delta: Of the claim.
        alpha: Probability that a model that keeps its claim is accused.
        subject: What is audited.
        seed: Of the order in which scores are split into halves.

    Raises:
        ValueError: As `bounds_of_scores`.
    """
    rng = np.random.default_rng(seed)
    out, there = rng.permutation(out), rng.permutation(there)
    found = bounds_of_scores(out, there, alpha=alpha, delta=delta)
    counts = found.at_epsilon
    most = most_that_clopper_pearson_shows(
        counts.positives, counts.negatives, alpha=alpha / 2.0, delta=delta
    )
    # Scores of a final model follow no law that is known: the Gaussian route is no bound here.
    finding = Finding(
        name="scores of the final model",
        alpha=alpha,
        claim=claim,
        delta=delta,
        bounds={"clopper_pearson": found.epsilon},
        seen=(
            f"{counts.true_positives} of {counts.positives} found at {counts.false_positives} "
            f"false alarms of {counts.negatives}"
        ),
        power=f"shows epsilon {most:.3g} at most",
    )
    return AuditReport(
        subject=subject,
        findings=(finding,),
        estimates={
            "epsilon by Gaussian DP, if the scores' trade-off were a Gaussian's; no bound": (
                found.gaussian_epsilon
            )
        },
        notes=(
            "the adversary sees the final model alone, and is as strong as its attack: a weak "
            "attack shows little of any leak",
        ),
    )
