"""Names of classes and clients in a user's own data: one order and one equality for all of them.

>>> in_order(["10", "2", "cat", "Ann"])
['2', '10', 'Ann', 'cat']
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SHOWN = 5  # names in an error message
_WHOLE_NUMBER = re.compile(r"0*(\d+)(\.0+)?")
_ALIKE = "capitals, blanks, leading zeros or forms of letters"


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once: whole numbers by their values, then texts by their letters' codes."""
    return sorted(set(names), key=_place)


def numbered(names: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each row's number `(n,)` by its name, and the names in order."""
    distinct = tuple(in_order(names))
    number = {name: index for index, name in enumerate(distinct)}
    return np.array([number[name] for name in names], dtype=np.int64), distinct


def require_distinct_units(
    names: Sequence[str], source: Path | str, *, unit: str = "client"
) -> None:
    """Check that no client, or person, has two names, which would make it two privacy units.

    Raises:
        ValueError: If names are alike. The text has `source`, their file or folder, and nobody's
            name.
    """
    if doubtful := alike(names):
        raise ValueError(
            f"{source}: {len(doubtful)} names of {unit}s differ from another in {_ALIKE} alone, "
            f"and each would be a privacy unit of its own: write each {unit} in one way"
        )


def require_distinct_classes(names: Sequence[str], source: Path | str) -> None:
    """Check that no class that was found, and not listed by the user, has two names.

    Raises:
        ValueError: If names are alike.
    """
    if doubtful := alike(names):
        raise ValueError(
            f"{source}: classes that differ in {_ALIKE} alone: {listed(doubtful)}; write each "
            "in one way, or list them in task.classes=[...] if they are several"
        )


def alike(names: Sequence[str]) -> list[str]:
    """Names that differ from another one in capitals, blanks, zeros or forms of letters alone."""
    count = Counter(map(folded, names))
    return [name for name in names if count[folded(name)] > 1]


def listed(names: Sequence[str]) -> str:
    """Names for an error message, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    if len(names) <= _SHOWN:
        return shown
    return f"{shown} and {len(names) - _SHOWN} more"


def few_labels(labels: Sequence[str]) -> str:
    """Labels for an error message; many are values, not classes, and only counted."""
    if len(labels) > _SHOWN:
        return f"{len(labels)} different ones"
    return listed(labels)


def _place(name: str) -> tuple[float, str, str]:
    """A whole number's digits and their number, or infinity and the text."""
    number = _WHOLE_NUMBER.fullmatch(name)
    if number is None:
        return float("inf"), "", name
    return len(number.group(1)), number.group(1), name


def folded(name: str) -> str:
    """A name without capitals, blanks, leading zeros and forms of letters."""
    plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    number = _WHOLE_NUMBER.fullmatch(plain)
    if number is None:
        return plain
    return number.group(1)
