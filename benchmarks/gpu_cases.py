"""One section of `gpu.py`, in a process of its own: an error of CUDA ends no other.

Each row is appended to the file as soon as it is measured: a section that is cut off leaves what
it had.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib.util
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pfl_cifar10
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy import stats
from side_by_side import Case
from small_cnn import small_cnn
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fl_dp.accelerator import chacha
from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.app.private_training import Records
from fl_dp.clients import DPSGD, RecordWise
from fl_dp.clients.cohort import UnitData, train_alone, train_units
from fl_dp.clients.cohort.image_layers import GROUPED, PRODUCTS
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.discrete_gaussian import discrete_gaussian
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
        users: Numbers of users of which a round takes that cohort.
        processes: Numbers of processes of pfl-research.
        pace_s: Seconds for which its rounds are timed.
        batch: Expected records in a sample of DP-SGD, and records in a plain step.
        steps: Steps of one participation.
        side: Height and width of the ResNet's images.
        width: Channels of the ResNet's first stage, and numbers of a token in the transformer.
        tokens: Tokens of a record.
        draws: Integers of noise drawn at once.
        tests: Options of pytest.
    """

    repeats: int
    units: tuple[int, ...]
    images: int
    clients: int
    records: int
    cohort: int
    users: tuple[int, ...]
    processes: tuple[int, ...]
    pace_s: float
    batch: int
    steps: int
    side: int
    width: int
    tokens: int
    draws: int
    tests: tuple[str, ...] = ()


FULL = Sizes(
    repeats=3,
    units=(100, 1000),
    images=20,
    clients=pfl_cifar10.CLIENTS,
    records=50,
    cohort=pfl_cifar10.COHORT,
    users=(1_000, 100_000),
    processes=(2, 4, 8),
    pace_s=8.0,
    batch=256,
    steps=10,
    side=32,
    width=64,
    tokens=128,
    draws=11_200_000,
)
SMALL = Sizes(
    repeats=1,
    units=(4, 9),
    images=12,
    clients=6,
    records=10,
    cohort=3,
    users=(6, 12),
    processes=(2,),
    pace_s=0.0,
    batch=2,
    steps=1,
    side=8,
    width=4,
    tokens=6,
    draws=200_000,
    tests=("-k", "label_out_of_range"),
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


# Noise.


def noise(bench: Bench) -> None:
    """Compare ChaCha20's words with OpenSSL's, and draws with their law; time both."""
    ways: dict[str, Callable[[Tensor, int], Tensor]] = {"operators": chacha.by_operators}
    if bench.device.type == "cuda":
        with contextlib.suppress(ImportError):
            from fl_dp.accelerator.chacha_triton import by_one_kernel

            ways = {"one kernel": by_one_kernel} | ways
    for name, way in ways.items():
        if_possible(bench, f"ChaCha20, {name}", partial(words, bench, way))
    for scale in (2.0, 2.0**30):
        name = f"{bench.sizes.draws} draws of a discrete Gaussian of scale {scale:g}"
        if_possible(bench, name, partial(draws, bench, name, scale))


def words(bench: Bench, way: Callable[[Tensor, int], Tensor]) -> Row:
    """Compare the RFC's key and a random one with OpenSSL's, and time as many blocks as draws."""
    blocks = bench.sizes.draws // 8
    for key in (bytes(range(32)), os.urandom(32)):
        start = torch.empty(chacha.START, dtype=torch.int32)
        chacha.write_start(start, key)
        on_device = start.to(bench.device)
        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        expected = cipher.update(bytes(64 * 4097))
        if way(on_device, 4097).cpu().numpy().tobytes() != expected:
            raise RuntimeError("these are not OpenSSL's words")
    times = [seconds(lambda: way(on_device, blocks), bench.device) for _ in range(3)]
    return {"blocks": blocks, "ours_s": statistics.median(times)}


def draws(bench: Bench, name: str, scale: float) -> Row:
    """Time draws on the device beside the host's, and test their law.

    Returns:
        `p`, of the law: of each integer at a small scale, of the normal law at a large one.
        `p_of_wrong` is that of a scale a tenth larger, which has to be next to 0.
    """
    law, source, rng = discrete_gaussian(scale), NoiseSource(bench.device), SecureRandom()
    size = bench.sizes.draws
    case = Case(
        name=name,
        peer="host",
        ours=lambda: source.integers(law, size, rng),
        theirs=lambda: law.sample(size, rng),
    )
    sample = source.integers(law, min(size, 10_000_000), rng).cpu().numpy()
    row = timed(bench, case)
    return row | {"p": law_p(sample, scale), "p_of_wrong": law_p(sample, 1.1 * scale)}


def law_p(sample: NDArray[np.int64], scale: float) -> float:
    """The p-value of draws under the discrete Gaussian of this scale."""
    if scale > 2.0**20:
        return float(stats.kstest(sample / scale, "norm").pvalue)
    most = int(4 * scale)
    support = np.arange(-20 * int(scale), 20 * int(scale) + 1)
    masses = np.exp(-(support**2) / (2 * scale**2))
    masses /= masses.sum()
    counts = np.bincount(np.clip(sample, -most, most) + most, minlength=2 * most + 1)
    clipped = np.clip(support, -most, most) + most
    expected = np.bincount(clipped, weights=masses) * len(sample)
    return float(stats.chisquare(counts, expected).pvalue)


# CIFAR-10 as pfl-research benchmarks it.


def cifar(bench: Bench, framework: str, *, private: bool, engine: str = "one process") -> None:
    """Train for some seconds by pfl-research's published configuration."""
    name = f"{framework}, {'with' if private else 'without'} privacy, {engine}"
    missing = {"pfl-research": "pfl"}.get(framework, "ray" if engine == "flower" else "flwr")
    if importlib.util.find_spec(missing) is None:
        bench.write({"case": name, "skipped": f"the package {missing} is not installed"})
        return
    with tempfile.TemporaryDirectory() as folder:
        data = write_images(Path(folder), bench.sizes)
        task = cifar_task(bench, folder) | {
            "framework": framework,
            "private": private,
            "engine": engine,
        }
        with contextlib.redirect_stdout(sys.stderr):  # where pfl-research prints its metrics
            measured = pfl_cifar10.done(task)
    bench.write({"case": name, "data": data} | pace(measured))


def cifar_task(bench: Bench, folder: str) -> dict[str, Any]:
    """What every process that trains by this configuration is told."""
    return {
        "folder": folder,
        "private": True,
        "clients": bench.sizes.clients,
        "cohort": bench.sizes.cohort,
        "seconds": bench.sizes.pace_s,
        "rounds": pfl_cifar10.PUBLISHED_ROUNDS,
        "noise_multiplier": pfl_cifar10.published_noise(),
        "seed": 0,
    }


def pace(measured: Mapping[str, float]) -> Row:
    """What a row says of a training's rounds."""
    keys = ("rounds", "seconds_per_round", "clients_per_s", "bytes")
    row = {key: measured[key] for key in keys if key in measured}
    minutes = pfl_cifar10.PUBLISHED_ROUNDS * measured["seconds_per_round"] / 60
    return {**row, "minutes_of_1500_rounds": minutes}


def users(bench: Bench) -> None:
    """Take cohorts from more and more users, with privacy, in one process."""
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), bench.sizes)
        for count in bench.sizes.users:
            task = cifar_task(bench, folder) | {"framework": "fl-dp", "clients": count}
            measure = partial(lambda task: pace(pfl_cifar10.done(task)), task)
            if_possible(bench, f"fl-dp, {count} users", measure)


def cifar_processes(bench: Bench) -> None:
    """Let several processes of pfl-research share the device, with privacy."""
    if importlib.util.find_spec("pfl") is None:
        bench.write({"case": "pfl-research", "skipped": "the package pfl is not installed"})
        return
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), bench.sizes)
        task = cifar_task(bench, folder) | {"framework": "pfl-research"}
        for count in bench.sizes.processes:
            name = f"pfl-research, with privacy, {count} processes"
            if_possible(bench, name, partial(side_by_side_processes, task, count))


def side_by_side_processes(task: dict[str, Any], count: int) -> Row:
    """Train in so many processes, whose rounds are the same; the first one's pace counts."""
    addresses = ",".join(f"localhost:{free_port()}" for _ in range(count))
    processes = [
        subprocess.Popen(
            pfl_cifar10.command_of(task, Path(sys.executable)),
            env=os.environ | {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else sys.stderr,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        output, _ = processes[0].communicate(timeout=120)
        return pace(pfl_cifar10.result_in(output))
    finally:
        for process in processes:  # others wait for the first one's next round
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        port: int = bound.getsockname()[1]
        return port


def write_images(folder: Path, sizes: Sizes) -> str:
    """Write CIFAR-10 if it is here, else made-up images of its shape; return which, in words."""
    if sizes is FULL:
        with contextlib.suppress(FileNotFoundError):
            pfl_cifar10.prepare(folder)
            return "CIFAR-10"
    pfl_cifar10.make_up(folder, train=sizes.clients * sizes.records, test=100)
    return "made up"


# Units trained together.


def units(bench: Bench) -> None:
    """Train pfl-research's cohort beside its clients one by one, and units of the small CNN."""
    sizes = bench.sizes
    name = f"{sizes.cohort} units of {sizes.records} images, pfl-research's CNN"
    if_possible(bench, name, partial(cohort_beside_alone, bench, name))
    for ways, peer in (("products", "grouped"), ("CUDA graphs", "plain steps")):
        case = f"{name}, {ways} beside {peer}"
        if_possible(bench, case, partial(beside, bench, case, peer))
    for count in sizes.units:
        name = f"{count} units of {sizes.images} images, small CNN"
        shape = (sizes.images, 1, 28, 28)
        if_possible(bench, name, partial(trained_units, bench, name, small_cnn, count, shape))


def cohort(bench: Bench) -> tuple[nn.Module, list[UnitData]]:
    """pfl-research's CNN, and a cohort's records on the device."""
    shape = (bench.sizes.records, 3, 32, 32)
    data = [
        UnitData(
            features=torch.randn(shape, device=bench.device),
            labels=torch.randint(CLASSES, shape[:1], device=bench.device),
            seed=unit,
        )
        for unit in range(bench.sizes.cohort)
    ]
    return pfl_cifar10.their_cnn(0).to(bench.device), data


def in_one_go(bench: Bench, model: nn.Module, data: Sequence[UnitData], **way: Any) -> int:
    """Train units, on a CPU all at once; return how many were."""
    training = plain_sgd(learning_rate=UNIT_LEARNING_RATE, epochs=1, batch_size=UNIT_BATCH_SIZE)
    at_once = len(data) if bench.device.type == "cpu" else None
    trained = train_units(model, data, training, at_once=at_once, **way)
    return max(len(places) for places, _ in trained)


def cohort_beside_alone(bench: Bench, name: str) -> Row:
    """Train a cohort with dropout in one go, and one client after the other, on the device."""
    model, data = cohort(bench)
    training = plain_sgd(learning_rate=UNIT_LEARNING_RATE, epochs=1, batch_size=UNIT_BATCH_SIZE)
    sizes: list[int] = []

    def one_by_one() -> None:
        for unit in data:
            train_alone(copy.deepcopy(model), unit, training)

    def together() -> None:
        sizes.append(in_one_go(bench, model, data))

    row = timed(bench, Case(name=name, peer="one by one", ours=together, theirs=one_by_one))
    return row | {"units_per_s": len(data) / row["ours_s"], "at_once": max(sizes)}


WAYS_OF_A_COHORT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grouped": ({"images": PRODUCTS}, {"images": GROUPED}),
    "plain steps": ({"graphs": True}, {"graphs": False}),
}


def beside(bench: Bench, name: str, peer: str) -> Row:
    """Train a cohort in one way, and in another."""
    model, data = cohort(bench)
    ours, theirs = (partial(in_one_go, bench, model, data, **way) for way in WAYS_OF_A_COHORT[peer])
    return timed(bench, Case(name=name, peer=peer, ours=ours, theirs=theirs))


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


WAYS: dict[str, Callable[..., DPSGD]] = {
    "records": DPSGD,
    "ghost": partial(DPSGD, grad_sample_mode="ghost"),
    "hooks": partial(DPSGD, grad_sample_mode="hooks"),
}


def dp_sgd(bench: Bench, model: str) -> None:
    """Take steps of DP-SGD by each way to clipped gradients, beside plain steps."""
    for way in WAYS:
        name = f"{model}, {way}"
        if_possible(bench, name, partial(dp_sgd_step, bench, name, MODELS[model], way))


def dp_sgd_step(bench: Bench, name: str, model: Model, way: str) -> Row:
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
        arguments += [f"--rootdir={REPOSITORY}", *bench.sizes.tests]
        status = pytest.main(arguments, plugins=[outcomes])
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
            times[side].append(seconds(sides[side], bench.device))
    ours, peer = (statistics.median(times[side]) for side in sides)
    return {"ours_s": ours, "peer_s": peer, "ratio": ours / peer, "turns": turn + 1, **row}


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time a run until the device has done its work, which kernels only queue."""
    begun = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


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
    "noise": noise,
    "CIFAR-10, fl-dp": partial(cifar, framework="fl-dp", private=True),
    "CIFAR-10, pfl-research": partial(cifar, framework="pfl-research", private=True),
    "CIFAR-10, fl-dp, Ray": partial(cifar, framework="fl-dp", private=True, engine="flower"),
    "DP-SGD, small CNN": partial(dp_sgd, model="small CNN"),
    "DP-SGD, ResNet-18": partial(dp_sgd, model="ResNet-18"),
    "DP-SGD, transformer": partial(dp_sgd, model="transformer"),
    "CIFAR-10, pfl-research, processes": cifar_processes,
    "units": units,
    "users": users,
    "tests": tests,
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

    if options.device == "cpu":
        torch.set_num_threads(1)  # models this small only wait for each other's threads
    bench = Bench(
        device=torch.device(options.device),
        sizes=FULL if options.device == "cuda" else SMALL,
        until=time.monotonic() + options.seconds,
        write=write,
    )
    SECTIONS[options.section](bench)


if __name__ == "__main__":
    main()
