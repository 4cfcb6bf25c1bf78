"""Clipped sums of what layers note: the gradients of autograd, and never more than the norm."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from launched import Launched
from made_modules import Made
from moved_sums import CLASSES, IDS, IMAGES, VECTORS, WIDTH, WORDS, T, data, head, largest_move
from moved_sums import summed_by as summed
from opacus.layers import DPLSTM
from small_resnet import resnet18
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from fl_dp.clients.per_record import noted_gradients, single_records
from fl_dp.clients.per_record.clipped_gradients import ClippedGradients, clipped_sum
from fl_dp.clients.per_record.made_up_records import gradients_of, records_alone
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.noted_gradients import Factors, NotedGradient
from fl_dp.clients.per_record.noted_layers import LayerUse, Linear, NotedLayers
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.clients.per_record.single_records import SingleRecords

LOSS = LossOfEach(nn.CrossEntropyLoss())


class Product(torch.autograd.Function):
    """An author's own function, which no mode of PyTorch sees."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


def unseen(s: Any, x: Tensor) -> Any:
    again = Product.apply(torch.tanh(s.a(x)), s.a.weight)  # type: ignore[no-untyped-call]  # torch
    return s.h(torch.tanh(again))


def used_twice(s: Any, x: Tensor) -> Any:
    hidden = torch.tanh(s.a(torch.tanh(s.a(s.e(x)))))
    hidden = torch.tanh(s.b(hidden) + hidden @ s.b.weight + functional.linear(hidden, s.free))
    return s.h(hidden.mean(1))


def tied_table(s: Any, x: Tensor) -> Any:
    hidden = torch.tanh(s.a(s.e(x)))
    return functional.linear(hidden, s.e.weight).mean(1)[:, :CLASSES]


def places(s: Any, x: Tensor) -> Any:
    return s.h(torch.tanh(s.e(x) + s.p(torch.arange(x.shape[1]))).mean(1))


def low_rank(s: Any, x: Tensor) -> Any:
    hidden = s.e(x)
    return s.h(torch.tanh(s.base(hidden) + s.up(s.down(hidden))).mean(1))


def rows_of_convolutions(s: Any, x: Tensor) -> Any:
    hidden = torch.tanh(s.grouped(torch.tanh(s.first(x))))
    hidden = torch.tanh(s.even(torch.tanh(s.same(hidden))))
    hidden = torch.tanh(s.line(hidden.flatten(2)))
    return s.h(hidden.mean(2))


def norms(s: Any, x: Tensor) -> Any:
    hidden = s.groups(torch.tanh(s.groups(s.a(x.reshape(-1, 3, 2, 2)))))
    hidden = s.line(torch.tanh(s.layers(hidden)).flatten(1))
    return s.h(s.flat(torch.tanh(hidden)).reshape(len(x), 4, -1).mean(1))


def checkpointed(s: Any, x: Tensor) -> Any:
    return s.h(checkpoint(s.a, x, use_reentrant=False))


def table(rows: int = WORDS, **options: Any) -> nn.Embedding:
    return nn.Embedding(rows, WIDTH, **options)


def plain(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def recurrent(kind: Any, layers: int, **options: Any) -> nn.Module:
    """PyTorch's own layer, whose kernel has no rule of `vmap`."""
    return Made(
        lambda s, x: s.h(s.r(s.e(x))[0].mean(1)),
        e=table(),
        r=kind(WIDTH, 4, layers, batch_first=True, bidirectional=layers == 2, **options),
        h=head(2 * options["proj_size"] if layers == 2 else 4),
    )


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def shift_frozen(norm: nn.GroupNorm) -> nn.Module:
    norm.bias.requires_grad_(False)
    return norm


def dropping(way: Callable[[Any, Tensor], Any]) -> nn.Module:
    parts = nn.Sequential(nn.Linear(T, 16), nn.Dropout(0.5), nn.Linear(16, WIDTH), nn.Tanh())
    return Made(way, a=parts, h=head())


MODELS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "16 patches a record": (
        IMAGES,
        lambda: Made(
            lambda s, x: s.h(torch.tanh(s.a(x.reshape(-1, 3))).view(len(x), 16, -1).mean(1)),
            a=nn.Linear(3, WIDTH),
            h=head(),
        ),
    ),
    "positions first": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.t(s.e(x).transpose(0, 1)).mean(0)),
            e=table(),
            t=nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0),
            h=head(),
        ),
    ),
    "used twice, and otherwise": (
        IDS,
        lambda: Made(
            used_twice,
            e=table(),
            a=nn.Linear(WIDTH, WIDTH),
            b=plain(WIDTH, WIDTH),
            free=nn.Parameter(torch.randn(WIDTH, WIDTH)),
            h=head(),
        ),
    ),
    "convolutions": (
        IMAGES,
        lambda: Made(
            rows_of_convolutions,
            first=nn.Conv2d(3, 6, 3, stride=2, padding=3, dilation=2, bias=False),
            grouped=nn.Conv2d(6, 12, 3, padding=1, groups=3),
            same=nn.Conv2d(12, 8, (3, 1), padding="same", dilation=(2, 1)),
            even=nn.Conv2d(8, 8, 2, padding="same"),
            line=nn.Conv1d(8, 8, 3),
            h=head(),
        ),
    ),
    "three dimensions": (
        IMAGES,
        lambda: Made(
            lambda s, x: s.h(s.a(x[:, None]).tanh().flatten(2).mean(2)),
            a=nn.Conv3d(1, WIDTH, (2, 3, 3), stride=(1, 2, 1)),
            h=head(),
        ),
    ),
    "wide line": (
        VECTORS,
        lambda: Made(
            lambda s, x: s.h(s.b(s.a(x[:, None]).tanh()).mean(2)),
            a=nn.Conv1d(1, 24, 2, padding=1),
            b=nn.Conv1d(24, WIDTH, 3),
            h=head(),
        ),
    ),
    "several images a record": (
        IMAGES,
        lambda: Made(
            lambda s, x: s.a(x.reshape(-1, 3, 2, 2)).tanh().reshape(len(x), 4, -1).mean(1),
            a=nn.Conv2d(3, CLASSES, 2, bias=False),
        ),
    ),
    "written into": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, (2, 3), padding=(1, 0), bias=False),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            plain(40, WIDTH),
            nn.ReLU(inplace=True),
            head(),
        ),
    ),
    "norms": (
        IMAGES,
        lambda: Made(
            norms,
            a=nn.Conv2d(3, 8, 1),
            groups=nn.GroupNorm(2, 8),
            layers=nn.LayerNorm((8, 2, 2), bias=False),
            line=nn.LayerNorm(32),
            flat=shift_frozen(nn.GroupNorm(4, 32)),
            h=head(32),
        ),
    ),
    "LSTM": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.r(s.e(x))[0][:, -1]),
            e=table(),
            r=DPLSTM(WIDTH, WIDTH, batch_first=True),
            h=head(),
        ),
    ),
    "two layers of LSTM, both ways": (IDS, lambda: recurrent(nn.LSTM, 2, proj_size=3)),
    "GRU": (IDS, lambda: recurrent(nn.GRU, 1, bias=False)),
    "RNN": (IDS, lambda: recurrent(nn.RNN, 1, nonlinearity="relu")),
    "spectral norm": (
        VECTORS,
        lambda: Made(
            lambda s, x: s.h(torch.tanh(s.a(x))),
            a=parametrizations.spectral_norm(nn.Linear(T, WIDTH)),
            h=head(),
        ),
    ),
    "an author's own function": (VECTORS, lambda: Made(unseen, a=plain(T, T), h=head(T))),
    "the same for all records": (
        VECTORS,
        lambda: Made(
            lambda s, x: s.h(x * torch.tanh(s.a(torch.ones(T, 3).to(x))).mean(1)),
            a=nn.Linear(3, 2),
            h=head(T),
        ),
    ),
    "vmap in the model": (
        IMAGES,
        lambda: Made(
            lambda s, x: s.h(torch.vmap(lambda row: torch.tanh(s.a(row)), 1, 1)(x[:, 0]).mean(1)),
            a=nn.Linear(4, WIDTH),
            h=head(),
        ),
    ),
    "tied table": (IDS, lambda: Made(tied_table, e=table(), a=nn.Linear(WIDTH, WIDTH))),
    "short tied table": (
        IDS,
        lambda: Made(
            lambda s, x: functional.linear(s.e(x % 5), s.e.weight).tanh().mean(1), e=table(5)
        ),
    ),
    "table of places, padding": (
        IDS,
        lambda: Made(places, e=table(padding_idx=-3), p=table(T), h=head()),
    ),
    "LoRA": (
        IDS,
        lambda: Made(
            low_rank,
            e=frozen(table()),
            base=frozen(nn.Linear(WIDTH, WIDTH)),
            down=plain(WIDTH, 2),
            up=plain(2, WIDTH),
            h=head(),
        ),
    ),
    "checkpointed": (
        VECTORS,
        lambda: Made(checkpointed, a=nn.Sequential(nn.Linear(T, WIDTH), nn.Tanh()), h=head()),
    ),
    "ResNet": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Upsample(scale_factor=2),
            resnet18(width=8, num_classes=5),
        ),
    ),
}
BY_NAME = pytest.mark.parametrize("name", MODELS)


def made(name: str, *, dtype: torch.dtype = torch.float32) -> ModuleTemplate:
    torch.manual_seed(0)
    return ModuleTemplate(MODELS[name][1]()).moved(0.05, dtype=dtype)


def records(name: str, count: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Records whose gradients are of very different lengths, where their numbers can be."""
    x, y = data(MODELS[name][0], count)
    if not x.is_floating_point():
        return x, y
    scales = 3.0 ** torch.arange(-3, count - 3, dtype=dtype)
    return scales.view(-1, *[1] * (x.ndim - 1)) * x.to(dtype), y


def at(norm: float) -> Callable[[Tensor], tuple[Tensor, None]]:
    return lambda squares: ((norm / squares.sqrt()).clamp(max=1.0), None)


def apart(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> float:
    pairs = zip(one, other, strict=True)
    return max(float((_wide(a) - _wide(b)).norm()) for a, b in pairs)


def _wide(part: Tensor | None) -> Tensor:
    return torch.zeros(()) if part is None else part.double()


@BY_NAME
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("by_factors", [False, True])
def test_sums_are_those_of_autograd_and_of_copies(
    name: str, dtype: torch.dtype, by_factors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_factors:
        monkeypatch.setattr(noted_gradients, "_LARGER", 0)
    template, (x, y) = made(name, dtype=dtype), records(name, 7, dtype=dtype)
    way = SingleRecords(template, LOSS)
    gradients = way.by_autograd(x, y)
    exact = torch.stack([part.double().flatten(1).square().sum(1) for part in gradients]).sum(0)
    found: list[Tensor] = []

    def clip(squares: Tensor) -> tuple[Tensor, None]:
        found.append(squares)
        return at(0.1)(squares)

    sums = way.by_notes(x, y, clip)
    share = found[0] / exact - 1.0
    if dtype == torch.float64:  # in float32 the gradients themselves differ by more
        assert float(share.min()) > -1e-9 and float(share.max()) < 4e-6
    assert apart(sums, clipped_sum(gradients, at(0.1))) < 0.1 * 7 * 4e-6
    if name not in ("vmap in the model", "checkpointed"):  # autograd only, or layers' notes
        copies = SingleRecords(template, LOSS, copied=template.parameters)
        assert apart(sums, copies.clipped_sums(x, y, at(0.1))) < 0.1 * 7 * 4e-6


@BY_NAME
def test_a_record_left_out_or_without_a_gradient_moves_the_sum_by_one_norm(name: str) -> None:
    template, (x, y) = made(name), records(name, 6)
    way = gradients_of(template, LOSS, mode="records", example=data(MODELS[name][0], 3, seed=2))
    for norm in (0.01, 10.0):
        assert largest_move(summed(template, way, norm), x, y, norm) <= 1.0 + 1e-6
        for row in range(len(y) if x.is_floating_point() else 0):
            total = ClippedGradients(template, way, clipping_norm=norm, at_once=None)
            without = x.clone()
            without[row] = math.nan
            total.add(without, y)
            assert total.records == len(y) - 1
            rest = torch.cat([part.flatten() for part in total.totals])
            moved = (summed(template, way, norm)(x, y) - rest).norm()
            assert float(moved) <= norm * (1 + 1e-6)


@BY_NAME
def test_records_of_which_none_is_finite_add_nothing(name: str) -> None:
    template, (x, y) = made(name), records(name, 3)
    way = SingleRecords(template, LOSS)

    def clip(squares: Tensor) -> tuple[Tensor, Tensor]:
        return squares[:0], torch.zeros(0, dtype=torch.long)

    sums = way.by_notes(x, y, clip)
    assert all(part is not None and not bool(part.any()) for part in sums)


def test_which_weights_are_noted_is_found_on_made_up_records() -> None:
    def noted(name: str) -> set[str]:
        template = made(name)
        way = records_alone(template, LOSS, data(MODELS[name][0], 3, seed=2))
        assert not way.one_by_one
        return template.parameters.keys() - way.held

    def layers(*names: str) -> set[str]:
        return {f"{name}.{part}" for name in names for part in ("weight", "bias")}

    assert noted("tied table") == layers("a") | {"e.weight"}
    assert noted("convolutions") == layers("grouped", "same", "line", "h") | {"first.weight"}
    assert noted("positions first") > layers("t.self_attn.out_proj") | {
        "t.self_attn.in_proj_weight",
        "t.self_attn.in_proj_bias",
    }
    assert noted("norms") == layers("a", "groups", "line", "h") | {"layers.weight", "flat.weight"}
    assert noted("LoRA") == layers("h") | {"down.weight", "up.weight"}
    assert noted("an author's own function") == layers("h")
    assert noted("vmap in the model") == layers("h")
    assert noted("spectral norm") == layers("h")
    assert noted("two layers of LSTM, both ways") == {
        *layers("h"),
        "e.weight",
        *(
            f"r.{part}_{side}_l{layer}{way}"
            for part in ("weight", "bias")
            for side in ("ih", "hh")
            for layer in (0, 1)
            for way in ("", "_reverse")
        ),
        *(f"r.weight_hr_l{layer}{way}" for layer in (0, 1) for way in ("", "_reverse")),
    }


def test_a_use_that_only_some_shapes_show_takes_copies_there() -> None:
    """Such as a layer that long records use once more: a sum must not lack it, nor raise."""

    def twice_if_long(s: Any, x: Tensor) -> Any:
        hidden = torch.tanh(s.a(s.e(x)))
        if x.shape[1] > 2:
            hidden = torch.tanh(hidden @ s.a.weight)
        return s.h(hidden.mean(1))

    torch.manual_seed(0)
    template = ModuleTemplate(Made(twice_if_long, e=table(), a=nn.Linear(WIDTH, WIDTH), h=head()))
    x, y = data(IDS, 6)
    way = gradients_of(template, LOSS, mode="records", example=(x[:3, :2], y[:3]))
    assert isinstance(way, SingleRecords) and not way.held
    expected = clipped_sum(way.by_autograd(x, y), at(0.1))
    assert apart(way.by_notes(x, y, at(0.1)), expected) < 1e-6


# Coins.


def test_checkpointed_parts_draw_the_same_coins_again() -> None:
    models = dropping(lambda s, x: s.h(s.a(x))), dropping(checkpointed)
    models[1].load_state_dict(models[0].state_dict())
    x, y = data(VECTORS, 6)
    sums = []
    for model in models:
        torch.manual_seed(5)
        sums.append(SingleRecords(ModuleTemplate(model), LOSS).by_notes(x, y, at(0.1)))
    assert apart(*sums) < 1e-7
    torch.manual_seed(6)
    assert apart(sums[0], SingleRecords(ModuleTemplate(model), LOSS).by_notes(x, y, at(0.1))) > 1e-3


# Precision.


class Wide(nn.Module):
    """Outputs are a layer's inputs, added up: products that half precision rounds."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x).float()
        return outputs.sum(1) * torch.arange(1.0, CLASSES + 1)


class Linearly(nn.Module):
    """A loss whose gradients are known exactly."""

    reduction = "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum(1)


def test_our_own_products_are_exact_where_the_model_runs_in_half_precision() -> None:
    """1 + 2^-7 is a bfloat16, and sums of five are not."""
    layer = plain(3, CLASSES)
    way = SingleRecords(ModuleTemplate(Wide(layer)), LossOfEach(Linearly()))
    x, y = torch.full((4, 5, 3), 1.0 + 2.0**-7), torch.zeros(4, dtype=torch.long)
    for positions in (5, 1):
        with torch.autocast("cpu", torch.bfloat16):
            (total,) = way.by_notes(
                x[:, :positions], y, lambda squares: (torch.ones_like(squares), None)
            )
        assert total is not None
        expected = torch.arange(1.0, CLASSES + 1)[:, None] * x[:, :positions].sum((0, 1))
        torch.testing.assert_close(total, expected.double(), rtol=1e-12, atol=0.0)


@BY_NAME
def test_a_pass_within_autocast_keeps_the_norm(name: str) -> None:
    template, (x, y) = made(name), records(name, 6)
    way = SingleRecords(template, LOSS)

    def within(features: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return summed(template, way, 0.01)(features, labels)

    # Kernels of other batch sizes round a record's own gradient differently, which is not meant.
    norms = [float(within(x[[row]], y[[row]]).norm()) for row in range(6)]
    assert all(0.0 < norm <= 0.01 * (1 + 1e-9) for norm in norms)


def test_a_norm_is_never_short_of_what_is_added() -> None:
    """Terms that cancel: computed inner products alone are short of some records' gradients."""
    torch.manual_seed(0)
    x = 1e6 * torch.randn(300, 6, 4, dtype=torch.float64).float()
    x[:, 1::2] = -x[:, ::2]
    x[:, 0] += 1e-2 * torch.randn(300, 4)
    gradient = torch.ones(300, 6, 3)
    gradient[:, ::2] += 1e-7 * torch.randn(300, 3, 3)
    use = LayerUse(Linear(torch.zeros(3, 4)), x, gradient)
    noted = Factors([use]).squared_norms().sqrt()
    rows = range(300)
    alone = [Factors([LayerUse(use.layer, x[[row]], gradient[[row]])]) for row in rows]
    one = torch.ones(1, dtype=torch.float64)
    added = torch.stack([factors.weighted(one, None).norm() for factors in alone])
    assert bool((added <= noted).all())
    wide, other = x.double(), gradient.double()
    short = ((wide @ wide.mT) * (other @ other.mT)).sum((1, 2)).clamp(min=0.0).sqrt()
    assert bool((added > short * (1 + 1e-9)).any())  # the power: without rounding up


def test_a_note_that_the_norm_lacks_lets_a_record_move_the_sum_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The power of the tests of moves: norm and sum are of the same notes."""
    monkeypatch.setattr(noted_gradients, "_LARGER", 0)  # by factors
    template, (x, y) = made("tied table"), records("tied table", 6)
    way, whole = SingleRecords(template, LOSS), Factors.squared_norms
    assert largest_move(summed(template, way, 0.01), x, y, 0.01) <= 1.0 + 1e-6
    monkeypatch.setattr(Factors, "squared_norms", lambda factors: 0.1 * whole(factors))
    assert largest_move(summed(template, way, 0.01), x, y, 0.01) > 1.1


# Work and memory.


def test_a_step_of_a_narrow_resnet_takes_few_operators_and_waits_once() -> None:
    model = resnet18(width=16, num_classes=10)
    way = SingleRecords(ModuleTemplate(model), LOSS)
    for records in (2, 5):
        x, y = torch.randn(records, 3, 32, 32), torch.arange(records)
        with Launched() as launched:
            way.by_notes(x, y, at(1.0))
        assert launched.operators <= 650
        assert launched.waits <= 1  # whether labels are in range


def test_what_a_layer_notes_is_computed_outside_of_the_modes_that_watch_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = []

    class Watching(NotedLayers):
        def __torch_function__(self, func: Any, *rest: Any, **options: Any) -> Any:
            watched.append(func)
            return super().__torch_function__(func, *rest, **options)

    monkeypatch.setattr(single_records, "NotedLayers", Watching)
    noting = SingleRecords(ModuleTemplate(nn.Linear(3, 2)), LossOfEach(nn.CrossEntropyLoss()))
    noting.by_notes(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), at(1.0))
    assert functional.linear in watched  # of the model
    assert Tensor.matmul not in watched  # of its gradients


def test_no_record_s_gradient_of_a_large_weight_is_made() -> None:
    model = nn.Sequential(nn.Embedding(3000, 64), Made(lambda s, x: s.a(x).mean(1), a=head(64)))
    template = ModuleTemplate(model)
    x, y = torch.randint(0, 3000, (32, T)), torch.randint(0, CLASSES, (32,))
    largest = []
    for copied in ((), template.parameters):
        with Launched() as launched:
            SingleRecords(template, LOSS, copied=copied).clipped_sums(x, y, at(1.0))
        largest.append(launched.largest)
    assert largest[0] == 3000 * 64 and largest[1] >= 32 * 3000 * 64


def test_no_pass_s_notes_wait_for_python_s_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    uses: list[weakref.ref[LayerUse[Any]]] = []
    add = NotedGradient.add

    def added(gradient: NotedGradient, use: LayerUse[Any]) -> None:
        uses.append(weakref.ref(use))
        add(gradient, use)

    monkeypatch.setattr(NotedGradient, "add", added)
    way = SingleRecords(made("LoRA"), LOSS)
    x, y = records("LoRA", 6)
    way.by_notes(x, y, at(0.1))
    uses.clear()
    gc.disable()
    try:
        way.by_notes(x, y, at(0.1))
        assert [use() for use in uses] == [None] * 4
    finally:
        gc.enable()
