"""Cohorts: clients that are trained in one go, beside one by one and beside other ways."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pfl_cifar10
import torch
from numpy.typing import NDArray
from side_by_side import Case
from small_cnn import small_cnn
from torch import nn

from fl_dp.clients.cohort import UnitData, train_alone, train_units
from fl_dp.clients.cohort.image_layers import GROUPED, PRODUCTS
from fl_dp.tasks.training import plain_sgd

from .bench import CLASSES, Bench, Row
from .timing import if_possible, timed

LEARNING_RATE, BATCH_SIZE = 0.1, 10
ROUNDING = 1e-5  # of a unit's parameters; training moves them by more than 1e-2


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
    training = plain_sgd(learning_rate=LEARNING_RATE, epochs=1, batch_size=BATCH_SIZE)
    at_once = len(data) if bench.device.type == "cpu" else None
    trained = train_units(model, data, training, at_once=at_once, **way)
    return max(len(places) for places, _ in trained)


def cohort_beside_alone(bench: Bench, name: str) -> Row:
    """Train a cohort with dropout in one go, and one client after the other, on the device."""
    model, data = cohort(bench)
    training = plain_sgd(learning_rate=LEARNING_RATE, epochs=1, batch_size=BATCH_SIZE)
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
    training = plain_sgd(learning_rate=LEARNING_RATE, epochs=1, batch_size=BATCH_SIZE)
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
