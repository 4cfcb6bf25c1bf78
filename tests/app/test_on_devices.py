"""What clips, noises and trains, on the CPU and on a GPU where there is one.

On a GPU these are the checks to run first: python -m pytest -rs tests/app/test_on_devices.py
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from record_plans import record_plan
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.clients import DPSGD
from fl_dp.clients.cohort import UnitData, graph_check, train_units
from fl_dp.clients.per_record.clipped_gradients import ClippedGradients
from fl_dp.clients.per_record.dp_sgd import private_sum, train_on_noise, train_with_dp_sgd
from fl_dp.clients.per_record.made_up_records import gradients_of
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import DeviceData, evaluate, plain_sgd, train_locally
from fl_dp.user_code import own_chance

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing", "ignore:In CPU autocast"
)

NORM, SIGMA, CLASSES = 0.5, 1.1, 3
KINDS = ("records", "hooks", "ghost")
BY_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(
                not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here"
            ),
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


# Noise.


def test_a_sum_gets_its_noise_as_the_mechanism_adds_it(device: torch.device) -> None:
    mechanism = GaussianMechanism(noise_multiplier=SIGMA, clipping_norm=NORM)
    rng = np.random.default_rng(0)
    total = np.concatenate([rng.normal(size=100_000), [-0.0, 1e9, -1e9, 5e-324, -mechanism.grid]])
    noise = mechanism.noise(total.size, SecureRandom(insecure_seed=0))
    expected = mechanism.release(np.trunc(total / mechanism.grid), noise)
    given = torch.from_numpy(total.copy()).to(device)
    private = private_sum(given, mechanism, SecureRandom(insecure_seed=0))
    np.testing.assert_array_equal(private.cpu().numpy(), expected)


def noise_of(device: torch.device, *, secure: bool) -> Tensor:
    """Return one step of noise in 40,200 coordinates, flat."""
    model = nn.Linear(200, 200).to(device)
    before = torch.cat([each.detach().reshape(-1).clone() for each in model.parameters()])
    how = DPSGD(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        expected_batch_size=1.0,
        secure_randomness=secure,
    )
    train_on_noise(
        model, records=1, plan=record_plan(noise_multiplier=SIGMA, clipping_norm=NORM), how=how
    )
    assert {each.device.type for each in model.parameters()} == {device.type}
    after = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    return (before - after).cpu().double()


@pytest.mark.parametrize("secure", [True, False])
def test_noise_has_the_plan_s_scale_and_is_never_the_same(
    device: torch.device, secure: bool
) -> None:
    first, second = (noise_of(device, secure=secure) for _ in range(2))
    scale, count = SIGMA * NORM, len(first)
    for drawn in (first, second, (first - second) / math.sqrt(2.0)):
        # Six standard errors: about 2 % of the scale, which a tenth more or less is far out of.
        assert abs(float(drawn.std()) / scale - 1.0) < 6.0 / math.sqrt(2.0 * count)
        assert abs(float(drawn.mean())) < 6.0 * scale / math.sqrt(count)
        fourth = float((drawn / scale).pow(4).mean())
        assert abs(fourth - 3.0) < 6.0 * math.sqrt(96.0 / count)


def test_a_seed_of_torch_does_not_decide_secure_noise(device: torch.device) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(noise_of(device, secure=True))
    assert not torch.equal(*drawn)


# Clipping.


def totals(kind: str, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    template = ModuleTemplate(model)
    way = gradients_of(template, LossOfEach(nn.CrossEntropyLoss()), mode=kind, example=None)
    gradients = ClippedGradients(template, way, clipping_norm=NORM, at_once=None)
    gradients.add(x, y)
    assert {each.dtype for each in gradients.totals} == {torch.float64}
    return torch.cat([each.reshape(-1) for each in gradients.totals]).cpu()


@BY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.0, 3.0, 6e4, 3e38, math.inf, -math.inf, math.nan])
def test_no_record_moves_the_sum_by_more_than_the_clipping_norm(
    device: torch.device, kind: str, dtype: torch.dtype, value: float
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, CLASSES).to(device, dtype)
    x = torch.randn(8, 4)
    x[5] = value
    x, y = x.to(device, dtype), (torch.arange(8) % CLASSES).to(device)
    kept = torch.arange(8) != 5
    with_it, without = totals(kind, model, x, y), totals(kind, model, x[kept], y[kept])
    assert torch.isfinite(with_it).all()
    # Kernels for 8 and for 7 records may round apart, by some units in the last place of 7 norms.
    rounding = 7.0 * NORM * torch.finfo(dtype).eps * 8.0
    assert float((with_it - without).norm()) <= NORM * (1.0 + 1e-6) + rounding
    assert float(without.norm()) > 0.1 * NORM


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("label", [CLASSES, -7, 2**40])
def test_a_label_out_of_range_costs_one_record(device: torch.device, mode: str, label: int) -> None:
    torch.manual_seed(0)
    start = nn.Linear(4, CLASSES).to(device)
    x, y = torch.randn(10, 4), torch.arange(10) % CLASSES
    wrong = torch.cat([y[:9], torch.tensor([label])])
    moved = []
    for features, labels in ((x, wrong), (x[:9], y[:9])):
        model = copy.deepcopy(start)
        records = DataLoader(TensorDataset(features, labels))
        how = DPSGD(grad_sample_mode=mode, expected_batch_size=1.0, example=(x[:2], y[:2]))
        train_with_dp_sgd(
            model, records, plan=record_plan(noise_multiplier=1e-6, clipping_norm=NORM), how=how
        )
        moved.append((model.weight - start.weight).detach().cpu())
    torch.testing.assert_close(*moved, atol=1e-5, rtol=0.0)
    assert float(moved[0].norm()) > 1e-3


def test_a_token_out_of_range_is_an_error_that_the_device_survives(device: torch.device) -> None:
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, CLASSES)).to(device)
    x, y = torch.tensor([[0, 1], [4, 5]], device=device), torch.tensor([0, 1], device=device)
    with pytest.raises(IndexError, match="a token is 5"):
        evaluate(model, x, y)
    train_locally(model, x, y, learning_rate=0.1, epochs=1, batch_size=2, seed=0)  # as 4
    assert math.isfinite(evaluate(model, x[:1], y[:1])[0])


# Local training.


def cnn() -> nn.Module:
    return build_model("cnn", input_shape=(1, 8, 8), num_classes=10, hidden=8, seed=0)


def units_of(counts: list[int]) -> list[UnitData]:
    rng = np.random.default_rng(0)
    return [
        UnitData(
            features=torch.from_numpy(rng.normal(size=(count, 1, 8, 8)).astype(np.float32)),
            labels=torch.from_numpy(rng.integers(0, 10, size=count)),
            seed=count,
        )
        for count in counts
    ]


def vectors_of(model: nn.Module, units: list[UnitData]) -> dict[int, Any]:
    training = plain_sgd(learning_rate=0.1, epochs=2, batch_size=5)
    return {
        place: vector.cpu().numpy()
        for places, vectors in train_units(model, units, training)
        for place, vector in zip(places, vectors, strict=True)
    }


def test_training_is_that_of_the_cpu_together_and_alone(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    units = units_of([12, 3, 7, 12, 0])
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        together = vectors_of(cnn().to(device), units)
        alone = []
        for unit in units:
            model = cnn().to(device)
            train_locally(
                model,
                unit.features,
                unit.labels,
                learning_rate=0.1,
                epochs=2,
                batch_size=5,
                seed=unit.seed,
            )
            alone.append(np.concatenate([each.ravel() for each in get_arrays(model).values()]))
    expected = vectors_of(cnn(), units)
    assert not caplog.records  # none was trained one by one
    for place in range(len(units)):
        np.testing.assert_allclose(together[place], expected[place], atol=1e-5)
        np.testing.assert_allclose(alone[place], expected[place], atol=1e-5)


def test_who_else_is_trained_moves_a_unit_by_rounding_alone(device: torch.device) -> None:
    units = units_of([12, 3, 7, 12, 9, 10])
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        in_company = vectors_of(cnn().to(device), units)[0]
        by_itself = vectors_of(cnn().to(device), units[:1])[0]
    if device.type == "cpu":
        np.testing.assert_array_equal(in_company, by_itself)
    np.testing.assert_allclose(in_company, by_itself, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here")
def test_steps_as_cuda_graphs_are_plain_steps() -> None:
    units, training = units_of([40, 40, 33]), plain_sgd(learning_rate=0.1, epochs=2, batch_size=5)
    model = nn.Sequential(cnn(), nn.Dropout(0.25)).cuda()
    plain, graphs = (
        torch.cat([rows for _, rows in train_units(model, units, training, graphs=graphs)])
        for graphs in (False, True)
    )
    assert True in graph_check._confirmed.values()
    assert torch.equal(plain, graphs)


def test_arrays_and_records_come_and_go_unchanged(device: torch.device) -> None:
    there = cnn().to(device)
    arrays = {name: each + 1.0 for name, each in get_arrays(cnn()).items()}
    set_arrays(there, list(arrays.values()))
    assert {each.device.type for each in there.parameters()} == {device.type}
    for name, each in get_arrays(there).items():
        np.testing.assert_array_equal(each, arrays[name])
    x, y = np.random.default_rng(0).normal(size=(6, 1, 8, 8)).astype(np.float32), np.arange(6)
    dataset = Dataset(
        name="made up", train_x=x, train_y=y, test_x=x[:1], test_y=y[:1], num_classes=10
    )
    rows = np.array([5, 0, 5])
    for free_memory in (0, 1 << 40):  # moved for each use, and once for all
        features, labels = DeviceData(dataset, device, free_memory=free_memory).records(rows)
        assert {features.device.type, labels.device.type} == {device.type}
        np.testing.assert_array_equal(features.cpu().numpy(), dataset.features(rows))
        np.testing.assert_array_equal(labels.cpu().numpy(), dataset.labels(rows))


def test_chance_of_its_own_on_each_device(device: torch.device) -> None:
    torch.manual_seed(7)
    expected = torch.rand(2, device=device)
    torch.manual_seed(7)
    with own_chance() as seed_again:
        first = torch.rand(2, device=device)
        seed_again()
        assert len(set((*first.tolist(), *torch.rand(2, device=device).tolist()))) == 4
    assert not torch.equal(first, expected)
    assert torch.equal(torch.rand(2, device=device), expected)
