"""No index out of its range reaches a kernel, where a GPU would end the process's use of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from asserting_kernels import CLASSES, TOKENS, Assertion, assert_as_a_gpu_does, reader, texts
from torch import Tensor, nn

from fl_dp.clients.per_record.class_losses import CLASS_LOSSES
from fl_dp.clients.per_record.clipped_gradients import ClippedGradients, Gradients
from fl_dp.clients.per_record.index_ranges import (
    IndicesInRange,
    require_labels,
    require_targets,
)
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.opacus_gradients import GhostGradients, HookGradients
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.clients.per_record.single_records import SingleRecords

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_as_a_gpu_does(monkeypatch)


def test_the_stand_in_asserts() -> None:
    with pytest.raises(Assertion):
        reader()(torch.tensor([[0, TOKENS]]))
    with pytest.raises(Assertion):
        nn.CrossEntropyLoss()(torch.zeros(1, CLASSES), torch.tensor([-1]))


WRONG = pytest.mark.parametrize("wrong", [-1, 5])


@WRONG
@pytest.mark.parametrize("what", ["token", "label"])
@pytest.mark.parametrize("kind", [SingleRecords, HookGradients, GhostGradients])
def test_dp_sgd_refuses_it_before_table_and_loss_do(
    kind: Callable[[ModuleTemplate, nn.Module], Gradients],
    what: str,
    wrong: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    template = ModuleTemplate(reader())
    way = kind(template, LossOfEach(nn.CrossEntropyLoss()))
    gradients = ClippedGradients(template, way, clipping_norm=1.0, at_once=None)
    x, y = texts()
    (x[2] if what == "token" else y[2:3])[0] = wrong
    gradients.add(x, y)
    assert gradients.records == len(y) - 1 and gradients.failures == 1
    assert f"a {what} is {wrong}, and there are" in caplog.text


def test_what_a_loss_ignores_is_no_label() -> None:
    outputs, targets = torch.zeros(3, CLASSES), torch.tensor([0, -100, 2])
    require_targets(nn.CrossEntropyLoss(), outputs, targets)
    require_targets(nn.CrossEntropyLoss(), outputs, torch.full((3,), -100))
    with pytest.raises(IndexError, match="a label is -100"):
        require_targets(nn.CrossEntropyLoss(ignore_index=1), outputs, targets)
    with pytest.raises(IndexError, match="a label is -100"):
        require_targets(nn.MultiMarginLoss(), outputs, targets)
    # A class that is ignored is one all the same; and there may be no label at all.
    require_labels(torch.tensor([0, 1]), CLASSES, ignored=1)
    require_labels(torch.zeros(0, dtype=torch.int64), CLASSES)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-6, 1.0 + 1e-6])
def test_probabilities_that_are_none_are_refused_before_the_loss(value: float) -> None:
    outputs, targets = torch.tensor([[0.0], [1.0], [0.5]]), torch.ones(3, 1)
    require_targets(nn.BCELoss(), outputs, targets)
    outputs[1] = value
    with pytest.raises(ValueError, match="not in \\[0, 1\\]: end the model in a sigmoid"):
        require_targets(nn.BCELoss(), outputs, targets)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(), torch.full((2, CLASSES), 9.0)),  # of probabilities
        (nn.MSELoss(), torch.full((2, CLASSES), 9)),
        (nn.BCEWithLogitsLoss(), torch.full((2, CLASSES), math.nan)),
    ],
)
def test_targets_that_are_no_labels_are_left_to_the_loss(loss: Any, targets: Tensor) -> None:
    require_targets(loss, torch.zeros(2, CLASSES), targets)


def test_tables_are_looked_at_only_meanwhile() -> None:
    bag = nn.EmbeddingBag(TOKENS, 2)
    with pytest.raises(IndexError, match="a token is 7"), IndicesInRange():
        bag(torch.tensor([[7]]))
    with pytest.raises(RuntimeError) as torchs_own:
        bag(torch.tensor([[7]]))
    assert "a token is" not in str(torchs_own.value)


@pytest.mark.parametrize("function", CLASS_LOSSES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (7,)])
def test_losses_under_vmap_are_those_that_pytorch_gives_each_record(
    function: Callable[..., Tensor], reduction: str, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, *shape, generator=generator, requires_grad=True)
    of_classes = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    labels = torch.randint(7, (4, *of_classes), generator=generator)
    labels[0] = 2  # of the first record nothing counts, and its mean is no number
    options = {"reduction": reduction, "ignore_index": 2}
    expected = torch.stack(
        [function(*pair, **options) for pair in zip(outputs, labels, strict=True)]
    )
    losses = torch.vmap(lambda *pair: CLASS_LOSSES[function](*pair, **options))(outputs, labels)
    torch.testing.assert_close(losses, expected, equal_nan=True)
    pairs = [torch.autograd.grad(way[1:].sum(), outputs)[0] for way in (losses, expected)]
    torch.testing.assert_close(*pairs, equal_nan=True)
    with pytest.raises((ValueError, RuntimeError)):
        CLASS_LOSSES[function](torch.zeros(5, 7, 3), torch.zeros(5, 2, dtype=torch.int64))
