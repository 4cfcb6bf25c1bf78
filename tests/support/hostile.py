"""Documents by somebody who wants their reader to break.

A case is a seed: hypothesis finds one, prints it, and `Random(seed)` writes the same case again.
Every run has the same cases. Others, and so many times more, are tried by

    FL_DP_FUZZ=20 python -m pytest tests/fuzz
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FRESH = "FL_DP_FUZZ" in os.environ
TIMES = int(os.environ.get("FL_DP_FUZZ", "1"))

_DEEP: list[Any] = []
for _ in range(40):
    _DEEP = [_DEEP]

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    2**31,
    2**63,
    2**64,
    -(2**70),
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "x" * 5000,
    "\0",
    "\u202e\x1b[31m",
    "\ud800",
    "../../etc/passwd",
    "none",
    "0x1p+1023",
    "0x1p+2000",
    "nan",
    "inf",
    "00" * 32,
    "ff" * 32,
    "2027-02-30",
    [],
    {},
    [[]],
    [None],
    {"": {}},
    [0, 0],
    [1, "x"],
    _DEEP,
)


def cases(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with so many cases, each a `Random` in its last argument, `rng`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        # A reader that hangs ends here and not with the whole suite.
        timed = pytest.mark.timeout(120 * TIMES)(test)
        bounded = settings(
            max_examples=count * TIMES, derandomize=not FRESH, deadline=None, database=None
        )(timed)
        return given(rng=st.integers(0, 2**63).map(Random))(bounded)

    return decorate


def changed(document: Any, rng: Random) -> Any:
    """A document of JSON values with one to three places changed."""
    whole = [deepcopy(document)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        node: Any = whole
        key: Any = 0
        while isinstance(node[key], dict | list) and node[key] and rng.random() < 0.85:
            node = node[key]
            key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        _change(node, key, rng)
        if not whole:
            return None
    return whole[0]


def text_of(document: Any, rng: Random) -> str:
    """The JSON text of a document that was changed, or damaged as a text."""
    if rng.random() < 0.75:
        return json.dumps(changed(document, rng))
    return damaged(json.dumps(document), rng)


def damaged(text: str, rng: Random) -> str:
    """A text with a part taken out, doubled, replaced or put in."""
    start = rng.randrange(len(text) + 1)
    stop = min(len(text), start + rng.choice((0, 1, 1, 2, 5, 50)))
    put_in: str = rng.choice(
        ("", "", text[start:stop] * 2, *'\0"{[]}:,\n-', "é", "[" * 50_000, "1" * 5000, "nul")
    )
    return text[:start] + put_in + text[stop:]


def damaged_bytes(raw: bytes, rng: Random) -> bytes:
    """Bytes with some taken out, changed or put in."""
    start = rng.randrange(len(raw) + 1)
    stop = min(len(raw), start + rng.choice((0, 1, 1, 2, 5, 50, 5000)))
    return raw[:start] + rng.randbytes(rng.choice((0, 0, 1, 1, 2, 8, 60))) + raw[stop:]


def _change(node: Any, key: Any, rng: Random) -> None:
    match rng.randrange(8):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[rng.choice(("x", "", str(key) + "_", "__class__"))] = node.pop(key)
        case 1:
            node.append(deepcopy(node[key]))
        case 2 if type(node[key]) in (int, float) and abs(node[key]) < 1e300:
            node[key] = node[key] * rng.choice((-1, 0, 2, 1e-300, 1e300)) + rng.choice((0, 1))
        case 2 if isinstance(node[key], str):
            node[key] = damaged(node[key], rng)
        case 3:  # something that stands elsewhere in it
            other = list(node.values()) if isinstance(node, dict) else node
            node[key] = deepcopy(rng.choice(other))
        case _:
            node[key] = deepcopy(rng.choice(VALUES))
