"""Training of many clients from one model, in one go where that is as safe and faster.

    >>> for indices, vectors in train_units(model, units, training):
    ...     print(indices, vectors.shape)

For a small model PyTorch's overhead per call exceeds the work. Here each parameter of all clients
is one tensor, with a client in each row, and one `torch.vmap` call computes a step of all. Losses
are summed: none depends on another client's parameters, so the sum's gradient is each one's own.

Clients must not influence each other's updates. Every operation works on each row separately, and
each client has coins of its own. Clients are grouped only by their own data's shapes and number.
Kernels round by the number of rows, so rows are filled up to a power of two: a client's row is then
the same to the bit whatever stands beside it. This is tested on CPUs; a GPU may choose its kernels
by more.

**Together or one by one** follows from the module, the options and the device, and is tried on
made-up records. An exception that only some client's data cause splits the cohort, until that
client is left out; the others' rows are still the same to the bit.
"""

from __future__ import annotations

import copy
import logging
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_dp.clients.per_record.vmap_rules import NoOwnRules
from fl_dp.model_arrays import distinct_state
from fl_dp.model_modes import set_training_mode
from fl_dp.user_code import Contained, SeededWords, own_chance

from .alone import train_alone
from .layers import ModelLayers, side_by_side
from .mask_coins import MaskCoins
from .optimizers import first_rows, optimizer_of, step
from .training import LocalTraining, UnitData, require_one_a_record

logger = logging.getLogger("flwr.fl_dp.client")

# Measured on 2 processors: with less, calls dominate; with more, activations leave the cache.
_CPU_BYTES = 32 << 20
_GPU_SHARE = 0.5  # of the free memory: a step takes more than it saves for its gradient
_MOST_UNITS = 256
_FEWEST_ROWS = 4  # with fewer, kernels split one row among threads
_COPIES = 4  # of a unit's parameters: its row, the gradient, and what layers copy


class OneByOne(Exception):
    """Why clients of a model are trained one by one."""


def train_units(
    model: nn.Module,
    units: Sequence[UnitData],
    training: LocalTraining,
    *,
    names: Sequence[str] | None = None,
    at_once: int | None = None,
) -> Iterator[tuple[list[int], Tensor]]:
    """Train each client from the same model as `train_alone` would, many at a time.

    Neither the model nor the global random state changes.

    Args:
        model: All clients' first model, on its own device, to which their data move. Its copies
            share nothing with it (`own_copy_of` would say so).
        units: Data that do not fit the model change nothing for others.
        training: What each does.
        names: Entries of `distinct_state` to return, by default all; those of floating point
            count.
        at_once: Train as many clients at once, at least 1, even where one by one is faster; None
            chooses by memory.

    Yields:
        Indices into `units`, and their trained models `(len(indices), d)` on the model's device:
        the entries, flat, in float32 (float64 if one is). Indices come in any order, each at most
        once; one whose data do not fit never comes.
    """
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once is {at_once}; write at least 1, or None")
    entries = _Entries(model, names)
    of_form: dict[_Form, list[int]] = defaultdict(list)
    empty = []
    for index, unit in enumerate(units):
        if len(unit.labels) != len(unit.features):
            logger.error("unit %d has not one label a record, and is left out", index)
        elif not len(unit.labels):
            empty.append(index)
        else:
            of_form[_Form.of(unit, training)].append(index)
    if empty:
        yield empty, entries.first.expand(len(empty), -1)
    for form, alike in of_form.items():
        try:
            tried = _tried(model, form, training, any_size=at_once is not None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also a native library's panic
            of_class = "" if isinstance(error, OneByOne) else f"{type(error).__name__}: "
            _log_once(of_class + str(error).partition("\n")[0])
            yield from _one_by_one(model, units, alike, training, entries)
            continue
        # Those with most steps first: rows that are still trained stay at the top.
        waiting = sorted(alike, key=lambda index: -training.steps(len(units[index].labels)))
        size = at_once or units_at_once(tried.unit_bytes, _free_bytes(entries.device))
        while waiting:
            chunk, text = waiting[:size], None
            if len(chunk) == 1:
                text = "the training of unit %d of those trained together fails"
            with Contained(text, chunk[0]) as attempt:
                own = [units[index] for index in chunk]
                vectors = _trained_at_once(model, own, form, tried, training, entries)
            if attempt.failure is None:
                yield chunk, vectors
            elif len(chunk) > 1:
                size = len(chunk) // 2
                continue
            waiting = waiting[len(chunk) :]


def units_at_once(unit_bytes: int, free_bytes: int | None = None) -> int:
    """How many clients to train at once, a power of two.

    Args:
        unit_bytes: Bytes that one client's step stores.
        free_bytes: Free bytes of the GPU; None on a CPU, where the cache counts.
    """
    budget = _CPU_BYTES if free_bytes is None else int(_GPU_SHARE * free_bytes)
    fitting = max(1, min(budget // max(unit_bytes, 1), _MOST_UNITS))
    return 1 << (fitting.bit_length() - 1)


@dataclass(frozen=True)
class _Form:
    """What clients of one cohort have in common: a record's features and label, rows of a step."""

    features: tuple[torch.dtype, tuple[int, ...]]
    labels: tuple[torch.dtype, tuple[int, ...]]
    width: int

    @classmethod
    def of(cls, unit: UnitData, training: LocalTraining) -> _Form:
        features, labels = (
            (tensor.dtype, tuple(tensor.shape[1:])) for tensor in (unit.features, unit.labels)
        )
        return cls(features, labels, training.width(len(unit.labels)))

    @property
    def of_images(self) -> bool:
        dtype, shape = self.features
        return len(shape) == 3 and dtype.is_floating_point


@dataclass(frozen=True)
class _Tried:
    """A step on made-up records.

    Attributes:
        coins: What one client's dropout needs.
        unit_bytes: What one client's step stores.
    """

    coins: int
    unit_bytes: int


class _Entries:
    """The entries of a model that training returns, and those that it moves."""

    def __init__(self, model: nn.Module, names: Sequence[str] | None) -> None:
        state = distinct_state(model)
        floating = [
            (name, state[name])
            for name in (state if names is None else names)
            if state[name].is_floating_point()
        ]
        self.trained = {
            name: parameter.detach()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        wide = any(tensor.dtype == torch.float64 for _, tensor in floating)
        self.dtype = torch.float64 if wide else torch.float32
        self.device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
        self.names = [name for name, _ in floating]
        self.first = self.flat(dict(floating))
        self.columns: dict[str, slice] = {}
        at = 0
        for name, tensor in floating:
            self.columns[name] = slice(at, at + tensor.numel())
            at += tensor.numel()

    def flat(self, state: dict[str, Tensor]) -> Tensor:
        """Entries of one model, `(d,)`, copied."""
        parts = [
            state[name].detach().reshape(-1).to(self.device, self.dtype) for name in self.names
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=self.dtype)


def _one_by_one(
    model: nn.Module,
    units: Sequence[UnitData],
    indices: Sequence[int],
    training: LocalTraining,
    entries: _Entries,
) -> Iterator[tuple[list[int], Tensor]]:
    for index in indices:
        unit = units[index]
        text = "the data of unit %d of those trained together do not fit"
        with Contained(text, index) as attempt, own_chance(SeededWords(unit.seed)):
            alone = copy.deepcopy(model)
            train_alone(alone, unit, training)
            vector = entries.flat(distinct_state(alone))
        if attempt.failure is None:
            yield [index], vector.unsqueeze(0)


def _tried(model: nn.Module, form: _Form, training: LocalTraining, *, any_size: bool) -> _Tried:
    """Take a step of one client with made-up records.

    Raises:
        OneByOne: The model's clients can't be trained together, or not as fast.
        Exception: Any exception of a model that can't be.
    """
    model = copy.deepcopy(model)
    set_training_mode(model)
    entries = _Entries(model, None)
    kinds = {parameter.dtype for parameter in entries.trained.values()}
    if not kinds <= {torch.float32, torch.float64}:
        raise OneByOne(f"parameters are {', '.join(map(str, kinds))}: let them be float32")
    if not kinds:
        raise OneByOne("nothing is trained")
    if len({tensor.device for tensor in model.state_dict().values()}) > 1:
        raise OneByOne("the model is on several devices: move it to one")
    buffers = [(name, buffer, buffer._version) for name, buffer in model.named_buffers()]
    elsewhere = _other_generators()
    stored: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    made_up = [
        torch.ones((1, form.width, *shape), dtype=dtype, device=entries.device)
        for dtype, shape in (form.features, form.labels)
    ]
    weights = torch.full(made_up[0].shape[:2], 1.0 / form.width, device=entries.device)
    layers = ModelLayers(None, many=True)
    leaves = _leaves(entries, 1)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = _loss(model, leaves, made_up[0], made_up[1], weights, layers, form, training)
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
    unit_bytes = sum(stored.values()) + _COPIES * size
    on_cpu = entries.device.type == "cpu"
    if on_cpu and not any_size and units_at_once(unit_bytes) < _FEWEST_ROWS:
        raise OneByOne(
            f"a step stores {unit_bytes >> 20} MiB, which is as fast on a CPU: a smaller "
            "batch_size or model would go together, or a GPU"
        )
    torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, before, version), after in zip(buffers, model.buffers(), strict=True):
        if before is not after or version != after._version:
            raise OneByOne(f"{name} changes in training: let it be, or freeze its part in eval()")
    if elsewhere != _other_generators():
        raise OneByOne("the model draws from NumPy or random: let it draw by nn.Dropout alone")
    return _Tried(coins=layers.coins_asked, unit_bytes=unit_bytes)


def _other_generators() -> tuple[object, ...]:
    """States of the process's generators that `torch.vmap` does not watch."""
    _, words, at, *gauss = np.random.get_state()
    return random.getstate(), np.asarray(words).tobytes(), at, *gauss


def _leaves(entries: _Entries, rows: int) -> dict[str, nn.Parameter]:
    return {
        name: nn.Parameter(first.repeat(rows, *[1] * first.dim()))
        for name, first in entries.trained.items()
    }


def _loss(
    model: nn.Module,
    leaves: Mapping[str, Tensor],
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
    layers: ModelLayers,
    form: _Form,
    training: LocalTraining,
) -> Tensor:
    """The sum of all rows' losses; each has its own parameters, records and weights of these."""

    def loss(
        parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, own: Tensor, number: Tensor
    ) -> Tensor:
        layers.number = number
        losses = training.loss(functional_call(model, dict(parameters), (x,)), y)
        require_one_a_record(losses, form.width)
        return torch.dot(losses, own.to(losses.dtype))  # whose gradient is zero for what fills up

    if form.of_images:
        features = side_by_side(features)
    numbers = torch.arange(len(weights), device=weights.device)
    dims = (0, 1 if form.of_images else 0, 0, 0, 0)
    of_each = torch.vmap(loss, in_dims=dims, randomness="error")
    with NoOwnRules(), layers:
        losses: Tensor = of_each(dict(leaves), features, labels, weights, numbers)
    layers.number = None
    return losses.sum()


def _trained_at_once(
    model: nn.Module,
    units: Sequence[UnitData],
    form: _Form,
    tried: _Tried,
    training: LocalTraining,
    entries: _Entries,
) -> Tensor:
    """The trained rows of a cohort, whose clients are sorted by falling steps."""
    model = copy.deepcopy(model)  # what it stores must not reach the next cohort
    set_training_mode(model)
    device = entries.device
    x = torch.cat([unit.features for unit in units]).to(device)
    y = torch.cat([unit.labels for unit in units]).to(device)
    counts = [len(unit.labels) for unit in units]
    steps = [training.steps(count) for count in counts]
    batches, weights = _batches(units, counts, steps, form, training)
    batches, weights = batches.to(device), weights.to(device, entries.dtype)
    coins = MaskCoins([unit.seed for unit in units], device, step=tried.coins)
    layers = ModelLayers(coins, many=True)
    trained = entries.first.repeat(len(units), 1)
    active, rows = len(units), _filled_up(len(units))
    leaves = _leaves(entries, rows)
    optimizer = optimizer_of(training.optimizer, list(leaves.values()))
    for number in range(steps[0]):
        left = sum(own > number for own in steps)
        if left < active:  # a finished client's row is taken out before it could move
            _take_out(leaves, trained, slice(left, active), entries)
            active = left
            if (fewer := _filled_up(active)) < rows:
                rows = fewer
                optimizer, first = first_rows(
                    training.optimizer, optimizer, list(leaves.values()), rows
                )
                leaves = dict(zip(leaves, first, strict=True))
        coins.begin_step(number, steps, rows=rows)
        batch = batches[number, :rows]
        loss = _loss(
            model, leaves, x[batch], y[batch], weights[number, :rows], layers, form, training
        )
        step(optimizer, list(leaves.values()), loss)
    _take_out(leaves, trained, slice(0, active), entries)
    return trained


def _take_out(
    leaves: dict[str, nn.Parameter], trained: Tensor, rows: slice, entries: _Entries
) -> None:
    for name, leaf in leaves.items():
        if (columns := entries.columns.get(name)) is not None:
            trained[rows, columns] = leaf.detach()[rows].flatten(1).to(trained.dtype)


def _filled_up(units: int) -> int:
    return 1 << (max(units, _FEWEST_ROWS, torch.get_num_threads()) - 1).bit_length()


def _batches(
    units: Sequence[UnitData],
    counts: Sequence[int],
    steps: Sequence[int],
    form: _Form,
    training: LocalTraining,
) -> tuple[Tensor, Tensor]:
    """The rows of each step and their weights in the mean, `(steps, clients, width)`.

    Rows are counted through the cohort. Batches are filled up with a row of the same batch, of
    weight zero: zeros as records might divide by zero.
    """
    shape = (steps[0], _filled_up(len(units)), form.width)
    rows, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float64)
    before = 0
    for index, (unit, count) in enumerate(zip(units, counts, strict=True)):
        for number, batch in enumerate(training.batches(count, unit.seed)):
            rows[number, index, : len(batch)] = before + batch
            rows[number, index, len(batch) :] = before + batch[0]
            weights[number, index, : len(batch)] = 1.0 / len(batch)
        before += count
    return torch.from_numpy(rows), torch.from_numpy(weights)


def _free_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    # Memory that PyTorch caches counts as taken, and is free for us.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached)


@cache
def _log_once(reason: str) -> None:
    logger.info("units are trained one by one: %s", reason)
