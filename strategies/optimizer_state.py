"""A strategy's training state as a flat dictionary of arrays, without pickle.

    >>> arrays = pack({"momentum": [np.zeros(3, np.float32)], "best": 0.5})
    >>> sorted(arrays)
    ['momentum/0', 'structure']

`safetensors.numpy.save_file` or `np.savez` can write the result of `pack_state`: every value is a
contiguous array of a plain dtype. The array `structure` is UTF-8 JSON that tells how to assemble
the others; it also holds small values (numbers, texts, None).
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray

STRUCTURE = "structure"
"""Name of the array that describes the others."""

_FORMAT = 1
# What both file formats can hold; a longer float would be cut, an object needs pickle.
_DTYPES = frozenset(
    np.dtype(kind) for kind in ("?", *"bhilq", *"BHILQ", "float16", "float32", "float64")
)
_MAPPINGS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (dict, OrderedDict, ArrayRecord, ConfigRecord, MetricRecord)
}
_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple}
_SMALL = (type(None), bool, int, float, str)


class NotPlain(TypeError):
    """A value that can't be kept as named arrays; the text names it and its path."""


def pack_state(value: Any) -> dict[str, NDArray[Any]]:
    """A value as named arrays, copied, dtypes unchanged.

    It may hold None, numbers, texts, bytes, NumPy arrays and scalars up to 64 bits, Flower's
    records and arrays, and lists, tuples and dictionaries of these.

    Raises:
        NotPlain: If it holds anything else.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = _pack(value, (), arrays)
    text = json.dumps({"format": _FORMAT, "value": tree})
    return arrays | {STRUCTURE: np.frombuffer(text.encode(), np.uint8).copy()}


def unpack_state(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The value that `pack_state` was given; its arrays are copies.

    Raises:
        ValueError: If `pack_state` did not make these arrays, or some are missing.
    """
    try:
        described = json.loads(np.asarray(arrays[STRUCTURE]).tobytes().decode())
        if described["format"] != _FORMAT:
            raise ValueError(f"its format is {described['format']}, known is {_FORMAT}")
        return _unpack(described["value"], arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"this is not a saved state, or a part of it is missing: {error}"
        ) from None


def is_function(value: Any) -> bool:
    """Whether a value is code, not state."""
    return isinstance(value, FunctionType | MethodType | BuiltinFunctionType | type)


def state_fingerprint(value: Any) -> str:
    """A text that changes when anything in a value does.

    An object that Python can't serialize is identified by its address: the caller has to keep it
    alive, and a change inside it is missed.
    """
    digest = _Digest()
    try:
        # Written into a hash and never read back.
        pickle.Pickler(digest, protocol=5).dump(value)
    except Exception:
        return f"object {id(value)}"
    return digest.hexdigest()


class _Digest:
    """A file that keeps only a hash of what was written."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return memoryview(data).nbytes

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _pack(value: Any, path: tuple[str, ...], arrays: dict[str, NDArray[Any]]) -> Any:
    """A value's JSON description; its arrays go to `arrays`."""
    kind = type(value)
    if kind in _SMALL:
        return value
    if kind is np.ndarray or isinstance(value, np.generic):
        form = "ndarray" if kind is np.ndarray else "scalar"
        return {"kind": form, "array": _add(value, path, arrays)}
    if kind is Array:
        return {"kind": "Array", "array": _add(_numpy(value, path), path, arrays)}
    if kind is bytes:
        return {"kind": "bytes", "array": _add(np.frombuffer(value, np.uint8), path, arrays)}
    if _SEQUENCES.get(kind.__name__) is kind:
        items = [_pack(item, (*path, str(index)), arrays) for index, item in enumerate(value)]
        return {"kind": kind.__name__, "items": items}
    if _MAPPINGS.get(kind.__name__) is kind:
        if strange := [key for key in value if type(key) not in _SMALL]:
            raise NotPlain(f"'{'/'.join(path)}' has a key of type {type(strange[0]).__name__}")
        pairs = [[key, _pack(item, (*path, str(key)), arrays)] for key, item in value.items()]
        return {"kind": kind.__name__, "items": pairs}
    raise NotPlain(f"'{'/'.join(path)}' is a {kind.__module__}.{kind.__qualname__}")


def _numpy(array: Array, path: tuple[str, ...]) -> NDArray[Any]:
    try:
        return array.numpy()
    except Exception:
        raise NotPlain(
            f"'{'/'.join(path)}' is an Array of dtype {array.dtype} that numpy can't read"
        ) from None


def _add(value: Any, path: tuple[str, ...], arrays: dict[str, NDArray[Any]]) -> str:
    """Add an array under its own name, and return the name."""
    if value.dtype not in _DTYPES:
        raise NotPlain(f"'{'/'.join(path)}' has dtype {value.dtype}")
    name = "/".join(path) or "value"
    while name in arrays or name == STRUCTURE:  # {"a/b": ...} beside {"a": {"b": ...}}
        name += "'"
    arrays[name] = np.array(value, order="C")
    return name


def _unpack(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The value of a JSON description."""
    if not isinstance(tree, dict):
        return tree
    kind = tree["kind"]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_unpack(item, arrays) for item in tree["items"]])
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({key: _unpack(item, arrays) for key, item in tree["items"]})
    array = np.array(arrays[tree["array"]], order="C")
    if kind == "ndarray":
        return array
    if kind == "scalar":
        return array[()]
    if kind == "Array":
        return Array(array)
    if kind == "bytes":
        return array.tobytes()
    raise ValueError(f"it has something of the unknown kind '{kind}'")
