"""Records under DP-SGD: the one-run audit finds a training without clipping or without noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from wrong_systems import Draws, one_draw_for_both_halves

from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.clients.per_record import dp_sgd
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.lab.audit.noise_findings import NEW_COORDINATES, NEW_NOISE
from fl_dp.lab.games.canary_records import AuditedRecords, audit_records
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import RecordPlan

# So much noise that a leak stands out: epsilon 0.27.
PLAN = RecordPlan.from_noise_multiplier(
    20.0, delta=1e-5, sampling_rate=0.5, steps=10, participations=1, clipping_norm=1.0
)


def records(canaries: int = 400) -> AuditedRecords:
    torch.manual_seed(0)
    return AuditedRecords(
        features=torch.randn(30, 8),
        labels=torch.arange(30) % 3,
        num_classes=3,
        canaries=canaries,
        seed=0,
    )


def a_fiftieth_of_the_noise(model: Any, loader: Any, *, plan: RecordPlan, how: Any) -> None:
    less = replace(plan, noise_multiplier=plan.noise_multiplier / 50)
    train_with_dp_sgd(model, loader, plan=less, how=how)


def nothing_clipped(model: Any, loader: Any, *, plan: RecordPlan, how: Any) -> None:
    # A norm that clips nothing, with the noise of the one that is charged.
    loose = replace(plan, clipping_norm=1e3, noise_multiplier=plan.noise_multiplier / 1e3)
    train_with_dp_sgd(model, loader, plan=loose, how=how)


def test_a_client_that_keeps_its_claim_is_not_accused_and_something_of_it_is_shown() -> None:
    assert audit_records(records(), PLAN, alpha=1e-6).stands
    loud = RecordPlan.from_noise_multiplier(
        1.0, delta=1e-5, sampling_rate=0.5, steps=10, participations=2, clipping_norm=1.0
    )
    report = audit_records(records(), loud, alpha=0.05)
    assert report.stands
    found = report.findings[0]
    assert set(found.bounds) == {"one_run", "one_run_gaussian", "gaussian", "clopper_pearson"}
    assert found.bounds["one_run"] > 1.0  # of 15 that are claimed; 400 canaries show 3.5 at most
    assert found.bounds["gaussian"] > 3.0


@pytest.mark.parametrize("broken", [a_fiftieth_of_the_noise, nothing_clipped])
def test_a_broken_client_is_caught(broken: Any) -> None:
    assert not audit_records(records(), PLAN, alpha=1e-6, train=broken).stands


def the_same_in_each_step(law: Any, size: int, rng: SecureRandom) -> Any:
    return law.sample(size, SecureRandom(insecure_seed=3))


@pytest.mark.parametrize(
    ("draw", "row"),
    [(the_same_in_each_step, NEW_NOISE), (one_draw_for_both_halves, NEW_COORDINATES)],
)
def test_noise_that_steps_or_coordinates_share_is_seen_in_the_steps_alone(
    draw: Draws, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(NoiseSource):
        def integers(self, law: Any, size: int, rng: SecureRandom) -> Any:
            return torch.from_numpy(draw(law, size, rng))

    monkeypatch.setattr(dp_sgd, "NoiseSource", Wrong)
    plan = RecordPlan.from_noise_multiplier(
        20.0, delta=1e-5, sampling_rate=0.1, steps=25, participations=2, clipping_norm=1.0
    )
    report = audit_records(records(), plan, alpha=1e-6)
    violated = {found.name for found in report.findings if not found.stands}
    assert row in violated
    assert violated <= {row, NEW_COORDINATES}  # the bounds see nothing of it
    assert sum(found.alpha for found in report.findings) == pytest.approx(1e-6)
