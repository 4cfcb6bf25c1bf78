"""R's serialisation is read as data: vectors and lists, and nothing that could hold code."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from fl_dp.tasks.datasets.r_files import read_object, table_as_csv

NIL = struct.pack(">i", 254)


def flags(kind: int, attributes: bytes | None | None = None) -> bytes:
    return struct.pack(">i", kind | (0x200 if attributes is not None else 0))


def text(value: str) -> bytes:
    raw = b"" if value is None else value.encode()
    return struct.pack(">ii", 9, -1 if value is None else len(raw)) + raw


def symbol(name: str) -> bytes:
    return struct.pack(">i", 1) + text(name)


def pairs(**values: Any) -> bytes:
    items = [struct.pack(">i", 2 | 0x400) + symbol(name) + item for name, item in values.items()]
    return b"".join(items) + NIL


def vector(kind: int, values: list[Any], attributes: bytes | None = None) -> bytes:
    body = {
        10: lambda: struct.pack(f">{len(values)}i", *values),
        13: lambda: struct.pack(f">{len(values)}i", *values),
        14: lambda: struct.pack(f">{len(values)}d", *values),
        16: lambda: b"".join(map(text, values)),
        19: lambda: b"".join(values),
    }[kind]()
    tail = b"" if attributes is None else attributes
    return flags(kind, attributes) + struct.pack(">i", len(values)) + body + tail


def named(**values: Any) -> bytes:
    return vector(19, list(values.values()), pairs(names=vector(16, list(values))))


def serialised(item: Any, version: int = 2) -> Any:
    encoding = struct.pack(">i", 5) + b"UTF-8" if version == 3 else b""
    return b"X\n" + struct.pack(">iii", version, 0, 0) + encoding + item


def raw_lzma(raw: Any) -> bytes:
    return b"Z" + lzma.compress(raw, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2}])


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": zlib.compress,
    "bzip2": lambda raw: b"2" + bz2.compress(raw),
    "lzma": raw_lzma,
}
TABLE = named(
    amount=vector(13, [3, -(2**31)]),
    rate=vector(14, [1.5, 2.0]),
    state=vector(13, [2, 1], pairs(levels=vector(16, ["CA", "NY"]))),
    note=vector(16, ['say "a, b"', None]),
)


def database(
    item: Any = TABLE, pack: Callable[..., Any] = zlib.compress, version: int = 2
) -> tuple[Any, Any]:
    raw = serialised(item, version)
    chunk = struct.pack(">I", len(raw)) + pack(raw)
    start = b"something else"
    place = vector(13, [len(start), len(chunk)])
    index = gzip.compress(serialised(named(variables=named(loans=place))))
    return start + chunk, index


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_data_frame_becomes_csv(packing: str, version: int) -> None:
    csv = table_as_csv(*database(pack=PACKINGS[packing], version=version), "loans")
    assert csv.decode() == ('amount,rate,state,note\n3,1.5,NY,"say ""a, b"""\nNA,2,CA,NA\n')


def test_a_symbol_that_comes_again_is_a_reference() -> None:
    twice = vector(
        19,
        [
            vector(13, [1], pairs(levels=vector(16, ["a"]))),
            vector(13, [1], struct.pack(">i", 2 | 0x400) + struct.pack(">i", 0x1FF) + NIL + NIL),
        ],
    )
    first, second = read_object(serialised(twice)).values
    assert first.attributes["levels"].values == ["a"]
    assert second.attributes == {"levels": None}


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no table 'lones'; there are loans"):
        table_as_csv(*database(), "lones")


@pytest.mark.parametrize("kind", [3, 4, 5, 6, 8, 21, 22, 247, 248])
def test_functions_environments_and_other_code_are_refused(kind: int) -> None:
    item = struct.pack(">i", kind) + NIL * 4
    with pytest.raises(ValueError, match=f"type {kind} is neither a vector nor a list"):
        read_object(serialised(item))
    with pytest.raises(ValueError, match=f"type {kind} is neither"):
        table_as_csv(*database(named(amount=item)), "loans")


@pytest.mark.parametrize("raw", [b"", b"A\n2\n", b"B\n", b"\x80\x04."])
def test_another_format_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no XDR serialisation"):
        read_object(raw)


def test_a_newer_serialisation_is_refused() -> None:
    with pytest.raises(ValueError, match="version 4; 2 and 3"):
        read_object(serialised(NIL, version=4))


@pytest.mark.parametrize("left", [10, 20, 60])
def test_an_object_cut_short_is_refused(left: int) -> None:
    with pytest.raises(ValueError, match="cut short"):
        read_object(serialised(TABLE)[:left])


@pytest.mark.parametrize("item", [vector(13, [1]), named(a=named(b=vector(13, [1]))), NIL])
def test_what_is_no_table_is_refused(item: Any) -> None:
    with pytest.raises(ValueError, match="'loans' is no table"):
        table_as_csv(*database(item), "loans")


def test_a_damaged_database_is_refused() -> None:
    raw, index = database()
    with pytest.raises(ValueError, match="the database is damaged"):
        table_as_csv(raw[:-20] + bytes(20), index, "loans")
