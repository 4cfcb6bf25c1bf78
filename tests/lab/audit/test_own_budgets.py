"""Canaries in each group with a budget of its own: each group is judged by its own claim.

False alarms: at most 1e-6 an audit. A system that forgets the groups is caught, by theirs alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from audited_trainings import DELTA, judged, trained
from flat_plans import calibrated_plan

from fl_dp import Plan, PrivacyBudget
from fl_dp.accounting import OwnRatesSampling
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.cohorts import cohorts_are_poisson
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.audit.whole_run import ObservedRound
from fl_dp.lab.games.canary_run import CanaryRun
from fl_dp.lab.games.canary_server import WatchedLoop
from fl_dp.lab.games.observed_run import Audited, ObservedRun, claims_of
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE
from fl_dp.strategies import Draw, LawSelection

BUDGETS = (0.5, 12.0)
RUN = CanaryRun(count=100, seed=1, in_place=True)
STRICT, GENEROUS = ", of those that allow 0.5", ", of those that allow 12"


LAW = OwnRatesSampling.at(0.5, budgets=BUDGETS, shares=(0.5, 0.5))


class EightTimesAsOften(LawSelection):
    """Draws the strict group at eight times its rate."""

    def select(self, draw: Draw) -> Any:
        law = self.sampling
        assert isinstance(law, OwnRatesSampling)
        first = np.array(draw.groups) == 0
        strict = [u for u, at in zip(draw.roster, first, strict=True) if at]
        coins = draw.rng.bernoulli(8.0 * law.own_groups[0].sampling_rate, len(strict))
        others = [unit for unit in super().select(draw) if unit not in strict]
        return others + [u for u, heads in zip(strict, coins, strict=True) if heads]


def audited(folder: Path, *, wrong: bool = False) -> tuple[Finding, ...]:
    """Train with canaries in the places of half of the clients, one a node."""
    run = trained(
        WatchedLoop,
        folder,
        RUN,
        200,
        rounds=16,
        num_clients=200,
        units_per_node=None,
        sampling=LAW,
        selection=EightTimesAsOften if wrong else None,
    )
    seen, found = judged(run, RUN)
    assert seen.budget_groups is not None
    never_asked, strict, generous = np.bincount(seen.budget_groups + 1)  # whose group nobody knows
    assert (never_asked + strict, generous) == (50, 50)
    return found


def violated(found: tuple[Finding, ...]) -> set[str]:
    return {each.name for each in found if not each.stands}


def test_each_group_has_a_row_within_its_own_budget(tmp_path: Path) -> None:
    found = audited(tmp_path)
    strict, generous = found[:2]
    assert not violated(found)
    assert strict.name.endswith(STRICT) and generous.name.endswith(GENEROUS)
    assert strict.claim == pytest.approx(BUDGETS[0], rel=0.01)
    assert generous.claim == pytest.approx(BUDGETS[1], rel=0.01)
    # The audit sees something: those who allow more are seen more.
    assert (strict.bound or 0.0) < (generous.bound or 0.0)
    assert sum(each.alpha for each in found) == pytest.approx(1e-6)


def test_a_system_that_draws_a_group_eight_times_as_often_is_caught_at_that_group(
    tmp_path: Path,
) -> None:
    found = audited(tmp_path, wrong=True)
    assert violated(found) and all(name.endswith(STRICT) for name in violated(found))


def by_the_law(
    rate: float, strict: float, *, longer: float = 1.0, oftener: float = 1.0
) -> list[bool]:
    """Play releases of 60,000 canaries by their law; the first of two groups breaks its own.

    Args:
        rate: Mean sampling rate.
        strict: Epsilon of the first group; that of the second is 8.
        longer: Its norm over that which is charged: as if its noise were smaller.
        oftener: Its rate over that which is charged.

    Returns:
        Whether the claim of each group stands.
    """
    of = beside_claims(*played(rate, strict, longer=longer, oftener=oftener))
    return [of.bound(each, alpha=1e-6).stands for each in of.claims]


def beside_claims(plan: Plan, seen: ObservedRun, canaries: Canaries) -> Audited:
    return Audited(
        run=seen,
        canaries=canaries,
        sampling=plan.sampling,
        claims=claims_of(plan, plan.history, plan.budget.epsilon),
        delta=DELTA,
    )


def played(
    rate: float, strict: float, *, longer: float = 1.0, oftener: float = 1.0
) -> tuple[Plan, ObservedRun, Canaries]:
    """Return what `by_the_law` judges."""
    budgets = (strict, 8.0)
    plan = calibrated_plan(
        PrivacyBudget(epsilon=budgets[-1], delta=DELTA),
        rounds=8,
        num_clients=500,
        sampling=OwnRatesSampling.at(rate, budgets=budgets, shares=(0.5, 0.5)),
        clipping_norm=1.0,
    )
    law, z = cast(OwnRatesSampling, plan.sampling), plan.noise_multiplier
    canaries, rng = Canaries(count=60_000, size=180_000, seed=3), np.random.default_rng(7)
    own = np.arange(canaries.count) % 2
    norms = np.array([longer, 1.0])[own]
    rates = np.array([oftener * law.rates[0], law.rates[1]])[own]
    drawn = rng.random((plan.rounds, canaries.count)) < rates
    along = z * rng.normal(size=(plan.rounds, canaries.size))
    along[:, : canaries.count] += norms * drawn * canaries.included
    seen = ObservedRun(
        rounds=[ObservedRound(along=each, noise_multiplier=z) for each in along],
        moved=np.zeros(canaries.size),
        indices=list(range(plan.rounds)),
        turns=None,
        coefficients=(COEFFICIENT_ONE,),
        drawn=drawn,
        cohorts=drawn.sum(axis=1),
        budget_groups=own,
    )
    return plan, seen, canaries


def test_groups_that_are_known_by_draws_alone_accuse_nobody() -> None:
    plan, seen, canaries = played(0.1, 1.0)
    assert seen.budget_groups is not None
    seen = replace(seen, budget_groups=np.where(seen.drawn.any(axis=0), seen.budget_groups, -1))
    assert seen.num_unknown > 20_000
    of = beside_claims(plan, seen, canaries)
    assert not violated(of.findings(alpha=1e-6))
    # As if nobody else were in a group, its coins would seem to come up far too often.
    known = seen.drawn[:, seen.budget_groups == 0][:, :200]
    assert cohorts_are_poisson(known, of.claims[0].sampling_rate, alpha=1e-6).caught


def test_twice_the_rate_convicts_that_group_alone() -> None:
    assert by_the_law(0.4, 4.0) == [True, True]
    assert by_the_law(0.4, 4.0, oftener=2.0) == [False, True]


def test_nine_tenths_of_the_noise_convict_that_group_alone() -> None:
    # At a large rate, where the threshold of Gaussian DP is close to the charged curve's.
    assert by_the_law(0.9, 7.0) == [True, True]
    assert by_the_law(0.9, 7.0, longer=1.0 / 0.9) == [False, True]
