"""Several trainings in one ledger: each entered at its budget, and no way beyond the cap."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accounts import CAP, forged, plan_of, spend
from flat_plans import flat_plan
from kind_trainings import PLANS
from ledger_files import kill_when_reserved

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NeighboringRelation, PrivacyBudgetExhausted
from fl_dp.ledger import (
    LedgerCorrupted,
    SpentLedger,
    enter_sweep,
    enter_unprotected,
    witness_at,
)
from fl_dp.ledger.entering import require_enterable
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.mechanism_events import LaplaceEvent
from fl_dp.option_errors import OptionError

RECOMPUTE = Path(__file__).parents[2] / "examples" / "recompute_epsilon.py"


def test_further_trainings_take_what_is_left_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    assert spend(file, plan_of(3.0), "first", cap=CAP) >= 3
    with pytest.raises(PrivacyBudgetExhausted, match=r"epsilon 7, and [\d.]+ is left") as refused:
        PrivacyLedger.open(file, plan_of(7.0, rounds=2), name="second")
    told = float(str(refused.value).partition("and ")[2].split()[0])
    require_enterable(file, "second", plan_of(told, rounds=2), delta=1e-4)
    assert 5.0 < told < 7.0  # the sum leaves 5
    assert spend(file, plan_of(5.0, rounds=7), "second") >= 7  # 8 in all, by the sum
    with SpentLedger.read(file) as ledger:
        left = ledger.left()
    assert left is not None and left.delta == pytest.approx(1.25e-4)
    assert 2.0 < left.epsilon < 4.0  # by the odometer: a Gaussian's
    gaussians = plan_of(left.epsilon, delta=left.delta, sampling_rate=1.0)
    assert spend(file, gaussians, "third") >= 3
    with pytest.raises(PrivacyBudgetExhausted, match="is left of the account"):
        PrivacyLedger.open(file, plan_of(0.3, delta=1e-6), name="fourth")


def test_without_renyi_bounds_the_total_is_the_sum_of_budgets(tmp_path: Path) -> None:
    """Poisson samples under replace-one have none."""
    file, replaced = tmp_path / "people.db", NeighboringRelation.REPLACE_ONE
    spend(file, plan_of(3.0, neighboring_relation=replaced), "first", cap=CAP)
    with SpentLedger.read(file) as ledger:
        assert ledger.left() == PrivacyBudget(epsilon=5.0, delta=7.5e-4)
    with pytest.raises(PrivacyBudgetExhausted, match=r"epsilon 5.5, and 5 is left of the account"):
        PrivacyLedger.open(file, plan_of(5.5, neighboring_relation=replaced), name="second")
    spend(file, plan_of(5.0, neighboring_relation=replaced), "second")
    with SpentLedger.read(file) as ledger, pytest.raises(PrivacyBudgetExhausted, match="nothing"):
        ledger.left()


def test_what_a_training_did_not_use_stays_spent(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    with PrivacyLedger.open(file, plan_of(6.0), name="stopped", cap=CAP) as ledger:
        ledger.commit(ledger.reserve(round=1))
    with pytest.raises(PrivacyBudgetExhausted, match="is left of the account"):
        PrivacyLedger.open(file, plan_of(6.0), name="second")


def test_one_name_is_one_plan_that_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    plan = plan_of(3.0)
    with PrivacyLedger.open(file, plan, name="first", cap=CAP) as ledger:
        ledger.reserve(round=1)  # a crash: never committed
    with PrivacyLedger.open(file, plan, name="first") as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (1, 0)
        assert len(ledger.account.trainings) == 1
    written = file.read_bytes()
    with pytest.raises(OptionError, match=r"'first' .* another plan: .*epsilon.*another name="):
        PrivacyLedger.open(file, plan_of(2.0), name="first")
    assert file.read_bytes() == written


def test_without_a_cap_each_training_finds_half_of_the_delta_that_is_left(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    deltas = []
    for name in ("first", "second", "third"):
        delta = PrivacyLedger.delta_for(file, name=name) or 4e-4
        spend(file, plan_of(2.0, delta=delta), name)
        deltas.append(delta)
    assert deltas == pytest.approx([4e-4, 2e-4, 1e-4])
    with SpentLedger.read(file) as ledger:
        assert ledger.left() is None
        (total, *_) = ledger.account.totals().values()
        assert total == pytest.approx(4.1433, abs=1e-3)
    replaced = plan_of(2.0, delta=5e-4, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    with pytest.raises(PrivacyBudgetExhausted, match=r"delta 0.0005 .* is more than the 0.0001"):
        PrivacyLedger.open(file, replaced, name="fourth")


def test_with_a_renyi_bound_every_run_may_have_the_first_one_s_delta(tmp_path: Path) -> None:
    """As who writes privacy.delta once does; the odometer counts no plan's own delta."""
    file = tmp_path / "people.db"
    for number in range(5):
        spend(file, plan_of(2.0), f"run {number}")
    with SpentLedger.read(file) as ledger:
        assert ledger.account.terms.delta == pytest.approx(3 * 2.5e-4)
        assert 4.0 < ledger.account.total(ledger.account.neighbours) < 6.5
        assert ledger.account.left_of_delta == 0.0
    delta = PrivacyLedger.delta_for(file, name="sixth")
    assert delta is not None and delta == pytest.approx(1.25e-4)
    spend(file, plan_of(2.0, delta=delta), "sixth")
    replaced = plan_of(2.0, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    with pytest.raises(PrivacyBudgetExhausted, match="begin another account"):
        PrivacyLedger.open(file, replaced, name="without a Renyi bound")


def test_a_total_counts_clients_releases_for_records_as_if_all_were_replaced(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(8.0, delta=1e-3, rounds=20), "clients")
    with SpentLedger.read(file) as ledger:
        totals = {(one.unit, str(one.relation)): n for one, n in ledger.account.totals().items()}
    assert totals["client", "zero-out"] == 8.0
    assert totals["record", "replace-one"] == pytest.approx(11.4846, abs=1e-3)


def test_under_a_cap_another_promise_is_counted_for_the_cap_s_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    replaced = NeighboringRelation.REPLACE_ONE
    spend(file, plan_of(1.0, sampling_rate=1.0, neighboring_relation=replaced), "first", cap=CAP)
    clients = plan_of(6.0, rounds=20)  # more than 7 where a client is replaced
    with pytest.raises(PrivacyBudgetExhausted, match="7 is left of the account"):
        PrivacyLedger.open(file, clients, name="second")


def test_a_cap_refuses_what_no_bound_is_known_of(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(1.0), "first", cap=PrivacyBudget(epsilon=1e6, delta=0.9))
    records = PLANS["distributed_records"]().calibrated()
    with pytest.raises(OptionError, match="no bound is known on what this plan says"):
        PrivacyLedger.open(file, records, name="records")


def test_a_cap_refuses_noise_that_can_be_predicted(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="noise from an insecure source promises nothing"):
        PrivacyLedger.open(
            tmp_path / "people.db", plan_of(1.0), cap=CAP, rng=SecureRandom(insecure_seed=1)
        )


@pytest.mark.parametrize("cap", [replace(CAP, epsilon=9.0), replace(CAP, delta=2e-3)])
def test_a_cap_is_fixed_for_good(tmp_path: Path, cap: PrivacyBudget) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(1.0), "first", cap=CAP)
    with pytest.raises(OptionError, match=r"was made with the cap .*: leave cap out"):
        PrivacyLedger.open(file, plan_of(1.0), name="second", cap=cap)


def test_of_trainings_entered_at_the_same_time_only_as_many_fit_as_the_cap_pays_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(2.0, delta=1e-4), "first", cap=CAP)
    plan = plan_of(4.5, delta=1e-4)

    def enter(number: int) -> bool:
        try:
            return spend(file, plan, f"of {number}") > 0
        except PrivacyBudgetExhausted:
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(enter, range(6))) == 2
    with SpentLedger.read(file) as ledger:
        assert len(ledger.account.trainings) == 3
        assert 7.0 < ledger.account.total(ledger.account.neighbours) <= 8.0


def test_trainings_side_by_side_spend_each_its_own_budget(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    plans = {"first": plan_of(3.0), "second": plan_of(5.0)}
    paid = {}
    with (
        PrivacyLedger.open(file, plans["first"], name="first", cap=CAP) as first,
        PrivacyLedger.open(file, plans["second"], name="second") as second,
    ):
        for name, ledger in {"first": first, "second": second}.items():
            paid[name] = 0
            with pytest.raises((PrivacyBudgetExhausted, ValueError)):
                for number in range(1, 100):
                    ledger.commit(ledger.reserve(round=number))
                    paid[name] += 1
        assert first.rounds_spent == paid["first"] and second.rounds_spent == paid["second"]
    alone = tmp_path / "alone.db"
    assert paid["second"] == spend(alone, plans["second"], "second")


def test_a_training_that_was_killed_stays_in_the_sum(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(1.0, delta=1e-4), "first", cap=CAP)
    plan = plan_of(5.0, delta=1e-4)
    kill_when_reserved(f"""
        from fl_dp import PrivacyLedger
        from fl_dp.plan import plan_from_dict

        plan = plan_from_dict({plan.to_dict()!r})
        PrivacyLedger.open({str(file)!r}, plan, name="killed").reserve(round=1)
        print("reserved", flush=True)
        input()
    """)
    with SpentLedger.read(file) as ledger:
        left = ledger.left()
        assert left is not None and left.epsilon == pytest.approx(4.2968, abs=1e-3)
    with PrivacyLedger.open(file, plan, name="killed") as ledger:
        assert ledger.rounds_spent == 1


def test_a_copy_that_was_put_back_does_not_give_a_training_back(tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "people.db", tmp_path / "elsewhere"
    elsewhere.mkdir()
    heads = witness_at(elsewhere / "people.heads")
    spend(file, plan_of(3.0), "first", cap=CAP, witness=heads)
    copy = file.read_bytes()
    spend(file, plan_of(5.0), "second", witness=heads)
    file.write_bytes(copy)
    with pytest.raises(LedgerCorrupted, match="witness"):
        PrivacyLedger.open(file, plan_of(5.0), name="again", witness=heads)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries[0]["account"].update(cap=4.0),
        lambda entries: entries[0]["account"].update(delta=3e-4),
        lambda entries: entries[-1].update(training="nobody"),
        lambda entries: entries[-1].update(training="first"),
    ],
    ids=["lower cap", "less delta", "of no training", "of another training"],
)
def test_entries_that_no_account_would_write_are_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(3.0), "first", cap=CAP)
    spend(file, plan_of(5.0), "second")
    forged(file, lambda entries: None)
    SpentLedger.read(file).close()  # the power: what is written anew unchanged is taken
    forged(file, change)
    with pytest.raises(LedgerCorrupted):
        SpentLedger.read(file)


def recomputed(file: Path) -> list[str]:
    """Lines of the script that knows dp-accounting and nothing of fl-dp."""
    command = [sys.executable, str(RECOMPUTE), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_dp_accounting_alone_recomputes_two_trainings_a_question_and_a_sweep(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(3.0), "first", cap=CAP)
    spend(file, plan_of(2.0), "second")
    asked = LaplaceEvent(noise_multiplier=2.0)
    question = flat_plan(
        PrivacyBudget(epsilon=0.5, delta=1e-5),
        rounds=0,
        noise_multiplier=1.0,
        other_releases={asked: 1},
        num_clients=200,
        clipping_norm=1.0,
        sampling_rate=0.25,
    )
    with PrivacyLedger.open(file, question, name="question") as ledger:
        ledger.commit(ledger.reserve_release("count", asked))
    plans = {f"sweep/{n}": plan_of(0.8, rounds=4 + n, delta=1e-4) for n in range(3)}
    joint = enter_sweep(file, "sweep", plans)
    for name, plan in plans.items():
        spend(file, plan, name)
    first, second, count, sweep, added, odometer, total = recomputed(file)
    assert first.startswith("first: ") and first.endswith(" of 3.0 at delta 0.00025")
    assert second.startswith("second: ") and second.endswith(" of 2.0 at delta 0.00025")
    assert count.endswith(" of 0.5 at delta 1e-05")
    spent = float(sweep.removeprefix("sweep: ").partition(" ")[0])
    assert spent == pytest.approx(joint.epsilon, rel=0.01)
    assert joint.epsilon < 0.75 * 3 * 0.8
    words = added.split()
    assert float(words[1]) == pytest.approx(5.5 + joint.epsilon)
    assert float(words[4]) == pytest.approx(6.1e-4)
    with SpentLedger.read(file) as ledger:
        ours = ledger.account.total(ledger.account.neighbours)
    assert ours < 0.8 * float(words[1])
    theirs = float(odometer.split()[1])  # its series of orders between integers are coarser
    assert ours * (1 - 1e-9) <= theirs == pytest.approx(ours, rel=2e-3)
    assert total == f"total: {odometer.split()[1]} at delta 0.001, cap 8.0"


def test_the_script_finds_no_total_where_something_has_no_promise(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(1.0), "first")
    enter_unprotected(file, "baseline", "a training without noise", delta=1e-5)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        recomputed(file)
    assert "no total: baseline has no promise" in failed.value.stderr
