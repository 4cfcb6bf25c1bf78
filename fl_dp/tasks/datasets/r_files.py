"""Tables inside an R package, read as data: nothing in them is ever run.

R keeps a package's data sets in a lazy-load database: `Rdata.rdb` holds compressed objects one
after the other, `Rdata.rdx` says where each begins. The objects are R's serialisation in XDR form,
of which vectors, lists and attributes are read here; functions, environments and everything else
that could hold code are refused.

References:
    R Internals, section 1.8, "Serialization Formats".
"""

from __future__ import annotations

import bz2
import csv
import io
import lzma
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Types of R's items, by the names that R Internals gives them.
_SYMBOL, _PAIRLIST, _CHARACTER = 1, 2, 9
_LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST = 10, 13, 14, 16, 19
_REFERENCE, _NIL = 255, 254
_HAS_ATTRIBUTES, _HAS_TAG = 0x200, 0x400
_MISSING = -(2**31)
# Takes the header of gzip, too, as files have it, and of zlib, as the objects inside have it.
_ANY_ZLIB = zlib.MAX_WBITS | 32


@dataclass(kw_only=True)
class Vector:
    """One of R's vectors.

    Attributes:
        values: Numbers, strings or vectors; None for a missing number or string.
        attributes: Its attributes, such as `names`, `levels` and `class`.
    """

    values: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)

    def by_name(self) -> dict[str, Any]:
        """Return the values under the vector's `names`."""
        return dict(zip(self.attributes["names"].values, self.values, strict=True))


def table_as_csv(database: bytes, index: bytes, name: str) -> bytes:
    r"""Read one data frame out of an R package's lazy-load database.

    Args:
        database: Bytes of `Rdata.rdb`.
        index: Bytes of `Rdata.rdx`.
        name: The data frame's name.

    Returns:
        It as UTF-8 CSV with a header and `\n` after each line; factors as their levels, a missing
        value as `NA`.

    Raises:
        ValueError: If the bytes are damaged, there is no such data frame, or it holds anything but
            numbers, strings and factors.
    """
    try:
        places = (
            read_object(zlib.decompress(index, wbits=_ANY_ZLIB)).by_name()["variables"].by_name()
        )
        if name not in places:
            raise ValueError(f"no table '{name}'; there are {', '.join(places)}")
        offset, length = places[name].values
        columns = read_object(_inflated(database[offset : offset + length])).by_name()
        rows = zip(*(_cells(column) for column in columns.values()), strict=True)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    except (AttributeError, IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"'{name}' is no table of numbers, strings and factors: {error}") from None
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise ValueError(f"the database is damaged: {error}") from error
    return text.getvalue().encode()


def read_object(raw: bytes) -> Any:
    """Read one object from R's XDR serialisation.

    Args:
        raw: Uncompressed bytes, as R's `serialize` writes them.

    Returns:
        A `Vector`, a dictionary for a tagged pairlist, a string for a symbol, or None for NULL.

    Raises:
        ValueError: If it is another format, or holds anything but vectors, lists and attributes.
        struct.error: If it is cut short.
    """
    if raw[:2] != b"X\n":
        raise ValueError(f"no XDR serialisation of R: it starts with {raw[:2]!r}, not b'X\\n'")
    reader = _Reader(raw[2:])
    version = reader.integer()
    if version not in (2, 3):
        raise ValueError(f"R's serialisation has version {version}; 2 and 3 can be read")
    reader.take(8)  # the versions of R that wrote it and that can read it
    if version == 3:
        reader.take(reader.integer())  # the name of the encoding
    return reader.item()


def _inflated(chunk: bytes) -> bytes:
    # Four bytes of length, then one that names the compression; zlib where it names none.
    kind, rest = chunk[4:5], chunk[5:]
    if kind == b"Z":
        # R writes a raw LZMA2 stream without a container.
        return lzma.decompress(
            rest, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}]
        )
    if kind == b"2":
        return bz2.decompress(rest)
    return zlib.decompress(chunk[4:])


def _cells(column: Vector) -> Sequence[Any]:
    levels = column.attributes.get("levels")
    if levels is not None:
        return ["NA" if code is None else levels.values[code - 1] for code in column.values]
    return ["NA" if value is None else _plain(value) for value in column.values]


def _plain(value: Any) -> Any:
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"a cell is a {type(value).__name__}")
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Reader:
    """Reads items one after the other; symbols that come again are references to the first."""

    def __init__(self, raw: bytes) -> None:
        self._stream = io.BytesIO(raw)
        self._symbols: list[str] = []

    def take(self, count: int) -> bytes:
        taken = self._stream.read(count)
        if count < 0 or len(taken) != count:
            raise ValueError(f"cut short: {count} bytes expected, {len(taken)} left")
        return taken

    def integer(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def item(self) -> Any:
        flags = self.integer()
        kind = flags & 0xFF
        if kind == _NIL:
            return None
        if kind == _REFERENCE:
            return self._symbols[(flags >> 8 or self.integer()) - 1]
        if kind == _SYMBOL:
            self._symbols.append(self.item())
            return self._symbols[-1]
        if kind == _CHARACTER:
            length = self.integer()
            return None if length == -1 else self.take(length).decode("utf-8")
        if kind == _PAIRLIST:
            return self._pairlist(flags)
        return self._vector(flags, kind)

    def _pairlist(self, flags: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while flags & 0xFF == _PAIRLIST:
            if flags & _HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & _HAS_TAG else str(len(pairs))
            pairs[tag] = self.item()
            flags = self.integer()
        if flags & 0xFF != _NIL:
            raise ValueError(f"a list ends with an item of type {flags & 0xFF}")
        return pairs

    def _vector(self, flags: int, kind: int) -> Vector:
        if kind not in (_LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST):
            raise ValueError(f"an item of type {kind} is neither a vector nor a list; not read")
        length = self.integer()
        values: list[Any]
        if kind in (_STRINGS, _LIST):
            values = [self.item() for _ in range(length)]
        elif kind == _REAL:
            numbers = struct.unpack(f">{length}d", self.take(8 * length))
            values = [None if number != number else number for number in numbers]
        else:
            codes = struct.unpack(f">{length}i", self.take(4 * length))
            values = [None if code == _MISSING else code for code in codes]
        attributes = self.item() if flags & _HAS_ATTRIBUTES else {}
        return Vector(values=values, attributes=attributes)
