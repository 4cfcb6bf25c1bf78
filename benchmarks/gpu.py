"""What a GPU does for a node: many units trained together, and one step of DP-SGD.

    python benchmarks/gpu.py [--device cuda] [--repeats 5] [--threads 16] [--json]

Units: the small CNN, trained together on the GPU and, as the peer, on the CPU of the same machine;
both have to come out alike in float32. Times are with PyTorch's own choice, TF32 for convolutions;
how far that moves a parameter is a column of its own. DP-SGD: a step by each way to get clipped
gradients, with noise of ours (made on the CPU) and of torch; the peer is a plain step of SGD on the
same device. The wrapping of the model is in the time of the steps, as a client wraps it for each
participation. Peak memory is what PyTorch had allocated, with data and models of both sides.

`--device cpu` runs the same code at small sizes, to try the script; its numbers say nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from side_by_side import Case, compare
from small_cnn import small_cnn
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fl_dp.app.private_training import Records
from fl_dp.clients import DPSGD, RecordWise
from fl_dp.clients.dp_sgd import train_with_dp_sgd
from fl_dp.plan import RecordPlan
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import UnitData, train_together

GRAD_SAMPLE_MODES = ("vmap", "hooks", "ghost")
UNIT_LEARNING_RATE, UNIT_BATCH_SIZE = 0.1, 10
STEP_LEARNING_RATE = 1e-3  # small: the timed model is trained on and on, and must stay finite
NOISE, CLIPPING_NORM = 1.1, 1.0
BATCHES = 4  # of the expected size in the records: each is in a sample with probability 1/4
TOLERANCE = 1e-4

Row = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is done.

    Attributes:
        units: How many units are trained together, a case each.
        images: Images of a unit.
        batch: Expected records in a sample of DP-SGD, and records in a plain step.
        steps: Steps of one participation.
        side: Height and width of the ResNet's images.
        width: Channels of the ResNet's first stage.
    """

    units: tuple[int, ...]
    images: int
    batch: int
    steps: int
    side: int
    width: int


FULL = Sizes(units=(100, 256, 1000), images=20, batch=256, steps=20, side=32, width=64)
SMALL = Sizes(units=(4, 9), images=12, batch=8, steps=2, side=8, width=8)


def measured(device: torch.device, sizes: Sizes, repeats: int) -> dict[str, Row]:
    """Measure all cases.

    Returns:
        For each case `ours_s`, `peer_s` and `ratio`, and `ours_bytes` and `peer_bytes`, None where
        the work is the CPU's. Times are of one training of all units, or of one step. A case for
        which the GPU's memory does not suffice has None for all of them. Units also have
        `units_per_s`, `peer_units_per_s`, `at_once` (how many the device trained at once),
        `largest_difference` of a parameter between device and CPU, both in float32, `as_timed`,
        the same with the rounding that was timed, and `largest_change`, the most that training
        moved one on the CPU.
    """
    rows: dict[str, Row] = {}
    for count in sizes.units:
        name = f"{count} units of {sizes.images} images"
        rows[name] = if_memory_suffices(partial(units, name, count, device, sizes, repeats))
    for model, (shape, _) in MODELS.items():
        for mode in GRAD_SAMPLE_MODES:
            for secure in (True, False):
                noise = "our noise" if secure else "torch's noise"
                name = f"{model}, {mode}, {noise}"
                how = DPSGD(
                    optimizer=partial(torch.optim.SGD, lr=STEP_LEARNING_RATE),
                    grad_sample_mode=mode,
                    example=(torch.zeros(2, *shape(sizes)), torch.arange(2)),
                    secure_randomness=secure,
                )
                rows[name] = if_memory_suffices(
                    partial(dp_sgd_step, name, model, how, device, sizes, repeats)
                )
    return rows


def units(name: str, count: int, device: torch.device, sizes: Sizes, repeats: int) -> Row:
    """Train units together on the device, and on the CPU."""
    rng = np.random.default_rng(0)
    data = [
        UnitData(
            features=rng.normal(size=(sizes.images, 1, 28, 28)).astype(np.float32),
            labels=rng.integers(0, 10, size=sizes.images),
            seed=unit,
        )
        for unit in range(count)
    ]
    there, here = small_cnn().to(device), small_cnn()
    case = Case(
        name=name,
        peer="CPU",
        ours=synchronized(lambda: [len(places) for places, _ in trained(there, data)], device),
        theirs=lambda: [len(places) for places, _ in trained(here, data)],
    )
    row = timed(case, device, repeats)
    row["peer_bytes"] = None  # the CPU's
    on_cpu, as_timed = (in_order(trained(model, data), count) for model in (here, there))
    # Rounding to TF32 is a choice of PyTorch's, and no error of training together.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        on_device = in_order(trained(there, data), count)
    start = np.concatenate([values.detach().numpy().ravel() for values in here.parameters()])
    return row | {
        "units_per_s": count / seconds(row, "ours_s"),
        "peer_units_per_s": count / seconds(row, "peer_s"),
        "at_once": max(len(places) for places, _ in trained(there, data)),
        "largest_difference": float(np.abs(on_device - on_cpu).max()),
        "as_timed": float(np.abs(as_timed - on_cpu).max()),
        "largest_change": float(np.abs(on_cpu - start).max()),
    }


def trained(
    model: nn.Module, data: Sequence[UnitData]
) -> Iterator[tuple[list[int], NDArray[np.floating]]]:
    """Train an epoch of each unit, on the model's device."""
    return train_together(
        model,
        data,
        learning_rate=UNIT_LEARNING_RATE,
        epochs=1,
        batch_size=UNIT_BATCH_SIZE,
    )


def in_order(
    chunks: Iterator[tuple[list[int], NDArray[np.floating]]], count: int
) -> NDArray[np.floating]:
    """Return the trained units `(count, d)` in the order of their data."""
    by_place = {
        place: vector
        for places, vectors in chunks
        for place, vector in zip(places, vectors, strict=True)
    }
    return np.stack([by_place[place] for place in range(count)])


def dp_sgd_step(
    name: str, model: str, how: DPSGD, device: torch.device, sizes: Sizes, repeats: int
) -> Row:
    """Train for one participation by DP-SGD, and for as many plain steps; a row of one step."""
    shape, make = MODELS[model]
    generator = torch.Generator().manual_seed(0)
    count = BATCHES * sizes.batch
    records = Records(
        torch.randn((count, *shape(sizes)), generator=generator).to(device),
        torch.randint(10, (count,), generator=generator).to(device),
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
    private, plain = make(sizes).to(device), make(sizes).to(device)
    loader = DataLoader(records, collate_fn=RecordWise(lambda batch: batch))
    case = Case(
        name=name,
        peer="plain SGD",
        ours=synchronized(lambda: train_with_dp_sgd(private, loader, plan=plan, how=how), device),
        theirs=synchronized(lambda: plain_steps(plain, records, sizes), device),
    )
    row = timed(case, device, repeats)
    if not all(torch.isfinite(values).all() for values in private.parameters()):
        raise RuntimeError(f"{name}: the model is not finite, so its steps were not timed as such")
    return row | {side: seconds(row, side) / sizes.steps for side in ("ours_s", "peer_s")}


MODELS: dict[str, tuple[Callable[[Sizes], tuple[int, int, int]], Callable[[Sizes], nn.Module]]] = {
    "small CNN": (lambda sizes: (1, 28, 28), lambda sizes: small_cnn()),
    "ResNet-18": (
        lambda sizes: (3, sizes.side, sizes.side),
        lambda sizes: build_model(
            "resnet18",
            input_shape=(3, sizes.side, sizes.side),
            num_classes=10,
            hidden=sizes.width,
            seed=0,
        ),
    ),
}


def plain_steps(model: nn.Module, records: Records, sizes: Sizes) -> None:
    """Train as many steps without privacy, on as many records each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_LEARNING_RATE)
    for _ in range(sizes.steps):
        features, labels = records.__getitems__(
            torch.randperm(len(records))[: sizes.batch].tolist()
        )
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(features), labels))
        optimizer.step()


def timed(case: Case, device: torch.device, repeats: int) -> Row:
    """Time both sides, which have run before the clock starts, and then look at their memory."""
    row: Row = dict(compare([case], repeats)[case.name])
    return row | {
        "ours_bytes": peak_bytes(case.ours, device),
        "peer_bytes": peak_bytes(case.theirs, device),
    }


def synchronized(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return a run that ends when the device has done its work: kernels are only queued before."""
    if device.type != "cuda":
        return run

    def until_done() -> object:
        result = run()
        torch.cuda.synchronize(device)
        return result

    return until_done


def peak_bytes(run: Callable[[], object], device: torch.device) -> float | None:
    """Return the most that PyTorch had allocated on the GPU at a time; None on the CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return float(torch.cuda.max_memory_allocated(device))


def if_memory_suffices(measure: Callable[[], Row]) -> Row:
    """Measure, and leave nothing on the GPU; None for each number if its memory runs out."""
    try:
        return measure()
    except torch.OutOfMemoryError:
        return dict.fromkeys(("ours_s", "peer_s", "ratio", "ours_bytes", "peer_bytes"))
    finally:
        gc.collect()
        torch.cuda.empty_cache()  # what units may take is judged by what the driver calls free


def seconds(row: Row, side: str) -> float:
    """Return a time that was measured."""
    value = row[side]
    assert value is not None
    return value


def objections(rows: dict[str, Row]) -> list[str]:
    """Return what is wrong with units trained together, a sentence each."""
    found = []
    for name, row in rows.items():
        difference, change, at_once = (
            row.get(key) for key in ("largest_difference", "largest_change", "at_once")
        )
        if difference is None or change is None:
            continue
        if not difference <= TOLERANCE:
            found.append(
                f"{name}: a parameter differs from the CPU's by {difference:.2g}, more than "
                f"{TOLERANCE:g}, and TF32 was off"
            )
        if not change > 10 * TOLERANCE:
            found.append(
                f"{name}: training moved no parameter by more than {change:.2g}, so that agreement "
                "says nothing"
            )
        if at_once == 1:
            found.append(f"{name}: they were trained one by one")
    return found


def tables(rows: dict[str, Row], repeats: int) -> Iterator[Table]:
    """Yield the rows for a reader: units, and steps."""
    medians = f"(median of {repeats}, alternating)"
    together = Table(title=f"Units trained together, and on the CPU {medians}")
    steps = Table(title=f"A step of DP-SGD, and of plain SGD {medians}")
    for made, columns in ((together, UNIT_COLUMNS), (steps, STEP_COLUMNS)):
        made.add_column("case")
        for heading in columns:
            made.add_column(heading, justify="right")
    for name, row in rows.items():
        made, columns = (together, UNIT_COLUMNS) if " units of " in name else (steps, STEP_COLUMNS)
        if row["ours_s"] is None:
            made.add_row(name, "out of memory")
        else:
            cells = (shown(row[key], factor, unit) for key, factor, unit in columns.values())
            made.add_row(name, *cells)
    yield together
    yield steps


# What a column shows: the key, and what a number is multiplied by to be in the unit.
UNIT_COLUMNS: dict[str, tuple[str, float, str]] = {
    "units/s": ("units_per_s", 1.0, ""),
    "on CPU": ("peer_units_per_s", 1.0, ""),
    "time / CPU's": ("ratio", 1.0, ""),
    "peak": ("ours_bytes", 1e-9, " GB"),
    "at once": ("at_once", 1.0, ""),
    "differs by": ("largest_difference", 1.0, ""),
    "as timed": ("as_timed", 1.0, ""),
}
STEP_COLUMNS: dict[str, tuple[str, float, str]] = {
    "ours": ("ours_s", 1e3, " ms"),
    "plain": ("peer_s", 1e3, " ms"),
    "ours / plain": ("ratio", 1.0, ""),
    "peak": ("ours_bytes", 1e-9, " GB"),
    "plain's": ("peer_bytes", 1e-9, " GB"),
}


def shown(value: float | None, factor: float, unit: str) -> str:
    """Return a number with three digits, nothing if there is none."""
    return "" if value is None else f"{factor * value:.3g}{unit}"


def description(device: torch.device) -> str:
    """Name what is measured on."""
    if device.type != "cuda":
        return f"CPU alone, small sizes; torch {torch.__version__}"
    rounding = "TF32" if torch.backends.cudnn.allow_tf32 else "float32"
    return (
        f"{torch.cuda.get_device_name(device)}; torch {torch.__version__}, CUDA "
        f"{torch.version.cuda}; convolutions in {rounding}; CPU with {torch.get_num_threads()} "
        "threads"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON with `--json`; fail without a GPU, or if results differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repeats", type=int, default=5, help="timings a side (default: 5)")
    parser.add_argument("--threads", type=int, help="of the CPU side (default: PyTorch's)")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options: Any = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "PyTorch sees no CUDA GPU here, so there is nothing to measure: run this where there "
            "is one, or write --device cpu to try the script at small sizes"
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    print(description(device), file=sys.stderr if options.json else sys.stdout)
    rows = measured(device, FULL if device.type == "cuda" else SMALL, options.repeats)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        for each in tables(rows, options.repeats):
            Console().print(each)
    wrong = objections(rows)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
