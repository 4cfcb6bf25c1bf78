"""What an account is charged for besides single trainings: sweeps, DP-SGD, and no promise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from accounts import CAP, RECORDS, forged, plan_of, spend
from kind_trainings import PLANS

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    OwnRatesSampling,
    PrivacyBudgetExhausted,
)
from fl_dp.ledger import (
    AccountLedger,
    LedgerCorrupted,
    SpentLedger,
    enter_records,
    enter_sweep,
    enter_unprotected,
)
from fl_dp.ledger.account import AccountState
from fl_dp.option_errors import OptionError
from fl_dp.plan.ceiling import Neighbours, joint_ceiling
from fl_dp.statement import privacy_statement

RECORD = Neighbours(unit="record", relation=NeighboringRelation.ZERO_OUT)
CLIENT = replace(RECORD, unit="client")


def account_of(file: Path) -> AccountState:
    """The account as an auditor reads it."""
    with AccountLedger.read(file) as ledger:
        return ledger.account


def test_what_has_no_promise_leaves_the_account_without_a_number(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(2.0), "first")
    enter_unprotected(file, "baseline", "a training without noise", delta=1e-4)
    account = account_of(file)
    assert account.unprotected == ("baseline",)
    assert account.total(CLIENT) == math.inf
    spend(file, plan_of(2.0, delta=1e-4), "second")
    with SpentLedger.read(file) as ledger:
        assert privacy_statement(ledger).account.epsilon is None


def test_an_account_may_begin_without_a_promise_and_keeps_a_delta_for_plans(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    enter_unprotected(file, "baseline", "a training without noise", delta=1e-4)
    with pytest.raises(ValueError, match="no training with a plan"):
        SpentLedger.read(file)
    delta = PrivacyLedger.delta_for(file, name="first")
    assert delta == pytest.approx(1e-4)
    spend(file, plan_of(2.0, delta=1e-4), "first")
    assert account_of(file).totals()[CLIENT] == math.inf


def test_under_a_cap_what_has_no_promise_is_refused_and_nothing_written(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(2.0), "first", cap=CAP)
    written = file.read_bytes()
    with pytest.raises(OptionError, match="has a cap, and 'baseline' would have no promise"):
        enter_unprotected(file, "baseline", "a training without noise", delta=1e-4)
    assert file.read_bytes() == written
    with pytest.raises(OptionError, match="has a cap, and 'baseline' would have no promise"):
        enter_unprotected(tmp_path / "new.db", "baseline", "without noise", delta=1e-4, cap=CAP)


def test_the_same_entry_again_writes_nothing_and_another_of_its_name_is_refused(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    for _ in range(2):
        enter_records(file, "records", RECORDS)
        enter_sweep(file, "sweep", {"sweep/0": plan_of(1.0, delta=1e-5)})
    with AccountLedger.read(file) as ledger:
        assert len(ledger.entries) == 2
    with pytest.raises(OptionError, match="another entry 'records'"):
        enter_records(file, "records", replace(RECORDS, steps=4))
    with pytest.raises(OptionError, match=r"each Flower run .* RecordPlan\(training='NAME'\)"):
        enter_records(file, "anew in each run", replace(RECORDS, training=""))
    with pytest.raises(OptionError, match="another entry 'records'"):
        PrivacyLedger.open(file, plan_of(1.0, delta=1e-5), name="records")
    with pytest.raises(OptionError, match="another entry 'sweep/0'"):
        enter_sweep(file, "again", {"sweep/0": plan_of(1.0, delta=1e-5)})
    with pytest.raises(OptionError, match="'sweep/0' of this ledger has another plan"):
        PrivacyLedger.open(file, plan_of(2.0, delta=1e-5), name="sweep/0")


def test_records_of_clients_count_their_own_budget_and_what_clients_release(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    enter_records(file, "records", RECORDS)
    assert account_of(file).totals() == {RECORD: 2.0}
    plan = plan_of(1.0, delta=1e-5)
    spend(file, plan, "clients")
    totals = account_of(file).totals()
    assert totals[RECORD] > 2.0 + 1.2  # a client's release, counted as if all were replaced
    assert totals[CLIENT] == math.inf  # nobody knows how many records a client has


def test_a_sweep_is_one_entry_far_below_the_sum(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    plans = {f"sweep/{n}": plan_of(2.0, rounds=20) for n in range(9)}
    budget = enter_sweep(file, "sweep", plans, cap=CAP)
    assert budget.delta == 2.5e-4
    assert 2.0 * 2 < budget.epsilon < 2.0 * 9 / 2  # the sum is 18, beyond the cap
    for name, plan in plans.items():
        spend(file, plan, name)
    account = account_of(file)
    assert account.total(CLIENT) == budget.epsilon
    assert account.left_of_delta == pytest.approx(3.75e-4)
    with pytest.raises(PrivacyBudgetExhausted, match="is left of the account"):
        PrivacyLedger.open(file, plan_of(7.9, delta=1e-5), name="more")


def test_a_sweep_beyond_the_cap_is_refused_whole(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(5.0), "first", cap=CAP)
    written = file.read_bytes()
    with pytest.raises(PrivacyBudgetExhausted, match=r"'sweep' would spend .*, and 3\.\d+ is"):
        enter_sweep(file, "sweep", {f"sweep/{n}": plan_of(2.0, rounds=20) for n in range(9)})
    assert file.read_bytes() == written


def test_a_joint_ceiling_counts_all_that_each_filter_would_admit() -> None:
    """Noise for epsilon 1, under a budget of 4: repetitions are in the sum."""
    roomy = replace(plan_of(1.0, rounds=20), budget=PrivacyBudget(epsilon=4.0, delta=2.5e-4))
    joint = joint_ceiling((roomy, roomy), CLIENT)
    assert 4.0 < joint < 8.0
    assert joint > 1.9 * joint_ceiling((plan_of(1.0, rounds=20),) * 2, CLIENT)


def test_one_filter_over_a_sweep_gates_what_its_trainings_repeat(tmp_path: Path) -> None:
    """Where rounds differ, a training's own filter admits mixes beyond its ceiling."""
    file = tmp_path / "people.db"
    roomy = replace(
        plan_of(1.0, rounds=4, schedule=NoiseSchedule(name="cosine")),
        budget=PrivacyBudget(epsilon=3.0, delta=2.5e-4),
    )
    plans = {"sweep/0": roomy, "sweep/1": roomy}
    quietest = max(range(1, 5), key=lambda number: roomy.noise_multipliers[number - 1])

    def repeated(at: Path) -> int:
        with PrivacyLedger.open(at, roomy, name="sweep/0") as ledger:
            for count in range(1000):
                try:
                    ledger.commit(ledger.reserve(round=quietest))
                except PrivacyBudgetExhausted:
                    return count
        raise AssertionError("it never ended")

    enter_sweep(file, "sweep", plans)
    of_sweep, alone = repeated(file), repeated(tmp_path / "alone.db")
    assert of_sweep == 2 < alone  # its own, and its sibling's
    with SpentLedger.read(file, training="sweep/1") as ledger:
        assert ledger.rounds_spent == 0
    with (
        PrivacyLedger.open(file, roomy, name="sweep/1") as sibling,
        pytest.raises(PrivacyBudgetExhausted, match="for all 2 trainings together"),
    ):
        sibling.reserve(round=quietest)


def test_plans_of_different_neighbours_are_not_joined(tmp_path: Path) -> None:
    replaced = plan_of(1.0, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    for other in (replaced, PLANS["distributed_records"]().calibrated()):
        with pytest.raises(OptionError, match="enter each by its own"):
            enter_sweep(tmp_path / "people.db", "sweep", {"a": plan_of(1.0), "b": other})


def test_no_one_relation_bounds_plans_of_several_units() -> None:
    of_clients, of_records = plan_of(1.0), PLANS["distributed_records"]().calibrated()
    assert of_records.unit == "record"
    assert math.isinf(joint_ceiling((of_clients, of_records), RECORD))


@pytest.mark.parametrize("kind", sorted(PLANS))
def test_of_any_kind_one_plan_is_joined_at_its_own_ceiling(kind: str) -> None:
    plan = PLANS[kind]().calibrated()
    if isinstance(plan.sampling, OwnRatesSampling):
        return  # they are entered by themselves
    neighbours = Neighbours.of(plan)
    joint = joint_ceiling((plan,), neighbours)
    assert joint == pytest.approx(plan.tight_epsilon(plan.history), rel=0.02)
    assert joint <= plan.budget.epsilon * (1 + 1e-9)
    assert joint < joint_ceiling((plan, plan), neighbours) <= 2.0 * joint + 1e-9


def lower(change: dict[str, float], entries: list[dict[str, Any]]) -> None:
    """Write other numbers into a sweep's entry."""
    entries[0]["budget"].update(change)


def test_a_forged_sweep_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter_sweep(file, "sweep", {f"sweep/{n}": plan_of(2.0, rounds=20) for n in range(3)})
    forged(file, lambda entries: None)
    account_of(file)  # the power
    written = file.read_bytes()
    for change in ({"epsilon": 2.0}, {"delta": 1e-4}):
        forged(file, partial(lower, change))
        with pytest.raises(LedgerCorrupted):
            account_of(file)
        file.write_bytes(written)
