"""Threat models show what the mechanisms make, and charge for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from attacked_images import ONE_STEP, images, network
from numpy.typing import NDArray
from scipy import stats
from torch.nn import functional

from fl_dp.lab.attacks.inversion.inversion_attack import (
    ClientRecords,
    KnownTraining,
    RoundObservation,
)
from fl_dp.lab.attacks.inversion.threats import (
    DPSGDUpdate,
    NoisyUpdate,
    RawUpdate,
    ReleasedModel,
    ThreatModel,
    UpdateSum,
)
from fl_dp.mechanisms import clip_by_norm

CLIPPING_NORM = 0.02  # below every update's norm
DELTA = 1e-5
FALSE_ALARM = 1e-6


def clients(count: int = 4) -> list[ClientRecords]:
    return [images([row]) for row in range(count)]


def update(seen: RoundObservation) -> NDArray[np.float64]:
    found: NDArray[np.float64] = seen.update.numpy()
    return found


def is_noise_of(residual: NDArray[np.float64], std: float) -> bool:
    """Tell whether the variance is that of so much noise, at a false alarm of 1e-6."""
    sum_of_squares = float(np.sum((residual / std) ** 2))
    low, high = stats.chi2.interval(1.0 - FALSE_ALARM, residual.size)
    return bool(low < sum_of_squares < high)


def clipped_updates(count: int = 4) -> list[NDArray[np.float64]]:
    raw = RawUpdate(training=ONE_STEP)
    seen = [
        raw.observe(network(), [records], seed=seed) for seed, records in enumerate(clients(count))
    ]
    return [clip_by_norm(update(each), CLIPPING_NORM) for each in seen]


def test_a_raw_update_of_one_step_is_the_gradient() -> None:
    model, records = network(), images([3, 4])
    seen = RawUpdate(training=ONE_STEP).observe(model, [records], seed=0)
    loss = functional.cross_entropy(model(records.features), records.labels)
    gradient = torch.cat(
        [each.reshape(-1) for each in torch.autograd.grad(loss, list(model.parameters()))]
    )
    assert torch.allclose(seen.update.float(), -0.1 * gradient, atol=1e-7)
    assert seen.records == 2


def test_a_threat_trains_as_clients_do_and_changes_neither_model_nor_global_randomness() -> None:
    model, training = network(), KnownTraining(learning_rate=0.1, epochs=3, batch_size=2)
    before = [each.clone() for each in model.parameters()]
    state = torch.random.get_rng_state()
    threat = RawUpdate(training=training)
    first, again = (threat.observe(model, [images([1, 2, 3])], seed=5) for _ in range(2))
    assert torch.equal(first.update, again.update)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_clipped_update_has_its_direction_and_the_clipping_norm() -> None:
    model = network()
    raw = update(RawUpdate(training=ONE_STEP).observe(model, clients(), seed=0))
    threat = RawUpdate(training=ONE_STEP, clipping_norm=CLIPPING_NORM)
    clipped = update(threat.observe(model, clients(), seed=0))
    assert np.linalg.norm(clipped) == pytest.approx(CLIPPING_NORM)
    assert clipped == pytest.approx(raw * CLIPPING_NORM / np.linalg.norm(raw))


NOISY: dict[str, Any] = {
    "training": ONE_STEP,
    "clipping_norm": CLIPPING_NORM,
    "noise_multiplier": 0.5,
}


@pytest.mark.parametrize(
    ("threat", "in_it"),
    [
        (NoisyUpdate(**NOISY), 1),
        (ReleasedModel(**NOISY), 4),
        (ReleasedModel(**NOISY, knows_others=True), 1),
        (UpdateSum(**NOISY, cohort=4), 4),
    ],
    ids=["client", "released", "others known", "shares"],
)
def test_what_is_seen_is_the_mean_of_clipped_updates_and_the_noise_that_is_charged(
    threat: ThreatModel, in_it: int
) -> None:
    seen = threat.observe(network(), clients(), seed=0)
    residual = update(seen) - np.mean(clipped_updates()[:in_it], axis=0)
    assert is_noise_of(residual, 0.5 * CLIPPING_NORM / in_it)
    assert not is_noise_of(residual, 0.4 * CLIPPING_NORM / in_it)
    assert not is_noise_of(residual, 0.6 * CLIPPING_NORM / in_it)
    assert seen.records == in_it


def test_a_secure_sum_without_noise_is_the_exact_mean() -> None:
    threat = UpdateSum(training=ONE_STEP, clipping_norm=CLIPPING_NORM, cohort=4)
    seen = threat.observe(network(), clients(), seed=0)
    assert update(seen) == pytest.approx(np.mean(clipped_updates(), axis=0), abs=1e-9)
    assert threat.epsilon(DELTA) == math.inf


def test_dp_sgd_clips_the_gradient_of_a_record_and_adds_its_noise() -> None:
    model = network()
    threat = DPSGDUpdate(training=ONE_STEP, clipping_norm=0.1, noise_multiplier=0.5)
    seen = threat.observe(model, clients(), seed=0)
    raw = update(RawUpdate(training=ONE_STEP).observe(model, clients(), seed=0))
    assert np.linalg.norm(raw) > 0.1 * 0.1  # it is clipped
    residual = update(seen) - clip_by_norm(raw, 0.1 * 0.1)
    assert is_noise_of(residual, 0.1 * 0.5 * 0.1)
    assert threat.unit == "record"


@pytest.mark.parametrize(
    "threat",
    [
        NoisyUpdate(training=ONE_STEP, clipping_norm=0.5, noise_multiplier=1.0),
        ReleasedModel(training=ONE_STEP, clipping_norm=0.5, noise_multiplier=1.0),
        UpdateSum(training=ONE_STEP, clipping_norm=0.5, noise_multiplier=1.0, cohort=8),
        DPSGDUpdate(training=ONE_STEP, clipping_norm=1.0, noise_multiplier=1.0),
    ],
    ids=lambda threat: type(threat).__name__,
)
def test_a_release_of_noise_multiplier_1_costs_epsilon_4_377(
    threat: NoisyUpdate | ReleasedModel | UpdateSum | DPSGDUpdate,
) -> None:
    assert threat.epsilon(DELTA) == pytest.approx(4.3772, abs=1e-3)  # Balle and Wang, analytic


def test_every_step_of_dp_sgd_is_charged() -> None:
    training = KnownTraining(learning_rate=0.1, epochs=4)
    four = DPSGDUpdate(training=training, clipping_norm=1.0, noise_multiplier=2.0)
    one = DPSGDUpdate(training=ONE_STEP, clipping_norm=1.0, noise_multiplier=1.0)
    assert four.epsilon(DELTA) == pytest.approx(one.epsilon(DELTA), rel=1e-6)


def test_a_sum_of_one_client_is_refused() -> None:
    with pytest.raises(ValueError):
        UpdateSum(training=ONE_STEP, clipping_norm=0.5, cohort=1)
