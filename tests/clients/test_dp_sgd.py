"""DP-SGD inside a client: its law, its sensitivity, and that it is Opacus otherwise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from laws import ALARM
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from record_plans import record_plan
from scipy import stats
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_dp.clients import DPSGD, check_training
from fl_dp.clients.per_record.dp_sgd import PrivateSteps, train_with_dp_sgd
from fl_dp.clients.per_record.record_loss import MixesRecords
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import RecordPlan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),  # of Opacus itself
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
]

MODES = ("records", "hooks", "ghost")
FEATURES, CLASSES = 4, 3
QUIET = 1e-5  # a noise multiplier that leaves the sum to be seen


plan_of = partial(record_plan, clipping_norm=0.5)


def by_sgd() -> Callable[[Any], SGD]:
    return lambda parameters: SGD(parameters, lr=1.0)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def records_of(count: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, FEATURES, generator=generator)
    return features, torch.randint(0, CLASSES, (count,), generator=generator)


def loader_of(features: Tensor, labels: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(features, labels))


def in_mode(mode: str, features: Tensor, targets: Tensor, **how: Any) -> DPSGD:
    """Return a training in a mode; those that are Opacus' get made-up records of the same form."""
    if mode != "records":
        how["example"] = (
            torch.zeros(2, *features.shape[1:]),
            torch.zeros_like(targets[:1].repeat(2, *[1] * (targets.ndim - 1))),
        )
    return DPSGD(grad_sample_mode=mode, **how)


def released_sum(
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    mode: str = "records",
    plan: RecordPlan | None = None,
    **how: Any,
) -> Tensor:
    """What one step of all records releases: clipped gradients, summed, and hardly any noise."""
    trained = copy.deepcopy(model)
    fields: dict[str, Any] = dict(optimizer=by_sgd(), expected_batch_size=1.0)
    tensors: Any = loader.dataset
    train_with_dp_sgd(
        trained,
        loader,
        plan=plan or plan_of(),
        how=in_mode(mode, *tensors.tensors, **(fields | how)),
    )
    return flat(model) - flat(trained)


def with_and_without(
    row: int, model: nn.Module, features: Tensor, targets: Tensor, **how: Any
) -> tuple[Tensor, Tensor]:
    """Return the released sums of all records, and of all but one."""
    others = torch.arange(len(features)) != row
    both = (loader_of(features, targets), loader_of(features[others], targets[others]))
    whole, rest = (released_sum(model, each, **how) for each in both)
    assert torch.isfinite(torch.stack([whole, rest])).all()
    return whole, rest


# As Opacus.


def plain_opacus(
    model: nn.Module, loader: DataLoader[Any], plan: RecordPlan, how: DPSGD
) -> list[tuple[float, float, int]]:
    """Train as Opacus' own tutorial does; return the history of its accountant."""
    engine = PrivacyEngine(accountant="rdp")
    ghost = how.grad_sample_mode == "ghost"
    mode = "hooks" if how.grad_sample_mode == "records" else how.grad_sample_mode
    made = engine.make_private(
        module=model,
        optimizer=how.optimizer(model.parameters()),
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=plan.clipping_norm,
        grad_sample_mode=mode,
    )
    wrapped, optimizer, *rest = made
    criterion: Any = rest[0] if ghost else nn.CrossEntropyLoss()
    assert isinstance(criterion, DPLossFastGradientClipping) == ghost

    def train(batches: Any) -> None:
        for features, labels in batches:
            optimizer.zero_grad()
            criterion(wrapped(features), labels).backward()
            optimizer.step()

    if how.physical_batch_size is None:
        train(rest[-1])
    else:
        with BatchMemoryManager(
            data_loader=rest[-1],
            max_physical_batch_size=how.physical_batch_size,
            optimizer=optimizer,
        ) as physical:
            train(physical)
    return list(engine.accountant.history)


@pytest.mark.parametrize("physical", [None, 16])
@pytest.mark.parametrize("mode", MODES)
def test_without_secure_randomness_it_is_plain_opacus(mode: str, physical: int | None) -> None:
    plan = plan_of(noise_multiplier=1.0, sampling_rate=0.1, steps=10)
    data = TensorDataset(*records_of(300))
    how = in_mode(
        mode,
        *data.tensors,
        optimizer=lambda parameters: Adam(parameters, lr=0.01),
        physical_batch_size=physical,
        secure_randomness=False,
    )
    ours, theirs = small_model(), small_model()
    torch.manual_seed(7)
    history = plain_opacus(theirs, DataLoader(data, batch_size=30), plan, how)
    torch.manual_seed(7)
    train_with_dp_sgd(ours, DataLoader(data), plan=plan, how=how)
    torch.testing.assert_close(flat(ours), flat(theirs), atol=1e-6, rtol=0.0)
    assert (flat(ours) - flat(small_model())).norm() > 0.05
    assert history == [(plan.noise_multiplier, plan.sampling_rate, plan.steps)]


# The law of the noise.

WIDE = 40_000
HALF_NORMAL = (math.sqrt(2 / math.pi), 1 - 2 / math.pi)  # mean and variance of |x|


class Wide(nn.Module):
    """Many parameters whose gradients are zero, as all features are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDE // 2, 2, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features)
        return logits


def noise_of(
    records: int, *, mode: str = "records", steps: int = 1, rng: SecureRandom | None = None
) -> np.ndarray:
    """What steps without a gradient release, times the expected batch size."""
    model = Wide()
    data = TensorDataset(torch.zeros(records, WIDE // 2), torch.zeros(records, dtype=torch.long))
    made_up = torch.zeros(2, WIDE // 2), torch.zeros(2, dtype=torch.long)
    train_with_dp_sgd(
        model,
        DataLoader(data),
        plan=plan_of(noise_multiplier=1.5, clipping_norm=2.0, sampling_rate=0.5, steps=steps),
        how=in_mode(mode, *made_up, optimizer=by_sgd(), expected_batch_size=25.0),
        rng=rng,
    )
    return -25.0 * flat(model).numpy().astype(np.float64)


@pytest.mark.parametrize(
    ("mode", "records"), [("records", 0), ("records", 4), ("hooks", 4), ("ghost", 4)]
)
def test_a_step_s_noise_is_a_gaussian_of_the_plan_s_scale(
    scale_p: Any, mode: str, records: int
) -> None:
    # Rejects a right scale once in 1e6 runs; a scale that is 10 % off must be rejected.
    draws = noise_of(records, mode=mode) / (1.5 * 2.0)
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    assert scale_p(draws, *HALF_NORMAL) > ALARM
    for wrong in (0.9, 1.1):
        assert scale_p(draws / wrong, *HALF_NORMAL) < ALARM


def test_each_step_adds_noise_of_its_own(scale_p: Any) -> None:
    draws = noise_of(4, steps=3) / (1.5 * 2.0)
    # The same noise three times would have three times the scale.
    assert scale_p(draws / math.sqrt(3.0), *HALF_NORMAL) > ALARM
    assert scale_p(draws / 3.0, *HALF_NORMAL) < ALARM


def test_torch_s_generator_is_neither_asked_nor_obeyed_for_noise() -> None:
    torch.manual_seed(5)
    first = noise_of(4)
    torch.manual_seed(5)
    assert abs(np.corrcoef(first, noise_of(4))[0, 1]) < 6 / math.sqrt(WIDE)


def test_the_noise_is_added_once_where_a_sample_is_split(scale_p: Any) -> None:
    model = Wide()
    data = TensorDataset(torch.zeros(9, WIDE // 2), torch.zeros(9, dtype=torch.long))
    train_with_dp_sgd(
        model,
        DataLoader(data),
        plan=plan_of(noise_multiplier=1.0, clipping_norm=1.0),
        how=DPSGD(optimizer=by_sgd(), expected_batch_size=1.0, physical_batch_size=2),
    )
    assert scale_p(flat(model).numpy(), *HALF_NORMAL) > ALARM


# Who is in a sample, and how often there is one.


class Counted(Dataset[tuple[Tensor, Tensor]]):
    """Counts how often each record is asked for."""

    def __init__(self, records: int) -> None:
        self.features, self.labels = records_of(records)
        self.asked = np.zeros(records, dtype=int)

    def __len__(self) -> int:
        return len(self.asked)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.asked[row] += 1
        return self.features[row], self.labels[row]


class CountedSGD(SGD):
    """Counts the steps of the last one that was made; the first one is tried before a charge."""

    taken = 0

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        type(self).taken = 0

    def step(self, closure: Any = None) -> Any:
        type(self).taken += 1
        return super().step(closure)


@pytest.mark.parametrize("physical", [None, 16])
def test_each_record_is_in_each_sample_by_a_coin_of_the_plan_s_rate(physical: int | None) -> None:
    records, steps, rate = 400, 60, 0.3
    data = Counted(records)
    train_with_dp_sgd(
        small_model(),
        DataLoader(data, batch_size=50, shuffle=True),
        plan=plan_of(sampling_rate=rate, steps=steps, noise_multiplier=1.0),
        how=DPSGD(physical_batch_size=physical),
    )
    drawn = int(data.asked.sum())
    assert stats.binomtest(drawn, records * steps, rate).pvalue > ALARM
    for wrong in (0.9, 1.1):
        assert stats.binomtest(drawn, records * steps, wrong * rate).pvalue < ALARM
    # Without replacement or in fixed batches, counts of records would vary less.
    law = stats.binom(steps, rate)
    spread = ((data.asked - law.mean()) ** 2).sum() / law.var()
    assert ALARM < stats.chi2.cdf(spread, records) < 1 - ALARM


@pytest.mark.parametrize("physical", [None, 2])
@pytest.mark.parametrize(("records", "rate"), [(0, 0.5), (1, 0.01), (20, 1.0)])
def test_a_participation_has_exactly_the_plan_s_steps_empty_samples_included(
    physical: int | None, records: int, rate: float
) -> None:
    train_with_dp_sgd(
        small_model(),
        loader_of(*records_of(records)),
        plan=plan_of(sampling_rate=rate, steps=7, noise_multiplier=1.0),
        how=DPSGD(
            optimizer=lambda parameters: CountedSGD(parameters, lr=0.1),
            physical_batch_size=physical,
            expected_batch_size=5.0,
        ),
    )
    assert CountedSGD.taken == 7


# How far one record moves the sum.


class Picky(nn.Module):
    """Raises in the middle of a forward pass at a record whose first feature is 13."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(FEATURES, 5)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(features))
        if (features[:, 0] == 13.0).any():
            raise RuntimeError("patient 4711")
        logits: Tensor = self.last(hidden)
        return logits


ADVERSARIAL = {
    "nan": math.nan,
    "infinite": math.inf,
    "1e38": 1e38,
    "-3e38": -3e38,
    "1e20": 1e20,
    "zero": 0.0,
    "raises": 13.0,
    "usual": 1.0,
}
LONG_STEP = 0.5 * (1 + 1e-3)  # the clipping norm, noise and rounding of the sum


@pytest.mark.parametrize(
    ("mode", "physical"), [("records", None), ("records", 3), ("hooks", None), ("ghost", None)]
)
@pytest.mark.parametrize("value", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_no_record_moves_the_sum_by_more_than_the_clipping_norm(
    mode: str, physical: int | None, value: float
) -> None:
    features, labels = records_of(10)
    # Also beside others of its kind: what one spoils must not be what another one spoiled.
    for others in (0, 2):
        features[1 : 1 + others] = value
        features[5] = value
        how = {"mode": mode, "physical_batch_size": physical}
        whole, rest = with_and_without(5, Picky(), features, labels, **how)
        assert (whole - rest).norm() <= LONG_STEP
        assert rest.norm() > 1.0  # the others are still there


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_that_overflows_only_as_its_own_moves_nothing_but_itself(mode: str) -> None:
    # In the mean over ten records it would be finite; as one record's it is not.
    model = nn.Linear(FEATURES, 1, bias=False)
    nn.init.zeros_(model.weight)
    features, _ = records_of(10)
    features[3] = 3e38
    how = {"mode": mode, "criterion": nn.MSELoss()}
    whole, rest = with_and_without(3, model, features, torch.ones(10, 1), **how)
    assert (whole - rest).norm() <= LONG_STEP


@pytest.mark.parametrize("mode", MODES)
def test_class_weights_do_not_let_one_record_scale_the_others(mode: str) -> None:
    features, labels = records_of(30)
    labels[:], labels[7] = 0, 1
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1000.0, 1.0]))
    whole, rest = with_and_without(7, small_model(), features, labels, mode=mode, criterion=loss)
    assert (whole - rest).norm() <= LONG_STEP
    assert rest.norm() > 5 * LONG_STEP


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.BCEWithLogitsLoss()], ids=lambda loss: str(loss)
)
@pytest.mark.parametrize("columns", [1, 20])
def test_losses_of_several_columns_are_clipped_record_by_record(
    mode: str, criterion: nn.Module, columns: int
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, columns)
    features, _ = records_of(20)
    features *= 10.0
    how = {"mode": mode, "criterion": criterion}
    whole, rest = with_and_without(11, model, features, torch.rand(20, columns), **how)
    assert (whole - rest).norm() <= LONG_STEP
    assert whole.norm() <= 20 * LONG_STEP


@pytest.mark.parametrize(("outputs", "targets"), [((1,), ()), ((), (1,))])
def test_a_loss_that_mixes_records_trains_on_none_and_says_so_beforehand(
    outputs: tuple[int, ...],
    targets: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0) if not outputs else nn.Identity())
    features, _ = records_of(6)
    loader = loader_of(features, torch.rand(6, *targets))
    moved = released_sum(model, loader, criterion=nn.MSELoss())
    assert 0.0 < moved.norm() < 1e-3
    assert "a loss of its own" in caplog.text
    with pytest.raises(MixesRecords, match="a loss of its own"):
        check_training(model, loader, DPSGD(criterion=nn.MSELoss()))
    for mode in MODES[1:]:
        with pytest.raises(MixesRecords, match="a loss of its own"):
            released_sum(model, loader, mode=mode, criterion=nn.MSELoss())


# What it leaves behind.


@pytest.fixture(scope="module", params=MODES)
def trained(request: pytest.FixtureRequest) -> Iterator[tuple[str, nn.Module]]:
    model = Picky()
    features, labels = records_of(10)
    features[2] = 13.0  # and one pass breaks off
    train_with_dp_sgd(
        model,
        loader_of(features, labels),
        plan=plan_of(steps=2),
        how=in_mode(request.param, features, labels),
    )
    yield request.param, model


def test_the_model_comes_back_unwrapped_and_without_hooks(trained: tuple[str, nn.Module]) -> None:
    _, model = trained
    assert list(model.state_dict()) == list(Picky().state_dict())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
        assert not getattr(module, "activations", [])
        assert not hasattr(module, "autograd_grad_sample_hooks")
    for each in model.parameters():
        for name in ("grad_sample", "_current_grad_sample", "_norm_sample", "_forward_counter"):
            assert not hasattr(each, name)


def test_no_record_s_gradient_stays_on_the_model(trained: tuple[str, nn.Module]) -> None:
    _, model = trained
    for each in model.parameters():
        assert each.grad is None or not each.grad.any()
        assert getattr(each, "summed_grad", None) is None


def test_the_model_can_be_trained_again_and_copied(trained: tuple[str, nn.Module]) -> None:
    mode, model = trained
    again = copy.deepcopy(model)
    before = flat(again)
    how = in_mode(mode, *records_of(10))
    train_with_dp_sgd(again, loader_of(*records_of(10)), plan=plan_of(), how=how)
    assert (flat(again) - before).norm() > 1e-3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grad_sample_mode", "functorch"),
        ("grad_sample_mode", "hooks"),  # without an example
        ("criterion", nn.CrossEntropyLoss(reduction="sum")),
        ("criterion", nn.Identity()),
        ("expected_batch_size", 0.0),
        ("expected_batch_size", math.inf),
        ("physical_batch_size", 0),
    ],
)
def test_a_setting_out_of_range_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError):
        DPSGD(**{field: value})


def test_an_optimizer_that_evaluates_the_loss_by_itself_is_refused_before_a_charge() -> None:
    how = DPSGD(optimizer=torch.optim.LBFGS)
    with pytest.raises(TypeError, match="LBFGS evaluates the loss"):
        PrivateSteps(small_model(), plan=plan_of(), how=how)
    PrivateSteps(small_model(), plan=plan_of(), how=DPSGD(optimizer=Adam))
