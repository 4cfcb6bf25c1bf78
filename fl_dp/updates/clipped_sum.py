"""Summing a round's updates one by one, in memory that does not grow with the cohort.

    >>> total = ClippedSum(layout, origin, grid=mechanism.grid, clipping_norms=[1.0])
    >>> for reply in replies:
    ...     total.add(only_array_record(reply.content))
    >>> released = mechanism.release(total.total, mechanism.noise(total.total.size, rng))

An update is read for its norm, and again to be scaled, rounded and added: with a later one's norm,
or when the sum is asked for. It waits as the bytes that came, up to the memory of the sum itself,
so several pass through the cache together with a block of the model and of the sum. Threads share
the blocks; NumPy releases the interpreter inside them. A block's result depends on the block alone,
and blocks' squares are summed without rounding: neither timing nor the number of threads can change
a bit.

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
    """A block's part of one array, and its entries of the block."""

    array: int
    entries: slice
    within: slice


@dataclass(frozen=True)
class _Block:
    """The same stretch of every flat vector, as views; small arrays share one."""

    group: int
    stretch: slice
    pieces: tuple[_Piece, ...]
    origin: NDArray[np.float64]
    total: NDArray[np.float64]


_Values: TypeAlias = Sequence[NDArray[Any]] | NDArray[np.float64]
Rows: TypeAlias = "NDArray[np.floating] | Tensor"
"""Models of several units, `(units, d)`."""

Norms: TypeAlias = "list[float] | Tensor"
"""Norms of as many updates, wherever the rows were."""


@dataclass(frozen=True)
class _Summand:
    """An update whose norm is known, and each group's factor. Nobody may write to its memory."""

    values: _Values
    scales: Sequence[float]

    @property
    def memory(self) -> int:
        """Bytes that it holds while it waits."""
        arrays = [self.values] if isinstance(self.values, np.ndarray) else self.values
        return sum(array.nbytes for array in arrays)


_scratch = threads.WorkArrays(1, threads.BLOCK)  # for a block of an update


class _Sum:
    """A flat sum, and updates that are still to be added.

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
        self._waiting: list[_Summand] = []
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
            yield _Piece(array=index, entries=entries, within=slice(low - start, high - start))

    def _values_of(self, unit: ArrayRecord | NDArray[np.float64]) -> _Values:
        """Read a unit's model, or return its update.

        Raises:
            RefusedUpdate: It is not such a model.
            ValueError: An update has another shape.
        """
        if isinstance(unit, ArrayRecord):
            return self.layout.values(unit)
        if unit.shape != self._total.shape:
            raise ValueError(f"an update has shape ({self.layout.size},), got {unit.shape}")
        return unit

    @property
    def total(self) -> NDArray[np.float64]:
        """The sum so far, shape `(layout.size,)`: memory that later updates are added to."""
        if self._waiting:
            self.visit_blocks(lambda total, stretch: None)
        return self._total

    def visit_blocks(self, use: Callable[[NDArray[np.float64], slice], object]) -> None:
        """Let threads use the sum so far block by block, each while the cache has it.

        `use` gets a block of `total` and its slice of the flat vector.
        """
        summands = self._taken()

        def add_and_use(block: _Block) -> None:
            self._add_to(block, summands)
            use(block.total, block.stretch)

        self._for_each_block(add_and_use)

    def _norms(self, values: _Values) -> list[float]:
        """Read an update for each group's norm, infinite if an entry is not finite.

        Updates that have waited long enough are added on the way.
        """
        squares: list[list[float]] = [[] for _ in self._groups]
        full = sum(summand.memory for summand in self._waiting) >= self._total.nbytes
        summands = self._taken() if full else []

        def measure(block: _Block) -> None:
            self._add_to(block, summands)
            squares[block.group].extend(_squares(self._read(block, values)))

        self._for_each_block(measure)
        norms = []
        for group, parts in enumerate(squares):
            norm = _root_of_sum(parts)
            if not _SMALL < norm < _LARGE:
                norm = l2_norm(self._whole(values)[self._groups[group]])
            norms.append(norm if math.isfinite(norm) else math.inf)
        return norms

    def _add(self, values: _Values, scales: Sequence[float]) -> None:
        """Add an update that `_norms` has just read, now or later."""
        if len(self._blocks) > 1:
            self._waiting.append(_Summand(values, scales))
        else:  # this thread's scratch memory still has it
            (update,) = _scratch.first(self._total.size)
            self._add_scaled(self._blocks[0], update, scales)

    def _taken(self) -> list[_Summand]:
        """Updates that are still to be added, once: it may fail."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _add_to(self, block: _Block, summands: Sequence[_Summand]) -> None:
        for summand in summands:
            self._add_scaled(block, self._read(block, summand.values), summand.scales)

    def _read(self, block: _Block, values: _Values) -> NDArray[np.float64]:
        """A block of an update, in this thread's scratch memory."""
        (update,) = _scratch.first(block.total.size)
        if isinstance(values, np.ndarray):
            update[...] = values[block.stretch]
            return update
        for piece in block.pieces:
            update[piece.within] = values[piece.array][piece.entries]
        # In float64: a difference of float32 models would be rounded before it is clipped.
        return np.subtract(update, block.origin, out=update)

    def _whole(self, values: _Values) -> NDArray[np.float64]:
        """An update in memory of its own."""
        update = np.empty_like(self._total)

        def copy(block: _Block) -> None:
            update[block.stretch] = self._read(block, values)

        self._for_each_block(copy)
        return update

    def _add_scaled(
        self, block: _Block, update: NDArray[np.float64], scales: Sequence[float]
    ) -> None:
        """Multiply a block of an update by its group's scale, round it if asked, and add it."""
        np.multiply(update, scales[block.group], out=update)
        if self._truncates:  # towards zero: rounding must not make a clipped update longer
            np.trunc(update, out=update)
        np.add(block.total, update, out=block.total)

    def _for_each_block(self, work: Callable[[_Block], None]) -> None:
        """Call `work` with each block, in threads if that pays off."""
        blocks = self._blocks
        threads.share(
            len(blocks), lambda index: work(blocks[index]), at_most=self._total.size // _BLOCK
        )


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
            parts = max(1, min(threads.usable_processors(), len(rows)))
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
        for row in vectors:
            # Several blocks are read twice, and only one of one's own can't change meanwhile.
            vector = row.copy() if len(self._blocks) > 1 else row
            arrays = [vector[spec.start : spec.stop] for spec in self.layout.released]
            norms.append(self._add_clipped(arrays, 1.0))
        return norms

    def _add_clipped(self, values: _Values, weight: float) -> float:
        """Add one unit's model, read and counted, and return its norm, as `add` does."""
        norms = self._norms(values)
        norm = math.hypot(*norms)
        if not math.isfinite(norm):
            return math.inf
        if weight > 0.0 and norm > 0.0:
            factors = list(map(_clipping_factor, norms, self._clipping_norms))
            tiny = [group for group, factor in enumerate(factors) if factor <= _SMALLEST_FACTOR]
            clipped = self._clipped_twice(values, tiny) if tiny else None
            for group in tiny:
                factors[group] = 1.0
            scales = [weight * factor / self.grid for factor in factors]
            if clipped is None:
                self._add(values, scales)
            else:
                self._waiting.append(_Summand(clipped, scales))
        return norm

    def _clipped_twice(self, values: _Values, tiny: Sequence[int]) -> NDArray[np.float64]:
        """An update whose groups with tiny factors are clipped in two steps."""
        update = self._whole(values)
        for group in tiny:
            part = update[self._groups[group]]
            part[...] = clip_by_norm(part, self._clipping_norms[group])
        return update

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
        values = self._values_of(unit)
        (norm,) = self._norms(values)
        if not (0.0 <= weight <= _LARGEST_SUMMAND and weight * norm <= _LARGEST_SUMMAND):
            return math.inf
        if weight > 0.0 and norm > 0.0:
            self._add(values, [weight])
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


def _root_of_sum(squares: list[float]) -> float:
    """An update's L2 norm from its sums of squares, in any order; it may be beyond float64."""
    try:
        return math.sqrt(math.fsum(squares))
    except OverflowError:  # fsum raises where a plain sum says infinity
        return math.inf


def _clipping_factor(norm: float, clipping_norm: float) -> float:
    """The factor that makes an update of that norm short enough, at most 1."""
    bound = clipping_norm * _CLIPPING_MARGIN
    return 1.0 if norm <= bound else bound / norm
