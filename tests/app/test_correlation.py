"""From `privacy=correlated` to a plan and its selection."""

from __future__ import annotations

import math

import pytest

from fl_dp.accounting import (
    CyclicSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
    model_error,
    squared_norm,
)
from fl_dp.accounting import VisibleSampling as Visible
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan, make_selection
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE
from fl_dp.plan import CorrelatedPlan, Plan
from fl_dp.statement.of_clients import promise_in_words
from fl_dp.strategies import LawSelection, PublicSelection

# Beyond epsilon 100 bounds are in closed form, and nothing is computed for seconds.
SMALL = ["rounds=20", "task.num_clients=100", "privacy.epsilon=150", "selection.sampling_rate=0.1"]
SPACED = ["selection=public", "privacy=correlated"]
CYCLIC = ["privacy=correlated", "privacy.groups=4"]


def plan_of(*overrides: str) -> Plan:
    return make_plan(compose_settings([*SMALL, *overrides]))


def bands_of(plan: Plan) -> int | None:
    return plan.correlation.bands if isinstance(plan, CorrelatedPlan) else None


def test_spaced_rests_as_long_as_the_roster_allows() -> None:
    plan = plan_of(*SPACED)
    assert plan.sampling == Visible(cohort=10, separation=10)
    assert (bands_of(plan), plan.charged_rounds) == (10, 2)
    assert isinstance(make_selection(compose_settings([*SMALL, *SPACED])), PublicSelection)


def test_a_separation_and_bands_of_ones_own() -> None:
    plan = plan_of(*SPACED, "privacy.separation=5", "privacy.bands=3")
    assert plan.sampling == Visible(cohort=10, separation=5)
    assert (bands_of(plan), plan.charged_rounds) == (3, 4)


def test_cyclic_groups_flip_coins_at_their_own_rate() -> None:
    plan = plan_of(*CYCLIC)
    inside = PoissonSampling(sampling_rate=0.4)
    assert plan.sampling == CyclicSampling(groups=4, inside=inside)
    assert plan.expected_cohort == pytest.approx(10)  # the same mean as without groups
    assert (bands_of(plan), plan.charged_rounds) == (4, 5)
    assert isinstance(make_selection(compose_settings([*SMALL, *CYCLIC])), LawSelection)


def test_a_cut_inside_groups_is_of_the_group() -> None:
    [*_, cut] = [*SMALL, *CYCLIC, "selection=truncated_poisson"]
    selection = make_selection(compose_settings([*SMALL, *CYCLIC, cut]))
    assert isinstance(selection.sampling, CyclicSampling)
    assert selection.sampling.inside == TruncatedPoissonSampling(sampling_rate=0.4, max_cohort=25)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["privacy=correlated"], "with selection=poisson needs .* write privacy.groups=8, or sel"),
        (["privacy=correlated", "privacy.groups=11"], "at most 10 groups"),
        ([*CYCLIC, "privacy.separation=4"], "write selection=public, or with selection=poisson"),
        ([*SPACED, "privacy.groups=4"], "write selection=poisson, or with selection=public"),
    ],
)
def test_what_can_not_be_is_one_line_of_advice(overrides: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        plan_of(*overrides)
    assert "\n" not in str(refused.value)


def test_the_statement_says_what_is_correlated_and_what_memory_holds() -> None:
    plan = plan_of(*CYCLIC)
    assert "the 3 rounds before it" in plan.mechanism
    assert (
        "the noise of the 3 rounds before stays in its memory" in promise_in_words(plan)["trusted"]
    )
    assert "opens as many sums" in plan.not_covered[0]


def error_of(*overrides: str) -> float:
    """Return the root mean square error of the model over all rounds, in clipping norms."""
    asked = ["rounds=100", "task.num_clients=1000", "selection.sampling_rate=0.1"]
    budget = ["privacy.epsilon=8", "privacy.delta=1e-5", "server_optimizer=fedavg"]
    plan = make_plan(compose_settings([*asked, *budget, *overrides]))
    coefficients = plan.coefficients or (COEFFICIENT_ONE,)
    left = model_error(coefficients, plan.rounds) * squared_norm(coefficients)
    return plan.noise_multiplier / plan.denominator * math.sqrt(left)


def test_errors_of_plans_are_those_of_the_published_table() -> None:
    poisson = error_of()
    assert error_of(*SPACED) / poisson == pytest.approx(0.841, abs=2e-3)
    assert error_of("privacy=correlated", "privacy.groups=8") / poisson == pytest.approx(
        0.858, abs=2e-3
    )
    capped = error_of("selection=public", "selection.participation_cap=10")
    assert capped / poisson == pytest.approx(2.03, abs=1e-2)
