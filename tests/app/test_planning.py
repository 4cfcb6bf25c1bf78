"""From settings to the plans of a run: steps and rounds of DP-SGD, budgets, ranges of metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fl_dp.accounting import default_delta
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan, make_record_plan, target_delta
from fl_dp.mechanisms import ScalarMetric
from fl_dp.option_errors import OptionError
from fl_dp.plan import RecordPlan

# Beyond epsilon 100 bounds are in closed form, and nothing is computed for seconds.
OF_RECORDS = ("privacy=dp_sgd", "dp_sgd.epsilon=150", "rounds=100")


def record_plan(*overrides: str, **options: Any) -> RecordPlan:
    plan = make_record_plan(compose_settings([*OF_RECORDS, *overrides]), **options)
    assert plan is not None
    return plan


def test_a_client_takes_the_steps_of_its_epochs_in_as_many_rounds_as_almost_nobody_exceeds() -> (
    None
):
    rates = ("dp_sgd.sampling_rate=0.25", "selection.sampling_rate=0.2")
    plan = record_plan("client.epochs=3", *rates)
    assert plan.steps == 12
    assert plan.participations == math.ceil(20 + 3 * math.sqrt(0.2 * 0.8 * 100))
    chosen = record_plan("dp_sgd.steps=5", "dp_sgd.participations=7")
    assert (chosen.steps, chosen.participations) == (5, 7)


def test_a_hidden_number_of_records_needs_a_public_divisor() -> None:
    hidden = "privacy.neighboring_relation=add-or-remove-one"
    with pytest.raises(OptionError, match=r"give dp_sgd\.expected_batch_size, a public constant"):
        record_plan(hidden)
    assert record_plan(hidden, "dp_sgd.expected_batch_size=20").neighboring_relation == hidden[29:]


def test_noise_of_ones_own_is_refused_where_it_spends_more_than_the_budget() -> None:
    noise = ["dp_sgd.noise_multiplier=1", "dp_sgd.steps=4", "dp_sgd.participations=3"]
    spent = record_plan(*noise, within_budget=False).budget.epsilon
    with pytest.raises(OptionError, match=r"raise the budget, or leave the multiplier out"):
        make_record_plan(
            compose_settings(["privacy=dp_sgd", *noise, f"dp_sgd.epsilon={0.95 * spent}"])
        )
    within = compose_settings(["privacy=dp_sgd", *noise, f"dp_sgd.epsilon={1.05 * spent}"])
    plan = make_record_plan(within)
    assert plan is not None
    assert plan.budget.epsilon == 1.05 * spent and plan.noise_multiplier == 1.0


def test_a_delta_that_nobody_writes_is_of_the_units() -> None:
    assert target_delta(compose_settings([])) == default_delta(200)
    assert target_delta(compose_settings(["privacy=distributed_records"])) == default_delta(1437)


def test_a_metric_has_the_range_that_is_written() -> None:
    settings = compose_settings(["metrics.loss=[1,5]", "privacy.epsilon=150", "rounds=2"])
    assert make_plan(settings).release.metrics == (ScalarMetric(name="loss", low=1.0, high=5.0),)
