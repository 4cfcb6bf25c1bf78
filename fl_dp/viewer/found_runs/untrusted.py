"""Untrusted files: opened without following links, read up to a bound."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fl_dp.documents import MOST_DEEP, plain_yaml

CONFIG = "config.yaml"
"""File that every run's folder has."""

_LONGEST_TEXT = 10_000
_DEEPEST = 3  # a sweep's cell is two below the folder of runs
_MOST_ENTRIES = 100_000


class Unreadable(ValueError):
    """Nothing that can be shown; its text says why, in words for a person."""


@contextmanager
def opened(root: Path, name: str) -> Iterator[BinaryIO]:
    """Open a plain file below a folder, for reading.

    Args:
        root: The folder that the user named; it may be a link itself.
        name: Parts with slashes between, none of which may be a link.

    Yields:
        The file; `os.fstat` of it tells size and time of what is read.

    Raises:
        FileNotFoundError: If there is nothing of that name.
        Unreadable: If it is a link, no plain file, or `name` leads elsewhere.
        OSError: If it can't be read.
    """
    *folders, last = parts_of(name)
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = _open_at(place, folder, os.O_DIRECTORY)
            os.close(place)
            place = inner
        # Without O_NONBLOCK a named pipe would wait for its writer forever.
        descriptor = _open_at(place, last, os.O_NONBLOCK)
    finally:
        os.close(place)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable(f"{last} is no plain file")
        yield stream


def parts_of(name: str) -> list[str]:
    """Split a name below a folder.

    Raises:
        Unreadable: If it is empty, absolute, leads upwards, or has a character that is not shown.
    """
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") or "\\" in part for part in parts):
        raise Unreadable("a name that leads nowhere in this folder")
    return parts


def folders_below(root: Path, problems: list[str]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Yield the folders below one, three deep, and their entries; nothing below a run's folder.

    Args:
        root: The folder, which comes first, as an empty name.
        problems: Gets what was left out, for a person.

    Raises:
        OSError: If the folder itself can't be read.
    """
    seen, folders = 0, [("", 0)]
    while folders:
        within, depth = folders.pop()
        try:
            with os.scandir(root / within) as found:
                entries = list(found)
        except OSError as error:
            if not within:
                raise
            problems.append(f"{within} can't be read ({error.strerror})")
            continue
        seen += len(entries)
        if seen > _MOST_ENTRIES:
            problems.append(f"the folder holds more than {_MOST_ENTRIES:,} files: not all seen")
            return
        yield within, entries
        if depth == _DEEPEST or (within and any(entry.name == CONFIG for entry in entries)):
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not (entry.name.isprintable() and "\\" not in entry.name):
                problems.append(f"{shown(entry.name)!r} has characters that can't be shown")
            elif entry.is_dir(follow_symlinks=False):
                folders.append((f"{within}/{entry.name}" if within else entry.name, depth + 1))
            elif entry.is_symlink():
                problems.append(f"{entry.name} is a link, and links are not followed")


@contextmanager
def problems_noted(problems: list[str], *, may_lack: bool = False) -> Iterator[None]:
    """Note what can't be read, and go on; a file that need not be there is no problem."""
    try:
        yield
    except (OSError, Unreadable) as error:
        if not (may_lack and isinstance(error, FileNotFoundError)):
            problems.append(str(error))


def read_whole(root: Path, name: str, *, most: int) -> bytes:
    """Return a file's bytes.

    Raises:
        Unreadable: If there are more than `most`, or as `opened`.
        OSError: As `opened`.
    """
    with opened(root, name) as stream:
        found = stream.read(most + 1)
    if len(found) > most:
        raise Unreadable(f"{parts_of(name)[-1]} is larger than {most:,} bytes")
    return found


def read_object(root: Path, name: str, *, most: int) -> dict[str, Any]:
    """Return the JSON object that a file holds, made harmless by `tame`.

    Raises:
        Unreadable: If it holds none, or as `read_whole`.
        OSError: As `opened`.
    """
    document = tame(parsed_json(read_whole(root, name, most=most), parts_of(name)[-1]))
    if not isinstance(document, dict):
        raise Unreadable(f"{parts_of(name)[-1]} holds no JSON object")
    return document


def parsed_json(text: bytes, what: str) -> Any:
    """Return what JSON text says.

    Raises:
        Unreadable: If it is none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable(f"{what} is no JSON") from None


def parsed_yaml(text: bytes, what: str) -> Any:
    """Return what YAML text says, as `plain_yaml`, made harmless by `tame`.

    Raises:
        Unreadable: If it is none, or as `plain_yaml`.
    """
    try:
        return tame(plain_yaml(text, what))
    except ValueError as error:
        raise Unreadable(str(error)) from None


def tame(value: Any, depth: int = 0) -> Any:
    """Return a value of JSON or YAML that a page can show.

    Numbers that are not finite become None, text loses characters that are not shown and what is
    beyond 10,000 of them, keys become text, and what lies too deep is None.
    """
    match value:
        case bool() | None:
            return value
        case int():
            return value if abs(value) < 2**63 else None
        case float():
            return value if math.isfinite(value) else None
        case str():
            return shown(value)
        case dict() if depth < MOST_DEEP:
            return {shown(str(key)): tame(each, depth + 1) for key, each in value.items()}
        case list() if depth < MOST_DEEP:
            return [tame(each, depth + 1) for each in value]
        case _:
            return None


def shown(text: str) -> str:
    """Return text on one line, each character that is not shown replaced, cut where it is long."""
    text = text[:_LONGEST_TEXT]
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def texts(value: object) -> list[str]:
    """Return the texts of a list, and none for anything else."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def number(value: object) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _open_at(place: int, name: str, how: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | how, dir_fd=place)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{name} can't be opened, or is a link ({error.strerror})") from None
