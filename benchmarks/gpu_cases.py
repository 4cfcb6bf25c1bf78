"""One section of `gpu.py`, in a process of its own: an error of CUDA ends no other.

Each row is appended to the file as soon as it is measured: a section that is cut off leaves what
it had.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pfl_cifar10
import torch
from numpy.typing import NDArray
from side_by_side import Case
from small_cnn import small_cnn
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fl_dp.app.private_training import Records
from fl_dp.clients import DPSGD, RecordWise
from fl_dp.clients.cohort import UnitData, train_units
from fl_dp.clients.dp_sgd import train_with_dp_sgd
from fl_dp.clients.module_template import ModuleTemplate
from fl_dp.clients.record_batches import BatchForm
from fl_dp.clients.record_gradients import RecordGradients
from fl_dp.clients.record_loss import LossOfEach
from fl_dp.clients.single_records import SingleRecords
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import RecordPlan
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import plain_sgd

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = "tests/app/test_on_devices.py"
UNIT_LEARNING_RATE, UNIT_BATCH_SIZE = 0.1, 10
ROUNDING = 1e-5  # of a unit's parameters; training moves them by more than 1e-2
STEP_LEARNING_RATE = 1e-3  # small: the timed model is trained on and on, and must stay finite
NOISE, CLIPPING_NORM = 1.1, 1.0
BATCHES = 4  # of the expected size in the records: each is in a sample with probability 1/4
CLASSES, VOCABULARY = 10, 256

Row = dict[str, Any]
Write = Callable[[Row], None]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is done.

    Attributes:
        repeats: Turns of each case, if time suffices.
        units: Numbers of units trained together, a case each.
        images: Images of a unit.
        clients: Of pfl-research's CIFAR-10.
        records: Images of each of these clients.
        cohort: Clients expected in a round of it.
        pace_s: Seconds for which its rounds are timed.
        batch: Expected records in a sample of DP-SGD, and records in a plain step.
        steps: Steps of one participation.
        side: Height and width of the ResNet's images.
        width: Channels of the ResNet's first stage, and numbers of a token in the transformer.
        tokens: Tokens of a record.
    """

    repeats: int
    units: tuple[int, ...]
    images: int
    clients: int
    records: int
    cohort: int
    pace_s: float
    batch: int
    steps: int
    side: int
    width: int
    tokens: int


FULL = Sizes(
    repeats=3,
    units=(100, 256, 1000),
    images=20,
    clients=pfl_cifar10.CLIENTS,
    records=50,
    cohort=pfl_cifar10.COHORT,
    pace_s=15.0,
    batch=256,
    steps=10,
    side=32,
    width=64,
    tokens=128,
)
SMALL = Sizes(
    repeats=1,
    units=(4, 9),
    images=12,
    clients=6,
    records=10,
    cohort=3,
    pace_s=0.0,
    batch=8,
    steps=2,
    side=8,
    width=8,
    tokens=6,
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where a section runs, how much it does, and until when.

    Attributes:
        until: No further turn is begun after it, by `time.monotonic`.
        write: Keeps a row.
    """

    device: torch.device
    sizes: Sizes
    until: float
    write: Write


# CIFAR-10 as pfl-research benchmarks it.


def cifar(bench: Bench, framework: str, *, private: bool) -> None:
    """Train for some seconds by pfl-research's published configuration."""
    privacy = "with privacy" if private else "without privacy"
    row: Row = {"case": f"{framework}, {privacy}"}
    if framework == "pfl-research" and importlib.util.find_spec("pfl") is None:
        bench.write(row | {"skipped": "the package pfl is not installed"})
        return
    with tempfile.TemporaryDirectory() as folder:
        row["data"] = write_images(Path(folder), bench.sizes)
        task = {
            "framework": framework,
            "folder": folder,
            "private": private,
            "clients": bench.sizes.clients,
            "cohort": bench.sizes.cohort,
            "seconds": bench.sizes.pace_s,
            "rounds": pfl_cifar10.PUBLISHED_ROUNDS,
            "noise_multiplier": pfl_cifar10.published_noise(),
            "seed": 0,
        }
        with contextlib.redirect_stdout(sys.stderr):  # where pfl-research prints its metrics
            measured = pfl_cifar10.done(task)
    minutes = pfl_cifar10.PUBLISHED_ROUNDS * measured["seconds_per_round"] / 60
    keys = ("rounds", "seconds_per_round", "clients_per_s")
    bench.write(row | {key: measured[key] for key in keys} | {"minutes_of_1500_rounds": minutes})


def write_images(folder: Path, sizes: Sizes) -> str:
    """Write CIFAR-10 if it is here, else made-up images of its shape; return which, in words."""
    if sizes is FULL:
        with contextlib.suppress(FileNotFoundError):
            pfl_cifar10.prepare(folder)
            return "CIFAR-10"
    rng = np.random.default_rng(0)
    for part, count in (("train", sizes.clients * sizes.records), ("test", 100)):
        images = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
        np.save(folder / f"{part}_x.npy", images)
        np.save(folder / f"{part}_y.npy", rng.integers(CLASSES, size=count))
    return "made up"


# Units trained together.


def units(bench: Bench) -> None:
    """Train units of the small CNN, and pfl-research's cohort without its dropout."""
    sizes = bench.sizes
    for count in sizes.units:
        name = f"{count} units of {sizes.images} images, small CNN"
        shape = (sizes.images, 1, 28, 28)
        if_possible(bench, name, partial(trained_units, bench, name, small_cnn, count, shape))
    name = f"{sizes.cohort} units of {sizes.records} images, pfl-research's CNN without dropout"
    shape = (sizes.records, 3, 32, 32)
    once = replace(bench, sizes=replace(sizes, repeats=1))  # the CPU takes many seconds
    measure = partial(trained_units, once, name, without_dropout, sizes.cohort, shape)
    if_possible(bench, name, measure)


def without_dropout() -> nn.Module:
    """pfl-research's CNN without dropout, with which units are trained one by one."""
    layers = pfl_cifar10.their_cnn(0)
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Dropout)))


def trained_units(
    bench: Bench, name: str, make: Callable[[], nn.Module], count: int, shape: tuple[int, ...]
) -> Row:
    """Train units together on the device, and on the CPU.

    Times are with PyTorch's own rounding, TF32 for convolutions. `largest_difference` of a
    parameter between device and CPU is without it, `as_timed` with it. `apart` is the share of
    units that differ by more than `ROUNDING`. Some do: a maximum of numbers that are equal up to
    rounding takes the other one. Of 1,000 units of the small CNN, 6 differ so between float32 and
    float64 on one CPU. `largest_change` is the most that training moved a parameter on the CPU.
    """
    rng = np.random.default_rng(0)
    data = [
        UnitData(
            features=torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)),
            labels=torch.from_numpy(rng.integers(CLASSES, size=shape[0])),
            seed=unit,
        )
        for unit in range(count)
    ]
    on_device_model, on_cpu_model = make().to(bench.device), make()
    case = Case(
        name=name,
        peer="CPU",
        ours=lambda: [len(places) for places, _ in trained(on_device_model, data)],
        theirs=lambda: [len(places) for places, _ in trained(on_cpu_model, data)],
    )
    row = timed(bench, case)
    on_cpu, as_timed = (
        in_order(trained(model, data), count) for model in (on_cpu_model, on_device_model)
    )
    # Rounding to TF32 is a choice of PyTorch's, and no error of training together.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        on_device = in_order(trained(on_device_model, data), count)
    start = np.concatenate(
        [values.detach().numpy().ravel() for values in on_cpu_model.parameters()]
    )
    differences = np.abs(on_device - on_cpu).max(axis=1)
    return row | {
        "units_per_s": count / row["ours_s"],
        "peer_units_per_s": count / row["peer_s"],
        "at_once": max(len(places) for places, _ in trained(on_device_model, data)),
        "apart": float((differences > ROUNDING).mean()),
        "largest_difference": float(differences.max()),
        "as_timed": float(np.abs(as_timed - on_cpu).max()),
        "largest_change": float(np.abs(on_cpu - start).max()),
    }


def trained(
    model: nn.Module, data: Sequence[UnitData]
) -> Iterator[tuple[list[int], NDArray[np.floating]]]:
    """Train an epoch of each unit, on the model's device."""
    training = plain_sgd(learning_rate=UNIT_LEARNING_RATE, epochs=1, batch_size=UNIT_BATCH_SIZE)
    for places, vectors in train_units(model, data, training):
        yield places, vectors.cpu().numpy()


def in_order(
    chunks: Iterator[tuple[list[int], NDArray[np.floating]]], count: int
) -> NDArray[np.floating]:
    """The trained units `(count, d)` in the order of their data."""
    by_place = {
        index: vector
        for places, vectors in chunks
        for index, vector in zip(places, vectors, strict=True)
    }
    return np.stack([by_place[index] for index in range(count)])


# Steps of DP-SGD.


class Attention(nn.Module):
    """Causal self-attention of linear layers, which every way to gradients knows."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._heads = heads

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape, `(n, tokens, width)`."""
        heads = self.joint(states).unflatten(2, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        tokens = states.shape[1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=states.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(3) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads=4))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape, `(n, tokens, width)`."""
        states = states + self.attention(states)
        out: Tensor = states + self.mlp(states)
        return out


class Decoder(nn.Module):
    """A transformer that names the class of its last token; without positions."""

    def __init__(self, width: int) -> None:
        """Make four layers."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Embedding(VOCABULARY, width), *(Block(width) for _ in range(4)), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(n, classes)`."""
        logits: Tensor = self.head(self.body(tokens)[:, -1])
        return logits


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


class OneByOne(DPSGD):
    """DP-SGD record by record, as where vmap can't follow the model."""

    def gradients(
        self, template: ModuleTemplate, *, clipping_norm: float, rng: SecureRandom
    ) -> RecordGradients:
        """Build what adds up the clipped gradients; see `DPSGD.gradients`."""
        return RecordGradients(
            template,
            SingleRecords(template, LossOfEach(self.criterion), one_by_one=True),
            clipping_norm=clipping_norm,
            at_once=self.physical_batch_size,
            form=BatchForm(inputs=self.input_key, targets=self.target_key),
            chance=rng,
        )


WAYS: dict[str, Callable[..., DPSGD]] = {
    "records": DPSGD,
    "ghost": partial(DPSGD, grad_sample_mode="ghost"),
    "hooks": partial(DPSGD, grad_sample_mode="hooks"),
    "records, torch's noise": partial(DPSGD, secure_randomness=False),
    "one by one": OneByOne,
}
FEW_STEPS = 1  # one by one, which takes hundreds of times as long as the others on a GPU


def dp_sgd(bench: Bench, model: str) -> None:
    """Take steps of DP-SGD by each way to clipped gradients, beside plain steps."""
    for way in WAYS:
        sizes = replace(bench.sizes, steps=FEW_STEPS) if way == "one by one" else bench.sizes
        name = f"{model}, {way}"
        if_possible(bench, name, partial(dp_sgd_step, bench, name, MODELS[model], way, sizes))


def dp_sgd_step(bench: Bench, name: str, model: Model, way: str, sizes: Sizes) -> Row:
    """Time one participation by DP-SGD, and as many plain steps; return a row of one step.

    The time includes wrapping the model, as a client wraps it for each participation.
    """
    torch.manual_seed(0)
    count = BATCHES * sizes.batch
    records = Records(
        model.records(sizes, count).to(bench.device),
        torch.randint(CLASSES, (count,)).to(bench.device),
    )
    how = WAYS[way](
        optimizer=partial(torch.optim.SGD, lr=STEP_LEARNING_RATE),
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
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_LEARNING_RATE)
    for _ in range(sizes.steps):
        features, labels = records.__getitems__(
            torch.randperm(len(records))[: sizes.batch].tolist()
        )
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(features), labels))
        optimizer.step()


# Tests.


class Outcomes:
    """A plugin of pytest that counts tests by outcome, and names the failed ones."""

    def __init__(self) -> None:
        """Start from none."""
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test once: when it was called, or where it ended before that."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.outcome == "failed":
            self.failed.append(report.nodeid)


def tests(bench: Bench) -> None:
    """Run the tests on devices."""
    import pytest

    outcomes = Outcomes()
    with contextlib.redirect_stdout(sys.stderr):
        # Other tests' fixtures need packages that these do not.
        arguments = ["--noconftest", "-rs", "-p", "no:cacheprovider", str(REPOSITORY / TESTS)]
        status = pytest.main([*arguments, f"--rootdir={REPOSITORY}"], plugins=[outcomes])
    row: Row = {"case": TESTS, **outcomes.counts, "exit_status": int(status)}
    bench.write(row | ({"names": outcomes.failed} if outcomes.failed else {}))


# Time and memory.


def timed(bench: Bench, case: Case) -> Row:
    """Time both sides, which take turns; return medians, and peaks of memory of the first run.

    Returns:
        `ours_s`, `peer_s`, `ratio`, `turns`, and on a GPU `ours_bytes` and `peer_bytes`: the most
        that PyTorch had allocated at a time, with data and models of both sides.
    """
    sides = {"ours": case.ours, "peer": case.theirs}
    row: Row = {f"{side}_bytes": peak_bytes(run, bench.device) for side, run in sides.items()}
    if bench.device.type != "cuda":
        row = {}
    elif case.peer == "CPU":
        del row["peer_bytes"]
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(bench.sizes.repeats):
        if turn > 0 and time.monotonic() > bench.until:
            break
        for side in sorted(sides, reverse=turn % 2 == 1):
            begun = time.perf_counter()
            synchronized(sides[side], bench.device)
            times[side].append(time.perf_counter() - begun)
    ours, peer = (statistics.median(times[side]) for side in sides)
    return {"ours_s": ours, "peer_s": peer, "ratio": ours / peer, "turns": turn + 1, **row}


def synchronized(run: Callable[[], object], device: torch.device) -> None:
    """Run until the device has done its work, which kernels only queue."""
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Run, and return the most that PyTorch had allocated on the GPU at a time; 0 on the CPU."""
    if device.type != "cuda":
        run()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device)


def if_possible(bench: Bench, name: str, measure: Callable[[], Row]) -> None:
    """Measure a case if there is time and memory, and leave nothing on the GPU."""
    if time.monotonic() > bench.until:
        bench.write({"case": name, "skipped": "no time was left in its section"})
        return
    try:
        bench.write({"case": name, **measure()})
    except torch.OutOfMemoryError:
        bench.write({"case": name, "skipped": "out of memory"})
    except (NotImplementedError, ValueError) as refused:
        bench.write({"case": name, "skipped": f"refused: {refused}"})
    finally:
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()  # what units may take is judged by what the driver calls free


SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "CIFAR-10, fl-dp": partial(cifar, framework="fl-dp", private=True),
    "CIFAR-10, pfl-research": partial(cifar, framework="pfl-research", private=True),
    "units": units,
    "tests": tests,
    "DP-SGD, small CNN": partial(dp_sgd, model="small CNN"),
    "DP-SGD, ResNet-18": partial(dp_sgd, model="ResNet-18"),
    "DP-SGD, transformer": partial(dp_sgd, model="transformer"),
    "CIFAR-10, fl-dp, no privacy": partial(cifar, framework="fl-dp", private=False),
    "CIFAR-10, pfl-research, no privacy": partial(cifar, framework="pfl-research", private=False),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one section; `gpu.py` starts it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--seconds", type=float, required=True, help="no turn begins after them")
    parser.add_argument("--rows", type=Path, required=True, help="rows are appended, JSON each")
    options = parser.parse_args(arguments)

    def write(row: Row) -> None:
        line = json.dumps({"section": options.section, **row})
        with options.rows.open("a", encoding="utf-8") as rows:
            rows.write(line + "\n")
        print(line, flush=True)

    bench = Bench(
        device=torch.device(options.device),
        sizes=FULL if options.device == "cuda" else SMALL,
        until=time.monotonic() + options.seconds,
        write=write,
    )
    SECTIONS[options.section](bench)


if __name__ == "__main__":
    main()
