"""Positions of a model's arrays in the one flat vector that is clipped and released."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fl_dp.mechanisms.threads import in_blocks

from .arrays import ArrayForm, array_form, array_of, filled_array, moved_inwards, read
from .shared_part import matching


class RefusedUpdate(ValueError):
    """A reply that can't be an update of this model; it counts as a zero update.

    Its text names the error of its *form* and contains no value from the client.
    """


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One released array: its name, form and stretch of the flat vector."""

    name: str
    form: ArrayForm
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.form.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that NumPy computes with: float32 for bfloat16."""
        return self.form.dtype


@dataclass(frozen=True, kw_only=True)
class VectorLayout:
    """The released arrays in order, and the names of the others.

    Floating-point arrays of any shape, 0-d and empty ones included, are part of the vector:
    float16, bfloat16, float32, float64 and long double. Integer and boolean arrays (counters,
    masks) are not, nor floating-point ones that are not trained: the server keeps its own,
    whatever clients send.

    Attributes:
        server_only: Names of the arrays that are not released.
    """

    released: tuple[ArraySpec, ...]
    server_only: frozenset[str]

    @classmethod
    def of(cls, arrays: ArrayRecord, trained: Collection[str] | None = None) -> Self:
        """The layout of a model.

        Args:
            arrays: The model.
            trained: Names of the arrays that are trained, or patterns, with `*` and `?` as in file
                names. None: all floating-point arrays.

        Raises:
            ValueError: An array can't be read, or is neither floating-point, integer nor boolean;
                none is floating-point, or a pattern matches none that is.
        """
        floating: list[str] = []
        chosen = arrays.keys() if trained is None else set(matching(arrays, trained))
        released: list[ArraySpec] = []
        server_only: set[str] = set()
        stop = 0
        for name, array in arrays.items():
            try:
                form, values = read(array)
            except ValueError as unreadable:
                raise ValueError(f"array '{name}' can't be read: {unreadable}") from unreadable
            if np.issubdtype(form.dtype, np.floating):
                floating.append(name)
                if name not in chosen:
                    server_only.add(name)
                    continue
                start, stop = stop, stop + values.size
                released.append(ArraySpec(name=name, form=form, start=start, stop=stop))
            elif np.issubdtype(form.dtype, np.integer) or form.dtype == np.bool_:
                server_only.add(name)
            else:
                raise ValueError(
                    f"array '{name}' has dtype {form.declared}: only floating-point arrays can be "
                    "trained, and integer or boolean ones kept at the server"
                )
        for pattern in trained or ():
            if not matching(floating, [pattern]):
                raise ValueError(
                    f"trained: '{pattern}' matches none of the model's floating-point arrays: "
                    f"{', '.join(floating)}"
                )
        if not released:
            raise ValueError("the model has no floating-point array to train")
        return cls(released=tuple(released), server_only=frozenset(server_only))

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.released[-1].stop

    def in_float64(self) -> Self:
        """The same names and shapes, every array in float64."""
        wide = (replace(spec, form=array_form(np.float64, spec.shape)) for spec in self.released)
        return replace(self, released=tuple(wide))

    @property
    def sum_bytes(self) -> int:
        """Bytes of the arrays of a node's own sum, which is in float64."""
        return sum(spec.form.file_bytes for spec in self.in_float64().released)

    def only_released(self, arrays: ArrayRecord) -> ArrayRecord:
        """The released arrays alone, bfloat16 ones as float32."""
        released: dict[str, Array] = {}
        for spec in self.released:
            array = arrays[spec.name]
            released[spec.name] = Array(read(array)[1]) if spec.form.bfloat16 else array
        return ArrayRecord(released)

    def values(self, arrays: ArrayRecord) -> list[NDArray[Any]]:
        """Numbers of the released arrays in order, each flat, in its own dtype.

        They are views of the record's bytes where possible. Every floating-point dtype, in either
        byte order, is read by value, whatever the model's is. Integers are not: they may be the
        bits or the codes of other numbers.

        Raises:
            RefusedUpdate: A name or shape is not the model's, an array is not floating-point, or
                can't be read.
        """
        foreign = arrays.keys() - {spec.name for spec in self.released} - self.server_only
        if foreign:  # its client trains another model, so the arrays that fit can't be meant
            raise RefusedUpdate("it has an array that the model does not have")
        return list(self._read(arrays))

    def converts(self, content: RecordDict) -> bool:
        """Whether a reply that `values` has read has another dtype than the model."""
        usual = {spec.name: (spec.form.declared, spec.dtype.name) for spec in self.released}
        for arrays in content.array_records.values():
            for name, array in arrays.items():
                if name in usual and array.dtype not in usual[name]:
                    return True
        return False

    def flatten(self, arrays: ArrayRecord) -> NDArray[np.float64]:
        """The released arrays as one float64 vector, shape `(size,)`.

        Raises:
            RefusedUpdate: As `values` does.
        """
        vector = np.empty(self.size, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # a long double may become infinite
            for spec, values in zip(self.released, self.values(arrays), strict=True):
                vector[spec.start : spec.stop] = values
        return vector

    def unflatten(self, *vectors: NDArray[np.float64]) -> ArrayRecord:
        """The released arrays that `flatten` would turn into a vector, or a sum of two.

        They have the dtypes that NumPy computes with, for a server optimizer to read: float32
        stands in for bfloat16 until `merge` writes the model.
        """
        return ArrayRecord({spec.name: _array(spec, vectors) for spec in self.released})

    def unflatten_inwards(
        self, origin: NDArray[np.float64], update: NDArray[np.float64]
    ) -> ArrayRecord:
        """The released arrays of a sum, each number rounded towards `origin`.

        No number moves by more than its update. `origin` is a model as `flatten` returns it.
        """
        return ArrayRecord(
            {spec.name: _array_inwards(spec, origin, update) for spec in self.released}
        )

    def merge(self, released: ArrayRecord, model: ArrayRecord) -> ArrayRecord:
        """`model` with its released arrays replaced, in the model's order and forms."""
        forms = {spec.name: spec.form for spec in self.released}
        merged = dict(model)
        for name, form in forms.items():
            merged[name] = _in_form(released[name], form)
        return ArrayRecord(merged)

    def _read(self, arrays: ArrayRecord) -> Iterator[NDArray[Any]]:
        for spec in self.released:
            if spec.name not in arrays:
                raise RefusedUpdate(f"array '{spec.name}' is missing")
            try:
                form, values = read(arrays[spec.name])
            except Exception:  # whatever a hostile header makes NumPy raise
                raise RefusedUpdate(f"array '{spec.name}' can't be read") from None
            if form.shape != spec.shape or not np.issubdtype(form.dtype, np.floating):
                raise RefusedUpdate(
                    f"array '{spec.name}' is not floating-point of shape {spec.shape}"
                )
            yield values.reshape(-1)


def _array(spec: ArraySpec, vectors: Sequence[NDArray[np.float64]]) -> Array:
    """An array whose numbers are rounded once, after vectors are added in float64."""
    parts = [vector[spec.start : spec.stop] for vector in vectors]

    def write(flat: NDArray[Any]) -> None:
        def write_block(block: slice) -> None:
            if len(parts) == 1:
                flat[block] = parts[0][block]
            else:
                np.add(parts[0][block], parts[1][block], out=flat[block], casting="same_kind")

        in_blocks(flat.size, write_block)

    return filled_array(spec.dtype, spec.shape, write)


def _array_inwards(
    spec: ArraySpec, origin: NDArray[np.float64], update: NDArray[np.float64]
) -> Array:
    before, moves = origin[spec.start : spec.stop], update[spec.start : spec.stop]

    def write(flat: NDArray[Any]) -> None:
        def write_block(block: slice) -> None:
            flat[block] = moved_inwards(before[block], moves[block], spec.form)

        in_blocks(flat.size, write_block)

    return filled_array(spec.dtype, spec.shape, write)


def _in_form(array: Array, form: ArrayForm) -> Array:
    """The array itself if it has that form, else a new one of its numbers."""
    own, values = read(array)
    return array if own == form else array_of(values, form)


def only_array_record(content: RecordDict) -> ArrayRecord:
    """The one ArrayRecord of a reply.

    Raises:
        RefusedUpdate: There is none or more than one.
    """
    records = list(content.array_records.values())
    if len(records) != 1:
        raise RefusedUpdate("it does not have exactly one array record")
    return records[0]
