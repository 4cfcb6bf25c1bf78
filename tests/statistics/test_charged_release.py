"""Statistics and a training share one budget."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flat_plans import calibrated_plan

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import SecureRandom
from fl_dp.statement import privacy_statement
from fl_dp.statistics import Mean, NoiseChoice, Quantiles, charged_release, choose_noise

CLIENTS = 50
BUDGET = PrivacyBudget(epsilon=4.0, delta=1e-3)
MEAN = choose_noise(Mean(lows=(0.0,), highs=(10.0,)), epsilon=1.0, delta=1e-4)
MEDIAN = choose_noise(Quantiles(probabilities=(0.25, 0.5), grid=(0.0, 5.0, 10.0)), 1.0, 0.0)


def plan(*choices: NoiseChoice) -> Plan:
    return calibrated_plan(
        BUDGET,
        rounds=3,
        sampling_rate=1.0,
        clipping_norm=1.0,
        num_clients=CLIENTS,
        other_releases=[(event, 1) for choice in choices for event in choice.events],
    )


def vectors(choice: NoiseChoice) -> list[np.ndarray]:
    return [choice.query.contribution([float(client % 10)]) for client in range(CLIENTS)]


def test_declared_statistics_leave_room_for_every_round(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", plan(MEAN, MEDIAN)) as ledger:
        for what, choice in (("mean", MEAN), ("quartiles", MEDIAN)):
            charged_release(ledger, what, choice, vectors(choice), SecureRandom())
        for number in (1, 2, 3):
            ledger.commit(ledger.reserve(round=number))
        assert ledger.epsilon().best <= BUDGET.epsilon
        released = {
            each["event"]: each["count"] for each in privacy_statement(ledger).to_dict()["releases"]
        }
        events = (*MEAN.events, *MEDIAN.events)
        assert sum(released.values()) == len(events) + 3
        assert released["exponential"] == len(MEDIAN.events)


def test_an_answer_that_promises_nothing_is_called_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    asked = plan(MEAN)
    huge = replace(asked, budget=PrivacyBudget(epsilon=500.0, delta=asked.budget.delta))
    for planned in (asked, huge):
        with PrivacyLedger.open(tmp_path / f"{planned.budget.epsilon:g}.db", planned) as ledger:
            charged_release(ledger, "mean", MEAN, vectors(MEAN), SecureRandom())
        warned = f"NO PRIVACY: epsilon 500 {Guarantee.of(huge).terms} promises nothing"
        assert (warned in caplog.text) is (planned is huge)


def test_the_training_s_noise_is_higher_when_statistics_share_its_budget() -> None:
    assert plan(MEAN, MEDIAN).noise_multiplier > plan().noise_multiplier * 1.01


def test_a_statistic_that_nobody_declared_is_refused(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", plan()) as ledger:
        with pytest.raises(ValueError, match="not among the plan's other_releases"):
            charged_release(ledger, "mean", MEAN, vectors(MEAN), SecureRandom())
        assert ledger.rounds_spent == ledger.other_releases_spent == 0


def test_a_statistic_does_not_fit_twice(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", plan(MEAN)) as ledger:
        charged_release(ledger, "mean", MEAN, vectors(MEAN), SecureRandom())
        for number in (1, 2, 3):
            ledger.reserve(round=number)
        before = ledger.entries
        with pytest.raises(PrivacyBudgetExhausted, match="'mean' would exceed"):
            charged_release(ledger, "mean", MEAN, vectors(MEAN), SecureRandom())
        assert ledger.entries == before


def test_insecure_noise_has_to_be_known_to_the_ledger(tmp_path: Path) -> None:
    rng = SecureRandom(insecure_seed=1)
    with (
        PrivacyLedger.open(tmp_path / "ledger.db", plan(MEAN)) as ledger,
        pytest.raises(ValueError, match="insecure source"),
    ):
        charged_release(ledger, "mean", MEAN, vectors(MEAN), rng)


def test_a_statistic_is_on_disk_as_spent_before_anyone_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def contributions() -> Iterator[np.ndarray]:
        with PrivacyLedger.read(path) as seen:
            assert seen.other_releases_spent == len(MEDIAN.events)
        yield from vectors(MEDIAN)

    with PrivacyLedger.open(path, plan(MEDIAN)) as ledger:
        charged_release(ledger, "quartiles", MEDIAN, contributions(), SecureRandom())
        assert [entry.kind for entry in ledger.entries[-2:]] == ["commit", "commit"]


def test_a_statistic_that_fails_halfway_stays_spent(tmp_path: Path) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield vectors(MEAN)[0]
        raise OSError("a client's line broke")

    with PrivacyLedger.open(tmp_path / "ledger.db", plan(MEAN)) as ledger:
        with pytest.raises(OSError, match="line broke"):
            charged_release(ledger, "mean", MEAN, broken(), SecureRandom())
        assert ledger.other_releases_spent == len(MEAN.events)
