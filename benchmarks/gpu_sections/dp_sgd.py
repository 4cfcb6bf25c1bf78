"""Steps of DP-SGD by each way to clipped gradients, beside plain steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from side_by_side import Case
from small_cnn import small_cnn
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fl_dp.app.private_training import Records
from fl_dp.clients import DPSGD, RecordWise
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.plan import RecordPlan
from fl_dp.tasks.models import build_model

from .bench import CLASSES, Bench, Row, Sizes
from .decoder import VOCABULARY, Decoder
from .timing import if_possible, timed

LEARNING_RATE = 1e-3  # small: the timed model is trained on and on, and must stay finite
NOISE, CLIPPING_NORM = 1.1, 1.0
BATCHES = 4  # of the expected size in the records: each is in a sample with probability 1/4


@dataclass(frozen=True, kw_only=True)
class Model:
    """What DP-SGD trains; `records` makes the features of so many records."""

    make: Callable[[Sizes], nn.Module]
    records: Callable[[Sizes, int], Tensor]


def resnet18(sizes: Sizes) -> nn.Module:
    """A ResNet-18 with GroupNorm: 11.2 million parameters at width 64."""
    return build_model(
        "resnet18",
        input_shape=(3, sizes.side, sizes.side),
        num_classes=CLASSES,
        hidden=sizes.width,
        seed=0,
    )


def decoder(sizes: Sizes) -> nn.Module:
    """A decoder four times as wide as the ResNet's first stage: 3.2 million parameters."""
    torch.manual_seed(0)
    return Decoder(4 * sizes.width)


MODELS = {
    "small CNN": Model(
        make=lambda sizes: small_cnn(), records=lambda sizes, count: torch.randn(count, 1, 28, 28)
    ),
    "ResNet-18": Model(
        make=resnet18,
        records=lambda sizes, count: torch.randn(count, 3, sizes.side, sizes.side),
    ),
    "transformer": Model(
        make=decoder,
        records=lambda sizes, count: torch.randint(VOCABULARY, (count, sizes.tokens)),
    ),
}


WAYS: dict[str, Callable[..., DPSGD]] = {
    "records": DPSGD,
    "ghost": partial(DPSGD, grad_sample_mode="ghost"),
    "hooks": partial(DPSGD, grad_sample_mode="hooks"),
}


def steps(bench: Bench, model: str) -> None:
    """Take steps of DP-SGD by each way to clipped gradients, beside plain steps."""
    for way in WAYS:
        name = f"{model}, {way}"
        if_possible(bench, name, partial(one_participation, bench, name, MODELS[model], way))


def one_participation(bench: Bench, name: str, model: Model, way: str) -> Row:
    """Time one participation by DP-SGD, and as many plain steps; return a row of one step.

    The time includes wrapping the model, as a client wraps it for each participation.
    """
    torch.manual_seed(0)
    sizes = bench.sizes
    count = BATCHES * sizes.batch
    records = Records(
        model.records(sizes, count).to(bench.device),
        torch.randint(CLASSES, (count,)).to(bench.device),
    )
    how = WAYS[way](
        optimizer=partial(torch.optim.SGD, lr=LEARNING_RATE),
        example=(model.records(sizes, 2), torch.arange(2)),
    )
    plan = RecordPlan.from_noise_multiplier(
        NOISE,
        delta=1e-5,
        max_epsilon=1e3,
        sampling_rate=1 / BATCHES,
        steps=sizes.steps,
        participations=1,
        clipping_norm=CLIPPING_NORM,
    )
    private, plain = model.make(sizes).to(bench.device), model.make(sizes).to(bench.device)
    loader = DataLoader(records, collate_fn=RecordWise(lambda batch: batch))
    case = Case(
        name=name,
        peer="plain SGD",
        ours=lambda: train_with_dp_sgd(private, loader, plan=plan, how=how),
        theirs=lambda: plain_steps(plain, records, sizes),
    )
    row = timed(bench, case)
    if not all(torch.isfinite(values).all() for values in private.parameters()):
        raise RuntimeError(f"{name}: the model is not finite, so its steps were not timed as such")
    return row | {side: row[side] / sizes.steps for side in ("ours_s", "peer_s")}


def plain_steps(model: nn.Module, records: Records, sizes: Sizes) -> None:
    """Take as many steps without privacy, on as many records each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(sizes.steps):
        features, labels = records.__getitems__(
            torch.randperm(len(records))[: sizes.batch].tolist()
        )
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(features), labels))
        optimizer.step()
