"""Where each array of a model lies in the one flat vector that is clipped and released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray


class RefusedUpdate(ValueError):
    """A reply that can't be an update of this model; it counts as a zero update.

    Its text names what was wrong with the *form* and carries no value from the client.
    """


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array that is released."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.floating]
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class VectorLayout:
    """The released arrays in order, and the names of those that are not.

    Floating-point arrays of any shape, 0-d included, are part of the vector. Integer and boolean
    arrays (counters, masks) are not released: the server keeps its own, whatever clients send.

    Attributes:
        released: The floating-point arrays.
        kept: Names of the integer and boolean arrays.
    """

    released: tuple[ArraySpec, ...]
    kept: frozenset[str]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """Return the layout of a model.

        Raises:
            ValueError: If an array is neither floating-point, integer nor boolean, or none is
                floating-point.
        """
        released: list[ArraySpec] = []
        kept: set[str] = set()
        stop = 0
        for name, array in arrays.items():
            values = array.numpy()
            if np.issubdtype(values.dtype, np.floating):
                start, stop = stop, stop + values.size
                released.append(
                    ArraySpec(
                        name=name, shape=values.shape, dtype=values.dtype, start=start, stop=stop
                    )
                )
            elif np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
                kept.add(name)
            else:
                raise ValueError(
                    f"array '{name}' has dtype {values.dtype}: only floating-point arrays can be "
                    "trained, and integer or boolean ones kept at the server"
                )
        if not released:
            raise ValueError("the model has no floating-point array to train")
        return cls(released=tuple(released), kept=frozenset(kept))

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.released[-1].stop

    def only_released(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a record of the released arrays alone."""
        return ArrayRecord({spec.name: arrays[spec.name] for spec in self.released})

    def flatten(self, arrays: ArrayRecord) -> NDArray[np.float64]:
        """Return the released arrays as one float64 vector.

        Raises:
            RefusedUpdate: If a name, a shape or a dtype is not the model's.
        """
        foreign = arrays.keys() - {spec.name for spec in self.released} - self.kept
        if foreign:
            raise RefusedUpdate("it has an array that the model does not have")
        vector = np.empty(self.size, dtype=np.float64)
        for spec in self.released:
            if spec.name not in arrays:
                raise RefusedUpdate(f"array '{spec.name}' is missing")
            try:
                values = arrays[spec.name].numpy()
            except Exception:
                raise RefusedUpdate(f"array '{spec.name}' can't be read") from None
            if values.shape != spec.shape or values.dtype != spec.dtype:
                raise RefusedUpdate(
                    f"array '{spec.name}' is not {spec.dtype} of shape {spec.shape}"
                )
            vector[spec.start : spec.stop] = values.reshape(-1)
        return vector

    def unflatten(self, vector: NDArray[np.float64]) -> ArrayRecord:
        """Return the released arrays that `flatten` would turn into `vector`, in their dtypes."""
        return ArrayRecord(
            {
                spec.name: Array(
                    vector[spec.start : spec.stop].reshape(spec.shape).astype(spec.dtype)
                )
                for spec in self.released
            }
        )

    def merge(self, released: ArrayRecord, model: ArrayRecord) -> ArrayRecord:
        """Return `model` with its released arrays replaced, in the model's order and dtypes."""
        specs = {spec.name: spec for spec in self.released}
        return ArrayRecord(
            {
                name: Array(
                    np.asarray(released[name].numpy(), dtype=specs[name].dtype).reshape(
                        specs[name].shape
                    )
                )
                if name in specs
                else array
                for name, array in model.items()
            }
        )


def only_array_record(content: RecordDict) -> ArrayRecord:
    """Return the one ArrayRecord of a reply.

    Raises:
        RefusedUpdate: If there is none or more than one.
    """
    records = list(content.array_records.values())
    if len(records) != 1:
        raise RefusedUpdate("it does not have exactly one array record")
    return records[0]
