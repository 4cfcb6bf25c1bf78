"""Plans: mechanism and event from the same numbers, calibrated with all else put aside."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest
from flat_plans import calibrated_plan, flat_plan, noised_plan

from fl_dp.accounting import (
    CyclicSampling,
    NeighboringRelation,
    NoiseSchedule,
    PoissonGaussianEvent,
    PoissonSampling,
    PrivacyBudget,
    PrivacyEvent,
    default_delta,
    epsilon,
    freeze,
    tight_epsilon,
)
from fl_dp.accounting.filters import DeclaredFilter
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import FixedClipping, ScalarMetric
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent, LaplaceEvent
from fl_dp.option_errors import IncompatibleOptions
from fl_dp.plan import Banded, Plan, plan_from_dict

pytestmark = pytest.mark.slow

DELTA = 200**-1.1
CORRELATION = Banded.optimal(rounds=20, bands=4)
WHOLE_GROUPS = CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=1.0))
BUDGET = PrivacyBudget(epsilon=8.0, delta=DELTA)
STATISTICS: dict[PrivacyEvent, int] = {
    LaplaceEvent(noise_multiplier=4.0): 2,
    GaussianEvent(noise_multiplier=6.0): 1,
}


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = dict(
        budget=BUDGET,
        rounds=20,
        sampling_rate=0.25,
        noise_multiplier=1.0,
        clipping_norm=1.0,
        num_clients=200,
    )
    fields |= changes
    fields.setdefault("sampling", PoissonSampling(sampling_rate=fields.pop("sampling_rate")))
    fields.setdefault("clipping", FixedClipping(norm=fields.pop("clipping_norm")))
    return flat_plan(**fields)


def calibrated(budget: PrivacyBudget = BUDGET, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(rounds=20, sampling_rate=0.25, clipping_norm=1.0, num_clients=200)
    return calibrated_plan(budget, **(fields | changes))


def test_a_plan_hands_out_the_mechanism_and_the_event_from_the_same_numbers() -> None:
    made = plan(noise_multiplier=1.7, clipping_norm=0.3, contribution_check=False)
    charged = made.event_of(1)
    assert isinstance(charged, PoissonGaussianEvent)
    mechanism = made.bundle(charged.noise_multiplier).updates
    assert mechanism.noise_multiplier == charged.noise_multiplier == 1.7
    assert mechanism.noise_std == pytest.approx(0.51)
    assert made.denominator == 50.0
    assert made.history == ((charged, 20),)
    assert made.epsilon() == epsilon({charged: 20}, DELTA)


@pytest.mark.parametrize("name", ["constant", "linear"])
def test_a_calibrated_plan_passes_its_own_filter_and_spends_nearly_all(name: str) -> None:
    made = calibrated(schedule=NoiseSchedule(name=name, levels=3), rounds=12)
    gate = made.filter()
    assert isinstance(gate, DeclaredFilter)
    for round in range(1, 13):
        event = made.event_of(round)
        assert not gate.would_exceed(event)
        gate.spend(event)
    assert gate.would_exceed(made.event_of(12))
    assert 8.0 * 0.998 <= made.epsilon().best <= 8.0
    assert min(made.noise_multipliers) == made.noise_multiplier


def test_only_planned_rounds_have_an_event() -> None:
    made = plan(schedule=NoiseSchedule(name="step"))
    assert made.event_of(1).noise_multiplier == 2.0  # type: ignore[union-attr]  # it is sampled
    for round in (0, 21):
        with pytest.raises(ValueError, match=f"round {round} is not in the plan, which has 20"):
            made.event_of(round)


# Other releases ------------------------------------------------------------------------------


def test_other_releases_are_put_aside_and_admitted() -> None:
    alone, beside = calibrated(), calibrated(other_releases=STATISTICS)
    assert beside.noise_multiplier > alone.noise_multiplier
    assert tight_epsilon(beside.history, DELTA) <= 8.0
    assert dict(beside.history).items() >= STATISTICS.items()
    gate = beside.filter()
    everything: list[PrivacyEvent] = [beside.event_of(1)] * 20 + [
        e for e, n in STATISTICS.items() for _ in range(n)
    ]
    for event in reversed(everything):
        assert not gate.would_exceed(event)
        gate.spend(event)


def test_other_releases_that_spend_all_are_refused() -> None:
    everything = {GaussianEvent(noise_multiplier=0.3): 1}
    with pytest.raises(ValueError, match="no noise reaches"):
        calibrated(other_releases=everything)


# Participation caps --------------------------------------------------------------------------


def test_a_participation_cap_charges_the_capped_rounds_only() -> None:
    """Ten participations at (8, 1e-5): sqrt(10) times the analytic multiplier, 1.898091."""
    made = calibrated(
        PrivacyBudget(epsilon=8.0, delta=1e-5),
        rounds=100,
        sampling_rate=1.0,
        participation_cap=10,
    )
    assert made.noise_multiplier == pytest.approx(1.898091, rel=1e-5)
    assert made.history == ((GaussianEvent(noise_multiplier=made.noise_multiplier), 10),)
    assert made.epsilon().best == pytest.approx(8.0, rel=1e-5)
    short = calibrated(rounds=5, sampling_rate=1.0, participation_cap=10)
    assert short.history[0][1] == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"participation_cap": 3},
            r"write sampling_rate=1, or draw visible cohorts .*, got .*0\.25",
        ),
        (
            {
                "participation_cap": 90,
                "sampling": BufferedSampling(cohort=9),
                "schedule": NoiseSchedule(name="step"),
            },
            r"schedule means nothing where noise is added at the server \(buffered plans\)",
        ),
        (
            {"sampling": replace(WHOLE_GROUPS, groups=1), "correlation": CORRELATION},
            r"groups must be at least 2, got 1: .* take poisson\(",
        ),
    ],
)
def test_a_cap_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**changes)


# From a noise multiplier ---------------------------------------------------------------------

SETTING: dict[str, Any] = dict(delta=DELTA, sampling_rate=0.25, clipping_norm=1.0, num_clients=200)


def test_a_plan_from_a_noise_multiplier_budgets_what_it_spends() -> None:
    made = noised_plan(1.3, rounds=10, **SETTING)
    assert made.budget.epsilon == pytest.approx(made.epsilon().best, rel=1e-6)
    gate = made.filter()
    for _ in range(10):
        assert not gate.would_exceed(made.event_of(1))
        gate.spend(made.event_of(1))
    assert gate.would_exceed(made.event_of(1))
    roomy = noised_plan(1.3, rounds=10, max_epsilon=9.0, **SETTING)
    assert roomy.budget.epsilon == 9.0


def test_a_plan_from_a_noise_multiplier_that_overspends_says_how_many_rounds_fit() -> None:
    with pytest.raises(ValueError, match=r"plan at most (\d+) rounds") as refused:
        noised_plan(1.0, rounds=60, max_epsilon=2.0, **SETTING)
    fits = int(str(refused.value).split("at most ")[1].split()[0])
    noised_plan(1.0, rounds=fits, max_epsilon=2.0, **SETTING)
    with pytest.raises(ValueError, match="plan at most"):
        noised_plan(1.0, rounds=fits + 1, max_epsilon=2.0, **SETTING)
    with pytest.raises(ValueError, match="leave noise_multiplier out"):
        noised_plan(1.0, rounds=60, max_epsilon=2.0, schedule=NoiseSchedule(name="step"), **SETTING)


# JSON, warnings and what is refused ----------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"neighboring_relation": NeighboringRelation.REPLACE_ONE},
        {"schedule": NoiseSchedule(name="exponential", spend="early", levels=None)},
        {"schedule": NoiseSchedule(name="custom", weights=(1.0, 0.5) * 10)},
        {"metrics": (ScalarMetric(name="loss", low=0.0, high=5.0),), "scalar_noise_std": 30.0},
        {"total_weight": 90.0, "contribution_check": False},
        {"client_scheme": "laplace", "sampling_rate": 1.0},
        {"units_per_node": 4, "coins_at_nodes": True},
        {"participation_cap": 3, "sampling_rate": 1.0},
        {
            "other_releases": (
                (ExponentialEvent(epsilon=0.1, draws=4, one_coordinate=True), 2),
                (LaplaceEvent(noise_multiplier=4.0), 1),
            )
        },
    ],
)
def test_every_plan_survives_json(changes: dict[str, Any]) -> None:
    made = plan(**changes)
    assert from_json(made) == made


def from_json(made: Plan) -> Plan:
    return plan_from_dict(json.loads(json.dumps(made.to_dict())))


def test_a_delta_that_allows_publishing_a_client_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="not below 1/num_clients"):
        plan(budget=PrivacyBudget(epsilon=1.0, delta=0.01))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan()


def test_one_record_of_a_client_is_promised_against_its_replacement_alone() -> None:
    """It moves its client's update by up to twice the clipping norm."""
    assert plan(unit="record", neighboring_relation=NeighboringRelation.REPLACE_ONE).rounds == 20
    with pytest.raises(IncompatibleOptions):
        plan(unit="record")


def test_the_default_delta_is_below_one_over_the_roster() -> None:
    assert default_delta(200) == pytest.approx(200**-1.1)
    assert all(default_delta(n) < 1 / n for n in (2, 10, 1000, 10**6))


def test_the_noise_of_scalars_has_to_do_for_every_round_before_any_is_charged() -> None:
    loss = ScalarMetric(name="loss", low=0.0, high=5.0)
    steep = NoiseSchedule(name="linear", floor=0.1)
    with pytest.raises(ValueError, match="scalar_noise_std must be above"):
        calibrated(metrics=(loss,), scalar_noise_std=1.0, schedule=steep)
    # What counts is the multiplier that is found, not the 1 that the search starts from.
    roomy = PrivacyBudget(epsilon=60.0, delta=DELTA)
    made = calibrated(roomy, rounds=2, metrics=(loss,), scalar_noise_std=0.45)
    assert made.noise_multiplier < 0.9
    assert made.release.scalar_noise_std == 0.45


def test_a_plan_of_statistics_alone_costs_what_they_cost() -> None:
    asked = freeze([(GaussianEvent(noise_multiplier=6.0), 1)])
    alone = noised_plan(
        1.0,
        delta=DELTA,
        rounds=0,
        sampling_rate=0.25,
        clipping_norm=1.0,
        num_clients=200,
        other_releases=asked,
        contribution_check=False,
    )
    assert alone.noise_multipliers == ()
    assert alone.epsilon().best == epsilon(asked, DELTA).best
    assert alone.budget.epsilon == pytest.approx(alone.epsilon().best, rel=1e-8)
    assert plan_from_dict(json.loads(json.dumps(alone.to_dict()))) == alone
