"""One record moves a sum of gradients by one clipping norm, whatever the model does with rows.

Every model below broke Opacus' hooks, or trained on a wrong gradient or none, without a word. In
every mode a record may move the sum by one norm, or the mode is refused on made-up records.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from laws import ALARM
from made_modules import Made
from moved_sums import (
    CLASSES,
    IDS,
    IMAGES,
    VECTORS,
    WIDTH,
    WORDS,
    Summed,
    T,
    data,
    head,
    largest_move,
    summed_by,
)
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from record_plans import record_plan
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn, weight_norm
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_dp import PrivacyBudget
from fl_dp.clients import (
    DPSGD,
    LossInOutputs,
    NodeRecords,
    OpacusClient,
    WithFullMask,
    exchanged_arrays,
    private_module,
)
from fl_dp.clients.per_record.clipped_gradients import ClippedGradients, Gradients, clipped_sum
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.clients.per_record.fit_for_dp_sgd import require_trainable_privately
from fl_dp.clients.per_record.made_up_records import gradients_of, records_alone
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.opacus_gradients import HookGradients
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.clients.per_record.single_records import SingleRecords
from fl_dp.clients.per_record.watched_pass import SharedCoins
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import RecordPlan

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]

SIZES = (1, T - 1, T, T + 1)


def table(**options: Any) -> nn.Embedding:
    return nn.Embedding(WORDS, WIDTH, **options)


def copies(s: Any, x: Tensor) -> Any:
    return s.a(x.repeat_interleave(16, 0)).view(-1, 16, CLASSES).mean(1)


def pairs(s: Any, x: Tensor) -> Any:
    left, right = s.a(torch.cat([x, -x])).chunk(2)
    return left - 2.0 * right


def packed(s: Any, x: Tensor) -> Any:
    lengths = (x > 5).sum(1).clamp(min=1).cpu()
    words = rnn.pack_padded_sequence(s.e(x), lengths, batch_first=True, enforce_sorted=False)
    return s.h(s.r(words)[1][0][0])


def writing_data(s: Any, x: Tensor) -> Any:
    s.a.weight.data.mul_(1.0 + 0.5 * float(x.mean()))
    return s.a(x)


def writing_numpy(s: Any, x: Tensor) -> Any:
    values = s.a.weight.detach().numpy()
    values += 0.1 * x.mean().detach().numpy()
    return s.a(x)


def remembering(s: Any, x: Tensor) -> Any:
    out = s.a(x + sum(kept.mean() for kept in s.kept[-3:]))
    s.kept.append(x.detach())
    return out


def running(s: Any, x: Tensor) -> Any:
    s.mean = 0.5 * s.mean + 0.5 * x.detach().mean(0)
    return s.a(x - s.mean)


def contrastive(s: Any, x: Tensor) -> Any:
    return functional.pad(functional.normalize(s.a(x)) @ functional.normalize(s.a(x)).T, (0, 9))


class Bert(nn.Module):
    """A small encoder as those of transformers: a mask made of the tokens, a pooled state."""

    def __init__(self, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = table(), nn.Embedding(T + 2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.head, self.causal, self.drop = head(), causal, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None]
        hidden = self.norm(self.words(x) + self.places(places))
        query, key, value = (part(hidden)[:, None] for part in (self.query, self.key, self.value))
        seen = (x > 2)[:, None, None, :] | torch.eye(x.shape[1], dtype=torch.bool)
        if self.causal:
            seen = seen & torch.ones_like(seen).tril()
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)[:, 0]
        logits: Tensor = self.head((hidden + self.drop(self.mlp(mixed))).mean(1))
        return logits


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(T, CLASSES).requires_grad_(False)
        self.a, self.b = nn.Linear(T, 2, bias=False), nn.Linear(2, CLASSES, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.base(x) + self.b(self.a(x))
        return logits


def under_autocast(s: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return s.m(x)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, **options)


Build = Callable[[], nn.Module]
ROWS: dict[str, tuple[str, Build]] = {
    "16 copies": (VECTORS, lambda: Made(copies, a=head(T))),
    "patches by reshape": (
        VECTORS,
        lambda: Made(lambda s, x: s.a(x.reshape(-1, 2)).view(len(x), 2, -1).mean(1), a=head(2)),
    ),
    "positions as rows": (
        VECTORS,
        lambda: Made(lambda s, x: s.a(x.T[..., None]).tanh().mean(0), a=head(1)),
    ),
    "pairs by cat": (VECTORS, lambda: Made(pairs, a=head(T))),
    "positions first": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.t(s.e(x).transpose(0, 1)).mean(0)), e=table(), t=encoder(), h=head()
        ),
    ),
    "linear, positions first": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.a(s.e(x).transpose(0, 1)).tanh().mean(0)),
            e=table(),
            a=nn.Linear(WIDTH, WIDTH),
            h=head(),
        ),
    ),
    "positions by arange": (
        IDS,
        lambda: Made(
            lambda s, x: s.h((s.e(x) + s.p(torch.arange(x.shape[1]))).tanh().mean(1)),
            e=table(),
            p=nn.Embedding(T, WIDTH),
            h=head(),
        ),
    ),
    "packed LSTM": (
        IDS,
        lambda: Made(packed, e=table(), r=nn.LSTM(WIDTH, WIDTH, batch_first=True), h=head()),
    ),
    "packed DPLSTM": (
        IDS,
        lambda: Made(packed, e=table(), r=DPLSTM(WIDTH, WIDTH, batch_first=True), h=head()),
    ),
    "max_norm": (
        IDS,
        lambda: Made(lambda s, x: s.h(s.e(x).mean(1)), e=table(max_norm=0.1), h=head()),
    ),
}
WRONG_OR_NONE: dict[str, tuple[str, Build]] = {
    "ParameterList": (
        VECTORS,
        lambda: Made(
            lambda s, x: x @ s.w[0], w=nn.ParameterList([nn.Parameter(torch.randn(T, CLASSES))])
        ),
    ),
    "ParameterDict": (
        VECTORS,
        lambda: Made(
            lambda s, x: x @ s.w["a"],
            w=nn.ParameterDict({"a": nn.Parameter(torch.randn(T, CLASSES))}),
        ),
    ),
    "weight of F.linear": (
        VECTORS,
        lambda: Made(
            lambda s, x: functional.linear(x, s.a.weight), a=nn.Linear(T, CLASSES, bias=False)
        ),
    ),
    "tied weights": (
        IDS,
        lambda: Made(
            lambda s, x: functional.linear(s.e(x).mean(1), s.e.weight)[:, :CLASSES], e=table()
        ),
    ),
    "tied layers": (IDS, lambda: tied()),
    "circular": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        ),
    ),
    "reflecting": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        ),
    ),
    "padding_idx": (
        IDS,
        lambda: Made(lambda s, x: s.h(s.e(x).mean(1)), e=table(padding_idx=3), h=head()),
    ),
    "checkpointed": (
        VECTORS,
        lambda: Made(
            lambda s, x: s.h(checkpoint(s.a, x, use_reentrant=False).tanh()),
            a=nn.Linear(T, WIDTH),
            h=head(),
        ),
    ),
    "in place": (
        VECTORS,
        lambda: nn.Sequential(nn.Linear(T, WIDTH), nn.ReLU(inplace=True), head()),
    ),
    "spectral norm": (
        VECTORS,
        lambda: nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(T, WIDTH)), nn.Tanh(), head()
        ),
    ),
    "weight norm": (
        VECTORS,
        lambda: nn.Sequential(weight_norm(nn.Linear(T, WIDTH)), nn.Tanh(), head()),
    ),
    "EmbeddingBag": (IDS, lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH), head())),
    "Bilinear": (VECTORS, lambda: Made(lambda s, x: s.b(x, x), b=nn.Bilinear(T, T, CLASSES))),
}
WRITING: dict[str, tuple[str, Build]] = {
    "by .data": (VECTORS, lambda: Made(writing_data, a=head(T))),
    "by numpy": (VECTORS, lambda: Made(writing_numpy, a=head(T))),
    "in a counter": (VECTORS, lambda: Counting()),
    "in a list": (VECTORS, lambda: Made(remembering, a=head(T), kept=[])),
    "in an attribute": (VECTORS, lambda: Made(running, a=head(T), mean=torch.zeros(T))),
}
USUAL: dict[str, tuple[str, Build]] = {
    "BERT-like": (IDS, Bert),
    "GPT-like": (IDS, lambda: Bert(causal=True)),
    "LoRA": (VECTORS, Lora),
    "autocast": (
        VECTORS,
        lambda: Made(under_autocast, m=nn.Sequential(nn.Linear(T, WIDTH), nn.Tanh(), head())),
    ),
    "LSTM": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.r(s.e(x))[0][:, -1]),
            e=table(),
            r=nn.LSTM(WIDTH, WIDTH, batch_first=True),
            h=head(),
        ),
    ),
    "GRU": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.r(s.e(x))[0][:, -1]),
            e=table(),
            r=nn.GRU(WIDTH, WIDTH, batch_first=True),
            h=head(),
        ),
    ),
    "DPLSTM": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.r(s.e(x))[0][:, -1]),
            e=table(),
            r=DPLSTM(WIDTH, WIDTH, batch_first=True),
            h=head(),
        ),
    ),
    "images": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, CLASSES)
        ),
    ),
    "encoder layer": (
        IDS,
        lambda: Made(
            lambda s, x: s.h(s.t(s.e(x)).mean(1)), e=table(), t=encoder(batch_first=True), h=head()
        ),
    ),
}
MODELS = ROWS | WRONG_OR_NONE | WRITING | USUAL
REFUSED: dict[str, tuple[str, Build]] = {
    "a head that squeezes": (VECTORS, lambda: Made(lambda s, x: s.a(x).squeeze(), a=head(T))),
    "an unused table": (VECTORS, lambda: Made(lambda s, x: s.a(x), a=head(T), e=table())),
    "a contrast within the batch": (VECTORS, lambda: Made(contrastive, a=head(T))),
    "a batch's mean": (VECTORS, lambda: Made(lambda s, x: s.a(x - x.mean(0)), a=head(T))),
}


def tied() -> nn.Module:
    words, out = table(), nn.Linear(WIDTH, WORDS, bias=False)
    out.weight = words.weight
    return Made(lambda s, x: s.o(s.e(x).mean(1))[:, :CLASSES], e=words, o=out)


class Counting(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = head(T)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += len(x)
        logits: Tensor = self.a(x) / self.count
        return logits


def built(build: Build) -> nn.Module:
    torch.manual_seed(0)
    return build()


def way_of(mode: str, template: ModuleTemplate, kind: str) -> Gradients:
    loss = LossOfEach(nn.CrossEntropyLoss())
    if mode == "one by one":
        return SingleRecords(template, loss, one_by_one=True)
    if mode == "copies":
        return SingleRecords(template, loss, copied=template.parameters)
    return gradients_of(template, loss, mode=mode, example=data(kind, 3, seed=2))


@pytest.mark.parametrize("mode", ["records", "copies", "one by one", "hooks", "ghost"])
@pytest.mark.parametrize("name", MODELS)
def test_a_record_moves_the_sum_by_one_norm_or_the_mode_is_refused(name: str, mode: str) -> None:
    kind, build = MODELS[name]
    template = ModuleTemplate(built(build))
    try:
        way = way_of(mode, template, kind)
    except (ValueError, NotImplementedError):
        assert mode in ("hooks", "ghost")  # the default trains each of them
        return
    alone = SingleRecords(template, LossOfEach(nn.CrossEntropyLoss()), one_by_one=True)
    for norm, sizes in ((1.0, SIZES[-1:]), (0.01, SIZES)):
        summed, expected = (summed_by(template, each, norm) for each in (way, alone))
        for size in sizes:
            x, y = data(kind, size)
            assert largest_move(summed, x, y, norm) <= 1.0 + 1e-6
        tolerance = 1e-2 if name == "autocast" else 1e-5
        assert float((summed(x, y) - expected(x, y)).norm()) <= tolerance * size * norm


def by_plain_hooks(model: nn.Module, norm: float) -> Summed:
    """Return sums as they were made before: of rows, on one module that stays."""
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")

    def summed(x: Tensor, y: Tensor) -> Tensor:
        for parameter in wrapped.parameters():
            parameter.grad_sample = None
            parameter._forward_counter = 0
        torch.autograd.backward(functional.cross_entropy(wrapped(x), y, reduction="sum"))
        parameters = list(wrapped.parameters())
        samples = [p.grad_sample for p in parameters if p.grad_sample is not None]

        def clip(squares: Tensor) -> tuple[Tensor, None]:
            return (norm / squares.sqrt()).clamp(max=1.0), None

        sums = [each for each in clipped_sum(samples, clip) if each is not None]
        return torch.cat([each.flatten() for each in sums])

    return summed


@pytest.mark.parametrize(
    "name", ["16 copies", "patches by reshape", "positions as rows", "in a list", "by .data"]
)
def test_rows_that_are_clipped_as_if_they_were_records_move_it_further(name: str) -> None:
    """The power of the test above: what was trained by before does not pass it."""
    kind, build = MODELS[name]
    moves = []
    for size in SIZES[1:]:
        x, y = data(kind, size)
        try:
            moves.append(largest_move(by_plain_hooks(built(build), 0.01), x, y, 0.01))
        except RuntimeError:  # sums of other shapes
            continue
    assert max(moves) > 1.01


@pytest.mark.parametrize("mode", ["records", "hooks", "ghost"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_gradient_of_a_record_alone_is_refused_before_a_charge(
    name: str, mode: str
) -> None:
    kind, build = REFUSED[name]
    with pytest.raises((ValueError, RuntimeError)) as refusal:
        way_of(mode, ModuleTemplate(built(build)), kind)
    if name != "a head that squeezes":
        assert "is zero on every made-up record" in str(refusal.value)
        assert ("'a.weight'" if name != "an unused table" else "'e.weight'") in str(refusal.value)


def test_batch_statistics_are_refused_with_what_to_write() -> None:
    model = nn.Sequential(nn.Linear(T, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), head())
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\).*private_module"):
        require_trainable_privately(model)
    fixed, changes = private_module(model)
    assert len(changes) == 2 and "inplace=True became inplace=False" in changes[1]
    kind = VECTORS
    for mode in ("records", "hooks", "ghost"):
        way_of(mode, ModuleTemplate(fixed), kind)


def test_vmap_is_used_where_it_follows_and_autograd_where_it_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loss = LossOfEach(nn.CrossEntropyLoss())
    for name, follows in (
        ("GPT-like", True),
        ("16 copies", True),
        ("in a counter", True),
        ("packed LSTM", False),
    ):
        kind, build = MODELS[name]
        caplog.clear()
        way = records_alone(ModuleTemplate(built(build)), loss, data(kind, 3))
        assert way.one_by_one != follows
        assert ("vmap can't follow the model" in caplog.text) != follows


def test_a_weight_that_is_reached_by_another_way_than_its_name_has_its_whole_gradient() -> None:
    layer = head(T)
    hidden = Made(lambda s, x: s.a(x) + 3.0 * x @ s.other[0].T, a=layer, other=[layer.weight])
    way = SingleRecords(ModuleTemplate(hidden), LossOfEach(nn.CrossEntropyLoss()))
    x, y = data(VECTORS, 5)
    expected = clipped_sum(way.by_autograd(x, y), unclipped)
    for one, other in zip(way.by_notes(x, y, unclipped), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_what_vmap_gets_wrong_is_left_to_autograd() -> None:
    """A model may see that it is under vmap, and compute something else."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    other = Made(lambda s, x: s.a(x) * (3.0 if wrapped(x) else 1.0), a=head(T))
    template, loss = ModuleTemplate(other), LossOfEach(nn.CrossEntropyLoss())
    way = gradients_of(template, loss, mode="records", example=data(VECTORS, 3))
    assert isinstance(way, SingleRecords) and way.one_by_one


# Chance.


class Droppy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(T, 16), head(16)
        self.drop: nn.Module = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.b(self.drop(self.a(x).tanh()))
        return logits


QUIET = record_plan(noise_multiplier=1e-6, clipping_norm=0.01)


def released(model: nn.Module, x: Tensor, y: Tensor, **how: Any) -> Tensor:
    model = copy.deepcopy(model)
    before = torch.cat([each.detach().clone().flatten() for each in model.parameters()])
    options: dict[str, Any] = dict(
        optimizer=lambda parameters: SGD(parameters, lr=1.0), expected_batch_size=1.0
    )
    train_with_dp_sgd(
        model, DataLoader(TensorDataset(x, y)), plan=QUIET, how=DPSGD(**(options | how))
    )
    return before - torch.cat([each.detach().flatten() for each in model.parameters()])


def test_an_app_that_seeds_torch_does_not_know_the_coins_and_gets_its_generators_back() -> None:
    x, y = data(VECTORS, 40)
    moved, model = [], Droppy()
    for _ in range(2):
        torch.manual_seed(3)
        np.random.seed(3)
        moved.append(released(model, x, y))
        after = torch.rand(1), np.random.rand()
        torch.manual_seed(3)
        np.random.seed(3)
        assert after == (torch.rand(1), np.random.rand())
    assert float((moved[0] - moved[1]).norm()) > QUIET.clipping_norm  # coins of its own
    for _ in range(2):  # power: known coins repeat
        torch.manual_seed(3)
        moved.append(released(model, x, y, secure_randomness=False))
    torch.testing.assert_close(moved[2], moved[3])


def test_coins_of_a_record_do_not_depend_on_which_records_there_are() -> None:
    """Others draw other coins of the same law: a coordinate's distribution does not move."""
    x, y = data(VECTORS, 12)
    bad = torch.cat([torch.full((1, T), math.nan), x[1:]])
    template = ModuleTemplate(Droppy())
    way = SingleRecords(template, LossOfEach(nn.CrossEntropyLoss()))
    draws: dict[str, list[float]] = {"bad": [], "left out": []}
    for _ in range(400):
        for name, features, labels in (("bad", bad, y), ("left out", x[1:], y[1:])):
            total = ClippedGradients(template, way, clipping_norm=0.1, at_once=None)
            total.add(features, labels)
            draws[name].append(float(total.totals[0].sum()))
    with_bad, without = draws["bad"], draws["left out"]
    assert stats.ks_2samp(with_bad, without).pvalue > ALARM
    deviation = float(np.std(with_bad))
    assert deviation > 0.01  # there are coins
    assert stats.ks_2samp(with_bad, [each + deviation for each in without]).pvalue < ALARM


def test_a_record_that_is_left_out_moves_coupled_coins_by_one_norm() -> None:
    x, y = data(VECTORS, T + 1)
    for one_by_one in (False, True):
        template = ModuleTemplate(Droppy())
        way = SingleRecords(template, LossOfEach(nn.CrossEntropyLoss()), one_by_one=one_by_one)
        sums = []
        for rows in (slice(None), slice(-1)):  # the last one has the last coins
            torch.manual_seed(5)
            sums.append(summed_by(template, way, 0.01)(x[rows], y[rows]))
        assert float((sums[0] - sums[1]).norm()) <= 0.01 * (1 + 1e-6)


class FixedSeed(Droppy):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return super().forward(x)


class SeedTakenBack(Droppy):
    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return super().forward(x)


class OwnGenerator(Droppy):
    def __init__(self) -> None:
        super().__init__()
        self.drop: nn.Module = nn.Identity()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (torch.rand(x.shape, generator=self.generator) > 0.5))


def unclipped(squares: Tensor) -> tuple[Tensor, None]:
    return torch.ones_like(squares), None


@pytest.mark.parametrize("mode", ["records", "hooks"])
@pytest.mark.parametrize("build", [FixedSeed, SeedTakenBack, OwnGenerator])
def test_coins_that_are_known_do_not_go_by_a_record_s_place(build: Build, mode: str) -> None:
    x, y = data(VECTORS, 6)
    template, loss = ModuleTemplate(build()), LossOfEach(nn.CrossEntropyLoss())
    way = SingleRecords(template, loss) if mode == "records" else HookGradients(template, loss)
    torch.manual_seed(1)
    way.clipped_sums(x[:1], y[:1], unclipped)  # seeds for itself alone
    with pytest.raises(SharedCoins):
        way.clipped_sums(x, y, unclipped)
    assert largest_move(summed_by(template, way, 0.01), x, y, 0.01) <= 1.0 + 1e-6


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_seed_of_the_model_s_is_not_that_of_the_next_record(one_by_one: bool) -> None:
    class SeedAtTheEnd(Droppy):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            torch.manual_seed(0)
            return logits

    x, y = (each[:1].repeat_interleave(2, 0) for each in data(VECTORS, 1))
    template, loss = ModuleTemplate(SeedAtTheEnd()), LossOfEach(nn.CrossEntropyLoss())
    way, second = SingleRecords(template, loss, one_by_one=one_by_one), []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        of_one = summed_by(template, way, 1.0)
        second.append([of_one(x[row], y[row]) for row in (slice(0, 1), slice(1, 2))][1])
    assert not second[0].equal(second[1]) and not second[1].equal(second[2])


@pytest.mark.parametrize("of_numpy", [False, True])
@pytest.mark.parametrize("mode", ["records", "hooks"])
def test_a_coin_of_python_s_or_numpy_s_is_no_coin_of_a_whole_pass(
    of_numpy: bool, mode: str
) -> None:
    """Which records share a coin depends on how many there are, and with that the sum's law."""

    class Skipping(Droppy):
        def forward(self, x: Tensor) -> Tensor:
            coin = np.random.rand() if of_numpy else random.random()
            logits: Tensor = self.b(self.a(x).tanh()) * (1.0 if coin < 0.5 else -1.0)
            return logits

    x, y = (each[:1].repeat_interleave(4, 0) for each in data(VECTORS, 1))
    template, loss = ModuleTemplate(Skipping()), LossOfEach(nn.CrossEntropyLoss())
    way = SingleRecords(template, loss) if mode == "records" else HookGradients(template, loss)
    lengths = {round(float(summed_by(template, way, 0.01)(x, y).norm()), 5) for _ in range(40)}
    assert len(lengths) > 2  # some of the four, and not all or none


def test_a_forward_pass_that_writes_into_its_input_does_so_once() -> None:
    """A record that fails sends those of its pass through the model once more."""

    class Scaling(Droppy):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.b(self.a(x.mul_(-1.7)).tanh())
            return logits

    x, y = data(VECTORS, 6)
    y[2] = 99
    template, loss = ModuleTemplate(Scaling()), LossOfEach(nn.CrossEntropyLoss())
    for way in (
        SingleRecords(template, loss),
        SingleRecords(template, loss, one_by_one=True),
        HookGradients(template, loss),
    ):
        sums, others = [], torch.arange(6) != 2
        for rows in (torch.arange(6), others):
            total = ClippedGradients(template, way, clipping_norm=0.01, at_once=None)
            total.add(x[rows], y[rows])
            assert total.records == 5
            sums.append(torch.cat([each.flatten() for each in total.totals]))
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-8)


def test_a_loss_keeps_nothing_of_a_record() -> None:
    class Remembering(nn.CrossEntropyLoss):
        before = 0.0

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            sign = -1.0 if self.before else 1.0
            self.before = 1.0
            return super().forward(outputs, targets) * sign

    x, y = data(VECTORS, 6)
    template = ModuleTemplate(nn.Linear(T, CLASSES))
    for one_by_one in (False, True):
        way = SingleRecords(template, LossOfEach(Remembering()), one_by_one=one_by_one)
        assert largest_move(summed_by(template, way, 0.01), x, y, 0.01) <= 1.0 + 1e-6


def test_a_part_that_is_not_copied_is_refused() -> None:
    class Shared(nn.Linear):
        def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
            return self

    with pytest.raises(ValueError, match=r"does not copy '1' \(Shared\), in which records"):
        ModuleTemplate(nn.Sequential(nn.Linear(2, 2), Shared(2, 2)))


@pytest.mark.parametrize("how", ["with a graph", "on no device"])
def test_a_record_that_no_sum_can_hold_fails_alone(how: str) -> None:
    class Odd(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
            features = torch.ones(T) * (row + 1)
            if row != 2:
                return features, torch.tensor(row % CLASSES)
            odd = features.requires_grad_() * 2 if how == "with a graph" else features.to("meta")
            return odd, torch.tensor(0)

    records = NodeRecords(model_fn=lambda *_: Droppy(), loader_fn=lambda *_: DataLoader(Odd()))
    found = records(Context(1, 1, {}, RecordDict(), {}), {}, exchanged_arrays(Droppy()))
    _, count = found.clipped_sum(range(4), 0.01)
    assert count == (4 if how == "with a graph" else 3)


# Whole paths.


@pytest.mark.parametrize("name", ["16 copies", "max_norm", "in a list", "packed LSTM"])
def test_a_node_of_secure_sums_takes_the_same_sums(name: str) -> None:
    kind, build = MODELS[name]
    x, y = data(kind, T)
    found = NodeRecords(
        model_fn=lambda *_: built(build),
        loader_fn=lambda *_: DataLoader(TensorDataset(x, y)),
        dp_sgd=DPSGD(example=data(kind, 3, seed=2)),
    )
    context = Context(1, 1, {}, RecordDict(), {})
    records = found(context, {}, exchanged_arrays(built(build)))

    def summed(rows: list[int]) -> Tensor:
        sums, count = records.clipped_sum(rows, 0.01)
        assert count == len(rows)
        return torch.cat([torch.from_numpy(each).flatten() for each in sums.values()])

    whole = summed(list(range(T)))
    for out in range(T):
        rest = summed([row for row in range(T) if row != out])
        assert float((whole - rest).norm()) <= 0.01 * (1 + 1e-6)
    assert float(whole.norm()) > 0.01


def test_what_is_refused_on_made_up_records_is_refused_when_a_node_is_asked_for_its_arrays() -> (
    None
):
    kind, build = REFUSED["an unused table"]
    found = NodeRecords(
        model_fn=lambda *_: built(build),
        loader_fn=lambda *_: pytest.fail("reads records"),
        dp_sgd=DPSGD(example=data(kind, 3)),
    )
    with pytest.raises(ValueError, match=r"'e\.weight' is zero"):
        found.arrays_fn(Context(1, 1, {}, RecordDict(), {}), {})


def test_a_tester_of_the_released_model_is_right_no_more_often_than_epsilon_1_allows(
    tmp_path: Path,
) -> None:
    """At epsilon 1 right at most in .731 of balanced trials; rows as records: in all of them."""
    trials, others = 60, 4
    plan = RecordPlan.calibrate(
        PrivacyBudget(epsilon=1.0, delta=1e-5),
        sampling_rate=1.0,
        steps=1,
        participations=1,
        clipping_norm=0.01,
    )
    model = built(ROWS["16 copies"][1])
    x, y = data(VECTORS, others + 1)
    x[0] *= 10.0
    template = ModuleTemplate(model)
    exact = summed_by(
        template, SingleRecords(template, LossOfEach(nn.CrossEntropyLoss())), plan.clipping_norm
    )
    target, rest = exact(x[:1], y[:1]), exact(x[1:], y[1:])
    start = exchanged_arrays(model).to_numpy_ndarrays()

    def is_there(rows: slice, trial: int) -> bool:
        client = OpacusClient(
            copy.deepcopy(model),
            DataLoader(TensorDataset(x[rows], y[rows])),
            plan=plan,
            ledger=tmp_path / f"{trial}-{rows.start}.db",
            account=Account(unit="record", source="ward"),
            dp_sgd=DPSGD(
                optimizer=lambda parameters: SGD(parameters, lr=1.0), expected_batch_size=1.0
            ),
        )
        sent, _, _ = client.fit(start, {})
        moved = torch.cat(
            [torch.from_numpy(a - b).double().flatten() for a, b in zip(start, sent, strict=True)]
        )
        direction = target / target.norm()
        return bool((moved - rest) @ direction > 0.5 * target.norm())

    right = sum(
        is_there(slice(0, None), trial) + (not is_there(slice(1, None), trial))
        for trial in range(trials)
    )
    allowed = math.exp(1.0) / (1.0 + math.exp(1.0)) + 1e-5
    assert stats.binomtest(right, 2 * trials, allowed, alternative="greater").pvalue > ALARM
    # Rows that are clipped one by one would move it by 16 norms, which is 6 standard deviations.
    loud = by_plain_hooks(model, plan.clipping_norm)(x[:1], y[:1]).norm()
    assert float(loud) > 5.0 * plan.noise_multiplier * plan.clipping_norm / 2.0


# Models that compute their loss, and numbers of few bits.


class Outputs(dict[str, Any]):
    __getattr__ = dict.__getitem__


class LanguageModel(nn.Module):
    """As a model of transformers: looks into a mask of two dimensions, takes one of four."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = table(), nn.Linear(WIDTH, WORDS)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Outputs:
        mask = attention_mask
        if mask.ndim == 2:
            if bool(mask.all()):  # as they do, which vmap can't follow
                mask = torch.ones_like(mask)
            length = mask.shape[1]
            seen = (mask[:, None, None, :] > 0) & torch.ones(length, length).bool().tril()
            mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        words = self.words(input_ids)
        value = self.mix(words)[:, None]
        query = words[:, None]
        hidden = functional.scaled_dot_product_attention(query, query, value, attn_mask=mask)
        logits = self.head(hidden[:, 0])
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Outputs(loss=loss, logits=logits)


def test_models_whose_outputs_carry_the_loss_train_each_record_alone() -> None:
    ids, _ = data(IDS, T + 1)
    mask = (torch.arange(T) < torch.tensor([4, 3, 2, 4, 3])[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    plain, full = LanguageModel(), WithFullMask(LanguageModel(), causal=True)
    sums = []
    for model, follows in ((plain, False), (full, True)):
        template, loss = ModuleTemplate(model), LossOfEach(LossInOutputs())
        way = gradients_of(template, loss, mode="records", example=(inputs, ids))
        assert isinstance(way, SingleRecords) and way.one_by_one != follows

        def summed(rows: Any, way: Gradients = way, template: ModuleTemplate = template) -> Tensor:
            total = ClippedGradients(template, way, clipping_norm=0.01, at_once=None)
            total.add({name: each[rows] for name, each in inputs.items()}, ids[rows])
            assert total.records == len(ids[rows])
            return torch.cat([each.flatten() for each in total.totals])

        whole = summed(torch.arange(T + 1))
        for out in range(T + 1):
            rest = summed(torch.arange(T + 1) != out)
            assert float((whole - rest).norm()) <= 0.01 * (1 + 1e-6)
        sums.append(whole)
    torch.testing.assert_close(*sums, atol=1e-7, rtol=0.0)
    for mode in ("hooks", "ghost"):
        with pytest.raises((ValueError, NotImplementedError)):
            gradients_of(
                ModuleTemplate(full), LossOfEach(LossInOutputs()), mode=mode, example=(inputs, ids)
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_norm(dtype: torch.dtype) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(T, WIDTH), nn.Tanh(), head())).to(dtype)
    template = ModuleTemplate(model)
    way = SingleRecords(template, LossOfEach(nn.CrossEntropyLoss()))
    x, y = data(VECTORS, T + 1)
    for norm in (1.0, 0.01):
        for row in range(T + 1):
            one = summed_by(template, way, norm)(x[[row]].to(dtype), y[[row]])
            assert 0.0 < float(one.norm()) <= norm * (1 + 1e-9)


def test_memory_s_share_bounds_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from fl_dp.clients.per_record import record_gradients

    template = ModuleTemplate(nn.Linear(1000, 10))  # 40 kB a gradient
    loss = LossOfEach(nn.CrossEntropyLoss())
    noted = SingleRecords(template, loss)
    copied = SingleRecords(template, loss, copied=template.parameters)
    assert record_gradients.records_at_once(template, copied) == 64
    monkeypatch.setattr(record_gradients, "_free_bytes", lambda device: 4_000_000)
    assert 1 <= record_gradients.records_at_once(template, copied) < 16
    assert not noted.held
    assert record_gradients.records_at_once(template, noted) == 64
    monkeypatch.setattr(record_gradients, "_free_bytes", lambda device: 0)
    assert record_gradients.records_at_once(template, copied) == 1


def test_equal_seeds_of_a_test_give_equal_coins_and_noise() -> None:
    x, y = data(VECTORS, 9)
    sums = []
    for _ in range(2):
        model = Droppy()
        train_with_dp_sgd(
            model,
            DataLoader(TensorDataset(x, y)),
            plan=QUIET,
            how=DPSGD(expected_batch_size=1.0),
            rng=SecureRandom(insecure_seed=4),
        )
        sums.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(*sums)
