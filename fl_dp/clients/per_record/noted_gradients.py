"""Clipped sums of records' gradients, made of what layers noted.

A weight's gradient of a record is a sum of outer products (`noted_layers`). Norm and sum are made
of the same noted numbers, taken as exact: where the gradient takes less work than inner products
of its positions, of the gradient itself, in float32 or the model's wider dtype; else in float64,
the norm by inner products, rounded up, and the sum by one weighted product. So what a layer did
not note is missing from both: that costs accuracy, never privacy.

References:
    Li et al. 2022, "Large Language Models Can Be Strong Differentially Private Learners" (norms by
    inner products, section 4).
    Bu et al. 2023, "Differentially Private Optimization on Large Model at Small Cost" (sums from
    the tensors of one backward pass, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import Tensor

from .clipped_gradients import WIDE, Clip, squared_norms, squares_rounded_up, summed_in, weighted
from .exact_products import exact_products
from .noted_layers import Convolution, EmbeddingTable, LayerUse, Linear

_BYTES = {"cpu": 8 << 20}
_BYTES_ELSEWHERE = 1 << 30
"""Of positions at a time, which for a convolution are copies of its inputs."""
_LARGER = 5
"""Most that a gradient may be of what it is made of, if it is kept in its stead."""
_QUICKER, _IN_CACHE = 3, 1 << 17
"""How much quicker an entry of a gradient is made, up to which number, as measured on a CPU."""
_SMALL = 1 << 13  # entries of a gradient
Name = TypeVar("Name", bound=Hashable)


class NotedGradient:
    """One parameter's gradients of records: given as such, or as factors."""

    def __init__(self) -> None:
        """Begin without a use."""
        self._uses: list[LayerUse[Any]] = []
        self._samples: list[Tensor] = []

    def add(self, use: LayerUse[Any] | Tensor) -> None:
        """Add a use, or each record's gradient; factors are kept only where they are needed."""
        if isinstance(use, Tensor):
            self._samples.append(use)
        elif not self._uses and _is_direct([use]):
            with exact_products(use.gradient.device):
                self._samples.append(_samples([use]))
        else:
            self._uses.append(use)

    @property
    def is_used(self) -> bool:
        """Whether there was a use."""
        return bool(self._uses or self._samples)

    def samples(self) -> Tensor | None:
        """Each record's gradient, `(n, *shape)`; None: `factors` has them."""
        if self._uses and (self._samples or _is_direct(self._uses)):
            self._samples.append(_samples(self._uses))
            self._uses = []
        return reduce(torch.add, self._samples) if self._samples else None

    def factors(self) -> Factors:
        """What each record's gradient is made of."""
        return Factors(self._uses)


class Factors:
    """Factors of one weight's gradients: of dense positions, and of rows of a table."""

    def __init__(self, uses: Sequence[LayerUse[Any]]) -> None:
        """Take all uses of a weight, at least one."""
        self._weight = uses[0].layer.weight
        self._dense: list[LayerUse[Linear | Convolution]] = []
        tables = []
        for use in uses:
            if isinstance(use.layer, EmbeddingTable):
                tables.append(use.layer.rows(use.inputs, use.gradient))
            else:
                self._dense.append(LayerUse(use.layer, use.inputs, use.gradient))
        self._rows, self._added = None, None
        if tables:
            self._rows = torch.cat([rows for rows, _ in tables], 1)
            self._added = torch.cat([added for _, added in tables], 1).to(WIDE)

    def squared_norms(self) -> Tensor:
        """Upper bounds of the records' squared norms, float64 `(n,)`."""
        squares, lengths, width = [], [], 0
        for records, inputs, gradient in _positions(self._dense, WIDE):
            terms = inputs.norm(dim=-1) * gradient.norm(dim=-1)
            width = inputs.shape[-1] + gradient.shape[-1]
            if terms.shape[1] == 1:
                part = terms.square().sum(1)
            else:
                part = ((inputs @ inputs.mT) * (gradient @ gradient.mT)).sum((1, 2))
            if self._rows is not None and self._added is not None:
                rows, added = self._rows[records], self._added[records]
                there = rows[:, None].expand(-1, gradient.shape[1], -1)
                both = gradient.gather(2, there) * (inputs @ added.mT)
                part = part + 2.0 * both.sum((1, 2))
            squares.append(part)
            lengths.append(terms)
        if self._rows is None or self._added is None:
            return squares_rounded_up(torch.cat(squares), torch.cat(lengths), width)
        total, terms = self._squares_of_rows(), self._added.norm(dim=-1)
        if squares:
            total, terms = total + torch.cat(squares), torch.cat([torch.cat(lengths), terms], 1)
        return squares_rounded_up(total, terms, width)

    def weighted(self, factors: Tensor, finite: Tensor | None) -> Tensor:
        """The float64 sum of the `finite` records' scaled gradients; None: of all."""
        dense = self._dense
        if finite is not None:
            dense = [LayerUse(use.layer, use.inputs[finite], use.gradient[finite]) for use in dense]
        weight = self._weight
        total = torch.zeros(len(weight), weight[0].numel(), dtype=WIDE, device=weight.device)
        for records, inputs, gradient in _positions(dense, WIDE):
            scaled = (gradient * factors[records, None, None]).flatten(0, 1)
            total.addmm_(scaled.T, inputs.flatten(0, 1))
        if self._rows is None or self._added is None:
            return dense[0].layer.arranged(total)
        rows, added = self._rows, self._added
        if finite is not None:
            rows, added = rows[finite], added[finite]
        return total.index_add_(0, rows.flatten(), (added * factors[:, None, None]).flatten(0, 1))

    def _squares_of_rows(self) -> Tensor:
        """The squared norms of the table's part: each record's rows are added up, then squared."""
        assert self._rows is not None and self._added is not None  # there are tables
        records, positions = self._rows.shape
        height = len(self._weight)
        record = torch.arange(records, device=self._rows.device).repeat_interleave(positions)
        pairs = record * height + self._rows.flatten()
        distinct, index = torch.unique(pairs, return_inverse=True)
        sums = self._added.new_zeros((len(distinct), self._added.shape[-1]))
        sums.index_add_(0, index, self._added.flatten(0, 1))
        squares = self._added.new_zeros(records)
        return squares.index_add_(0, distinct // height, sums.square().sum(1))


def clipped_sums_of(
    noted: Mapping[Name, NotedGradient],
    copies: Mapping[Name, Tensor],
    records: int,
    clip: Clip,
    *,
    device: torch.device,
) -> dict[Name, Tensor]:
    """Return the sum of clipped gradients by parameter.

    Args:
        noted: Parameters' gradients, as layers noted them.
        copies: Other parameters' gradients of records, `(n, *shape)`.
        records: Their number `n`.
        clip: See `Gradients.clipped_sums`.
        device: Where they are.

    Raises:
        ValueError: A gradient has other rows than records.
    """
    with exact_products(device):
        samples, factored = dict(copies), {}
        for name, gradient in noted.items():
            of_records = gradient.samples()
            if of_records is None:
                factored[name] = gradient.factors()
            else:
                samples[name] = of_records
        squares = [factors.squared_norms() for factors in factored.values()]
        blocks = _blocks(samples)
        squares += [squared_norms(flat) for _, flat in blocks]
        if not squares:
            return {}
        if any(part.shape != (records,) for part in squares):
            raise ValueError(f"rows of a gradient are not the {records} records")
        scales, finite = clip(torch.stack(squares).sum(0))
        sums = {name: factors.weighted(scales, finite) for name, factors in factored.items()}
        for names, flat in blocks:
            shapes = [samples[name].shape[1:] for name in names]
            total = weighted(flat, scales, finite)
            parts = torch.split(total, [shape.numel() for shape in shapes])
            for name, part, shape in zip(names, parts, shapes, strict=True):
                sums[name] = part.view(shape)
    return sums


def _blocks(samples: Mapping[Name, Tensor]) -> list[tuple[list[Name], Tensor]]:
    """Gradients with their names, `(n, entries)`; small ones are side by side.

    So one kernel takes all of these instead of one for each.
    """
    flat = {name: sample.flatten(1) for name, sample in samples.items()}
    small = [name for name, part in flat.items() if part.shape[1] <= _SMALL]
    blocks = [([name], part) for name, part in flat.items() if part.shape[1] > _SMALL]
    if small:
        blocks.append((small, torch.cat([flat[name] for name in small], 1)))
    return blocks


def _is_direct(uses: Sequence[LayerUse[Any]]) -> bool:
    """Tell whether gradients take less work than inner products, and not much more memory."""
    weight: Tensor = uses[0].layer.weight
    height, width = len(weight), weight[0].numel()
    positions = given = 0
    for use in uses:
        if isinstance(use.layer, Convolution) and not use.layer.has_positions:
            return True
        of_table = isinstance(use.layer, EmbeddingTable)
        if of_table and height > use.inputs[0].numel():
            return False
        positions += use.gradient[0].numel() // (width if of_table else height)
        given += use.inputs[0].numel() + use.gradient[0].numel()
    quicker = _QUICKER if height * width <= _IN_CACHE else 1
    return height * width <= min(quicker * positions * (height + width), _LARGER * given)


def _samples(uses: Sequence[LayerUse[Any]]) -> Tensor:
    """Each record's gradient, `(n, *shape)`."""
    apart = [use for use in uses if _goes_apart(use)]
    samples = [_samples_of_one(use) for use in apart]
    if len(apart) < len(uses):
        joint = [use for use in uses if not _goes_apart(use)]
        dtype = reduce(torch.promote_types, (summed_in(use.gradient) for use in joint))
        parts = [gradient.mT @ inputs for _, inputs, gradient in _positions(joint, dtype)]
        product = torch.cat(parts) if len(parts) > 1 else parts[0]
        samples.append(joint[0].layer.arranged(product))
    return reduce(torch.add, samples)


def _goes_apart(use: LayerUse[Any]) -> bool:
    """Tell whether a gradient is no product of positions, or is quicker made in another way."""
    if isinstance(use.layer, Convolution):
        return use.layer.goes_by_groups(use.gradient)
    return isinstance(use.layer, EmbeddingTable)


def _samples_of_one(use: LayerUse[Any]) -> Tensor:
    layer: Convolution | EmbeddingTable = use.layer
    gradient = use.gradient.to(summed_in(use.gradient))
    if isinstance(layer, Convolution):
        return layer.samples(use.inputs.to(gradient.dtype), gradient)
    rows, added = layer.rows(use.inputs, gradient)
    count, height = len(rows), len(layer.weight)
    table = added.new_zeros(count * height, added.shape[-1])
    first = height * torch.arange(count, device=rows.device)[:, None]
    table.index_add_(0, (rows + first).flatten(), added.flatten(0, 1))
    return table.view(count, height, -1)


def _positions(
    uses: Sequence[LayerUse[Linear | Convolution]], dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield a few records at a time, their inputs and output gradients side by side.

    Yields:
        The records, `(k, positions, in)` and `(k, positions, out)`, in `dtype`.
    """
    if not uses:
        return
    weight = uses[0].layer.weight
    positions = sum(use.gradient.shape[1:].numel() for use in uses) // len(weight)
    entries = positions * (weight[0].numel() + len(weight))
    room = _BYTES.get(weight.device.type, _BYTES_ELSEWHERE)
    step = max(1, room // (8 * entries))
    for first in range(0, len(uses[0].inputs), step):
        records = slice(first, first + step)
        pairs: list[tuple[Tensor, Tensor]] = []
        for use in uses:
            factors = use.inputs[records], use.gradient[records]
            inputs, gradient = (factor.to(dtype) for factor in factors)
            pairs.append(use.layer.positions(inputs, gradient))
        inputs, gradient = pairs[0]
        if len(pairs) > 1:
            inputs = torch.cat([inputs for inputs, _ in pairs], 1)
            gradient = torch.cat([gradient for _, gradient in pairs], 1)
        yield records, inputs, gradient
