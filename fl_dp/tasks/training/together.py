"""Local training of many units at once, with the result of `train_locally` for each.

    >>> for indices, vectors in train_together(
    ...     model, units, learning_rate=0.1, epochs=1, batch_size=10
    ... ):
    ...     print(indices, vectors.shape)

For a small model PyTorch's overhead per call exceeds the work. Here many units' parameters are one
matrix, one row per unit, and one `torch.vmap` call computes a step of all. Losses are summed: none
depends on another unit's parameters, so the sum's gradient is each unit's own.

Units must not influence each other's updates. Every operation works on each row separately. Units
are grouped only by their own data's shapes; data that do not fit are left out before any
computation. Kernels round by the number of rows, so rows are filled up to a power of two: a unit's
row is then the same to the bit whatever stands beside it. This is tested on CPUs; a GPU may choose
its kernels by more.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fl_dp.model_arrays import distinct_state
from fl_dp.model_modes import set_training_mode
from fl_dp.tasks.training.local import (
    check_training,
    device_of,
    epoch_order,
    loss_of,
    train_locally,
)
from fl_dp.tasks.training.units_as_channels import UnitsAsChannels, side_by_side
from fl_dp.user_code import Contained, SeededWords, own_chance

logger = logging.getLogger("flwr.fl_dp.client")

# Measured on 2 processors: with less, calls dominate; with more, activations leave the cache.
_CPU_BYTES = 32 << 20
_GPU_SHARE = 0.5  # of the free memory: a step takes more than it saves for its gradient
_MOST_UNITS = 256
_FEWEST_ROWS = 4  # with fewer, kernels split one row among threads
_COPIES = 4  # of a unit's parameters: its row, the gradient, and what layers copy
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_MIXING = (nn.modules.batchnorm._NormBase,)


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitData:
    """Training data of one unit.

    Attributes:
        features: Float32 `(n, *input_shape)`; units of integers (tokens) are left out.
        labels: Int64 `(n,)`, or float32 where they are numbers.
        seed: Seed of its rows' order.
    """

    features: NDArray[np.float32] | NDArray[np.int64]
    labels: NDArray[Any]
    seed: int


@dataclass(frozen=True, kw_only=True)
class _Training:
    """Options that all units share; `epoch_order` decides the rest."""

    learning_rate: float
    epochs: int
    batch_size: int


def train_together(
    model: nn.Module,
    units: Sequence[UnitData],
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    chunk_size: int | None = None,
) -> Iterator[tuple[list[int], NDArray[np.floating]]]:
    """Train each unit from the same model as `train_locally` would, many at a time.

    Models with dropout, BatchNorm, shared parameters, other numbers than float32, or operations
    unknown to `torch.vmap` can't be trained so. Their units are trained one by one, and the log
    gives the reason. Neither the model nor the global random state changes.

    Args:
        model: All units' first model, with outputs `(n, classes)`, on its own device.
        units: Data that do not fit the model change nothing for other units.
        learning_rate: As in `train_locally`.
        epochs: As in `train_locally`.
        batch_size: As in `train_locally`.
        chunk_size: Number of units at once, at least 1; None chooses by memory.

    Yields:
        Indices into `units`, and the trained models `(len(indices), d)`, float32 (float64 if the
        model has float64): the floating-point entries of `distinct_state`, flat, in its order.
        Indices come in any order, each at most once; an index whose data do not fit never comes.

    Raises:
        ValueError: If a number is out of range.
    """
    check_training(learning_rate, epochs, batch_size)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; write at least 1, or None")
    training = _Training(learning_rate=learning_rate, epochs=epochs, batch_size=batch_size)
    start = copy.deepcopy(model)
    set_training_mode(start)
    pending = dict(enumerate(units))
    reason = why_not_together(start)
    if reason is None:
        try:
            for indices, vectors in _in_chunks(start, units, training, chunk_size):
                for index in indices:
                    del pending[index]
                yield indices, vectors
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also a native library's panic
            reason = f"{type(error).__name__}: {error}"
        else:
            return
    _log_once(reason)
    for index, unit in pending.items():
        text = "the data of unit %d of those trained together do not fit"
        with Contained(text, index) as attempt, own_chance(SeededWords(unit.seed)):
            vector = _trained_alone(start, unit, training)
        if attempt.failure is None:
            yield [index], vector[np.newaxis]


def why_not_together(model: nn.Module) -> str | None:
    """Why a model's units can't be trained at once; None if no reason is known."""
    state = distinct_state(model)
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            return f"{name} is {tensor.dtype}, not float32"
    if len(state) < len(model.state_dict()):
        return "it has shared parameters"
    if len({tensor.device for tensor in state.values()}) > 1:
        return "it is on several devices"
    for name, module in model.named_modules():
        if isinstance(module, _RANDOM):
            return f"{name} ({type(module).__name__}) is random"
        if isinstance(module, _MIXING):
            return f"{name} ({type(module).__name__}) mixes the rows of a batch"
    return None


def units_at_once(unit_bytes: int, free_bytes: int | None = None) -> int:
    """How many units to train at once, a power of two.

    Args:
        unit_bytes: Bytes that one unit's step stores.
        free_bytes: Free bytes of the GPU; None on a CPU, where the cache counts.
    """
    budget = _CPU_BYTES if free_bytes is None else int(_GPU_SHARE * free_bytes)
    fitting = max(1, min(budget // max(unit_bytes, 1), _MOST_UNITS))
    return 1 << (fitting.bit_length() - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Unit:
    """A unit whose data fit: tensors on the model's device, at least one row."""

    index: int
    x: Tensor
    y: Tensor
    seed: int

    def steps(self, batch_size: int) -> int:
        return -(-len(self.y) // batch_size)


def _in_chunks(
    model: nn.Module, units: Sequence[UnitData], training: _Training, chunk_size: int | None
) -> Iterator[tuple[list[int], NDArray[np.floating]]]:
    """Yield as `train_together`; whether an exception is raised does not depend on the data."""
    of_shape: dict[tuple[tuple[int, ...], int], list[_Unit]] = defaultdict(list)
    empty = []
    for index, unit in enumerate(units):
        fitting = _unit_of(index, unit)
        if fitting is None:
            continue
        if not len(fitting.y):
            empty.append(index)
            continue
        width = _width(len(fitting.y), training.batch_size)
        of_shape[tuple(fitting.x.shape[1:]), width].append(fitting)
    if empty:
        vector = _vector(model).numpy()
        yield empty, np.broadcast_to(vector, (len(empty), vector.size))
    for (shape, width), alike in of_shape.items():
        probe = copy.deepcopy(model)
        with Contained() as attempt:
            classes, unit_bytes = _probed(probe, (width, *shape))
        if attempt.failure is not None:  # the model does not take records of this shape
            continue
        for (name, before), after in zip(model.named_buffers(), probe.buffers(), strict=True):
            if not torch.equal(before, after):
                raise ValueError(f"{name} changes in training")
        fitting_labels = [unit for unit in alike if _has_labels(unit.y, classes)]
        # Units with most steps first: rows that are still trained stay at the top.
        waiting = sorted(fitting_labels, key=lambda u: -u.steps(training.batch_size))
        size = chunk_size or units_at_once(unit_bytes, _free_bytes(model))
        while waiting:
            chunk = waiting[:size]
            try:
                vectors = _trained_at_once(model, chunk, width, training)
            except torch.OutOfMemoryError:
                if len(chunk) == 1:
                    raise
                size = len(chunk) // 2
                continue
            waiting = waiting[len(chunk) :]
            yield [unit.index for unit in chunk], vectors


def _unit_of(index: int, unit: UnitData) -> _Unit | None:
    """Return a unit as tensors on the CPU; None if its data do not fit, or are tokens (integers).

    Data fit with one label per record.
    """
    if np.issubdtype(np.asarray(unit.features).dtype, np.integer):
        return None
    try:
        # torch warns about read-only arrays, so these are copied; others are shared, not copied.
        x = torch.from_numpy(np.require(unit.features, np.float32, ["C", "W"]))
        is_of_numbers = np.issubdtype(np.asarray(unit.labels).dtype, np.floating)
        kind = np.float32 if is_of_numbers else np.int64
        y = torch.from_numpy(np.require(unit.labels, kind, ["C", "W"]))
    except (TypeError, ValueError):
        return None
    if x.dim() < 1 or y.dim() != 1 or len(x) != len(y):
        return None
    return _Unit(index=index, x=x, y=y, seed=unit.seed)


def _has_labels(labels: Tensor, outputs: int) -> bool:
    """Tell whether labels are some of the classes, or numbers for a model that predicts one."""
    if labels.is_floating_point() or outputs == 1:
        return labels.is_floating_point() and outputs == 1  # a group has labels of one kind
    return int(labels.min()) >= 0 and int(labels.max()) < outputs


def _width(num_rows: int, batch_size: int) -> int:
    """The rows of a step: few different numbers, and less than half of them padding."""
    if num_rows >= batch_size:
        return batch_size
    power: int = 1 << (num_rows - 1).bit_length()
    if num_rows <= 3 * power // 4:
        power = 3 * power // 4
    return min(power, batch_size)


def _probed(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """The number of classes, and the bytes that a unit's step stores for its gradient.

    Raises:
        ValueError: If the model does not return one row of logits per record.
        Exception: Any exception of a model that does not take such records.
    """
    device = device_of(model)
    gpus = [device] if device.type == "cuda" else []
    stored: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.random.fork_rng(devices=gpus),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        logits = model(torch.ones(shape, device=device))
    if logits.dim() != 2 or len(logits) != shape[0]:
        raise ValueError(f"the model returns {tuple(logits.shape)} for {shape[0]} records")
    return logits.shape[1], sum(stored.values()) + _COPIES * 4 * _vector(model).numel()


def _trained_at_once(
    model: nn.Module, chunk: Sequence[_Unit], width: int, training: _Training
) -> NDArray[np.floating]:
    """The trained rows of a chunk, whose units are sorted by falling steps."""
    device = device_of(model)
    rows = _vector(model).to(device).repeat(_filled_up(len(chunk)), 1)
    x = torch.cat([unit.x for unit in chunk]).to(device)
    y = torch.cat([unit.y for unit in chunk]).to(device)
    images = x.dim() == 4
    columns = _columns(model)

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (x,))
        return torch.dot(loss_of(logits, y), weights)

    losses = torch.vmap(loss, in_dims=(0, 1 if images else 0, 0, 0))
    generators = [torch.Generator().manual_seed(unit.seed) for unit in chunk]
    steps = np.array([unit.steps(training.batch_size) for unit in chunk])
    for _ in range(training.epochs):
        order, weights = _epoch(chunk, generators, width, training.batch_size)
        order, weights = order.to(device), weights.to(device)
        for step in range(steps[0]):
            active = int(np.count_nonzero(steps > step))
            computed = slice(_filled_up(active))
            parameters = {
                name: torch.unflatten(rows[computed, span], 1, shape).requires_grad_()
                for name, (span, shape) in columns.items()
            }
            batch = order[computed, step]
            features = side_by_side(x[batch]) if images else x[batch]
            with UnitsAsChannels():
                total = losses(parameters, features, y[batch], weights[computed, step]).sum()
            gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                    if gradient is not None:
                        parameter[:active].add_(gradient[:active], alpha=-training.learning_rate)
    trained: NDArray[np.floating] = rows[: len(chunk)].cpu().numpy()
    return trained


def _filled_up(units: int) -> int:
    return 1 << (max(units, _FEWEST_ROWS, torch.get_num_threads()) - 1).bit_length()


def _epoch(
    chunk: Sequence[_Unit],
    generators: Sequence[torch.Generator],
    width: int,
    batch_size: int,
) -> tuple[Tensor, Tensor]:
    """The rows of each unit's steps and their weights in the mean, `(units, steps, width)`.

    Rows are counted through the chunk. Batches are filled up with a row of the same unit, of
    weight zero: zeros as records might divide by zero.
    """
    most = chunk[0].steps(batch_size)
    rows = torch.zeros(_filled_up(len(chunk)), most * width, dtype=torch.int64)
    weights = torch.zeros(rows.shape)
    before = 0
    for index, (unit, generator) in enumerate(zip(chunk, generators, strict=True)):
        count = len(unit.y)
        order = epoch_order(count, batch_size, generator)
        rows[index] = before
        if order is None:
            order = torch.arange(count)
        rows[index, :count] = before + order
        last = (count - 1) // batch_size * batch_size
        weights[index, :last] = 1.0 / batch_size
        weights[index, last:count] = 1.0 / (count - last)
        before += count
    shape = (len(rows), most, width)
    return rows.view(shape), weights.view(shape)


def _columns(model: nn.Module) -> dict[str, tuple[slice, torch.Size]]:
    """Each trainable parameter's columns in a row, and its shape."""
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    columns, start = {}, 0
    for name, tensor in distinct_state(model).items():
        if tensor.is_floating_point():
            if name in trainable:
                columns[name] = slice(start, start + tensor.numel()), tensor.shape
            start += tensor.numel()
    return columns


def _trained_alone(model: nn.Module, unit: UnitData, training: _Training) -> NDArray[np.floating]:
    alone = copy.deepcopy(model)
    train_locally(alone, unit.features, unit.labels, seed=unit.seed, **asdict(training))
    vector: NDArray[np.floating] = _vector(alone).numpy()
    return vector


def _vector(model: nn.Module) -> Tensor:
    """The floating-point entries of a model's state, flat, on the CPU."""
    entries = [tensor for tensor in distinct_state(model).values() if tensor.is_floating_point()]
    wide = any(tensor.dtype == torch.float64 for tensor in entries)
    dtype = torch.float64 if wide else torch.float32
    return torch.cat([tensor.detach().reshape(-1).to("cpu", dtype) for tensor in entries])


def _free_bytes(model: nn.Module) -> int | None:
    device = device_of(model)
    if device.type != "cuda":
        return None
    # Memory that PyTorch caches counts as taken, and is free for us.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached)


@cache
def _log_once(reason: str) -> None:
    logger.info("units are trained one by one: %s", reason)
