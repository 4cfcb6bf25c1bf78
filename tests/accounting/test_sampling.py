"""Each law of cohorts hands out the one event that it may be charged as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fl_dp.strategies.selection import selection_of
from flat_plans import flat_plan

from fl_dp import Plan
from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    NeighboringRelation,
    PoissonGaussianEvent,
    PoissonSampling,
    PrivacyBudget,
    Sampling,
    TruncatedPoissonSampling,
    VisibleSampling,
    epsilon,
)
from fl_dp.accounting.events import FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent
from fl_dp.codec import decode_text, encode_text
from fl_dp.mechanisms import FixedClipping
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import IncompatibleOptions
from fl_dp.plan import Banded, plan_from_dict

ADD_OR_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
N = 40
LAWS: list[tuple[Sampling, Any, float, bool]] = [
    (
        PoissonSampling(sampling_rate=0.25),
        PoissonGaussianEvent(noise_multiplier=1.5, sampling_rate=0.25),
        10.0,
        False,
    ),
    (
        PoissonSampling(sampling_rate=1.0),
        PoissonGaussianEvent(noise_multiplier=1.5, sampling_rate=1.0),
        40.0,
        True,
    ),
    (
        TruncatedPoissonSampling(sampling_rate=0.25, max_cohort=20),
        TruncatedPoissonGaussianEvent(
            noise_multiplier=1.5, sampling_rate=0.25, num_units=N, max_cohort=20
        ),
        10.0,
        False,
    ),
    (
        FixedSizeSampling(cohort=10),
        FixedSizeGaussianEvent(noise_multiplier=1.5, num_units=N, cohort=10),
        10.0,
        False,
    ),
    (VisibleSampling(cohort=10), GaussianEvent(noise_multiplier=1.5), 10.0, True),
]
each_law = pytest.mark.parametrize(
    ("law", "event", "cohort", "visible"),
    [pytest.param(*row, id=f"{row[0].kind} {row[2]:g}") for row in LAWS],
)


def plan_of(law: Sampling, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(
        budget=PrivacyBudget(epsilon=1e6, delta=1e-5),
        rounds=3,
        sampling=law,
        noise_multiplier=1.5,
        clipping=FixedClipping(norm=1.0),
        num_clients=N,
    )
    return flat_plan(**(fields | changes))


@each_law
def test_a_law_is_charged_as_its_own_event(
    law: Sampling, event: Any, cohort: float, visible: bool
) -> None:
    assert law.event(1.5, N) == event
    plan = plan_of(law)
    assert plan.event_of(2) == event
    assert sum(count for _, count in plan.history) == 3


@each_law
def test_the_denominator_is_the_public_constant_of_the_law(
    law: Sampling, event: Any, cohort: float, visible: bool
) -> None:
    assert law.expected_cohort(N) == cohort
    plan = plan_of(law)
    assert (plan.expected_cohort, plan.denominator) == (cohort, cohort)


@each_law
def test_a_law_says_whether_who_takes_part_is_seen(
    law: Sampling, event: Any, cohort: float, visible: bool
) -> None:
    assert law.visible is visible
    assert law.describe()


@each_law
def test_a_law_comes_back_from_json_as_it_was(
    law: Sampling, event: Any, cohort: float, visible: bool
) -> None:
    again = decode_text(type(law), encode_text(law))
    assert again == law
    assert type(again) is type(law)
    plan = plan_of(law)
    assert plan_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("cohort", [1, N - 1, N])
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_fixed_size_is_never_charged_as_a_poisson_sample(
    cohort: int, relation: NeighboringRelation
) -> None:
    plan = plan_of(FixedSizeSampling(cohort=cohort), neighboring_relation=relation)
    assert {type(event) for event, _ in plan.history} == {FixedSizeGaussianEvent}


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_ten_of_forty_cost_more_than_coins_of_a_quarter(relation: NeighboringRelation) -> None:
    # Where the two would cost the same, one of them would be charged as the other.
    costs = [
        epsilon({law.event(1.0, N): 10}, 1e-5, neighboring_relation=relation).best
        for law in (PoissonSampling(sampling_rate=0.25), FixedSizeSampling(cohort=10))
    ]
    assert costs[1] > 1.2 * costs[0]


@pytest.mark.parametrize(
    "law",
    [
        TruncatedPoissonSampling(sampling_rate=0.25, max_cohort=20),
        VisibleSampling(cohort=10),
    ],
)
def test_what_needs_a_public_roster_is_refused_under_add_or_remove(law: Sampling) -> None:
    with pytest.raises(ValueError, match="zero-out"):
        plan_of(law, neighboring_relation=ADD_OR_REMOVE)
    plan_of(law, neighboring_relation=ZERO_OUT)
    plan_of(law, neighboring_relation=REPLACE_ONE)


@pytest.mark.parametrize(
    ("law", "why"),
    [
        (FixedSizeSampling(cohort=N + 1), "cohort must lie between 1 and num_units = 40"),
        (VisibleSampling(cohort=N + 1), "cohort must be at most the roster's 40"),
    ],
)
def test_a_cohort_that_the_roster_can_not_fill_is_refused(law: Sampling, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        plan_of(law)


@each_law
def test_the_plain_selection_of_a_law_draws_by_that_law(
    law: Sampling, event: Any, cohort: float, visible: bool
) -> None:
    assert selection_of(law).sampling == law


# --- Groups that take turns, and rounds of rest ---------------------------------------------------

QUARTER = PoissonSampling(sampling_rate=0.25)
CUT = TruncatedPoissonSampling(sampling_rate=0.25, max_cohort=6)


@pytest.mark.parametrize(
    ("inside", "event"),
    [
        (QUARTER, PoissonGaussianEvent(noise_multiplier=1.5, sampling_rate=0.25)),
        (
            CUT,
            TruncatedPoissonGaussianEvent(
                noise_multiplier=1.5, sampling_rate=0.25, num_units=14, max_cohort=6
            ),
        ),
    ],
    ids=["coins", "cut coins"],
)
def test_groups_are_charged_as_the_law_inside_the_largest(inside: Any, event: Any) -> None:
    law = CyclicSampling(groups=3, inside=inside)
    assert law.event(1.5, N) == event  # 14, 13 and 13 units
    assert law.expected_cohort(N) == pytest.approx(10 / 3)
    assert not law.visible
    law.check(N)
    again = decode_text(CyclicSampling, encode_text(law))
    assert again == law


def test_a_group_has_its_turn_every_so_many_rounds() -> None:
    law = CyclicSampling(groups=4, inside=QUARTER)
    assert [law.group_at(index) for index in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [law.turns(rounds) for rounds in (1, 4, 5, 10)] == [1, 1, 2, 3]
    counted = [max([law.group_at(i) for i in range(n)].count(g) for g in range(4)) for n in (1, 10)]
    assert counted == [law.turns(1), law.turns(10)]


def test_groups_that_take_turns_have_every_turn() -> None:
    capped = PoissonSampling(sampling_rate=1.0, participation_cap=3)
    assert (capped.turns(2), capped.turns(7)) == (2, 3)
    with pytest.raises(
        IncompatibleOptions, match=r"have every turn.*leave participation_cap=3 out"
    ):
        CyclicSampling(groups=4, inside=capped)


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE, REPLACE_ONE])
def test_groups_promise_something_to_zero_out_neighbours_alone(
    relation: NeighboringRelation,
) -> None:
    turns = CyclicSampling(groups=4, inside=QUARTER)
    correlation = Banded.optimal(rounds=3, bands=2)
    assert plan_of(turns, correlation=correlation).charged_rounds == 1
    with pytest.raises(ValueError, match=f"under {relation}: write neighboring_relation=zero"):
        plan_of(turns, correlation=correlation, neighboring_relation=relation)


@pytest.mark.parametrize(
    "inside",
    [
        FixedSizeSampling(cohort=3),
        VisibleSampling(cohort=3),
        CyclicSampling(groups=2, inside=QUARTER),
        None,
    ],
)
def test_inside_a_group_are_secret_coins_or_nothing(inside: Any) -> None:
    with pytest.raises(ValueError, match="inside a group only secret coins are charged for"):
        CyclicSampling(groups=4, inside=inside)


def test_more_groups_than_units_are_refused() -> None:
    with pytest.raises(ValueError, match="groups must be at most the roster's 40 units, got 41"):
        CyclicSampling(groups=41, inside=QUARTER).check(N)
    with pytest.raises(ValueError, match="groups must be an integer of at least 1"):
        CyclicSampling(groups=0, inside=QUARTER)


def test_units_that_rest_need_others_who_take_part_meanwhile() -> None:
    VisibleSampling(cohort=10, separation=4).check(N)
    with pytest.raises(ValueError, match="need 50 units, got 40: use a separation of at most 4"):
        VisibleSampling(cohort=10, separation=5).check(N)
    with pytest.raises(ValueError, match="separation must be an integer of at least 1"):
        VisibleSampling(cohort=10, separation=0)


def test_whole_groups_are_no_secret() -> None:
    whole = CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=1.0))
    assert whole.visible
    assert "charged in full" in whole.describe()
