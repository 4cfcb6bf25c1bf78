"""Lower bounds from scores: one number per trial, larger where the secret seems included.

    >>> bounds = bounds_of_scores(without, with_secret, alpha=0.05, delta=1e-5)
    >>> bounds.epsilon, bounds.gaussian_epsilon

Any adversary's scores will do: projections of released models, likelihood ratios, losses. No
threshold may be chosen on scores that are counted at it. So either the first half gives the
threshold and the second half the bounds; the order must carry no information. Or draws from the
claimed law give the threshold, and every score counts: stronger where the claim holds, maybe blind
where it does not. Given draws, both ways are used, each at half of alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting.trade_off import TradeOff
from fl_dp.guarantee import Guarantee
from fl_dp.option_errors import require_probability

from .lower_bounds import (
    Confusion,
    epsilon_lower_bound,
    gaussian_epsilon_of,
    gdp_lower_bound,
    most_that_clopper_pearson_shows,
)
from .verdict import AuditReport, Finding

_CANDIDATES = 100  # thresholds that are tried
_FEWEST = 4

_Scores: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]  # without, with the secret


@dataclass(frozen=True, kw_only=True)
class ScoreBounds:
    """Lower bounds that scores prove; each fails with at most half of `bounds_of_scores`' alpha.

    Attributes:
        epsilon: Bound by Clopper-Pearson intervals, for any mechanism.
        mu: Bound on the mu of Gaussian DP.
        gaussian_epsilon: Epsilon of `mu`; a bound if the trade-off curve is Gaussian.
        at_epsilon: Counts at the threshold of `epsilon`.
        at_mu: Counts at the threshold of `mu`.
        alpha: Error probability of the intervals.
    """

    epsilon: float
    mu: float
    gaussian_epsilon: float
    delta: float
    at_epsilon: Confusion
    at_mu: Confusion
    alpha: float

    def violates(self, curve: TradeOff) -> bool:
        """Whether the counts lie above the claimed trade-off curve."""
        rates = (at.rates(self.alpha) for at in (self.at_epsilon, self.at_mu))
        return any(hit > float(curve(alarm)) for hit, alarm in rates)

    def beside(self, claim: float, curve: TradeOff | None) -> dict[str, float]:
        """The bounds by name; no Gaussian one above the claim if the curve holds."""
        bounds = {"gaussian": self.gaussian_epsilon, "clopper_pearson": self.epsilon}
        if curve is not None and self.gaussian_epsilon > claim and not self.violates(curve):
            del bounds["gaussian"]
        return bounds


def bounds_of_scores(
    without: NDArray[np.float64],
    with_secret: NDArray[np.float64],
    *,
    alpha: float,
    delta: float,
    expected: _Scores | None = None,
) -> ScoreBounds:
    """Lower bounds from independent scores of trials without and with the secret.

    Epsilons are at `delta`; `alpha` is the probability that any of the bounds is too large.
    Thresholds are chosen on `expected`, too: draws from the claimed law, without and with the
    secret.

    Raises:
        ValueError: If either kind has fewer than four scores, one is not finite, or alpha is not
            in (0, 1).
    """
    require_probability(alpha=alpha)
    for name, scores in (("without", without), ("with", with_secret)):
        if scores.ndim != 1 or len(scores) < _FEWEST or not np.isfinite(scores).all():
            raise ValueError(
                f"need at least {_FEWEST} finite scores of trials {name} the secret, got "
                f"{scores.size}"
            )
    first = without[: len(without) // 2], with_secret[: len(with_secret) // 2]
    second = without[len(without) // 2 :], with_secret[len(with_secret) // 2 :]
    ways = [(first, second)]
    if expected is not None:
        ways.append((expected, (without, with_secret)))
    level = alpha / len(ways)
    candidates = [_bounds(*way, alpha=level, delta=delta) for way in ways]
    by_epsilon = max(candidates, key=lambda bounds: bounds.epsilon)
    by_mu = max(candidates, key=lambda bounds: bounds.mu)
    return replace(by_mu, epsilon=by_epsilon.epsilon, at_epsilon=by_epsilon.at_epsilon)


def _bounds(chosen_on: _Scores, counted_on: _Scores, *, alpha: float, delta: float) -> ScoreBounds:
    """The bounds at thresholds chosen on other scores."""
    without, with_secret = counted_on
    level = alpha / 2.0
    thresholds = _thresholds(*chosen_on, negatives=len(without), positives=len(with_secret))

    def epsilon_at(threshold: tuple[float, Confusion]) -> float:
        return epsilon_lower_bound(threshold[1], alpha=level, delta=delta)

    def mu_at(threshold: tuple[float, Confusion]) -> float:
        return gdp_lower_bound(threshold[1], alpha=level)

    for_epsilon, _ = max(thresholds, key=epsilon_at)
    for_mu, _ = max(thresholds, key=mu_at)
    at_epsilon = _confusion(without, with_secret, for_epsilon)
    at_mu = _confusion(without, with_secret, for_mu)
    mu = gdp_lower_bound(at_mu, alpha=level)
    return ScoreBounds(
        epsilon=epsilon_lower_bound(at_epsilon, alpha=level, delta=delta),
        mu=mu,
        gaussian_epsilon=gaussian_epsilon_of(mu, delta=delta),
        delta=delta,
        at_epsilon=at_epsilon,
        at_mu=at_mu,
        alpha=level,
    )


def _thresholds(
    without: NDArray[np.float64],
    with_secret: NDArray[np.float64],
    *,
    negatives: int,
    positives: int,
) -> list[tuple[float, Confusion]]:
    """Thresholds, each with the counts expected of the other trials."""
    thresholds = []
    for threshold in np.unique(np.quantile(with_secret, np.linspace(0.0, 1.0, _CANDIDATES))):
        hit, alarm = (with_secret >= threshold).mean(), (without >= threshold).mean()
        counts = Confusion(
            true_positives=math.floor(hit * positives),
            positives=positives,
            false_positives=math.ceil(alarm * negatives),
            negatives=negatives,
        )
        thresholds.append((float(threshold), counts))
    return thresholds


def _confusion(
    without: NDArray[np.float64], with_secret: NDArray[np.float64], threshold: float
) -> Confusion:
    return Confusion(
        true_positives=int((with_secret >= threshold).sum()),
        positives=len(with_secret),
        false_positives=int((without >= threshold).sum()),
        negatives=len(without),
    )


def read_scores(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores without and with the secret: arrays `out` and `there` of a `.npz`.

    Raises:
        OSError: If the file can't be read.
        ValueError: If it has no such arrays.
    """
    with np.load(path, allow_pickle=False) as stored:
        for name in ("out", "there"):
            if name not in stored.files:
                raise ValueError(f"{path} has no array '{name}'")
        return stored["out"].astype(np.float64), stored["there"].astype(np.float64)


def report_of_scores(
    without: NDArray[np.float64],
    with_secret: NDArray[np.float64],
    *,
    claim: float,
    delta: float,
    alpha: float,
    subject: str,
    seed: int = 0,
) -> AuditReport:
    """Return what scores prove, beside their model's claim.

    Scores are of units that the training did not see (`without`) or saw, larger where the attack
    believes the latter. Trials must be independent: those of many independently trained models
    are, those of one model only approximately.

    `claim` is one unit's epsilon at `delta`. A model that keeps it is accused with probability
    `alpha`. `seed` is for the split into halves.

    Raises:
        ValueError: As `bounds_of_scores`.
    """
    rng = np.random.default_rng(seed)
    without, with_secret = rng.permutation(without), rng.permutation(with_secret)
    bounds = bounds_of_scores(without, with_secret, alpha=alpha, delta=delta)
    counts = bounds.at_epsilon
    most = most_that_clopper_pearson_shows(
        counts.positives, counts.negatives, alpha=alpha / 2.0, delta=delta
    )
    # Scores of a final model follow no law that is known: the Gaussian route is no bound here.
    finding = Finding(
        name="scores of the final model",
        alpha=alpha,
        claim=claim,
        delta=delta,
        bounds={"clopper_pearson": bounds.epsilon},
        observed=(
            f"{counts.true_positives} of {counts.positives} found at {counts.false_positives} "
            f"false alarms of {counts.negatives}"
        ),
        power=f"shows epsilon {most:.3g} at most",
    )
    return AuditReport(
        subject=subject,
        promise=Guarantee(delta=delta, unit=None, neighbours=None, against=None),
        findings=(finding,),
        estimates={
            "epsilon by Gaussian DP, if the scores' trade-off were a Gaussian's; no bound": (
                bounds.gaussian_epsilon
            )
        },
        notes=(
            "the adversary sees the final model alone, and is as strong as its attack: a weak "
            "attack shows little of any leak",
        ),
    )
