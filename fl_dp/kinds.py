"""Kinds of objects that are written down by name, and found again by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Known = TypeVar("_Known")


def known_kind(kinds: Mapping[str, _Known], kind: str, *, of: str) -> _Known:
    """Return what a kind stands for.

    Args:
        kinds: Everything that this version knows, by its name.
        kind: As written down.
        of: Names the family for the error, for instance `noise`.

    Raises:
        ValueError: If the kind is unknown: what it is written for can't be read by this version.
    """
    if kind not in kinds:
        raise ValueError(
            f"{of} of kind '{kind}' is unknown to this version, which knows {', '.join(kinds)}"
        )
    return kinds[kind]
