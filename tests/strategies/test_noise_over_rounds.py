"""Noise that changes from round to round, and noise that somebody could predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import calibrated_plan, noised_plan
from flwr.app import Array, ArrayRecord
from local_grid import LocalGrid, answer_with_update

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NoiseSchedule
from fl_dp.mechanisms import SecureRandom
from fl_dp.statement import privacy_statement
from fl_dp.strategies import DPFedAvg

N = 4
SIZE = 20_000
FIELDS: dict[str, Any] = dict(
    sampling_rate=1.0, clipping_norm=1.0, num_clients=N, contribution_check=False
)


def nobody_moves() -> LocalGrid:
    return LocalGrid(answer_with_update([{"w": np.zeros(SIZE)} for _ in range(N)]), N)


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(SIZE))})


def test_every_round_has_the_noise_that_its_record_says(start: Any) -> None:
    plan = calibrated_plan(
        PrivacyBudget(epsilon=8.0, delta=1e-3),
        rounds=4,
        schedule=NoiseSchedule(name="linear", floor=0.25, levels=None),
        **FIELDS,
    )
    seen: list[np.ndarray] = []

    def look(_: int, arrays: ArrayRecord) -> None:
        seen.append(arrays["w"].numpy())

    recorded = start(plan, nobody_moves(), model(), evaluate_fn=look).ledger.noise_multipliers
    assert recorded == plan.noise_multipliers
    assert len(set(recorded)) == 4
    # 20,000 draws: the relative standard error is 0.5 %; six of them, 2e-9 a round.
    for multiplier, before, after in zip(recorded, seen, seen[1:], strict=False):
        assert np.std(after - before) * N == pytest.approx(multiplier, rel=0.03)


PLAN = noised_plan(1.0, delta=1e-3, rounds=2, **FIELDS)


def insecure_run(folder: Path) -> np.ndarray:
    rng = SecureRandom(insecure_seed=3)
    with PrivacyLedger.open(folder / "ledger.db", PLAN, rng=rng) as ledger:
        strategy = DPFedAvg(plan=PLAN, ledger=ledger, rng=rng)
        result = strategy.start(nobody_moves(), model(), num_rounds=2)
        assert privacy_statement(ledger).to_dict()["insecure"] is True
    return result.arrays["w"].numpy()


def test_an_insecure_seed_repeats_a_training_and_taints_its_statement(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    np.testing.assert_array_equal(insecure_run(tmp_path / "one"), insecure_run(tmp_path / "two"))


def test_insecure_noise_that_the_ledger_does_not_know_of_is_refused(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        with pytest.raises(ValueError, match="insecure source that the ledger does not know"):
            DPFedAvg(plan=PLAN, ledger=ledger, rng=SecureRandom(insecure_seed=1))
        assert replace(PLAN) == ledger.plan
