"""Summing a round's updates one by one, in memory that does not grow with the cohort.

    >>> total = ClippedSum(layout, origin, grid=mechanism.grid, clipping_norms=[1.0])
    >>> for reply in replies:
    ...     total.add(only_array_record(reply.content))
    >>> released = mechanism.release(total.total, mechanism.noise(total.total.size, rng))

An update is first read for its norm. With the next one, or when the sum is asked for, it is
scaled, rounded and added: each goes through memory once, block by block. Threads share the blocks;
NumPy releases the interpreter inside them. A block's result depends on the block alone, and
blocks' squares are summed without rounding: neither timing nor the number of threads can change a
bit.

Rows on an accelerator are clipped and summed there (`accelerator.device_sum`); the sum comes to the
host once, when it is asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fl_dp.mechanisms import clip_by_norm, threads
from fl_dp.mechanisms.clipping import joint_clipping_norm, l2_norm

from .layout import RefusedUpdate, VectorLayout

if TYPE_CHECKING:  # torch is loaded where rows are tensors
    import torch
    from torch import Tensor

    from fl_dp.accelerator.device_sum import DeviceSum

_BLOCK = threads.BLOCK
_ROW = 4096  # entries whose squares are summed in float64; rows are summed without rounding
# The norm of a scaled update is right to 1e-12 even if a row is summed entry by entry, so its exact
# norm is below the clipping norm, and the computed norm of a sum of them below a node's bound.
_CLIPPING_MARGIN = 1.0 - 1e-12
_ACCEPTING_MARGIN = 1.0 - 5e-13
_SMALL, _LARGE = 1e-140, 1e140  # between them squares neither vanish nor overflow
_SMALLEST_FACTOR = 1e-290  # below it a factor would be subnormal and lose digits
_LARGEST_SUMMAND = 1e290  # the plain sum of any cohort stays finite
_EXACT_INTEGERS = 2.0**53
_SMALLEST_ON_DEVICE = 1e-200  # a clipping norm by which any float32 norm can be divided


@dataclass(frozen=True)
class _Piece:
    """A block's part of one array, and its destination."""

    array: int
    entries: slice
    update: NDArray[np.float64]


@dataclass(frozen=True)
class _Block:
    """The same stretch of every flat vector, as views; small arrays share one."""

    group: int
    stretch: slice
    pieces: tuple[_Piece, ...]
    update: NDArray[np.float64]
    origin: NDArray[np.float64]
    total: NDArray[np.float64]


_Values: TypeAlias = Sequence[NDArray[Any]] | NDArray[np.float64]
Rows: TypeAlias = "NDArray[np.floating] | Tensor"
"""Models of several units, `(units, d)`."""

Norms: TypeAlias = "list[float] | Tensor"
"""Norms of as many updates, wherever the rows were."""


class _Sum:
    """A flat sum, and one update at a time in scratch memory.

    The vector is divided into groups, each with a norm and a scale of its own.
    """

    _truncates: ClassVar[bool]

    def __init__(
        self, layout: VectorLayout, origin: NDArray[np.float64], groups: Sequence[slice]
    ) -> None:
        if origin.shape != (layout.size,) or origin.dtype != np.float64:
            raise ValueError(
                f"origin is {origin.dtype} of shape {origin.shape}: flatten the model with the "
                f"same layout, to float64 of shape ({layout.size},)"
            )
        self.layout = layout
        self._total = np.zeros(layout.size, dtype=np.float64)
        self._origin = origin
        self._update = np.empty(layout.size, dtype=np.float64)
        self._scales: Sequence[float] | None = None  # of the update that is still to be added
        self._groups = groups
        self._blocks: list[_Block] = []
        for index, group in enumerate(groups):
            for start in range(group.start, group.stop, _BLOCK):
                stretch = slice(start, min(start + _BLOCK, group.stop))
                self._blocks.append(self._block(index, stretch))

    def _block(self, group: int, stretch: slice) -> _Block:
        return _Block(
            group=group,
            stretch=stretch,
            pieces=tuple(self._pieces(stretch.start, stretch.stop)),
            update=self._update[stretch],
            origin=self._origin[stretch],
            total=self._total[stretch],
        )

    def _pieces(self, start: int, stop: int) -> Iterator[_Piece]:
        """The pieces of arrays between two positions of the flat vector."""
        specs = self.layout.released
        first = bisect_right(specs, start, key=lambda spec: spec.start) - 1
        for index in range(first, len(specs)):
            spec = specs[index]
            if spec.start >= stop:
                return
            low, high = max(start, spec.start), min(stop, spec.stop)
            entries = slice(low - spec.start, high - spec.start)
            yield _Piece(array=index, entries=entries, update=self._update[low:high])

    def _values_of(self, unit: ArrayRecord | NDArray[np.float64]) -> _Values:
        """Read a unit's model, or return its update.

        Raises:
            RefusedUpdate: It is not such a model.
            ValueError: An update has another shape.
        """
        if isinstance(unit, ArrayRecord):
            return self.layout.values(unit)
        if unit.shape != self._update.shape:
            raise ValueError(f"an update has shape ({self.layout.size},), got {unit.shape}")
        return unit

    @property
    def total(self) -> NDArray[np.float64]:
        """The sum so far, shape `(layout.size,)`: memory that later updates are added to."""
        if self._scales is not None:
            self.visit_blocks(lambda total, stretch: None)
        return self._total

    def visit_blocks(self, use: Callable[[NDArray[np.float64], slice], object]) -> None:
        """Let threads use the sum so far block by block, each while the cache has it.

        `use` gets a block of `total` and its slice of the flat vector.
        """
        last = self._taken_scales()

        def add_and_use(index: int) -> None:
            if last is not None:
                self._add_last(index, last)
            block = self._blocks[index]
            use(block.total, block.stretch)

        self._for_each_block(add_and_use)

    def _load(self, values: _Values) -> list[float]:
        """Load an update into the scratch memory, and return each group's norm.

        The previous update is added first. A norm is infinite if an entry is not finite.
        """
        squares: list[list[float]] = [[] for _ in self._blocks]
        last = self._taken_scales()

        def load(index: int) -> None:
            if last is not None:
                self._add_last(index, last)
            block = self._blocks[index]
            if isinstance(values, np.ndarray):
                block.update[...] = values[block.stretch]
            else:
                for piece in block.pieces:
                    piece.update[...] = values[piece.array][piece.entries]
                # In float64: a difference of float32 models would be rounded before it is clipped.
                np.subtract(block.update, block.origin, out=block.update)
            squares[index] = _squares(block.update)

        self._for_each_block(load)
        group_squares: list[list[float]] = [[] for _ in self._groups]
        for block, parts in zip(self._blocks, squares, strict=True):
            group_squares[block.group].extend(parts)
        groups = zip(group_squares, self._groups, strict=True)
        return [_norm(parts, self._update[group]) for parts, group in groups]

    def _taken_scales(self) -> Sequence[float] | None:
        """Scales of an update that is still to be added, once: it may fail."""
        scales, self._scales = self._scales, None
        return scales

    def _add_last(self, index: int, scales: Sequence[float]) -> None:
        """Multiply a block of the update by its group's scale, round it if asked, and add it."""
        block = self._blocks[index]
        update, scale = block.update, scales[block.group]
        if scale != 1.0:
            np.multiply(update, scale, out=update)
        if self._truncates:  # towards zero: rounding must not make a clipped update longer
            np.trunc(update, out=update)
        np.add(block.total, update, out=block.total)

    def _for_each_block(self, work: Callable[[int], None]) -> None:
        """Call `work` with each block's number, in threads if that pays off."""
        threads.share(len(self._blocks), work, at_most=self.layout.size // _BLOCK)


class ClippedSum(_Sum):
    """The sum of clipped updates in grid steps, folded in one reply at a time.

    Privacy: whatever one unit sends, it moves `total * grid` by at most `sensitivity` in L2
    (zero-out or add/remove neighbours; weights are public). This holds for exact arithmetic: all
    summands are integers, their sum is exact in any order, and rounding is towards zero.

    Attributes:
        total: Integer-valued float64 in grid steps, shape `(layout.size,)`.
        sensitivity: Largest L2 norm of a unit's contribution, in the updates' units.
    """

    _truncates = True

    def __init__(
        self,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        *,
        grid: float,
        clipping_norms: Sequence[float],
    ) -> None:
        """Start from zero.

        Args:
            layout: Layout of the model that was sent.
            origin: That model, flattened. Not copied: it must not change.
            grid: The grid step in the updates' units, a `GridMechanism.grid`.
            clipping_norms: One L2 bound on the whole update, or one for each released array in
                order. With several, their joint norm is the sensitivity.

        Raises:
            ValueError: Origin is not of this layout, the number of bounds is wrong, a bound or the
                grid is not positive and finite, or float64 can't hold one update on this grid.
        """
        count = len(layout.released)
        groups = [slice(0, layout.size)]
        if len(clipping_norms) == count:
            groups = [slice(spec.start, spec.stop) for spec in layout.released]
        super().__init__(layout, origin, groups)
        if len(clipping_norms) not in (1, count):
            raise ValueError(
                f"{len(clipping_norms)} clipping norms for {count} released arrays: give one for "
                "the whole update, or one an array"
            )
        self.sensitivity = joint_clipping_norm(clipping_norms)
        if not (math.isfinite(grid) and grid > 0):
            raise ValueError(f"grid must be positive and finite, got {grid}")
        self.grid = grid
        self._clipping_norms = tuple(clipping_norms)
        self._capacity = int(min(_EXACT_INTEGERS * grid / max(clipping_norms), _EXACT_INTEGERS))
        if self._capacity < 1:
            raise ValueError(f"grid {grid} is too fine for clipping norm {max(clipping_norms)}")
        self._units = 0
        self._on_devices: dict[torch.device, DeviceSum] = {}
        # There no norm is near the ends of float64, so a device needs no other way to clip.
        self._in_float32 = min(clipping_norms) > _SMALLEST_ON_DEVICE and all(
            spec.dtype.itemsize <= 4 for spec in layout.released
        )

    @property
    def total(self) -> NDArray[np.float64]:
        """The sum so far, as `_Sum.total`; those of devices are fetched first."""
        self._fetch()
        return super().total

    def visit_blocks(self, use: Callable[[NDArray[np.float64], slice], object]) -> None:
        """Let threads use the sum so far, as `_Sum.visit_blocks`."""
        self._fetch()
        super().visit_blocks(use)

    def _fetch(self) -> None:
        for on_device in self._on_devices.values():
            self._total += on_device.taken()
        self._on_devices.clear()

    def add(self, unit: ArrayRecord | NDArray[np.float64], *, weight: float = 1.0) -> float:
        """Clip one unit's update and add it.

        The update is the unit's model minus the origin in float64. If an entry is not finite, or a
        norm is beyond float64, the unit's whole contribution is zero.

        Args:
            unit: Its model, or its update as a flat vector, shape `(layout.size,)`.
            weight: Public factor in [0, 1] on the clipped update.

        Returns:
            The whole update's L2 norm before clipping, private; infinity if it added nothing
            because it or its norm was not finite.

        Raises:
            RefusedUpdate: A name, shape or dtype is not the model's, or an array can't be read.
                Nothing was added.
            ValueError: The weight is outside [0, 1], or a flat update has another shape.
            OverflowError: These are more units than float64 sums exactly on this grid.
        """
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"weight must lie in [0, 1], got {weight}")
        self._count(1)
        return self._add_clipped(self._values_of(unit), weight)

    def add_rows(self, vectors: Rows) -> Norms:
        """Clip many units' updates and add them, equal to the bit to `add` of each.

        On an accelerator norms differ in their last bits, and the host does not wait.

        Args:
            vectors: The units' models, float32 or float64 of shape `(units, layout.size)`: a row
                is one's `layout.flatten`, but for its dtype. A tensor or an array.

        Returns:
            The result of `add` for each; a tensor for rows on an accelerator.

        Raises:
            RefusedUpdate: It is no such matrix; nothing was added.
            OverflowError: As `add`; nothing was added.
        """
        rows = self._matrix(vectors)
        if not isinstance(rows, np.ndarray):
            return self._add_on_device(rows)
        # An update of several blocks has the threads to itself; rows of one block share them.
        parts = 1
        if self.layout.size < 2 * _BLOCK:
            parts = max(1, min(threads.processors(), len(rows)))
        sums = [self._empty() for _ in range(parts)]
        running = [
            threads.submit(part._add_vectors, rows[start::parts])
            for start, part in enumerate(sums[1:], 1)
        ]
        norms = np.empty(len(rows))
        norms[::parts] = sums[0]._add_vectors(rows[::parts])
        for start, future in enumerate(running, 1):
            norms[start::parts] = future.result()
        self._count(len(rows))
        for part in sums:  # all rows or none
            self._total += part.total
        unit_norms: list[float] = norms.tolist()
        return unit_norms

    def _matrix(self, vectors: Rows) -> Rows:
        """Check rows; they are a tensor if they are summed where they are, otherwise an array."""
        rows = vectors if _is_tensor(vectors) else np.asarray(vectors)
        dtype = str(rows.dtype).removeprefix("torch.")
        fits = rows.ndim == 2 and rows.shape[1] == self.layout.size
        if not fits or dtype not in ("float32", "float64"):
            raise RefusedUpdate(
                f"{dtype} of shape {tuple(rows.shape)} is no matrix of float32 or float64 with "
                f"{self.layout.size} columns"
            )
        if isinstance(rows, np.ndarray):
            return rows
        if dtype == "float32" and self._in_float32 and _stays_there(rows):
            return rows.detach()
        array: NDArray[np.floating] = rows.detach().cpu().numpy()
        return array

    def _add_on_device(self, rows: Tensor) -> Tensor:
        """Add float32 rows on their device; see `add_rows`."""
        from fl_dp.accelerator.device_sum import DeviceSum

        if rows.device not in self._on_devices:
            self._on_devices[rows.device] = DeviceSum(
                self._origin,
                rows.device,
                grid=self.grid,
                groups=self._groups,
                bounds=[norm * _CLIPPING_MARGIN for norm in self._clipping_norms],
            )
        self._count(len(rows))
        try:
            return self._on_devices[rows.device].add(rows)
        except BaseException:
            self._units -= len(rows)  # none was added
            raise

    def _empty(self) -> ClippedSum:
        """A sum of the same kind that starts from zero."""
        return ClippedSum(
            self.layout, self._origin, grid=self.grid, clipping_norms=self._clipping_norms
        )

    def _add_vectors(self, vectors: NDArray[np.floating]) -> list[float]:
        norms: list[float] = []
        for vector in vectors:
            arrays = [vector[spec.start : spec.stop] for spec in self.layout.released]
            norms.append(self._add_clipped(arrays, 1.0))
        return norms

    def _add_clipped(self, values: _Values, weight: float) -> float:
        """Add one unit's model, read and counted, and return its norm, as `add` does."""
        norms = self._load(values)
        norm = math.hypot(*norms)
        if not math.isfinite(norm):
            return math.inf
        if weight > 0.0 and norm > 0.0:
            groups = zip(self._groups, norms, self._clipping_norms, strict=True)
            factors = [self._clipping_factor(*group) for group in groups]
            self._scales = [weight * factor / self.grid for factor in factors]
        return norm

    def add_steps(self, arrays: ArrayRecord, *, max_units: int) -> None:
        """Add a node's own sum of at most `max_units` units, a public number: those that it hosts.

        Raises:
            RefusedUpdate: It is not such a sum: a name, shape or dtype other than float64, an
                entry that is no integer, or a norm that `max_units` can't reach. Nothing was
                added.
            ValueError: `max_units` is below 1.
            OverflowError: As `add`.
        """
        if max_units < 1:
            raise ValueError(f"max_units must be at least 1, got {max_units}")
        # As many as it could host, whoever took part: the server must not rely on its claim.
        self._count(max_units)
        if any(array.dtype != "float64" for array in arrays.values()):
            raise RefusedUpdate("it is not in float64, in which grid steps are exact")
        steps = self.layout.in_float64().flatten(arrays)
        with np.errstate(invalid="ignore"):
            if not (np.isfinite(steps).all() and (np.trunc(steps) == steps).all()):
                raise RefusedUpdate("it is not a sum in grid steps")
        for group, bound in zip(self._groups, self._clipping_norms, strict=True):
            if l2_norm(steps[group]) > max_units * bound / self.grid * _ACCEPTING_MARGIN:
                raise RefusedUpdate("its norm is more than its units can reach")
        self._total += steps

    def steps(self) -> ArrayRecord:
        """The sum for `add_steps` at the server: float64 arrays of grid steps."""
        return self.layout.in_float64().unflatten(self.total)

    def _count(self, units: int) -> None:
        """Raise an error before the sums of integers could stop being exact."""
        if self._units + units > self._capacity:
            raise OverflowError(
                f"at most {self._capacity} units can be summed exactly on this grid: use a larger "
                "noise multiplier"
            )
        self._units += units

    def _clipping_factor(self, group: slice, norm: float, clipping_norm: float) -> float:
        """The loaded group's factor."""
        bound = clipping_norm * _CLIPPING_MARGIN
        if norm <= bound:
            return 1.0
        if bound / norm > _SMALLEST_FACTOR:
            return bound / norm
        self._update[group] = clip_by_norm(self._update[group], clipping_norm)
        return 1.0


class PlainSum(_Sum):
    """The weighted sum of updates without clipping or grid, for runs without central noise.

    It bounds no contribution: nothing computed from it is private by itself.

    Attributes:
        total: Float64 in the updates' units, shape `(layout.size,)`.
    """

    _truncates = False

    def __init__(self, layout: VectorLayout, origin: NDArray[np.float64]) -> None:
        """Start from zero; arguments as for `ClippedSum`.

        Raises:
            ValueError: Origin is not of this layout.
        """
        super().__init__(layout, origin, [slice(0, layout.size)])

    def add(self, unit: ArrayRecord | NDArray[np.float64], *, weight: float = 1.0) -> float:
        """Add one unit's update times its weight.

        Args:
            unit: Its model, or its update as a flat vector, shape `(layout.size,)`.
            weight: At least zero; may be the unit's own claim, such as its number of records.

        Returns:
            The update's L2 norm; infinity if it added nothing: it or its weight was not finite,
            the weight was negative, or their product too large.

        Raises:
            RefusedUpdate: As `ClippedSum.add`. Nothing was added.
            ValueError: A flat update has another shape.
        """
        (norm,) = self._load(self._values_of(unit))
        if not (0.0 <= weight <= _LARGEST_SUMMAND and weight * norm <= _LARGEST_SUMMAND):
            return math.inf
        if weight > 0.0 and norm > 0.0:
            self._scales = [weight]
        return norm


def read_norms(norms: Norms) -> list[float]:
    """Return norms in the host's memory; it waits for a device."""
    return norms if isinstance(norms, list) else norms.tolist()


def _is_tensor(values: object) -> TypeGuard[Tensor]:
    """Tell a tensor of torch, which need not be installed."""
    return hasattr(values, "is_cuda")


def _stays_there(rows: Tensor) -> bool:
    """Whether rows are summed where they are: the host's own way is quicker on the CPU."""
    return rows.device.type == "cuda"


def _squares(update: NDArray[np.float64]) -> list[float]:
    """Sums of squares of a contiguous vector's rows."""
    whole = update.size // _ROW * _ROW
    rows = update[:whole].reshape(-1, _ROW)
    sums: list[Any] = np.vecdot(rows, rows).tolist()
    rest = update[whole:]
    return [*sums, float(np.dot(rest, rest))]  # too short for BLAS to use threads of its own


def _norm(squares: list[float], update: NDArray[np.float64]) -> float:
    """An update's L2 norm from its sums of squares; infinity if it is not finite."""
    try:
        norm = math.sqrt(math.fsum(squares))
    except OverflowError:  # fsum raises where a plain sum says infinity
        norm = math.inf
    if not _SMALL < norm < _LARGE:
        norm = l2_norm(update)
    return norm if math.isfinite(norm) else math.inf
