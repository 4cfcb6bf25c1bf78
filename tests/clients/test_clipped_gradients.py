"""Sums of clipped gradients: one record moves them by the clipping norm at most, rounding included.

What rounding did before is computed beside it where that is cheap, so that a test can fail.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn

from fl_dp.clients.per_record.clipped_gradients import (
    Clip,
    ClippedGradients,
    Gradients,
    squared_norms,
)
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.opacus_gradients import GhostGradients, HookGradients
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.clients.per_record.single_records import SingleRecords

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

NORM = 0.5
WIDTH, CLASSES, LENGTH = 4, 3, 6
KINDS: dict[str, Callable[[ModuleTemplate, LossOfEach], Gradients]] = {
    "records": SingleRecords,
    "copies": lambda template, loss: SingleRecords(template, loss, copied=template.parameters),
    "one by one": lambda template, loss: SingleRecords(template, loss, one_by_one=True),
    "hooks": HookGradients,
    "ghost": GhostGradients,
}
BY_KIND = pytest.mark.parametrize("kind", KINDS)


class Summed(nn.Module):
    """Sums what a layer makes of each position."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(x).sum(1)
        return total


class LastState(nn.Module):
    """Classifies the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(WIDTH, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


def begun(kind: str, model: nn.Module, *, norm: float = NORM) -> ClippedGradients:
    template = ModuleTemplate(model)
    gradients = KINDS[kind](template, LossOfEach(nn.CrossEntropyLoss()))
    return ClippedGradients(template, gradients, clipping_norm=norm, at_once=None)


def totals(
    kind: str, model: nn.Module, *batches: tuple[Tensor, Tensor], norm: float = NORM
) -> Tensor:
    """Return the sum of clipped gradients, flat."""
    gradients = begun(kind, model, norm=norm)
    for inputs, targets in batches:
        gradients.add(inputs, targets)
    return torch.cat([each.reshape(-1) for each in gradients.totals])


def moved_by_the_first(kind: str, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return how far a sum moves when the first record is left out, in clipping norms."""
    both = [totals(kind, model, (x[rows], y[rows])) for rows in (slice(None), slice(1, None))]
    assert all(torch.isfinite(each).all() for each in both)
    return float((both[0] - both[1]).norm()) / NORM


# Sequences whose terms cancel.


@BY_KIND
@pytest.mark.parametrize("size", [1e5, 1e30])
def test_a_sequence_whose_terms_cancel_moves_the_sum_by_one_clipping_norm(
    kind: str, size: float
) -> None:
    torch.manual_seed(0)
    model = Summed(nn.Linear(WIDTH, CLASSES))
    x, y = torch.randn(12, LENGTH, WIDTH), torch.randint(0, CLASSES, (12,))
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x[0, 0::2] = size * torch.randn(LENGTH // 2, WIDTH, generator=generator)
        x[0, 1::2] = -x[0, 0::2]
        x[0, 0] += torch.randn(WIDTH, generator=generator) * size * 1e-6
        assert moved_by_the_first(kind, model, x, y) <= 1 + 1e-6


def test_a_float32_gram_norm_is_far_from_that_of_such_a_sequence() -> None:
    # What the tests above guard against: Opacus' own norm of such a record can be 0.
    generator = torch.Generator().manual_seed(0)
    a = 1e5 * torch.randn(50, LENGTH, WIDTH, generator=generator)
    a[:, 1::2] = -a[:, 0::2]
    a += torch.randn(a.shape, generator=generator)
    b = torch.ones(50, LENGTH, CLASSES)
    gram = ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp(min=0).sqrt()
    true = torch.einsum("nti,ntj->nij", b.double(), a.double()).flatten(1).norm(dim=1)
    assert (gram < true / 2).any()


@BY_KIND
@pytest.mark.parametrize("size", [1.0, 1e20])
def test_repeated_tokens_that_cancel_move_the_sum_by_one_clipping_norm(
    kind: str, size: float
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, CLASSES)
    model = nn.Sequential(nn.Embedding(11, WIDTH), Summed(layer))
    with torch.no_grad():
        layer.weight *= size
    x, y = torch.randint(0, 11, (9, LENGTH)), torch.randint(0, CLASSES, (9,))
    x[0] = 3
    assert moved_by_the_first(kind, model, x, y) <= 1 + 1e-6


# Many records, many parameters, few bits.


@BY_KIND
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_thousand_records_in_half_precision_do_not_lose_one(
    kind: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, CLASSES).to(dtype)
    x = torch.randn(1000, WIDTH).abs().add(1.0).to(dtype)
    y = torch.zeros(1000, dtype=torch.long)
    together = totals(kind, model, (x, y))
    first, *others = (
        totals(kind, model, (x[rows], y[rows])) for rows in torch.arange(1000).reshape(4, 250)
    )
    one_by_one = sum(others, first)
    # Kernels of other batch sizes round a record's own gradient differently, which is not meant.
    torch.testing.assert_close(together, one_by_one, rtol=1e-2, atol=0.0)
    samples = torch.full((1000, 4), 0.3, dtype=dtype)
    lost = [float(samples[rows].cumsum(0)[-1].norm()) for rows in (slice(None), slice(1, None))]
    assert abs(lost[0] - lost[1] - 0.6) > 0.05  # a sum in half precision does
    norm = torch.tensor(0.0, dtype=torch.float64)
    for row in range(20):
        norm = torch.maximum(norm, totals(kind, model, (x[[row]], y[[row]])).norm())
    assert float(norm) <= NORM * (1 + 1e-9)


def test_the_norm_of_ten_million_parameters_is_not_short() -> None:
    model = nn.Linear(5_000_000, 2, bias=False)
    nn.init.zeros_(model.weight)
    moved = totals("hooks", model, (torch.ones(1, 5_000_000), torch.tensor([0])))
    assert float(moved.norm()) <= NORM * (1 + 1e-9)
    assert float(moved.norm()) >= NORM * (1 - 1e-5)  # and hardly clipped too far


@pytest.mark.parametrize("lanes", [1, 4, 16, 64])
def test_no_squared_norm_is_short_where_each_sum_rounds_down(lanes: int) -> None:
    """A number of ones stands before squares that are below half of a one's last digit."""
    samples = torch.full((2, 20 * 256 + 100), 2.0**-12.6)
    blocks = samples[:, : 20 * 256].view(2, 20, 256)
    blocks[:, :, :lanes] = 1.0
    exact = samples.double().square().sum(1)
    assert bool((squared_norms(samples) >= exact).all())
    assert bool((squared_norms(samples) <= exact * (1.0 + 2.0**-15)).all())
    short = torch.linalg.vector_norm(blocks, dim=2).double().square().sum(1)
    assert bool((short < blocks.double().square().sum((1, 2))).all())  # the power


@BY_KIND
@pytest.mark.parametrize("value", [float("nan"), 3e38])
def test_a_record_without_a_finite_gradient_adds_nothing_and_takes_nothing_away(
    kind: str, value: float
) -> None:
    torch.manual_seed(0)
    model = Summed(nn.Linear(WIDTH, CLASSES))
    x, y = torch.randn(8, LENGTH, WIDTH), torch.randint(0, CLASSES, (8,))
    x[3] = value
    others = torch.arange(8) != 3
    moved = totals(kind, model, (x, y)) - totals(kind, model, (x[others], y[others]))
    assert float(moved.norm()) <= 1e-6


# It is the gradient.

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(WIDTH, CLASSES), lambda: torch.randn(7, WIDTH)),
    "without bias": (
        lambda: nn.Linear(WIDTH, CLASSES, bias=False),
        lambda: torch.randn(7, WIDTH),
    ),
    "sequence": (
        lambda: Summed(nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES))),
        lambda: torch.randn(7, LENGTH, WIDTH),
    ),
    "long sequence": (
        lambda: Summed(nn.Linear(WIDTH, CLASSES)),
        lambda: torch.randn(7, 40, WIDTH),
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Embedding(5, WIDTH), Summed(nn.Linear(WIDTH, CLASSES))),
        lambda: torch.randint(0, 5, (7, LENGTH)),
    ),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(18, CLASSES)
        ),
        lambda: torch.randn(7, 1, 5, 5),
    ),
    "recurrent": (LastState, lambda: torch.randn(7, LENGTH, WIDTH)),
    "frozen": (
        lambda: nn.Sequential(nn.Linear(WIDTH, 5).requires_grad_(False), nn.Linear(5, CLASSES)),
        lambda: torch.randn(7, WIDTH),
    ),
}


@BY_KIND
@pytest.mark.parametrize(("build", "inputs"), MODELS.values(), ids=MODELS)
def test_it_is_the_sum_of_the_clipped_gradients_that_autograd_computes(
    kind: str, build: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    torch.manual_seed(0)
    model, x = build(), inputs()
    y = torch.randint(0, CLASSES, (7,))
    for norm in (0.1, 0.7, 1e6):
        expected: Any = 0.0
        for row in range(7):
            model.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[[row]]), y[[row]]))
            parameters = [p for p in model.parameters() if p.requires_grad]
            flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
            expected = expected + flat * min(1.0, norm / float(flat.norm()))
        # In two batches, as one that does not fit into memory.
        found = totals(kind, model, (x[:3], y[:3]), (x[3:], y[3:]), norm=norm)
        torch.testing.assert_close(found.float(), expected, atol=2e-6, rtol=1e-4)


def test_ghost_clipping_leaves_the_padding_token_alone_as_autograd_does() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(5, WIDTH, padding_idx=2)
    model = nn.Sequential(table, Summed(nn.Linear(WIDTH, CLASSES)))
    x = torch.randint(0, 5, (7, LENGTH))
    moved = totals("ghost", model, (x, torch.zeros(7, dtype=torch.long)))
    rows = moved[: 5 * WIDTH].view(5, WIDTH).norm(dim=1)
    assert (rows == 0).tolist() == [False, False, True, False, False]


@BY_KIND
def test_a_record_that_raises_adds_nothing_and_spoils_nothing(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, WIDTH), Summed(nn.Linear(WIDTH, CLASSES)))
    x, y = torch.randint(0, 5, (7, LENGTH)), torch.randint(0, CLASSES, (7,))
    first, whole = totals(kind, model, (x[:1], y[:1])), begun(kind, model)
    for far, wrong in ((90, 0), (-5, 0), (0, 90), (0, -5)):
        spoiled_x, spoiled_y = x.clone(), y.clone()
        spoiled_x[1:, 2] += far
        spoiled_y[1:] += wrong
        whole.start_again()
        whole.add(spoiled_x, spoiled_y)
        assert whole.records == 1
        torch.testing.assert_close(torch.cat([each.flatten() for each in whole.totals]), first)
    assert whole.failures == 4 * 6
    whole.start_again()
    whole.add(x, y)
    expected = totals(kind, model, (x, y))
    torch.testing.assert_close(torch.cat([each.flatten() for each in whole.totals]), expected)


def test_a_token_out_of_range_reads_no_other_record_s_table() -> None:
    """Where each record has a table of its own, as this scaled one, they lie side by side."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.embedding(x, self.table * x.float().mean()).sum(1)

    torch.manual_seed(0)
    model = Scaled()
    x, y = torch.randint(1, 5, (7, LENGTH)), torch.randint(0, CLASSES, (7,))
    x[2, 0] = 7
    others = torch.arange(7) != 2
    for kind in ("records", "copies"):
        whole, rest = totals(kind, model, (x, y)), totals(kind, model, (x[others], y[others]))
        torch.testing.assert_close(whole, rest)


def test_memory_that_runs_out_halves_a_pass_and_loses_no_record() -> None:
    class Small(SingleRecords):
        def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
            if len(targets) > 3:
                raise torch.OutOfMemoryError("as a GPU's")
            return super().clipped_sums(inputs, targets, clip)

    torch.manual_seed(0)
    template = ModuleTemplate(nn.Linear(WIDTH, CLASSES))
    x, y = torch.randn(23, WIDTH), torch.randint(0, CLASSES, (23,))
    sums = []
    for kind in (SingleRecords, Small):
        loss = LossOfEach(nn.CrossEntropyLoss())
        gradients = ClippedGradients(
            template, kind(template, loss), clipping_norm=NORM, at_once=None
        )
        gradients.add(x, y)
        assert gradients.records == 23
        sums.append(torch.cat([each.flatten() for each in gradients.totals]))
    torch.testing.assert_close(*sums, atol=1e-6, rtol=0.0)


def test_a_device_without_float64_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros_like(*args: Any, **options: Any) -> Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")  # as Apple's GPUs do

    monkeypatch.setattr(torch, "zeros_like", zeros_like)
    with pytest.raises(ValueError, match="train on the CPU or on CUDA"):
        ModuleTemplate(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ["hooks", "ghost"])
def test_no_pass_s_gradients_wait_for_python_s_collector(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[weakref.ref[nn.Module]] = []
    copy = ModuleTemplate.copy

    def copied(template: ModuleTemplate) -> nn.Module:
        model = copy(template)
        copies.append(weakref.ref(model))  # it holds the layers' inputs, and each record's gradient
        return model

    monkeypatch.setattr(ModuleTemplate, "copy", copied)
    gc.disable()
    try:
        gradients = begun(kind, nn.Linear(WIDTH, CLASSES))
        gradients.add(torch.randn(8, WIDTH), torch.arange(8) % CLASSES)
        assert gradients.records == 8
        assert [model() for model in copies] == [None] * len(copies) != []
    finally:
        gc.enable()
