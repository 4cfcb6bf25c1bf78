"""Sums of clipped gradients of single records, whose sensitivity rounding can't raise.

DP-SGD needs a sum that moves by at most the clipping norm when one record is left out. In float32
it can move further: norms of ten million parameters come out 0.8 % short, and sums in half
precision lose whole gradients. So a gradient is treated as exact; its norm, clip factor and sum
are float64, rounded so that no norm is too short.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_dp.user_code import Contained

from .module_template import ModuleTemplate

logger = logging.getLogger("flwr.fl_dp.client")

WIDE = torch.float64
_ENTRIES = 1 << 22  # of float64 at a time
_ENTRIES_IN_CACHE = 1 << 17
_BLOCK = 256
_OF_BLOCKS = 1.0 + (_BLOCK + 3) * 2.0**-24
"""More than what rounding takes from a block's squared norm in float32.

Each square is rounded, at most 255 times in sums, in whichever order, and twice by the root.
"""
_JUST_BELOW_ONE = 1.0 - 2.0**-40  # more than the rounding errors of norms and factors
_EPSILON = 2.0**-52
_CANCELLATION = 1e-10
"""Share of a record's squared sum of terms by which its squared norm is rounded up."""

Clip = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Takes the records' squared norms, `(n,)`; see `ClippedGradients.clip`."""


class Gradients(Protocol):
    """A way to compute gradients of records."""

    @property
    def held(self) -> Collection[str]:
        """Names of the parameters of which a pass holds all its records' gradients together."""

    def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """Return the sum of the records' clipped gradients.

        Args:
            inputs: A tensor, a tuple of them, or a mapping of keyword arguments; records first.
            targets: Targets, records first.
            clip: Returns clip factors; call it once.

        Returns:
            For each trained parameter, float64 of its shape; None: it took no part.

        Raises:
            Exception: Any error of model and loss at these records.
        """


class ClippedGradients:
    """Adds up the clipped gradients of records, batch after batch.

    Privacy: `totals` move by at most `clipping_norm` (L2 over all of them, to a relative 1e-6) when
    one record is left out, as long as each other record's gradient stays the same, as with
    `SingleRecords`. A kernel that rounds differently for batches of other sizes is not covered.

    Attributes:
        totals: Sum for each trained parameter, float64 of its shape, on its device.
        records: Number of records in the sums: their gradient is finite, perhaps zero.
        failures: Number of records that raised, since the beginning.
    """

    def __init__(
        self,
        template: ModuleTemplate,
        gradients: Gradients,
        *,
        clipping_norm: float,
        at_once: int | None,
    ) -> None:
        """Start with zero.

        Args:
            template: The model.
            gradients: Computes its gradients.
            clipping_norm: L2 bound on one record's gradient.
            at_once: Most records in one pass; None: all. Halved where memory runs out.
        """
        self.totals = template.zeros()
        self.records = self.failures = 0
        self._device = template.device
        self._gradients = gradients
        self._norm = clipping_norm
        self._at_once = at_once
        self._finite = 0

    def add(self, inputs: Any, targets: Tensor) -> None:
        """Add a batch on any device, as `Gradients.clipped_sums` takes it.

        A record whose gradient raises or is not finite adds nothing, alone.
        """
        count = len(targets)
        if not count:
            return
        parts = _rows(0, count, self._at_once or count)
        while parts:
            part = parts.pop()
            with Contained() as attempt:
                self._add(*moved((rows_of(inputs, part), targets[part]), self._device))
                continue
            size = part.stop - part.start
            if attempt.failure is not None and lacks_memory(attempt.failure) and size > 1:
                self._at_once = (size + 1) // 2
                logger.warning("memory ran out: %d records are taken at once", self._at_once)
                parts += _rows(part.start, part.stop, self._at_once)
            elif size > 1:
                parts += _rows(part.start, part.stop, 1)
            else:
                self._log_once(attempt.failure)
                self.failures += 1

    def start_again(self) -> None:
        """Set the sum to zero."""
        self.records = 0
        torch._foreach_zero_(self.totals)

    def clip(self, squares: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return each finite gradient's factor, `(k,)`, and which of `n` these are; None: all."""
        norms = squares.sqrt()
        is_finite = torch.isfinite(norms)
        finite = None
        if not bool(is_finite.all()):
            finite = is_finite.nonzero().flatten()
            norms = norms[finite]
        self._finite = len(norms)
        return (self._norm / norms).clamp(max=1.0) * _JUST_BELOW_ONE, finite

    def _add(self, inputs: Any, targets: Tensor) -> None:
        """Add a part of a batch; if that raises, nothing was added."""
        self._finite = 0
        added = self._gradients.clipped_sums(inputs, targets, self.clip)
        for total, part in zip(self.totals, added, strict=True):
            if part is not None:
                total += part.reshape(total.shape)
        self.records += self._finite

    def _log_once(self, failure: BaseException | None) -> None:
        if not self.failures:  # it may be every record, in every step
            logger.error("a record has no gradient, and counts as zero", exc_info=failure)


def clipped_sum(samples: Sequence[Tensor | None], clip: Clip) -> list[Tensor | None]:
    """Return the sum of clipped gradients.

    Args:
        samples: Each parameter's gradients of records, `(n, *shape)`; None: it has none.
        clip: See `Gradients.clipped_sums`.
    """
    squares = [squared_norms(sample) for sample in samples if sample is not None]
    if not squares:
        return [None] * len(samples)
    factors, finite = clip(torch.stack(squares).sum(0))
    sums: list[Tensor | None] = []
    for sample in samples:
        sums.append(None if sample is None else weighted(sample, factors, finite))
    return sums


def squared_norms(samples: Tensor) -> Tensor:
    """Squared norms, float64 `(n,)`: never too short, at most 2^-15 too long."""
    flat = samples.reshape(len(samples), -1)
    if flat.dtype != torch.float32:
        norms = [torch.linalg.vector_norm(part, dim=1, dtype=WIDE) for part in _parts(flat)]
        return torch.stack(norms).square().sum(0)
    # Norms of a few entries at a time lose little, and float64 copies of all would cost more.
    blocks = flat.shape[1] // _BLOCK
    even = flat[:, : blocks * _BLOCK].reshape(len(flat), blocks, _BLOCK)
    rest = flat[:, blocks * _BLOCK :]
    squares: Tensor = torch.linalg.vector_norm(even, dim=2).to(WIDE).square().sum(1)
    squares = squares + torch.linalg.vector_norm(rest, dim=1).to(WIDE).square()
    return squares * _OF_BLOCKS


def squares_rounded_up(squares: Tensor, terms: Tensor, width: int) -> Tensor:
    """Return squared norms not too short in spite of rounding errors in a sum of `terms`.

    The relative error of float64 is at most sqrt(width * 2^-52) of the sum of the terms' lengths.
    The share added here is larger. It also bounds the sum of scaled terms by 1e5 clipping norms:
    the rounding errors of adding them up stay below 1e-6 of one.

    Args:
        squares: Computed squared norms, `(n,)`.
        terms: Lengths of the terms, `(n, positions)`.
        width: Number of products in each inner product.
    """
    share = _CANCELLATION + (width + terms.shape[1] ** 2) * _EPSILON
    return squares.clamp(min=0.0) + share * terms.sum(1).square()


def weighted(samples: Tensor, factors: Tensor, finite: Tensor | None) -> Tensor:
    """The float64 sum of the `finite` records' scaled gradients; None: of all."""
    flat = samples.reshape(len(samples), -1)
    if finite is not None:
        flat = flat[finite]
    return torch.cat([factors @ part.to(WIDE) for part in _parts(flat)]).view(samples.shape[1:])


def summed_in(gradient: Tensor) -> torch.dtype:
    """The dtype in which a half-precision gradient's entries are added up: float32 at least."""
    return torch.promote_types(gradient.dtype, torch.float32)


def mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Change each tensor in a tree of mappings and tuples."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: mapped(change, branch) for name, branch in tree.items()}
    return tuple(mapped(change, branch) for branch in tree)


def rows_of(inputs: Any, rows: slice) -> Any:
    """Some records of a batch's inputs."""
    return mapped(lambda tensor: tensor[rows], inputs)


def moved(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device, without graph; mappings become dictionaries, lists tuples."""
    return mapped(lambda tensor: tensor.detach().to(device, non_blocking=True), batch)


def outputs_of(model: Any, inputs: Any) -> Any:
    """Run a model on a batch's inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def _rows(start: int, stop: int, size: int) -> list[slice]:
    """Parts of about equal size, at most `size`, the last first."""
    parts = -(-(stop - start) // size)
    ends = [start + (stop - start) * number // parts for number in range(parts + 1)]
    return [slice(*pair) for pair in zip(ends[-2::-1], ends[:0:-1], strict=True)]


def lacks_memory(failure: BaseException) -> bool:
    """Tell whether memory ran out."""
    if isinstance(failure, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(failure, RuntimeError) and "can't allocate memory" in str(failure)


def _parts(flat: Tensor) -> tuple[Tensor, ...]:
    """Split off a few columns at a time, to keep their float64 copies small."""
    entries = _ENTRIES_IN_CACHE if flat.device.type == "cpu" else _ENTRIES
    return torch.split(flat, max(1, entries // max(1, len(flat))), dim=1)
