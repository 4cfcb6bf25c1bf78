"""Steps that are captured and replayed, by a tape of torch's operators in place of a CUDA graph."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Rprop
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fl_dp.clients.cohort import LocalTraining, UnitData, graph_check, step_graph, train_units
from fl_dp.clients.cohort.cohort_optimizers import keeps_no_count
from fl_dp.clients.cohort.graph_check import capture_for, is_right
from fl_dp.clients.cohort.image_layers import GROUPED, PRODUCTS, ImageLayers
from fl_dp.clients.cohort.loss_of_rows import CohortForm
from fl_dp.clients.cohort.made_up_step import tried_step
from fl_dp.clients.cohort.model_entries import Entries
from fl_dp.clients.cohort.step_graph import RepeatedStep
from fl_dp.clients.cohort.trained_rows import CohortTraining


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Notes operators with the memory that they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            written = kwargs.get("out", args[0])
            self.before += [(one, one.clone()) for one in tree_leaves(written)]
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out


class Tape:
    """Captures as a CUDA graph does: the same kernels on the same memory, and no Python.

    Attributes:
        captures: How many functions were captured.
        replays: How many times one was repeated.
        names: Of all operators captured.
    """

    def __init__(self) -> None:
        self.captures, self.replays = 0, 0
        self.names: set[str] = set()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        with Recording() as recorded:
            function()
        for tensor, values in reversed(recorded.before):  # as if nothing had been computed
            tensor.data.copy_(values)
        self.captures += 1
        self.names |= {str(func) for func, *_ in recorded.calls}

        def replay() -> None:
            self.replays += 1
            with torch.no_grad():
                for func, args, kwargs, out in recorded.calls:
                    _repeat(func, args, kwargs, out)

        return replay


def _memory(value: Any) -> set[int]:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def _repeat(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    if func._schema.is_mutable:
        func(*args, **kwargs)
    elif not _memory(out) & _memory((args, kwargs)):  # a view sees what its base has
        for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
            if isinstance(old, Tensor):
                old.data.copy_(new)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.Tanh()),
        *(nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5)),
        nn.Linear(8, 10),
    )


def unit(count: int, seed: int) -> UnitData:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return UnitData(features=features, labels=labels, seed=seed)


UNITS = [unit(count, count) for count in (44, 33, 30, 28, 25, 16, 9, 8, 8)]  # 4 rows at the end


PLAIN: Any = partial(SGD, lr=0.1)
CROSS_ENTROPY: Any = partial(functional.cross_entropy, reduction="none")


def cohort(
    model: nn.Module | None = None,
    optimizer: Any = PLAIN,
    images: ImageLayers = GROUPED,
) -> CohortTraining:
    model = network() if model is None else model
    training = LocalTraining(
        loss=CROSS_ENTROPY,
        optimizer=optimizer,
        batch_size=4,
    )
    form = CohortForm.of(UNITS[0], training)
    tried = tried_step(model, form, training, images, any_size=True)
    return CohortTraining(
        model=model,
        form=form,
        training=training,
        entries=Entries(model, None),
        images=images,
        coins=tried.coins,
    )


OPTIMIZERS: dict[str, Any] = {
    "plain": PLAIN,
    "momentum": partial(SGD, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
}


@pytest.mark.parametrize("images", [GROUPED, PRODUCTS], ids=["grouped", "products"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replayed_steps_are_plain_ones_to_the_bit(optimizer: str, images: ImageLayers) -> None:
    tape, made = Tape(), cohort(optimizer=OPTIMIZERS[optimizer], images=images)
    expected = made.rows(UNITS)
    assert torch.equal(made.rows(UNITS, tape), expected)
    assert tape.captures == 2  # of 16 rows there are too few steps, of 8 and of 4 enough
    assert tape.replays == 4 + 3
    assert (expected - made.entries.first).abs().amax(1).min() > 1e-3


def test_nothing_random_is_captured_and_each_replay_has_its_own_coins() -> None:
    tape = Tape()
    assert is_right(cohort(), tape)
    drawing = ("random", "bernoulli", "dropout", "rand", "normal", "uniform", "multinomial")
    assert not [name for name in tape.names if any(word in name for word in drawing)]
    total = torch.zeros(3)

    def step(coins: Tensor) -> None:
        total.copy_(coins * 2.0)

    repeated = RepeatedStep(step, [torch.ones(3)], tape)
    assert (total == 0.0).all()  # only captured
    seen = []
    for value in (1.0, 5.0):
        repeated(torch.full((3,), value))
        seen.append(total.tolist())
    assert seen == [[2.0] * 3, [10.0] * 3]


class Counts(nn.Module):
    """Computes with a number of the host's, which changes from step to step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        outputs: Tensor = self.linear(x.flatten(1)) * self.passes
        return outputs


def idle(function: Callable[[], None]) -> Callable[[], None]:
    """A graph whose replays do nothing."""
    return lambda: None


def coins_of_the_first(function: Callable[[], None]) -> Callable[[], None]:
    """A graph that does not read its inputs again."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    (step,) = (one for one in held if callable(one) and not isinstance(one, RepeatedStep))
    (repeated,) = (one for one in held if isinstance(one, RepeatedStep))
    inputs = [values.clone() for values in repeated._held]
    return lambda: step(*inputs)


@pytest.mark.parametrize(
    ("model", "capture"),
    [(network(), idle), (network(), coins_of_the_first), (Counts(), Tape())],
    ids=["idle", "the same inputs", "a number of the host's"],
)
def test_replays_that_differ_are_not_used_and_the_log_says_so(
    model: nn.Module, capture: Any, caplog: pytest.LogCaptureFixture
) -> None:
    step_graph.log_eager.cache_clear()
    caplog.set_level(logging.INFO, logger="flwr.fl_dp.client")
    for _ in range(2):
        assert not is_right(cohort(model), capture)
    (line,) = caplog.messages
    assert "replays differ from plain steps" in line


def failing(function: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


def test_a_capture_that_fails_leaves_the_plain_step_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step_graph.log_eager.cache_clear()
    caplog.set_level(logging.INFO, logger="flwr.fl_dp.client")
    made = cohort()
    assert torch.equal(made.rows(UNITS, failing), made.rows(UNITS))
    assert not is_right(made, failing)
    (line,) = caplog.messages
    assert line.endswith("a capture failed (RuntimeError: operation not permitted)")


def test_few_steps_are_not_captured() -> None:
    tape = Tape()
    units = [unit(12, seed) for seed in range(3)]  # three steps
    assert torch.equal(cohort().rows(units, tape), cohort().rows(units))
    assert tape.captures == 0
    cohort().rows([unit(16, seed) for seed in range(3)], tape)
    assert (tape.captures, tape.replays) == (1, 3)


def test_only_sgd_is_captured_and_only_on_a_gpu() -> None:
    assert capture_for(cohort()) is None
    assert all(keeps_no_count(optimizer) for optimizer in OPTIMIZERS.values())
    assert not any(keeps_no_count(partial(kind, lr=0.1)) for kind in (Adam, AdamW, Rprop))


@pytest.mark.parametrize("way", ["right", "wrong", "raising"])
def test_a_module_is_checked_once_before_it_is_replayed(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[CohortTraining] = []

    def check(made: CohortTraining, capture: Any) -> bool:
        checked.append(made)
        if way == "raising":
            raise torch.OutOfMemoryError
        return way == "right"

    class OfGpu:
        """Entries that say that they are on a GPU."""

        device = torch.device("cuda")

    monkeypatch.setattr(graph_check, "_confirmed", {})
    monkeypatch.setattr(graph_check, "is_right", check)
    for _ in range(2):
        made = cohort()
        object.__setattr__(made, "entries", OfGpu())
        expected = step_graph.cuda_graph if way == "right" else None
        assert capture_for(made) is expected
    assert len(checked) == 1


def rows_of(units: Sequence[UnitData], **options: Any) -> Tensor:
    made = cohort()
    trained = train_units(made.model, units, made.training, at_once=16, **options)
    return torch.cat([vectors for _, vectors in trained])


def test_training_together_takes_the_steps_that_are_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tape = Tape()
    monkeypatch.setattr("fl_dp.clients.cohort.together.capture_for", lambda made: tape)
    expected = rows_of(UNITS, graphs=False)
    assert tape.captures == 0
    state = random.getstate()
    assert torch.equal(rows_of(UNITS), expected)
    assert (tape.captures, random.getstate()) == (2, state)
