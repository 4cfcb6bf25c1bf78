"""The account's odometer: the smaller of two bounds, whatever chose the plans."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accounts import CAP, RECORDS, forged, plan_of, spend
from numpy.typing import NDArray

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NoiseSchedule, PrivacyBudgetExhausted
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.ledger import AccountLedger, enter_records
from fl_dp.ledger.account import AccountState, AccountTerms
from fl_dp.ledger.entered import EnteredTraining
from fl_dp.ledger.state import TrainingState

_STEPS = 12
_DELTA = 0.02  # large, so that few samples show what exceeds it


def entered(epsilon: float, delta: float = _DELTA) -> EnteredTraining:
    """One Gaussian without sampling."""
    plan = plan_of(epsilon, delta=delta, rounds=1, sampling_rate=1.0, num_clients=5)
    return EnteredTraining(f"{epsilon:g}", TrainingState(plan))


def totals(small: EnteredTraining, large: EnteredTraining) -> tuple[NDArray[np.float64], float]:
    """The account's total after so many small and so many large plans, and its delta."""
    terms = AccountTerms.of("people", small, None)
    table = np.zeros((_STEPS + 1, _STEPS + 1))
    for index in np.ndindex(*table.shape):
        account = AccountState.made(terms, small)
        for kind, count in zip((small, large), index, strict=True):
            account.entered |= {f"{kind.name}/{number}": kind for number in range(count)}
        if any(index) and sum(index) <= _STEPS:
            table[index] = account.total(account.neighbours)
    return table, terms.delta


def excess(claimed: NDArray[np.float64], small: float, large: float) -> float:
    """Delta at the claimed totals of an attack that chooses plans, and its end, by what it saw.

    With losses L under the one neighbour it is the mean of (1 - e^(claimed - L))+.
    """
    samples, draw = 100_000, np.random.default_rng(7)
    loss = np.zeros(samples)
    counts = np.zeros((2, samples), dtype=int)
    going = np.full(samples, True)
    for _ in range(_STEPS):
        takes_large = claimed[*counts] - loss > 1.0
        mu = np.where(takes_large, large, small)
        loss += going * draw.normal(mu**2 / 2.0, mu)
        counts += going * np.stack([~takes_large, takes_large])
        going &= loss <= claimed[*counts]  # it stops where it has seen too much
    return float(np.mean(-np.expm1(np.minimum(claimed[*counts] - loss, 0.0))))


def test_no_choice_of_plans_by_what_was_released_beats_the_total() -> None:
    small, large = entered(0.3), entered(1.0)
    mus = [1.0 / kind.state.plan.noise_multiplier for kind in (small, large)]
    claimed, delta = totals(small, large)
    assert delta == pytest.approx(3 * _DELTA)
    assert excess(claimed, *mus) <= delta
    # The power: exact composition of plans that had been fixed beforehand is beaten.
    squares = np.add.outer(*(np.arange(_STEPS + 1) * mu**2 for mu in mus))
    exact = [0.0, *(gaussian_epsilon(mu**-0.5, delta) for mu in squares.ravel()[1:])]
    fixed = np.reshape(exact, squares.shape)
    assert excess(fixed, *mus) > 1.2 * delta


def test_ten_plans_cost_a_third_of_their_sum(tmp_path: Path) -> None:
    """By hand: divergences rho a, and proposition 12 of Canonne, Kamath and Steinke 2020."""
    plan = entered(2.0, 1e-6).state.plan
    for number in range(10):
        spend(tmp_path / "people.db", plan, f"{number}")
    with AccountLedger.read(tmp_path / "people.db") as ledger:
        account = ledger.account
    by_hand = min(
        10.0 / (2.0 * plan.noise_multiplier**2) * share.order
        + math.log1p(-1.0 / share.order)
        - math.log(share.order * share.delta) / (share.order - 1.0)
        for share in account.terms.odometer
    )
    assert account.total(account.neighbours) == pytest.approx(by_hand, rel=1e-9)
    assert by_hand == pytest.approx(8.177, abs=1e-3)
    assert account.terms.delta_of_odometer == pytest.approx(1e-6)
    # No bound is below what the ten would be if all had been fixed beforehand.
    assert by_hand > gaussian_epsilon(plan.noise_multiplier / math.sqrt(10.0), 3e-6)


def test_accounts_of_before_go_on_by_their_sum(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    spend(file, plan_of(3.0), "first", cap=CAP)
    forged(file, lambda entries: entries[0]["account"].pop("odometer"))
    with PrivacyLedger.open(file, plan_of(5.0), name="second") as ledger:
        assert ledger.account.total(ledger.account.neighbours) == 8.0
    with pytest.raises(PrivacyBudgetExhausted, match="0 is left of the account"):
        PrivacyLedger.open(file, plan_of(1.0), name="third")


def test_under_a_cap_no_training_repeats_more_than_its_curve_was_charged_for(
    tmp_path: Path,
) -> None:
    """Where rounds differ, a training's own filter admits mixes beyond it."""
    roomy = replace(
        plan_of(1.0, rounds=4, sampling_rate=1.0, schedule=NoiseSchedule(name="cosine")),
        budget=PrivacyBudget(epsilon=3.0, delta=2.5e-4),
    )
    paid = {}
    for name, cap in (("capped", CAP), ("uncapped", None)):
        with PrivacyLedger.open(tmp_path / f"{name}.db", roomy, cap=cap) as ledger:
            before = ledger.account.total(ledger.account.neighbours)
            paid[name] = 0
            with pytest.raises(PrivacyBudgetExhausted):
                for _ in range(200):
                    ledger.commit(ledger.reserve(round=1))
                    paid[name] += 1
            assert ledger.account.total(ledger.account.neighbours) == before
    assert 4 < paid["capped"] <= paid["uncapped"]


def test_dp_sgd_inside_clients_has_a_curve_of_all_that_its_ledgers_admit(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    for number in range(6):
        enter_records(file, f"{number}", RECORDS)
    with AccountLedger.read(file) as ledger:
        (total,) = ledger.account.totals().values()
    assert 4.0 < total < 0.75 * 6 * RECORDS.budget.epsilon
    # At least all steps that the budget pays for, composed.
    assert total > 1.0
