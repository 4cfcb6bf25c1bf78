"""Findings of one training with canaries: what its releases, its noise and its cohorts show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import CyclicSampling, PoissonSampling, Sampling
from fl_dp.accounting.trade_off import TradeOff
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.cohorts import cohorts_are_poisson
from fl_dp.lab.audit.correlated_run import without_memory
from fl_dp.lab.audit.noise import findings_on_noise
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.audit.whole_run import finding_of_run

from .canary_server import SeenRun

_OTHERS = 0.1  # of alpha, for what is seen without a bound: it needs less of it


def findings_of(
    seen: SeenRun,
    canaries: Canaries,
    sampling: Sampling,
    *,
    claim: float,
    delta: float,
    alpha: float,
    curve: TradeOff | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of a run, of which the first bounds its epsilon.

    Args:
        seen: What was released, and who took part.
        canaries: Those of the run.
        sampling: As charged.
        claim: Epsilon that the ledger claims.
        delta: Of the claim.
        alpha: Probability that a run that keeps its claim is accused, over all findings.
        curve: Trade-off curve of what the ledger was charged.

    Raises:
        ValueError: As `finding_of_run`, or if a round is missing amid correlated noise.
    """
    coins = None if sampling.visible else _coins(seen, sampling)
    each = _OTHERS * alpha / (1.0 if coins is None else 2.0)
    bound = finding_of_run(
        canaries,
        seen.looks(),
        sampling_rate=rate_of_coins(sampling),
        claim=claim,
        delta=delta,
        alpha=(1.0 - _OTHERS) * alpha,
        curve=curve,
    )
    fresh, scales, _ = without_memory(seen.rounds, seen.indices, seen.coefficients)
    idle = fresh[:, canaries.count :] / scales[:, None]
    findings = bound, *findings_on_noise(idle, alpha=each, cohorts=seen.cohorts)
    if coins is None:
        return findings
    return *findings, cohorts_are_poisson(coins, rate_of_coins(sampling), alpha=each)


def rate_of_coins(sampling: Sampling) -> float:
    """Return the probability of a client in a round that it may be drawn in; 1 if that is seen."""
    if sampling.visible:
        return 1.0
    inside = sampling.inside if isinstance(sampling, CyclicSampling) else sampling
    assert isinstance(inside, PoissonSampling)  # as `require_auditable` has checked
    return inside.sampling_rate


def _coins(seen: SeenRun, sampling: Sampling) -> NDArray[np.bool_]:
    """Return the coins of the canaries, one row a round, or a turn of each one's group."""
    if not isinstance(sampling, CyclicSampling) or seen.turn is None or seen.turn.groups is None:
        return seen.drawn
    turns = len(seen.rounds) // sampling.groups
    of_group = np.array(seen.indices) % sampling.groups
    return np.hstack(
        [
            seen.drawn[of_group == group][:turns, seen.turn.groups == group]
            for group in range(sampling.groups)
        ]
    )
