"""The numbers inside a Flower `Array`: read without a copy, written in the form they came in.

An `Array` holds the bytes of an .npy file. Its sender chose every byte, header included: nothing
is unpickled, and no header decides how much is allocated. The returned view is as long as the
bytes that came.

NumPy has no bfloat16. Its numbers come in two ways: as two-byte void items, which `np.save` makes
of an `ml_dtypes` array (JAX, TensorFlow), or as 16-bit integers under the declared dtype
"bfloat16", which a PyTorch user can build from `tensor.view(torch.uint16)`; Flower itself can't
hold a PyTorch bfloat16 tensor. Both are computed as float32, which holds every bfloat16.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

_STYPE = "numpy.ndarray"
_BFLOAT16 = "bfloat16"
_VOID16 = np.dtype("V2")  # of what ml_dtypes defines, only bfloat16 is two bytes long
_BITS16 = (np.dtype(np.uint16), np.dtype(np.int16))
_NPY_HEADER = 128  # bytes before the items of an array's .npy file
_LONGEST_HEADER = 2048  # bytes: room for 64 axes, and little parsing for an attacker to cause


@dataclass(frozen=True, kw_only=True)
class ArrayForm:
    """Form of an array's numbers.

    Attributes:
        shape: `()` for a scalar.
        declared: `Array.dtype`, a name such as "float32" or "bfloat16".
        stored: The dtype of the .npy file's items; void or integer for bfloat16.
        bfloat16: Whether the items are bfloat16.
    """

    shape: tuple[int, ...]
    declared: str
    stored: np.dtype[Any]
    bfloat16: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype that NumPy computes with: float32 for bfloat16, else the stored one."""
        return np.dtype(np.float32) if self.bfloat16 else self.stored

    @property
    def file_bytes(self) -> int:
        """Bytes of an array's .npy file."""
        return _NPY_HEADER + self.stored.itemsize * math.prod(self.shape)


def array_bytes(arrays: ArrayRecord) -> int:
    """Bytes of a record's arrays, with the headers of their .npy files."""
    return sum(len(array.data) for array in arrays.values())


def array_form(dtype: DTypeLike, shape: tuple[int, ...]) -> ArrayForm:
    """The form of numbers that NumPy stores as it computes with them."""
    stored = np.dtype(dtype)
    return ArrayForm(shape=shape, declared=stored.name, stored=stored, bfloat16=False)


def read(array: Array) -> tuple[ArrayForm, NDArray[Any]]:
    """An array's form and its numbers, in the form's `dtype` and `shape`.

    The numbers are a read-only view of `array.data`, except for bfloat16, which is widened.

    Raises:
        ValueError: It is no .npy file of plain numbers, or not as long as its header says.
    """
    if array.stype != _STYPE:
        raise ValueError(f"its serialization type is not '{_STYPE}'")
    try:
        stored, items = _items(array.data)
    except ValueError:
        raise
    except Exception as error:  # whatever else a hostile header makes Python or NumPy raise
        raise ValueError("it is no .npy file") from error
    bfloat16 = stored == _VOID16 or (array.dtype == _BFLOAT16 and stored in _BITS16)
    form = ArrayForm(shape=items.shape, declared=array.dtype, stored=stored, bfloat16=bfloat16)
    if bfloat16:
        return form, widened(items.view(np.uint16))
    return form, items


def own_copy(array: Array) -> NDArray[Any]:
    """What `Array.numpy` returns, copied once instead of three times.

    Raises:
        ValueError: As `read`.
    """
    if array.stype != _STYPE:
        raise ValueError(f"its serialization type is not '{_STYPE}'")
    return _items(array.data)[1].copy(order="K")


def values_of(array: Array) -> NDArray[np.floating]:
    """Numbers of a floating-point array: float16, 32, 64 or long double; see `read`.

    Raises:
        ValueError: It can't be read, or is not floating-point.
    """
    form, values = read(array)
    if not np.issubdtype(form.dtype, np.floating):
        raise ValueError(f"its items are {form.dtype}, not floating-point")
    return values


def array_of(values: NDArray[np.floating], form: ArrayForm) -> Array:
    """Write numbers in a given form, in C order.

    Args:
        values: As many numbers as `form.shape` holds, of any floating dtype. They are rounded to
            nearest even (bfloat16 by way of float32, as PyTorch does); too large ones become
            infinite.
        form: The form that `read` returned for the array to replace.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.asarray(values, dtype=form.dtype).reshape(form.shape)
    if not form.bfloat16:
        return plain_array(numbers)
    return plain_array(narrowed(numbers).view(form.stored), declared=form.declared)


def moved_inwards(
    origin: NDArray[np.float64], update: NDArray[np.float64], form: ArrayForm
) -> NDArray[np.floating]:
    """`origin` plus `update` in the form's numbers, each rounded towards `origin`.

    No number moves by more than its update, as it may if it is rounded to the nearest.

    Args:
        origin: Numbers that the form holds, in any shape.
        update: As many numbers, finite.
        form: Form of the result.

    Returns:
        Numbers of `form.dtype`, which `array_of` writes without rounding again.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moved = (origin + update).astype(form.dtype)
        is_too_far = np.abs(moved - origin) > np.abs(update)
        nearer = np.nextafter(moved, origin.astype(form.dtype))
    moved = np.where(is_too_far, nearer, moved)
    if not form.bfloat16:
        return moved
    bits = moved.view(np.uint32)
    is_away_from_zero = (moved < 0.0) == (update > 0.0)  # the direction of `origin`
    bits = bits + np.where(is_away_from_zero, np.uint32(0xFFFF), np.uint32(0))
    return widened((bits >> np.uint32(16)).astype(np.uint16))


def is_floating(declared: str) -> bool:
    """Whether an `Array.dtype`, a text that a node has sent, names a floating-point dtype."""
    if declared == _BFLOAT16:
        return True
    try:
        return bool(np.issubdtype(np.dtype(declared), np.floating))
    except Exception:  # whatever a hostile text makes NumPy raise
        return False


def plain_array(items: NDArray[Any], *, declared: str | None = None) -> Array:
    """The items as Flower would write them, copied once instead of three times.

    Raises:
        ValueError: They are Python objects.
    """
    if items.dtype.hasobject:
        raise ValueError(f"an array of {items.dtype} holds Python objects: give numbers")
    items = np.asarray(items, order="C")
    flat = items.reshape(-1)

    def copy(out: NDArray[Any]) -> None:
        out[...] = flat

    return filled_array(items.dtype, items.shape, copy, declared=declared)


def filled_array(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    write: Callable[[NDArray[Any]], None],
    *,
    declared: str | None = None,
) -> Array:
    """An array as Flower would write it, whose bytes `write` fills without a copy.

    `write` gets the flat array of its numbers in C order, all zeros.
    """
    size = math.prod(shape)
    header = _header(dtype, shape)
    # A stream returns its only bytes without a copy once no view of them is left.
    stream = io.BytesIO(bytes(len(header) + size * dtype.itemsize))
    view = stream.getbuffer()
    view[: len(header)] = header
    write(np.ndarray(size, dtype, view, len(header)))
    del view
    return Array(declared or str(dtype), shape, _STYPE, stream.getvalue())


@lru_cache(maxsize=256)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an .npy file of such an array."""
    stream = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, described)
    return stream.getvalue()


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers of bfloat16 bits; exact."""
    wide = bits.astype(np.uint32, order="C")
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def narrowed(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(numbers).reshape(numbers.shape).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # a NaN whose payload is cut off is infinity
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)


def _items(data: bytes) -> tuple[np.dtype[Any], NDArray[Any]]:
    """The items of an .npy file and their dtype; a read-only view."""
    header = _header_of(data)
    shape, fortran_order, stored = _parsed(header)
    if stored.hasobject or stored.names is not None or stored.subdtype is not None:
        raise ValueError("its items are not plain numbers")
    if len(data) - len(header) != math.prod(shape) * stored.itemsize:
        raise ValueError("it is not as long as its header says")
    order: Literal["C", "F"] = "F" if fortran_order else "C"
    items: NDArray[Any] = np.ndarray(shape, stored, data, len(header), order=order)
    return stored, items


def _header_of(data: bytes) -> bytes:
    """Everything before the items."""
    width = 2 if data[6:8] == b"\x01\x00" else 4
    start = npy.MAGIC_LEN + width
    length = int.from_bytes(data[npy.MAGIC_LEN : start], "little")
    if length > _LONGEST_HEADER:
        raise ValueError("its header is too long")
    return data[: start + length]


@lru_cache(maxsize=256)  # the replies of a round all have the model's few headers
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and item dtype."""
    stream = io.BytesIO(header)
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran_order, stored = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran_order, stored = npy.read_array_header_2_0(stream)
    else:
        raise ValueError("its .npy version is neither 1.0 nor 2.0")
    if any(length < 0 for length in shape):
        raise ValueError("it has a negative length")
    return tuple(int(length) for length in shape), bool(fortran_order), stored
