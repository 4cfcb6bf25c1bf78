"""Sentences of a docstring, by the field or argument that they are about."""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from itertools import takewhile
from typing import Any


def sentences_of(documented: Any) -> dict[str, str]:
    """Sentences under `Attributes:` of a class and its bases, or under `Args:` of a function."""
    if not inspect.isclass(documented):
        return _entries(documented, "Args:")
    sentences: dict[str, str] = {}
    for base in reversed(documented.__mro__):
        if is_dataclass(base):
            sentences |= _entries(base, "Attributes:")
    return sentences


def _entries(documented: Any, title: str) -> dict[str, str]:
    _, _, entries = (inspect.cleandoc(documented.__doc__ or "")).partition(f"{title}\n")
    sentences: dict[str, str] = {}
    for line in takewhile(lambda line: line.startswith("    "), entries.splitlines()):
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry is not None:
            name = entry[1]
            sentences[name] = entry[2]
        elif sentences:
            sentences[name] += f" {line.strip()}"
    return sentences
