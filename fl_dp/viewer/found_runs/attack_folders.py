"""Folders of attacks on membership, read without trust in their author."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .images import Image, read_image
from .untrusted import Unreadable, read_whole, shown

TABLE, ROC = "membership.csv", "roc.png"
_MOST_TABLE = 1 << 18
_MOST_ROWS = 200
_MOST_ATTACKS = 50
_MOST_ENTRIES = 10_000


@dataclass(frozen=True, kw_only=True)
class FoundAttack:
    """One attack, as far as its files can be read.

    Attributes:
        name: Name of its folder.
        rows: Rows of its table by column, as text on one line.
        image: Its picture; None if it can't be shown.
        problems: What could not be read, in words.
    """

    name: str
    rows: tuple[Mapping[str, str], ...]
    image: Image | None
    problems: tuple[str, ...]


def is_attack(path: Path) -> bool:
    """Whether a folder is of an attack on membership."""
    return os.path.lexists(path / TABLE)


def attacks_in(root: Path) -> list[FoundAttack]:
    """Attacks whose folders lie in `root`, at most 50; links are left out."""
    names = []
    with os.scandir(root) as entries:
        for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
            folder = entry.is_dir(follow_symlinks=False) and entry.name.isprintable()
            if folder and is_attack(Path(entry.path)):
                names.append(entry.name)
    return [_read(root, name) for name in sorted(names)[:_MOST_ATTACKS]]


def read_attack(path: Path) -> FoundAttack:
    """The attack in a folder, as far as it can be read; the folder may be a link itself."""
    path = path.resolve()
    return _read(path.parent, path.name)


def _read(root: Path, name: str) -> FoundAttack:
    rows: list[dict[str, str]] = []
    problems = []
    image = None
    try:
        text = read_whole(root, f"{name}/{TABLE}", most=_MOST_TABLE).decode(errors="replace")
        for _, row in zip(range(_MOST_ROWS), csv.DictReader(io.StringIO(text)), strict=False):
            texts = {key: value for key, value in row.items() if key and isinstance(value, str)}
            rows.append({shown(key): shown(value) for key, value in texts.items()})
    except (OSError, Unreadable, csv.Error) as error:
        problems.append(f"{TABLE}: {error}")
    try:
        image = read_image(root, name, ROC, allowed=(ROC,))
    except FileNotFoundError:
        pass  # matplotlib was not installed
    except (OSError, Unreadable) as error:
        problems.append(str(error))
    return FoundAttack(name=shown(name), rows=tuple(rows), image=image, problems=tuple(problems))
