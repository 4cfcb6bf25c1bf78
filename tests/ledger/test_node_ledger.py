"""The ledger of a node's own data: what adds up, what is refused, what survives."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import noised_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_files import fresh_path, kill_when_reserved, race, start_python
from scipy.stats import norm

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    epsilon,
    tight_epsilon,
)
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.accounting.calibration import affordable_rounds
from fl_dp.accounting.events import TruncatedPoissonGaussianEvent
from fl_dp.accounting.renyi import renyi_divergences
from fl_dp.ledger import LedgerCorrupted, NodeLedger
from fl_dp.ledger.node import Account, ConsentRevoked
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent

DELTA = 1e-5
STEP = PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1)
"""A step of 600 records in batches of 60; ten are a round of one epoch."""
AMPLE = PrivacyBudget(epsilon=10.0, delta=DELTA)
TIGHT = PrivacyBudget(epsilon=3.0, delta=DELTA)
SMALL = PrivacyBudget(epsilon=0.5, delta=DELTA)
WARD = Account(unit="record", source="ward")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def spend(
    location: Path | str,
    account: Account = WARD,
    event: PrivacyEvent = STEP,
    *,
    count: int = 10,
    budget: PrivacyBudget = AMPLE,
    rounds: int = 1,
) -> None:
    """Charge rounds, each through a ledger of its own, as a client does."""
    for number in range(1, rounds + 1):
        with NodeLedger.open(location) as ledger:
            what = f"round {number}"
            ledger.charge(account, event, count=count, budget=budget, what=what)


def history_of(location: Path, account: Account = WARD) -> dict[PrivacyEvent, int]:
    with NodeLedger.read(location) as ledger:
        return dict(ledger.spending(account).history)


def rows(location: Path) -> list[Any]:
    with closing(sqlite3.connect(location)) as connection:
        return connection.execute("SELECT * FROM entries ORDER BY sequence").fetchall()


def execute(location: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(location)) as connection:
        connection.execute(statement, values)
        connection.commit()


def most_steps(budget: PrivacyBudget, event: PrivacyEvent = STEP) -> int:
    """How many releases of one kind fit by privacy-loss distributions at their share of delta."""
    return affordable_rounds(
        {}, event, budget.epsilon, DECLARED_SHARE * budget.delta, at_most=100_000
    )


# What was spent.


# CHECK G of the project's theory notes, computed there by dp_accounting and by Opacus.
@pytest.mark.parametrize(("rounds", "pld", "rdp"), [(1, 2.8545, 3.4416), (3, 4.1782, 4.8480)])
def test_rounds_of_dp_sgd_spend_the_golden_epsilons(
    path: Path, rounds: int, pld: float, rdp: float
) -> None:
    spend(path, rounds=rounds)
    with NodeLedger.read(path) as ledger:
        spent = ledger.spending(WARD).epsilon()
    assert spent.pld == pytest.approx(pld, abs=1e-3)
    assert spent.rdp == pytest.approx(rdp, abs=1e-3)


@pytest.mark.parametrize(("rounds", "prv"), [(1, 2.8648), (2, 3.6010), (3, 4.1886)])
def test_opacus_own_accountant_reads_the_history_and_is_never_below(
    path: Path, rounds: int, prv: float
) -> None:
    from opacus.accountants import PRVAccountant

    spend(path, rounds=rounds)
    accountant = PRVAccountant()
    accountant.history = [
        (event.noise_multiplier, event.sampling_rate, count)
        for event, count in history_of(path).items()
        if isinstance(event, PoissonGaussianEvent)
    ]
    theirs = accountant.get_epsilon(DELTA)
    assert theirs == pytest.approx(prv, abs=2e-4)
    with NodeLedger.read(path) as ledger:
        assert theirs >= ledger.spending(WARD).epsilon().pld - 1e-3


def test_an_account_that_never_released_has_spent_nothing(path: Path) -> None:
    spend(path)
    with NodeLedger.read(path) as ledger:
        other = ledger.spending(Account(unit="record", source="another"))
        assert (other.epsilon().best, other.charges, other.history) == (0.0, 0, ())


def test_rounds_that_a_client_skips_cost_nothing(path: Path) -> None:
    spend(path, rounds=2)
    before = rows(path)
    with NodeLedger.open(path) as ledger:  # rounds 3 to 7 ask somebody else
        spent = ledger.spending(WARD).epsilon()
    assert rows(path) == before
    spend(path)  # round 8
    with NodeLedger.read(path) as ledger:
        assert ledger.spending(WARD).history == ((STEP, 30),)
        assert ledger.spending(WARD).epsilon().pld > spent.pld


def test_the_worst_relation_of_any_run_is_what_counts(path: Path) -> None:
    step = GaussianEvent(noise_multiplier=2.0)
    with NodeLedger.open(path) as ledger:
        for relation in (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ZERO_OUT):
            ledger.charge(WARD, step, budget=AMPLE, what="release", neighboring_relation=relation)
        spent = ledger.spending(WARD).epsilon()
    replaced = epsilon({step: 2}, DELTA, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    assert spent == replaced
    assert spent.best > epsilon({step: 2}, DELTA).best


# What survives.


def test_kill_nine_in_the_middle_of_training_leaves_the_round_spent(path: Path) -> None:
    spend(path)
    kill_when_reserved(
        f"""
        import time
        from fl_dp.accounting import PoissonGaussianEvent, PrivacyBudget
        from fl_dp.ledger import NodeLedger
        from fl_dp.ledger.node import Account
        NodeLedger.open({str(path)!r}).charge(
            Account(unit="record", source="ward"),
            PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1),
            count=10, budget=PrivacyBudget(epsilon=10.0, delta=1e-5), what="round 2",
        )
        print("reserved", flush=True)
        time.sleep(60)
        """
    )
    assert history_of(path) == {STEP: 20}
    with NodeLedger.read(path) as ledger:
        assert ledger.spending(WARD).epsilon().pld == pytest.approx(
            epsilon({STEP: 20}, DELTA).pld, rel=1e-12
        )


def test_a_charge_is_on_disk_before_charge_returns(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, STEP, count=10, budget=AMPLE, what="round 1")
        assert history_of(path) == {STEP: 10}


def test_an_open_ledger_sees_what_another_one_spent(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        spend(path, count=most_steps(TIGHT), budget=TIGHT)
        with pytest.raises(PrivacyBudgetExhausted, match="charged 1 times"):
            ledger.charge(WARD, STEP, budget=TIGHT, what="round 2")


# Whose it is.


def test_two_accounts_spend_apart(path: Path) -> None:
    other = Account(unit="record", source="another ward")
    spend(path, count=most_steps(TIGHT), budget=TIGHT)
    spend(path, other, count=10, budget=TIGHT)
    assert history_of(path, other) == {STEP: 10}
    with NodeLedger.open(path) as ledger:
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, STEP, budget=TIGHT, what="round 2")
        ledger.charge(other, STEP, budget=TIGHT, what="round 2")


def test_a_cap_holds_for_records_and_for_the_node_apart_as_the_page_says(path: Path) -> None:
    for unit in ("record", "client"):
        account = Account(unit=unit, source="ward")
        spend(path, account, count=most_steps(TIGHT), budget=TIGHT)
        with NodeLedger.open(path) as ledger, pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(account, STEP, budget=TIGHT, what="one more")
    page = Path(__file__).parents[2] / "docs/node_policy.md"
    [row] = [
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `dp-max-epsilon`")
    ]
    assert "apart: a node that serves both spends it twice" in row


def test_the_same_data_under_another_name_go_on_spending(path: Path) -> None:
    spend(path, Account(unit="record", source="ward", fingerprint="f1"))
    moved = Account(unit="record", source="new ward", fingerprint="f1")
    assert history_of(path, moved) == {STEP: 10}
    spend(path, moved)
    assert history_of(path, Account(unit="record", source="ward")) == {STEP: 20}


def test_changed_data_of_the_same_source_go_on_spending(path: Path) -> None:
    for number in range(3):
        spend(path, Account(unit="record", source="ward", fingerprint=f"f{number}"))
    # Also when what is known of them is only what they were long ago, under another name.
    old = Account(unit="record", source="archive", fingerprint="f0")
    assert history_of(path, old) == {STEP: 30}


def test_accounts_that_turn_out_to_be_one_add_up(path: Path) -> None:
    spend(path, Account(unit="record", source="a", fingerprint="f1"), rounds=2)
    spend(path, Account(unit="record", source="b"))
    joining = Account(unit="record", source="b", fingerprint="f1")
    assert history_of(path, joining) == {STEP: 30}
    assert history_of(path, Account(unit="record", source="b")) == {STEP: 10}
    spend(path, joining)
    for source in ("a", "b"):
        assert history_of(path, Account(unit="record", source=source)) == {STEP: 40}
    with NodeLedger.read(path) as ledger:
        [only] = ledger.spendings
        assert only.sources == {"a", "b"}
        assert only.epsilon().pld == pytest.approx(epsilon({STEP: 40}, DELTA).pld, rel=1e-12)


def test_accounts_that_spent_apart_by_different_noise_have_the_running_bound_together(
    path: Path,
) -> None:
    quieter = PoissonGaussianEvent(noise_multiplier=2.0, sampling_rate=0.2)
    spend(path, Account(unit="record", source="a", fingerprint="f1"))
    spend(path, Account(unit="record", source="b"), quieter)
    with NodeLedger.open(path) as ledger:
        joined = ledger.spending(Account(unit="record", source="b", fingerprint="f1"))
        assert joined.epsilon().by_name == {
            "filter": pytest.approx(running(dict(joined.history), AMPLE))
        }
        for apart in ("a", "b"):
            alone = ledger.spending(Account(unit="record", source=apart))
            assert alone.epsilon().best < joined.epsilon().best


# What is refused.


def test_what_is_refused_is_not_written(path: Path) -> None:
    most = most_steps(TIGHT)
    spend(path, count=most, budget=TIGHT)
    before = rows(path)
    with NodeLedger.open(path) as ledger:
        with pytest.raises(PrivacyBudgetExhausted, match="round 9 would exceed epsilon 3 at"):
            ledger.charge(WARD, STEP, budget=TIGHT, what="round 9")
        assert ledger.spending(WARD).releases == Counter({STEP: most})
    assert rows(path) == before


def test_one_kind_of_release_fits_as_often_as_privacy_loss_distributions_say(path: Path) -> None:
    most = most_steps(TIGHT)
    with NodeLedger.open(path) as ledger:
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, STEP, count=most + 1, budget=TIGHT, what="too many")
        ledger.charge(WARD, STEP, count=most, budget=TIGHT, what="all at once")
        assert ledger.spending(WARD).epsilon().best <= TIGHT.epsilon
    at_their_share = DECLARED_SHARE * DELTA
    assert epsilon({STEP: most}, at_their_share).best <= TIGHT.epsilon
    assert epsilon({STEP: most + 1}, at_their_share).best > TIGHT.epsilon


def test_one_at_a_time_fits_as_often_as_all_at_once(path: Path) -> None:
    event, budget = GaussianEvent(noise_multiplier=8.0), PrivacyBudget(epsilon=2.0, delta=1e-3)
    admitted = 0
    with NodeLedger.open(path) as ledger:
        while admitted < 1000:
            try:
                ledger.charge(WARD, event, budget=budget, what=f"release {admitted}")
            except PrivacyBudgetExhausted:
                break
            admitted += 1
    assert admitted == most_steps(budget, event)


# Neither counts as the other: what one order admits, on paper.
QUIET: PrivacyEvent = GaussianEvent(noise_multiplier=8.0)
LOUD: PrivacyEvent = PoissonGaussianEvent(noise_multiplier=6.0, sampling_rate=0.5)
MIXED = PrivacyBudget(epsilon=4.0, delta=1e-3)


def orders_of(first: PrivacyBudget) -> dict[float, float]:
    """Each order of the running bound and its share of a tenth of delta, by the page's words."""
    shares = {1.0 + 2.0**step: 1 / 48 for step in range(-1, 11)}
    tail = math.log(40 / first.delta)
    for below in (1.0, 1.5, 2.25):
        room = math.sqrt(tail + first.epsilon) - math.sqrt(tail)
        order = min(1.0 + math.sqrt(tail) / room / below, 1025.0)
        order = float(round(order)) if order > 11.0 else order
        shares[order] = shares.get(order, 0.0) + 1 / 4
    return shares


def running(
    history: Mapping[PrivacyEvent, int], first: PrivacyBudget, delta: float | None = None
) -> float:
    """The running bound on paper: the least of the orders, each at its share of delta / 10."""
    bounds = []
    for order, share in orders_of(first).items():
        part = share * (first.delta if delta is None else delta) / 10
        spent = sum(
            count * renyi_divergences(event, NeighboringRelation.ZERO_OUT, (order,))[0]
            for event, count in history.items()
        )
        tail = math.log1p(-1 / order) - math.log(order * part) / (order - 1)
        bounds.append(spent + tail)
    return float(min(bounds))


def test_mixed_kinds_fit_while_one_of_the_orders_admits(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, QUIET, count=5, budget=MIXED, what="five")
        most = next(
            n for n in range(1000) if running({QUIET: 5, LOUD: n + 1}, MIXED) > MIXED.epsilon
        )
        assert most > 0
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, LOUD, count=most + 1, budget=MIXED, what="one too many")
        ledger.charge(WARD, LOUD, count=most, budget=MIXED, what="as many as fit")
        spent = ledger.spending(WARD)
        quoted = spent.epsilon().by_name["filter"]  # what holds whenever somebody looks
        assert quoted == pytest.approx(running({QUIET: 5, LOUD: most}, MIXED))
        assert 0.97 * MIXED.epsilon < quoted <= MIXED.epsilon
        for event in (QUIET, LOUD):
            with pytest.raises(PrivacyBudgetExhausted):
                ledger.charge(WARD, event, budget=MIXED, what="one more")


def test_what_privacy_loss_distributions_admit_of_a_mixture_is_not_enough(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, QUIET, count=20, budget=MIXED, what="twenty")
        count = next(n for n in range(1000) if running({QUIET: 20, LOUD: n}, MIXED) > MIXED.epsilon)
        together = epsilon({QUIET: 20, LOUD: count}, DECLARED_SHARE * MIXED.delta)
        assert together.best < MIXED.epsilon
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, LOUD, count=count, budget=MIXED, what="a mixture")


def test_a_kind_without_a_renyi_bound_is_admitted_alone_but_not_in_a_mixture(path: Path) -> None:
    event = TruncatedPoissonGaussianEvent(
        noise_multiplier=4.0, sampling_rate=0.1, num_units=600, max_cohort=100
    )
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, event, budget=SMALL, what="alone")
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, LaplaceEvent(noise_multiplier=50.0), budget=AMPLE, what="mixed")


def test_the_smaller_of_two_caps_wins(path: Path) -> None:
    smaller = PrivacyBudget(epsilon=2.0, delta=DELTA)
    count = most_steps(smaller)
    spend(path, count=count, budget=TIGHT)
    with NodeLedger.open(path) as ledger:
        with pytest.raises(PrivacyBudgetExhausted, match="epsilon 2 "):
            ledger.charge(WARD, STEP, budget=smaller, what="under the owner's cap")
        ledger.charge(WARD, STEP, budget=TIGHT, what="under the run's")


def test_a_larger_budget_admits_more_later(path: Path) -> None:
    spend(path, count=most_steps(TIGHT), budget=TIGHT)
    larger = PrivacyBudget(epsilon=6.0, delta=DELTA)
    further = next(
        n for n in range(1000) if running({STEP: most_steps(TIGHT) + n + 1}, TIGHT) > larger.epsilon
    )
    assert further > 0
    with NodeLedger.open(path) as ledger:
        # It may have been chosen for what was released: only what holds at every look admits it.
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, STEP, count=further + 1, budget=larger, what="too many")
        ledger.charge(WARD, STEP, count=further, budget=larger, what="more")
        spent = ledger.spending(WARD)
        assert spent.budget == larger
        assert spent.epsilon().best <= larger.epsilon


def test_whoever_lets_the_budget_grow_and_stops_at_the_worst_moment_gains_nothing(
    path: Path,
) -> None:
    # The best gain of all ways to stop, by backward induction; exact but for the grid of losses.
    multiplier, delta, most = 3.0, 0.05, 40
    event = GaussianEvent(noise_multiplier=multiplier)
    first = PrivacyBudget(epsilon=0.8, delta=delta)
    quoted, by_number = [], []
    with NodeLedger.open(path) as ledger:
        for number in range(1, most + 1):
            grown = PrivacyBudget(epsilon=0.8 + number, delta=delta)
            try:
                ledger.charge(WARD, event, budget=first, what="within the first budget")
                quoted.append(first.epsilon)
            except PrivacyBudgetExhausted:
                ledger.charge(WARD, event, budget=grown, what="and more")
                quoted.append(ledger.spending(WARD).epsilon().best)
            by_number.append(tight_epsilon({event: number}, delta))
    assert quoted[0] == 0.8 < quoted[-1]
    assert best_gain_of_stopping(quoted, 1 / multiplier) <= delta
    # What holds for a number of releases that was fixed beforehand is no such bound.
    assert best_gain_of_stopping(by_number, 1 / multiplier) > 2.0 * delta


def best_gain_of_stopping(quoted: list[float], mu: float) -> float:
    """The largest sum over outcomes of P - e^epsilon Q, epsilon being that of when one stopped."""
    width = mu / 40.0
    losses = np.arange(-1000, 2000) * width
    reach = np.arange(-300, 301) * width
    step = norm.pdf(reach, mu**2 / 2, mu) * width
    gain = np.zeros(losses.size)
    for each in reversed(quoted):
        best = np.maximum(gain, 1.0 - np.exp(np.minimum(each - losses, 0.0)))
        gain = np.convolve(np.pad(best, 300, mode="edge"), step[::-1], mode="valid")
    return float(gain[1000])


def test_a_larger_delta_later_admits_nothing_more(path: Path) -> None:
    spend(path, count=most_steps(TIGHT), budget=TIGHT)
    generous = PrivacyBudget(epsilon=TIGHT.epsilon, delta=1e-2)
    with NodeLedger.open(path) as ledger, pytest.raises(PrivacyBudgetExhausted):
        ledger.charge(WARD, STEP, budget=generous, what="at a larger delta")


def test_no_count_below_one_and_no_unprintable_name_is_charged(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        with pytest.raises(ValueError, match="count must be at least 1, got 0"):
            ledger.charge(WARD, STEP, count=0, budget=AMPLE, what="nothing")
        with pytest.raises(ValueError):
            ledger.charge(WARD, STEP, budget=AMPLE, what="\x1b[2J")
    with pytest.raises(ValueError, match="unit must be one of client, person, record"):
        Account(unit="household", source="ward")


# Files that can't be trusted.


def test_changing_any_character_of_any_entry_is_detected(path: Path) -> None:
    spend(path, rounds=2)
    for sequence, payload, digest in rows(path):
        for column, text in (("payload", payload), ("hash", digest)):
            change = f"UPDATE entries SET {column} = ? WHERE sequence = ?"
            for place in range(sequence % 5, len(text), 29):
                other = "0" if text[place] != "0" else "1"
                execute(path, change, text[:place] + other + text[place + 1 :], sequence)
                for look in (NodeLedger.open, NodeLedger.read):
                    with pytest.raises(LedgerCorrupted):
                        look(path)
            execute(path, change, text, sequence)
    assert history_of(path) == {STEP: 20}


def test_a_file_that_is_cut_short_is_refused(path: Path) -> None:
    spend(path, rounds=15)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LedgerCorrupted):
        NodeLedger.open(path)
    path.write_bytes(b"not a database at all, but long enough to look like one" * 40)
    with pytest.raises(LedgerCorrupted):
        NodeLedger.open(path)


def test_a_ledger_that_is_put_back_while_it_is_open_is_not_spent_from(path: Path) -> None:
    spend(path)
    older = path.with_name("older.db")
    shutil.copy(path, older)
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, STEP, budget=AMPLE, what="round 2")
        shutil.copy(older, path)
        with pytest.raises(LedgerCorrupted, match="put back to an older state"):
            ledger.charge(WARD, STEP, budget=AMPLE, what="round 3")


def test_a_ledger_of_the_older_schema_is_refused_with_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("fl_dp.ledger.node.NODE_SCHEMA", 3)
        NodeLedger.open(path).close()
    for look in (NodeLedger.open, NodeLedger.read):
        with pytest.raises(LedgerCorrupted, match=r"schema 3, .* reads 4: .* a dp-max-epsilon"):
            look(path)


def test_an_older_table_of_charges_is_refused_with_what_to_do(path: Path) -> None:
    spend(path)
    execute(path, "ALTER TABLE entries RENAME TO records")
    for look in (NodeLedger.open, NodeLedger.read):
        with pytest.raises(LedgerCorrupted, match=r"older version.* a dp-max-epsilon.* lower"):
            look(path)


def test_a_training_s_ledger_is_no_node_s(path: Path) -> None:
    plan = noised_plan(
        1.0, delta=1e-3, rounds=5, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
    )
    PrivacyLedger.open(path, plan).close()
    assert not NodeLedger.is_one(path)
    for look in (NodeLedger.open, NodeLedger.read):
        with pytest.raises(LedgerCorrupted, match="no node's ledger"):
            look(path)
    node = path.with_name("node.db")
    spend(node)
    assert NodeLedger.is_one(node)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.read(node)


def test_a_ledger_that_is_not_there_is_only_made_to_spend_from(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NodeLedger.read(path)
    with pytest.raises(ValueError, match=r"no folder .* to keep the privacy ledger"):
        NodeLedger.open(path.parent / "no folder" / "ledger.db")
    assert NodeLedger.day_of_revocation(path) is None
    assert not path.exists()
    NodeLedger.open(path).close()
    assert NodeLedger.read(path).spendings == ()


# Processes that share one.


def test_two_processes_can_not_spend_the_same_budget_twice(path: Path) -> None:
    event, budget = GaussianEvent(noise_multiplier=8.0), PrivacyBudget(epsilon=2.0, delta=1e-3)
    won = race(
        f"""
        from fl_dp.accounting import PrivacyBudget, PrivacyBudgetExhausted
        from fl_dp.mechanisms.mechanism_events import GaussianEvent
        from fl_dp.ledger import NodeLedger
        from fl_dp.ledger.node import Account
        account = Account(unit="record", source="ward")
        budget = PrivacyBudget(epsilon=2.0, delta=1e-3)
        with NodeLedger.open({str(path)!r}) as ledger:
            print("ready", flush=True)
            input()
            count = 0
            try:
                while True:
                    ledger.charge(
                        account, GaussianEvent(noise_multiplier=8.0),
                        budget=budget, what=f"round {{count}}",
                    )
                    count += 1
            except PrivacyBudgetExhausted:
                print(count)
        """
    )
    assert sum(won) == most_steps(budget, event)
    assert history_of(path) == {event: sum(won)}


def test_a_process_that_trains_for_hours_blocks_nobody(path: Path) -> None:
    with NodeLedger.open(path) as training:
        training.charge(WARD, STEP, count=10, budget=AMPLE, what="hours")
        spend(path)  # another connection; it would wait for a lock that is held
        child = start_python(
            f"""
            from fl_dp.ledger import NodeLedger
            with NodeLedger.read({str(path)!r}) as ledger:
                [spending] = ledger.spendings
                print(spending.charges)
            """
        )
        assert child.rest() == "2\n"
    assert history_of(path) == {STEP: 20}


# Whatever is asked.

EVENTS = tuple(GaussianEvent(noise_multiplier=z) for z in (3.0, 8.0, 12.0))
EPSILONS, DELTAS = (0.8, 2.0, 4.0), (1e-3, 1e-5)
ACCOUNTS = tuple(
    Account(unit=unit, source=source, fingerprint=print_)
    for unit, source, print_ in (
        ("record", "a", None),
        ("record", "a", "f1"),
        ("record", "b", "f1"),
        ("record", "b", "f2"),
        ("record", "c", None),
        ("client", "a", "f1"),
    )
)
Asked = tuple[Account, GaussianEvent, int, float, float, bool]


def gaussian_delta(mu: float, eps: float) -> float:
    """What a Gaussian at distance `mu` spends (Balle and Wang 2018, theorem 5)."""
    upper = norm.cdf(mu / 2 - eps / mu)
    return float(upper - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu))


def same_data(charges: list[Asked], account: Account) -> list[Asked]:
    """The charges that share a name with an account, directly or through one another."""
    known, found = set(account.keys), -1
    while found != len(known):
        found = len(known)
        for each in charges:
            if known & set(each[0].keys):
                known |= set(each[0].keys)
    return [each for each in charges if known & set(each[0].keys)]


def on_paper(charges: list[Asked], asked: Asked) -> bool:
    """Decide by the rules of the module's docstring, from the charges alone."""
    account, event, count, eps, delta, _ = asked
    earlier = same_data(charges, account)
    delta = min([delta, *[each[4] for each in earlier[:1]]])
    total = Counter({event: count})
    for each in earlier:
        total[each[1]] += each[2]
    mu = math.sqrt(sum(n / e.noise_multiplier**2 for e, n in total.items()))
    _, _, _, first_eps, first_delta, _ = earlier[0] if earlier else asked
    declared = min(eps, first_eps)
    if gaussian_delta(mu, declared) <= DECLARED_SHARE * delta:
        return True
    first = PrivacyBudget(epsilon=first_eps, delta=first_delta)
    return running({e: n for e, n in total.items()}, first, delta) <= eps


@settings(max_examples=60)
@given(
    script=st.lists(
        st.tuples(
            st.sampled_from(ACCOUNTS),
            st.sampled_from(EVENTS),
            st.integers(1, 12),
            st.sampled_from(EPSILONS),
            st.sampled_from(DELTAS),
            st.booleans(),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_no_order_of_releases_names_budgets_and_restarts_breaks_the_rules(
    script: list[Asked],
) -> None:
    charges: list[Asked] = []
    with fresh_path() as path:
        ledger = NodeLedger.open(path)
        for asked in script:
            account, event, count, eps, delta, restart = asked
            if restart:
                ledger = NodeLedger.open(path)  # the old one is never closed
            budget = PrivacyBudget(epsilon=eps, delta=delta)
            try:
                ledger.charge(account, event, count=count, budget=budget, what="release")
            except PrivacyBudgetExhausted:
                assert not on_paper(charges, asked)
            else:
                assert on_paper(charges, asked)
                charges.append(asked)
            mine = same_data(charges, account)
            spent = ledger.spending(account)
            assert spent.charges == len(mine)
            assert sum(spent.releases.values()) == sum(each[2] for each in mine)
        replayed = NodeLedger.read(path)
        for account in ACCOUNTS:
            live, again = ledger.spending(account), replayed.spending(account)
            assert live.history == again.history
            assert live.epsilon() == again.epsilon()
            assert (live.budget, live.first_limit) == (again.budget, again.first_limit)


# Charges before the data are read.


NEW = Account(unit="record", source="new ward", fingerprint="f1")
OLD = Account(unit="record", source="old ward", fingerprint="f1")


def unread(ledger: NodeLedger, account: Account, count: int = 1) -> int:
    return ledger.charge_unread(account, STEP, count=count, budget=TIGHT, what="round")


def test_an_unread_charge_is_decided_by_the_source_alone(path: Path) -> None:
    most = most_steps(TIGHT)
    spend(path, OLD, count=most, budget=TIGHT)
    with NodeLedger.open(path) as ledger:
        for joined in (False, True):  # once the ledger knows that both are one, it is no different
            charge = unread(ledger, NEW, count=most // 2)
            assert not ledger.name_data(charge, "f1"), joined
        with pytest.raises(PrivacyBudgetExhausted):
            unread(ledger, NEW, count=most // 2 + 2)
        with pytest.raises(PrivacyBudgetExhausted):
            unread(ledger, OLD)


def test_what_may_not_be_released_does_not_count_for_the_data_but_for_the_source(
    path: Path,
) -> None:
    most = most_steps(TIGHT)
    spend(path, OLD, count=most, budget=TIGHT)
    with NodeLedger.open(path) as ledger:
        assert not ledger.name_data(unread(ledger, NEW, count=most), "f1")
        with pytest.raises(PrivacyBudgetExhausted):
            unread(ledger, NEW)
    assert history_of(path, NEW) == history_of(path, OLD) == {STEP: most}
    with NodeLedger.read(path) as ledger:
        [only] = ledger.spendings
        assert (only.sources, only.charges) == ({"old ward", "new ward"}, 2)


def test_what_may_be_released_counts_for_the_data_under_every_name(path: Path) -> None:
    most = most_steps(TIGHT)
    with NodeLedger.open(path) as ledger:
        assert ledger.name_data(unread(ledger, NEW, count=most - 1), "f1")
        assert ledger.name_data(unread(ledger, OLD), "f1")
        assert not ledger.name_data(unread(ledger, OLD), "f1")
    assert history_of(path, Account(unit="record", source="old ward")) == {STEP: most}


def test_a_charge_whose_data_were_never_named_stays_spent(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        charge = unread(ledger, NEW)
        assert ledger.name_data(unread(ledger, NEW), "f1")
    assert history_of(path, NEW) == {STEP: 2}
    with NodeLedger.open(path) as ledger:  # also by another process
        assert ledger.name_data(charge, "f2")
        for wrong in (charge, 1, 99):
            with pytest.raises(ValueError, match="is no charge that waits"):
                ledger.name_data(wrong, "f2")


def test_what_was_revoked_is_never_charged_again(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(WARD, STEP, budget=AMPLE, what="run 1")
        waiting = ledger.charge_unread(WARD, STEP, budget=AMPLE, what="run 1")
        assert NodeLedger.day_of_revocation(path) is None
        ledger.revoke()
        for charge in (ledger.charge, ledger.charge_unread):
            with pytest.raises(ConsentRevoked, match="run 2 is not allowed"):
                charge(WARD, STEP, budget=AMPLE, what="run 2")
        ledger.name_data(waiting, "abc")  # what was charged before goes on
        with pytest.raises(ValueError, match="revoked already"):
            ledger.revoke()
    with NodeLedger.open(path) as ledger:
        assert ledger.revoked == NodeLedger.day_of_revocation(path)
        assert ledger.revoked is not None
        assert ledger.spendings[0].charges == 2
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.charge(WARD, STEP, budget=AMPLE, what="run 3")


def test_a_name_that_says_revoked_revokes_nothing(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        account = Account(unit="record", source='"revoked"')
        ledger.charge(account, STEP, budget=AMPLE, what='"kind":"revoked"')
    assert NodeLedger.day_of_revocation(path) is None
