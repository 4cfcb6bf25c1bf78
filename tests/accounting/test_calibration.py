"""From a target epsilon back to noise, rates and rounds: always the safe end, and close to it."""

from __future__ import annotations

import json
import math
import re
import stat
from pathlib import Path

import pytest
from flat_plans import calibrated_plan, noised_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from made_events import sampled

from fl_dp.accounting import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    bounds,
    calibrate_noise_multiplier,
    calibration,
    epsilon,
    tight_epsilon,
)
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.calibration import affordable_rounds, calibrate_noise
from fl_dp.accounting.calibration_cache import SWITCH
from fl_dp.accounting.events import TruncatedPoissonGaussianEvent
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon, gaussian_noise_multiplier
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)
from fl_dp.plan import Plan
from fl_dp.statement import privacy_statement

REPLACE_ONE = NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(
    ("clients", "rate", "rounds", "target", "expected"),
    [
        (1e3, 0.05, 100, 8.0, 0.60297),
        (1e3, 0.1, 200, 8.0, 0.97162),
        (1e5, 0.01, 1000, 2.0, 0.99485),
        (1e5, 0.001, 1000, 1.0, 0.66956),
        (1e6, 0.001, 2000, 1.0, 0.74787),
        (1e6, 0.01, 2000, 2.0, 1.30057),
    ],
)
def test_noise_matches_the_golden_table_at_the_safe_end(
    clients: float, rate: float, rounds: int, target: float, expected: float
) -> None:
    """Delta = clients^-1.1; recomputed with dp-accounting 0.6 by PLD, to its discretisation."""
    delta = clients**-1.1
    multiplier = calibrate_noise_multiplier(target, delta, sampling_rate=rate, rounds=rounds)
    assert multiplier == pytest.approx(expected, rel=1e-3)
    assert tight_epsilon({sampled(multiplier, rate): rounds}, delta) <= target
    assert tight_epsilon({sampled(multiplier * 0.999, rate): rounds}, delta) > target


@settings(max_examples=6)
@given(
    st.floats(0.2, 12.0),
    st.floats(1e-3, 1.0),
    st.integers(1, 300),
    st.sampled_from([1e-4, 1e-6]),
)
def test_any_target_is_met_and_nearly_used_up(
    target: float, rate: float, rounds: int, delta: float
) -> None:
    multiplier = calibrate_noise_multiplier(target, delta, sampling_rate=rate, rounds=rounds)
    spent = tight_epsilon({sampled(multiplier, rate): rounds}, delta)
    assert target * 0.999 <= spent <= target


@pytest.mark.parametrize("target", [1e-3, 0.5, 8.0, 30.0])
def test_without_sampling_noise_is_the_analytic_one(target: float) -> None:
    ours = calibrate_noise_multiplier(target, 1e-6, sampling_rate=1.0, rounds=25)
    assert ours == pytest.approx(5 * gaussian_noise_multiplier(target, 1e-6), rel=2e-3)
    assert tight_epsilon({sampled(ours, 1.0): 25}, 1e-6) <= target


@pytest.mark.parametrize(
    ("target", "rate", "rounds"), [(0.01, 1e-2, 10**4), (0.01, 1e-4, 10**5), (0.05, 1e-3, 10**4)]
)
def test_rounds_that_spend_next_to_nothing_are_calibrated(
    target: float, rate: float, rounds: int
) -> None:
    """The coarse distribution costs more than Renyi DP there: the search once had no bracket."""
    multiplier = calibrate_noise_multiplier(target, 1e-6, sampling_rate=rate, rounds=rounds)
    assert tight_epsilon({sampled(multiplier, rate): rounds}, 1e-6) <= target
    assert tight_epsilon({sampled(multiplier * 0.99, rate): rounds}, 1e-6) > target


@pytest.mark.parametrize(
    "spent",
    [
        {GaussianEvent(noise_multiplier=3.0): 2},
        {LaplaceEvent(noise_multiplier=2.0): 3, sampled(1.0, 0.05): 20},
        {ZcdpEvent(rho=0.05): 1},
        {ExponentialEvent(epsilon=0.2, draws=5): 2},
    ],
)
def test_what_is_spent_already_is_put_aside(spent: dict[PrivacyEvent, int]) -> None:
    alone = calibrate_noise_multiplier(4.0, 1e-5, sampling_rate=0.1, rounds=50)
    multiplier = calibrate_noise_multiplier(
        4.0, 1e-5, sampling_rate=0.1, rounds=50, already_spent=spent
    )
    assert multiplier > alone
    total = [*spent.items(), (sampled(multiplier, 0.1), 50)]
    assert 4.0 * 0.998 <= tight_epsilon(total, 1e-5) <= 4.0


def test_a_budget_that_is_spent_already_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"no noise reaches epsilon 1\.0 .* on top of what is spent"
    ):
        calibrate_noise_multiplier(
            1.0,
            1e-5,
            sampling_rate=0.1,
            rounds=10,
            already_spent={GaussianEvent(noise_multiplier=1.0): 1},
        )


def test_replaced_units_need_more_noise() -> None:
    plain, replaced = (
        calibrate_noise_multiplier(
            1.0, 1e-5, sampling_rate=rate, rounds=20, neighboring_relation=REPLACE_ONE
        )
        for rate in (1.0, 0.1)
    )
    assert plain == pytest.approx(
        2 * calibrate_noise_multiplier(1.0, 1e-5, sampling_rate=1.0, rounds=20), rel=1e-3
    )
    spent = tight_epsilon({sampled(replaced, 0.1): 20}, 1e-5, neighboring_relation=REPLACE_ONE)
    assert 0.998 <= spent <= 1.0


def test_any_releases_that_calm_with_noise_can_be_calibrated() -> None:
    def releases(noise: float) -> dict[PrivacyEvent, int]:
        return {
            LaplaceEvent(noise_multiplier=noise): 5,
            GaussianEvent(noise_multiplier=2.0 * noise): 5,
            ZcdpEvent(rho=0.01 / noise**2): 1,
        }

    for relation in NeighboringRelation:
        noise = calibrate_noise(releases, 3.0, 1e-5, neighboring_relation=relation)
        spent = tight_epsilon(releases(noise), 1e-5, neighboring_relation=relation)
        assert 3.0 * 0.999 <= spent <= 3.0


# Beyond epsilon 100 --------------------------------------------------------------------------


@pytest.fixture
def no_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A privacy-loss distribution of so much takes minutes and gigabytes."""

    def refused(*arguments: object, **options: object) -> float:
        raise AssertionError("a distribution was computed")

    monkeypatch.setattr(bounds, "distribution_epsilon", refused)


@pytest.mark.parametrize("target", [1e4, 1e6, 1e9])
def test_a_vast_budget_is_calibrated_without_distributions(
    no_distributions: None, target: float
) -> None:
    noise = calibrate_noise_multiplier(target, 1e-5, sampling_rate=0.5, rounds=30)
    history: dict[PrivacyEvent, int] = {sampled(noise, 0.5): 30}
    reported = epsilon(history, 1e-5)
    assert 0.999 * target <= reported.best <= target
    assert tight_epsilon(history, 1e-5) == reported.best


def test_a_ledger_of_a_vast_budget_neither_hangs_nor_overspends(
    no_distributions: None, tmp_path: Path
) -> None:
    plan = calibrated_plan(
        PrivacyBudget(epsilon=1e4, delta=1e-5),
        rounds=30,
        sampling_rate=0.5,
        clipping_norm=1.0,
        num_clients=200,
    )
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        for number in range(1, 31):
            ledger.commit(ledger.reserve(round=number))
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.reserve(round=30)
        assert ledger.epsilon().best <= ledger.promise().best <= 1e4
        assert ledger.running_epsilon() <= 1e4
        assert privacy_statement(ledger).to_dict()["epsilon"]


def test_noise_falls_as_the_budget_grows_across_the_switch_to_closed_forms() -> None:
    noises = [
        calibrate_noise_multiplier(target, 1e-5, sampling_rate=0.5, rounds=30)
        for target in (80.0, 99.0, 101.0, 200.0)
    ]
    assert noises == sorted(noises, reverse=True)


@pytest.mark.parametrize(
    "rate", [0.1, *(pytest.param(rate, marks=pytest.mark.nightly) for rate in (0.01, 0.5))]
)
def test_what_is_left_out_would_have_said_little_less(rate: float) -> None:
    """Just beyond the switch, by the distribution that is not computed there."""
    noise = calibrate_noise_multiplier(101.0, 1e-5, sampling_rate=rate, rounds=30)
    exact = pld_epsilon({sampled(noise, rate): 30}, 1e-5, interval=1e-3)
    assert 0.75 * 101.0 <= exact <= 101.0


def test_a_sample_is_charged_as_everybody_where_no_renyi_bound_is_known(
    no_distributions: None,
) -> None:
    cut = TruncatedPoissonGaussianEvent(
        noise_multiplier=0.02, sampling_rate=0.5, num_units=200, max_cohort=150
    )
    for relation, distance in ((NeighboringRelation.ZERO_OUT, 1), (REPLACE_ONE, 2)):
        everybody = gaussian_epsilon(0.02 / distance / math.sqrt(30), 1e-5)
        assert tight_epsilon({cut: 30}, 1e-5, neighboring_relation=relation) == everybody


@pytest.mark.parametrize("clients", [1, 9, 4096])
@pytest.mark.parametrize("norm", [1.0, 0.3])
def test_the_noise_that_a_refusal_asks_for_is_accepted(clients: int, norm: float) -> None:
    def plan(noise: float) -> Plan:
        return noised_plan(
            noise,
            delta=1e-5,
            rounds=1,
            sampling_rate=1.0,
            clipping_norm=norm,
            num_clients=clients,
        )

    with pytest.raises(ValueError, match="use at least ") as refusal:
        plan(1e-8)
    said = re.search(r"use at least ([0-9.e+-]+[0-9])", str(refusal.value))
    assert said is not None
    if clients > 1 and "clients" not in str(refusal.value):  # one vector's grid comes first
        with pytest.raises(ValueError, match="use at least ") as refusal:
            plan(float(said[1]))
        said = re.search(r"use at least ([0-9.e+-]+[0-9])", str(refusal.value))
        assert said is not None
    plan(float(said[1]))
    plan(max(1e-6, float(said[1])))


# Calibrations on disk ------------------------------------------------------------------------


@pytest.fixture
def calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH)
    return tmp_path / "fl-dp" / "calibrations"


def calibrated(target: float = 3.0, rounds: int = 25) -> float:
    return calibrate_noise_multiplier(target, 1e-5, sampling_rate=0.3, rounds=rounds)


def test_a_calibration_is_not_searched_for_twice(
    calibrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = calibrated()
    (entry,) = calibrations.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(calibrations.stat().st_mode) == 0o700

    def searched(*arguments: object, **options: object) -> float:
        raise AssertionError("searched again")

    monkeypatch.setattr(calibration, "brentq", searched)
    assert calibrated() == first
    for other in ({"target": 3.01}, {"rounds": 26}):
        with pytest.raises(AssertionError, match="searched again"):
            calibrated(**other)


def test_nothing_that_lies_in_the_cache_lowers_the_noise(calibrations: Path) -> None:
    first = calibrated()
    (entry,) = calibrations.iterdir()
    for content in (
        b"[1]",
        b"\xff\xfe",
        b'{"noise_multiplier": "1"}',
        b'{"noise_multiplier": NaN}',
        b'{"noise_multiplier": 1e-300}',
        b'{"noise_multiplier": 0.5}',  # too little noise
        b'{"noise_multiplier": 1.5' + b" " * 10**6 + b"}",
    ):
        entry.write_bytes(content)
        assert calibrated() == first
        assert json.loads(entry.read_text()) == {"noise_multiplier": first}


def test_the_cache_can_be_switched_off_and_its_disk_be_full(
    calibrations: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    first = calibrated()
    assert not calibrations.exists()
    monkeypatch.delenv(SWITCH)
    (tmp_path / "fl-dp").write_text("no folder can be made here")
    assert calibrated() == first


# Rounds --------------------------------------------------------------------------------------


def test_affordable_rounds_is_exact_and_continues_a_history() -> None:
    one = sampled(1.0, 0.05)
    most = affordable_rounds({}, one, 2.0, 1e-5, at_most=1000)
    assert tight_epsilon({one: most}, 1e-5) <= 2.0 < tight_epsilon({one: most + 1}, 1e-5)
    assert affordable_rounds({one: most - 3}, one, 2.0, 1e-5, at_most=1000) == 3
    assert affordable_rounds({one: most}, one, 2.0, 1e-5, at_most=1000) == 0
    assert affordable_rounds({one: most + 9}, one, 2.0, 1e-5, at_most=1000) == 0
    assert affordable_rounds({}, one, 2.0, 1e-5, at_most=most - 1) == most - 1
    assert affordable_rounds({}, one, 2.0, 1e-5, at_most=0) == 0
