"""The plan of DP-SGD inside clients, and its statement: the ledger admits what was planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fl_dp import PrivacyBudget
from fl_dp.accounting import (
    History,
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyBudgetExhausted,
    epsilon,
)
from fl_dp.accounting.groups import epsilon_of_group
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.plan import RecordPlan
from fl_dp.statement import RecordStatement, record_statement, statement_markdown
from fl_dp.statement.check import statement_page

pytestmark = pytest.mark.slow

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)
TRAINING: dict[str, Any] = dict(sampling_rate=0.1, steps=10, participations=5, clipping_norm=1.0)
PLAN = RecordPlan.calibrate(BUDGET, **TRAINING)
ACCOUNT = Account(unit="record", source="ward")


def admitted(plan: RecordPlan, path: Path, at_most: int) -> int:
    """How many participations a node's ledger lets pass, one after the other."""
    with NodeLedger.open(path) as ledger:
        for count in range(at_most):
            try:
                ledger.charge(
                    ACCOUNT,
                    plan.event,
                    count=plan.steps,
                    budget=plan.budget,
                    what=f"round {count}",
                    neighboring_relation=plan.neighboring_relation,
                )
            except PrivacyBudgetExhausted:
                return count
    return at_most


def given_noise(**changes: Any) -> RecordPlan:
    fields = TRAINING | {"delta": 1e-5} | changes
    return RecordPlan.from_noise_multiplier(fields.pop("noise_multiplier", 1.0), **fields)


# The plan.


def test_the_calibrated_noise_spends_all_of_the_budget_but_not_more() -> None:
    spent = PLAN.epsilon().best
    assert 0.97 * BUDGET.epsilon < spent <= BUDGET.epsilon
    less = replace(PLAN, noise_multiplier=0.98 * PLAN.noise_multiplier)
    assert epsilon({less.event: 50}, 0.9 * BUDGET.delta).best > BUDGET.epsilon


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda: PLAN, id="calibrated"),
        pytest.param(
            lambda: RecordPlan.calibrate(
                PrivacyBudget(epsilon=8.0, delta=1e-3), **TRAINING | {"sampling_rate": 1.0}
            ),
            id="no sampling",
        ),
        pytest.param(
            lambda: RecordPlan.calibrate(
                BUDGET,
                **TRAINING | {"sampling_rate": 0.01},
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            ),
            id="small samples",
        ),
        pytest.param(given_noise, id="given noise"),
        pytest.param(
            lambda: given_noise(
                neighboring_relation=NeighboringRelation.REPLACE_ONE, noise_multiplier=3.0
            ),
            id="replace one",
        ),
        pytest.param(lambda: given_noise(noise_multiplier=20.0), id="little is spent"),
    ],
)
def test_a_node_admits_the_planned_participations_and_hardly_more(
    plan: Callable[[], RecordPlan], tmp_path: Path
) -> None:
    made = plan()
    count = admitted(made, tmp_path / "ledger.db", made.participations + 2)
    assert made.participations <= count <= made.participations + 1


def test_the_smallest_noise_leaves_no_room_for_another_participation(tmp_path: Path) -> None:
    assert admitted(PLAN, tmp_path / "ledger.db", 7) == PLAN.participations


def test_a_given_budget_stops_a_given_noise(tmp_path: Path) -> None:
    plan = given_noise(max_epsilon=3.0)
    assert plan.budget == PrivacyBudget(epsilon=3.0, delta=1e-5)
    count = admitted(plan, tmp_path / "ledger.db", 5)
    at_share = [epsilon({plan.event: 10 * k}, 0.9e-5).best for k in (count, count + 1)]
    assert at_share[0] <= 3.0 < at_share[1]


def test_epsilon_is_of_so_many_participations_whole() -> None:
    plan = given_noise()
    event = PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1)
    assert plan.event == event
    assert plan.epsilon(3) == epsilon({event: 30}, 1e-5)
    assert plan.epsilon() == plan.epsilon(5)
    assert plan.epsilon(3).pld == pytest.approx(4.1782, abs=1e-3)  # CHECK G of the theory notes


# The statement.


def statement(plan: RecordPlan = PLAN, **changes: Any) -> dict[str, Any]:
    return record_statement(plan, **({"participations": 2, "num_clients": 10} | changes)).to_dict()


def test_the_promise_is_what_was_planned_and_never_above_the_budget() -> None:
    made = statement()
    assert made["epsilon"][made["quoted"]] == PLAN.epsilon(5).best
    for participations in (0, 5, 7, 5000):
        made = statement(participations=participations)
        assert made["epsilon"][made["quoted"]] <= BUDGET.epsilon
    assert made["epsilon"] == {"filter": BUDGET.epsilon}


def test_what_was_spent_so_far_grows_with_the_participations() -> None:
    spent = [
        min(statement(participations=count)["epsilon_so_far"].values()) for count in (0, 1, 3, 5)
    ]
    assert spent == [0.0, *(PLAN.epsilon(count).best for count in (1, 3, 5))]
    assert spent == sorted(set(spent))


def test_the_epsilon_is_of_one_client_however_many_there_are() -> None:
    few, many = statement(num_clients=1), statement(num_clients=1000)
    assert few["epsilon"] == many["epsilon"]
    assert (few["num_clients"], many["num_clients"]) == (1, 1000)
    assert "not their sum" in many["composition"]


def test_several_records_of_one_person_have_numbers_of_their_own() -> None:
    made = statement()
    several = made["epsilon_of_several"]
    assert list(several) == ["2", "5", "10"]
    history: History = {PLAN.event: PLAN.steps * PLAN.participations}
    for count, bound in several.items():
        assert bound == epsilon_of_group(history, BUDGET.delta, int(count))
    # More than twice what one record has, and less than a chain of neighbours would say.
    assert 2.0 * made["epsilon"][made["quoted"]] < several["2"] < several["5"] < several["10"]
    page = statement_markdown(record_statement(PLAN, participations=2, num_clients=10))
    assert "| one person's records at one client | epsilon " in page
    assert " for 10 records, at the same delta |" in page


def test_where_rounds_are_not_known_several_records_have_no_number() -> None:
    """The ledgers bound what one record spends; of a group that says too little."""
    made = record_statement(PLAN, participations=None, num_clients=10)
    assert made.epsilon_of_several == {"2": None, "5": None, "10": None}
    assert "no number for 2 records, no number for 5 records" in statement_markdown(made)
    assert RecordStatement.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_predictable_randomness_is_said_first() -> None:
    made = statement(secure_randomness=False)
    assert made["insecure"]
    assert "`secure_randomness=False`" in made["not_covered"][0]
    assert "**No privacy against everyone.**" in statement_page(made)
    assert "No privacy" not in statement_page(statement())


def test_the_page_rounds_up() -> None:
    page = statement_page(statement())
    quoted = PLAN.epsilon(5).best
    [shown] = [
        float(line.split("**epsilon ")[1].split()[0])
        for line in page.splitlines()
        if "**epsilon" in line
    ]
    assert quoted <= shown < quoted + 0.01


# Owners who allow less.


@pytest.mark.parametrize("allowed", [0.5, 1.0])
def test_an_owner_s_smaller_budget_lasts_for_all_rounds_and_no_further(
    tmp_path: Path, allowed: float
) -> None:
    own = PLAN.within(PrivacyBudget(epsilon=allowed, delta=1e-5))
    assert own.noise_multiplier > PLAN.noise_multiplier
    assert 0.97 * allowed < own.epsilon().best <= allowed
    assert replace(own, noise_multiplier=0.9 * own.noise_multiplier).epsilon().best > allowed
    assert admitted(own, tmp_path / "more-noise.db", 7) == PLAN.participations
    # With the run's own noise the ledger would have stopped it earlier.
    refused = replace(PLAN, budget=own.budget)
    assert admitted(refused, tmp_path / "the-run-s-noise.db", 7) < PLAN.participations


def test_an_owner_who_allows_more_changes_nothing() -> None:
    assert PLAN.within(PrivacyBudget(epsilon=9.0, delta=1e-3)) is PLAN
    assert PLAN.within(BUDGET) is PLAN
    stricter = PLAN.within(PrivacyBudget(epsilon=9.0, delta=1e-7))
    assert stricter.budget == PrivacyBudget(epsilon=2.0, delta=1e-7)
    assert stricter.noise_multiplier > PLAN.noise_multiplier


def test_a_plan_with_noise_to_spare_never_gets_less() -> None:
    loud = replace(PLAN, noise_multiplier=50.0)
    assert loud.within(PrivacyBudget(epsilon=1.0, delta=1e-5)).noise_multiplier == 50.0


def test_it_says_that_an_item_has_to_be_made_of_one_record() -> None:
    lines = statement()["not_covered"]
    assert any("item of several records (mix-up" in line for line in lines)
    assert any("several items of one record (oversampling)" in line for line in lines)


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_each_relation_says_who_the_neighbours_are(relation: NeighboringRelation) -> None:
    plan = given_noise(neighboring_relation=relation, noise_multiplier=3.0)
    made = statement(plan)
    assert made["neighboring_relation"] == str(relation)
    assert made["neighbours"] in statement_page(made)
