"""A check that enough units contribute, by each round's noisy count.

A round without contributions looks like any other: same noise, same charge. Hence each round also
counts its contributions (`GaussianBundle.count_noise_std`), and the counts so far are compared
with the law of sampling. The check is free: counts are paid for with their rounds, and all else
comes from counts and public constants.

    >>> law = CohortLaw(units=200, rate=0.25)
    >>> nobody = Evidence(share=0.0, against=0.75)
    >>> for count in (-3.1, 12.4, 6.0, -9.7):
    ...     nobody.observe(count, law, noise_std=7.1)
    >>> nobody.passes(1e-6)
    True

References: Ville 1939 (the bound over all rounds); Shin, Ramdas and Rinaldo 2024, "E-detectors" (a
sum over the round in which the trouble may have begun).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy

from fl_dp.plan import Plan

logger = logging.getLogger("flwr.fl_dp")

FALSE_ALARM = 1e-6
"""Probability that a training is ended although enough units contribute."""

SUSPICION = 1e-2
"""Probability of a false warning, for trainings too short to be sure."""

_ENOUGH, _ALL_BUT_A_FEW, _HALF = 0.75, 0.9, 0.5
_TAIL = 12.0  # standard deviations beyond which a cohort's size has no probability worth a term


class NobodyContributes(RuntimeError):
    """Almost nobody contributes: further rounds would pay for models of pure noise."""


@dataclass(frozen=True, kw_only=True)
class CohortLaw:
    """Public law of the number of units that a round asks: a binomial.

    Attributes:
        units: Number of units that may be drawn.
        rate: Probability of each; 1 where the cohort's size is known.
    """

    units: int
    rate: float

    @property
    def mean(self) -> float:
        """The cohort's expected size."""
        return self.rate * self.units

    @classmethod
    def of(cls, plan: Plan | None, asked: int) -> CohortLaw:
        """A round's law; the exact `asked` enters only where it is public."""
        if plan is None:
            return cls(units=asked, rate=1.0)
        # Of records nobody asks one by one.
        if plan.sampling.visible and not plan.hosting.of_records:
            return cls(units=min(asked, plan.num_units), rate=1.0)
        units, rate = plan.sampling.cohort_law(plan.num_units)
        return cls(units=units, rate=rate)


class Evidence:
    """Evidence, over rounds, that too small a share of the units contributes.

    A mixture of likelihood ratios, one for each round in which the trouble may have begun. Suppose
    each drawn unit contributes with probability `against` or more, independently. Then, over any
    number of rounds, `passes(p)` is ever true with probability at most p: each ratio decreases in
    its count, and their mixture is a nonnegative martingale that starts at 1.
    """

    def __init__(self, *, share: float, against: float) -> None:
        """Start with none: `share` is suspected, a larger share `against` is usual."""
        self._share = share
        self._against = against
        self._rounds = 0
        self._log = -math.inf  # of the sum over the rounds in which it may have begun

    def observe(self, count: float, law: CohortLaw, *, noise_std: float) -> None:
        """Add one round's released count.

        `noise_std` is the standard deviation of its Gaussian noise; 0: it is exact.
        """
        self._rounds += 1
        weight = 1.0 / (self._rounds * (self._rounds + 1.0))  # they sum to 1
        ratio = _log_likelihood(count, law, self._share, noise_std) - _log_likelihood(
            count, law, self._against, noise_std
        )
        # S_t = (S_(t-1) + w_t) L_t, in logarithms: a mixture over the round in which it begins.
        self._log = float(np.logaddexp(self._log, math.log(weight))) + ratio

    def passes(self, false_alarm: float) -> bool:
        """Whether the evidence is wrong with at most this probability."""
        return self._log >= -math.log(false_alarm)


class ContributionCheck:
    """Ends a training to which nobody contributes; warns if about half is missing."""

    def __init__(self, plan: Plan | None) -> None:
        """Start before any round; without a plan, counts are exact."""
        self._plan = plan
        self._nobody = Evidence(share=0.0, against=_ENOUGH)
        self._half = Evidence(share=_HALF, against=_ALL_BUT_A_FEW)
        self._counted = self._expected = self._variance = 0.0
        self._rounds = 0
        self._log_ratio = 0.0  # of nobody against three quarters, over all rounds
        self._warned = self._suspected = False
        self._once = False  # whether half or more contributed in the rounds up to some round

    def observe(self, count: float, *, noise_std: float, asked: int, untried: bool = False) -> None:
        """Add a round's count; `untried` marks the first round of an unrehearsed app.

        Raises:
            NobodyContributes: If almost nobody does. With three quarters of the drawn units
                contributing, or more, its probability is at most `FALSE_ALARM` over the whole
                training; in the first round of an untried app, with nine tenths, at most
                `SUSPICION`.
        """
        law = CohortLaw.of(self._plan, asked)
        self._rounds += 1
        for evidence in (self._nobody, self._half):
            evidence.observe(count, law, noise_std=noise_std)
        nobody = _log_likelihood(count, law, 0.0, noise_std)
        enough = _log_likelihood(count, law, _ENOUGH, noise_std)
        self._log_ratio += nobody - enough
        self._counted += count
        self._expected += law.mean
        self._variance += noise_std**2
        # Less five deviations of the noise on all counts so far.
        surely = self._counted - 5.0 * math.sqrt(self._variance)
        self._once |= surely >= 0.5 * self._expected
        estimate = "" if noise_std == 0.0 else " (a noisy estimate, paid for with the rounds)"
        if self._nobody.passes(FALSE_ALARM) or (
            untried and self._never_works(count, law, noise_std)
        ):
            raise NobodyContributes(_likely_causes(self._plan, once=self._once))
        if not self._suspected and self._nobody.passes(SUSPICION):
            self._suspected = True
            logger.warning(
                "It looks as if almost nobody contributes%s: look at the logs of the nodes. The "
                "training ends once that is all but certain; ctrl-C stops it now (said once)",
                estimate,
            )
        if not self._warned and self._half.passes(FALSE_ALARM):
            self._warned = True
            share = min(1.0, max(0.0, self._counted / self._expected))
            logger.warning(
                "About %.0f %% of the units that are drawn seem to contribute%s: the others count "
                "as zero, and the noise stays the same. Look at the logs of the nodes (said once)",
                100.0 * share,
                estimate,
            )

    def conclude(self, *, earlier_rounds: int = 0) -> None:
        """Judge a training that is over. One without privacy keeps its model if anybody was drawn.

        Of `earlier_rounds`, before the training was resumed, nothing is known here.

        Raises:
            NobodyContributes: If nobody was drawn in any round, or nobody contributed: surely,
                where counts are exact. Else, if three quarters of the drawn units contribute, the
                probability is at most `SUSPICION`.
        """
        if self._rounds and not earlier_rounds and self._expected == 0.0:
            raise NobodyContributes(
                f"nobody was drawn in any of the {self._rounds} rounds, and the model is still the "
                "first one: draw more clients in each round, or train for more rounds"
            )
        if self._plan is None:
            return
        if self._variance == 0.0:
            failed = self._counted == 0.0 < self._expected
        else:
            failed = self._log_ratio >= -math.log(SUSPICION)
        if failed:
            raise NobodyContributes(_likely_causes(self._plan, once=False, over=True))

    def _never_works(self, count: float, law: CohortLaw, noise_std: float) -> bool:
        """Whether the first round shows that an untried app never works."""
        if self._plan is None:  # nothing is paid: there is time
            return False
        evidence = Evidence(share=0.0, against=_ALL_BUT_A_FEW)
        evidence.observe(count, law, noise_std=noise_std)
        return evidence.passes(SUSPICION)


def _likely_causes(plan: Plan | None, *, once: bool, over: bool = False) -> str:
    spent = "" if plan is None else "; what the rounds so far were charged stays spent"
    if once:
        rest = "the last one" if plan is None else "the last one and noise"
        return (
            "almost nobody contributes any more, and further models would be "
            f"{rest}, so the training ends here{spent}. Likely causes, in this order: the nodes' "
            "own budgets are exhausted (`fl-dp node ledger` at a node); values are NaN or infinite "
            "(a lower learning rate); nodes were stopped, or are slower than the time-out"
        )
    fewer = ""
    if plan is not None and plan.hosting.of_records:
        fewer = f"; nodes have far fewer records than num_records = {plan.num_units} declares"
    noise = "the first one" if plan is None else "pure noise"
    finding = (
        f"almost nobody contributes, and further models would be {noise}, so the training ends here"
    )
    if over:
        finding = (
            f"almost nobody has contributed, and the last model is {noise}: the training failed"
        )
    return (
        f"{finding}{spent}. "
        "Likely causes, in this order: the client app raises an exception in every round (the log "
        "names the first node that failed); it answers with arrays of other names or shapes than "
        "the model's (numpy_client_app(arrays_fn=...) tells before anything is charged); it "
        "returns the parameters as they came; its values are NaN or infinite (a lower learning "
        f"rate); nodes are slower than the time-out; their own budgets are exhausted{fewer}"
    )


def _log_likelihood(count: float, law: CohortLaw, share: float, noise_std: float) -> float:
    """Logarithm of a count's density, up to a summand equal for all shares."""
    sizes, log_probabilities = _sizes(law.units, share * law.rate)
    if noise_std == 0.0:
        hit = log_probabilities[sizes == count]
        return float(hit[0]) if len(hit) else -math.inf
    terms = log_probabilities + (count * sizes - sizes * sizes / 2.0) / noise_std**2
    largest = float(terms.max())  # finite: some size has a probability, and counts are finite
    return largest + math.log(float(np.exp(terms - largest).sum()))


@lru_cache(maxsize=64)
def _sizes(units: int, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The possible numbers of contributions and their log-probabilities."""
    # Bernstein: beyond it a binomial has no probability worth a term.
    spread = _TAIL * (math.sqrt(units * rate * (1.0 - rate)) + _TAIL)
    last = min(units, math.ceil(units * rate + spread))
    sizes = np.arange(last + 1, dtype=np.float64)
    ways = gammaln(units + 1) - gammaln(sizes + 1) - gammaln(units - sizes + 1)
    return sizes, ways + xlogy(sizes, rate) + xlog1py(units - sizes, -rate)
