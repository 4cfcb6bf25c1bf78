"""A table in the database of an R package, read without R: nothing in it can run.

`Rdata.rdx` has the place of each object in `Rdata.rdb`; both hold R's serialization (R Internals,
section 1.8), of which only what tables need is read.
"""

from __future__ import annotations

import gzip
import lzma
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

_NONE = -(2**31)  # a missing whole number
_SYMBOL, _PAIRS, _TEXT, _INTEGERS, _DOUBLES, _TEXTS, _LIST = 1, 2, 9, 13, 14, 16, 19
_NIL, _REFERENCE = 254, 255
_HAS_ATTRIBUTES = 1 << 9
_LZMA = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}


class _Vector(NamedTuple):
    values: Sequence[Any]
    attributes: dict[str, Any]

    @property
    def names(self) -> Sequence[str]:
        return self.attributes["names"].values  # type: ignore[no-any-return]  # texts, as R writes

    def __getitem__(self, name: Any) -> Any:
        return self.values[self.names.index(name)]


def rows_of_table(index: bytes, database: bytes, name: str) -> list[dict[str, str]]:
    """Cells of a table as texts by column, row by row; empty where there is none.

    Raises:
        ValueError: If these are no such files, or hold no such table.
    """
    try:
        start, size = _object(gzip.decompress(index))["variables"][name].values
        # Four bytes of the size, and the letter of the compression.
        packed = database[start + 5 : start + size]
        raw = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[_LZMA]).decompress(packed)
        table = _object(raw)
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        struct.error,
        lzma.LZMAError,
    ) as error:
        raise ValueError(f"no table '{name}' of R can be read ({type(error).__name__})") from error
    columns = [_cells(column) for column in table.values]
    return [dict(zip(table.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _cells(column: _Vector) -> list[str]:
    if "levels" in column.attributes:
        levels = column.attributes["levels"].values
        return ["" if code == _NONE else levels[code - 1] for code in column.values]
    return ["" if value == _NONE or value != value else f"{value:.15g}" for value in column.values]


def _object(raw: bytes) -> Any:
    reader = _Serialized(raw)
    if reader.take(2) != b"X\n" or reader.integer() != 3:
        raise ValueError("not R's binary serialization, version 3")
    reader.take(8)  # R's versions
    reader.take(reader.integer())  # the encoding's name
    return reader.item()


class _Serialized:
    def __init__(self, raw: bytes) -> None:
        self._raw, self._end = raw, 0
        self._symbols: list[Any] = []

    def take(self, size: int) -> bytes:
        self._end += size
        return self._raw[self._end - size : self._end]

    def integer(self) -> int:
        (value,) = struct.unpack(">i", self.take(4))
        return int(value)

    def item(self) -> Any:
        flags = self.integer()
        kind = flags & 0xFF
        if kind == _NIL:
            return []
        if kind == _REFERENCE:
            return self._symbols[(flags >> 8) - 1]
        if kind == _SYMBOL:
            self._symbols.append(self.item())
            return self._symbols[-1]
        if kind == _TEXT:
            size = self.integer()
            return "" if size < 0 else self.take(size).decode()
        if kind == _PAIRS:
            tag, value = self.item(), self.item()
            return [(tag, value), *self.item()]
        count = self.integer()
        values: Sequence[Any]
        if kind in (_INTEGERS, _DOUBLES):
            form, size = (f">{count}i", 4) if kind == _INTEGERS else (f">{count}d", 8)
            values = struct.unpack(form, self.take(size * count))
        elif kind in (_TEXTS, _LIST):
            values = [self.item() for _ in range(count)]
        else:
            raise ValueError(f"an object of R's type {kind}")
        return _Vector(values, dict(self.item()) if flags & _HAS_ATTRIBUTES else {})
