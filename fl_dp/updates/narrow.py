"""Floating-point numbers in two bytes each: float16 and bfloat16.

A narrow array keeps its former dtype's name, so its receiver can widen it again. Its serialization
type is ours: a client without this package fails at once, rather than train in a precision that no
setting chose.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from .arrays import ArrayForm, array_of, read
from .compression_options import NARROW_FORMATS

_STYPE = "fl-dp/"  # and the format


def narrow_form(name: str, shape: tuple[int, ...]) -> ArrayForm:
    """The form of an array in that narrow format."""
    bfloat16 = name == "bfloat16"
    stored = np.dtype("<u2" if bfloat16 else "<f2")
    return ArrayForm(shape=shape, declared=name, stored=stored, bfloat16=bfloat16)


def narrow_values(values: NDArray[np.floating], name: str) -> Array:
    """Write numbers in a narrow format, rounded to nearest even.

    Numbers too large for float16 become its largest, 65,504.
    """
    if name == "float16":
        most = float(np.finfo(np.float16).max)
        values = np.clip(values, -most, most)
    return array_of(values, narrow_form(name, values.shape))


def narrow(model: ArrayRecord, name: str) -> ArrayRecord:
    """A model whose floating-point arrays of over two bytes per number are narrow."""
    return ArrayRecord({key: _narrowed(array, name) for key, array in model.items()})


def widen(model: ArrayRecord) -> ArrayRecord:
    """A model in its dtypes before `narrow`, rounded; any other model is unchanged.

    Raises:
        ValueError: A narrow array can't be read.
    """
    return ArrayRecord({key: _widened(array) for key, array in model.items()})


def _narrowed(array: Array, name: str) -> Array:
    form, values = read(array)
    if not np.issubdtype(form.dtype, np.floating) or form.stored.itemsize <= 2:
        return array
    return Array(form.declared, form.shape, _STYPE + name, narrow_values(values, name).data)


def _widened(array: Array) -> Array:
    if not array.stype.startswith(_STYPE):
        return array
    name, dtype = array.stype.removeprefix(_STYPE), np.dtype(array.dtype)
    if name not in NARROW_FORMATS or not np.issubdtype(dtype, np.floating):
        raise ValueError(f"{dtype} numbers in the narrow format '{name}' are none of this version")
    _, values = read(Array(name, array.shape, "numpy.ndarray", array.data))
    return Array(np.asarray(values, dtype=dtype))
