"""A guarantee: one text of an epsilon with all that it means nothing without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kind_trainings import PLANS

from fl_dp.guarantee import Against, Guarantee
from fl_dp.statement.sentences import UNITS

OF_CLIENTS = Guarantee(
    epsilon=8.0,
    spent=8.0,
    budget=8.0,
    delta=1e-3,
    unit="client",
    neighbours="zero-out",
    against=Against.MODELS,
)


def test_the_text_has_epsilon_delta_unit_neighbours_and_adversary() -> None:
    assert str(OF_CLIENTS) == (
        "epsilon 8 at delta 0.001, one client (zero-out), against whoever sees the models"
    )
    assert OF_CLIENTS.numbers == "8 of 8"
    assert not OF_CLIENTS.ended_early


def test_a_run_that_ended_early_says_what_is_stated_and_what_was_spent() -> None:
    stopped = replace(OF_CLIENTS, spent=0.25)
    assert stopped.ended_early
    assert stopped.numbers == "8 stated, 0.25 spent"


def test_before_anything_is_stated_the_number_is_what_was_spent() -> None:
    running = replace(OF_CLIENTS, epsilon=None, spent=0.25)
    assert running.numbers == "0.25 of 8 so far"
    assert not running.ended_early


@pytest.mark.parametrize(
    ("nothing", "number"),
    [
        (replace(OF_CLIENTS, insecure=True), ""),
        (replace(OF_CLIENTS, epsilon=500.0, budget=500.0), ": epsilon 500 "),
        (replace(OF_CLIENTS, epsilon=None, spent=0.25, budget=500.0), ": epsilon 500 "),
        (replace(OF_CLIENTS, epsilon=None, spent=None, budget=None), ""),
    ],
    ids=["insecure", "above 50", "a budget above 50", "no number"],
)
def test_what_promises_nothing_is_called_no_privacy(nothing: Guarantee, number: str) -> None:
    assert nothing.number == nothing.numbers == "no privacy"
    assert str(nothing) == f"no privacy{number}{nothing.terms if number else ''}"
    assert nothing.planned.startswith("no privacy")
    assert not nothing.ended_early


_AGAINST = {
    "local": Against.SERVER,
    "distributed": Against.HONEST_SERVER,
    "distributed_records": Against.HONEST_SERVER,
}


@pytest.mark.parametrize("kind", PLANS)
def test_each_kind_of_plan_names_its_adversary(kind: str) -> None:
    plan = PLANS[kind]()
    guarantee = Guarantee.of(plan)
    assert guarantee.against is _AGAINST.get(kind, Against.MODELS)
    assert guarantee.unit == plan.unit
    assert guarantee.delta == plan.budget.delta


@pytest.mark.parametrize("value", [None, "X!", [], {"pld": "8"}, {"pld": -1}, {"pld": 10**400}])
def test_a_statement_that_anybody_wrote_is_read_as_far_as_it_goes(value: object) -> None:
    document = {"quoted": "pld", "epsilon": value, "budget": value, "delta": value}
    document |= {"unit": value, "neighboring_relation": value, "against": value}
    read = Guarantee.stated(document)
    assert read == Guarantee(delta=None, unit=None, neighbours=None, against=None)


def test_the_units_of_statements_are_read_back() -> None:
    for unit, sentence in UNITS.items():
        assert Guarantee.stated({"unit": sentence}).unit == unit
