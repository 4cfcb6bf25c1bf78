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
    """Content that can't be shown; its text is the reason, for a person."""


@contextmanager
def opened(root: Path, name: str) -> Iterator[BinaryIO]:
    """Open a plain file below a folder, for reading.

    `root`, the folder that the user named, may be a link itself; no part of `name`, a path with
    slashes, may be one. `os.fstat` of the yielded file gives size and time of what is read.

    Raises:
        FileNotFoundError: If there is nothing of that name.
        Unreadable: If it is a link, no plain file, or `name` leads elsewhere.
        OSError: If it can't be read.
    """
    *folders, last = path_parts(name)
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = _open_at(parent, folder, os.O_DIRECTORY)
            os.close(parent)
            parent = inner
        # Without O_NONBLOCK a named pipe would wait for its writer forever.
        descriptor = _open_at(parent, last, os.O_NONBLOCK)
    finally:
        os.close(parent)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable(f"{last} is no plain file")
        yield stream


def path_parts(name: str) -> list[str]:
    """Split a name below a folder.

    Raises:
        Unreadable: If it is empty, absolute, leads upwards, or has a character that can't be
            shown.
    """
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") or "\\" in part for part in parts):
        raise Unreadable("a name that leads nowhere in this folder")
    return parts


def folders_below(root: Path, problems: list[str]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Yield the folders below one, three deep, with entries; nothing below a run's folder.

    The folder itself comes first, as an empty name. `problems` receives what was left out, in
    words.

    Raises:
        OSError: If the folder itself can't be read.
    """
    count, folders = 0, [("", 0)]
    while folders:
        within, depth = folders.pop()
        try:
            with os.scandir(root / within) as iterator:
                entries = list(iterator)
        except OSError as error:
            if not within:
                raise
            problems.append(f"{within} can't be read ({error.strerror})")
            continue
        count += len(entries)
        if count > _MOST_ENTRIES:
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
                name = f"{within}/{entry.name}" if within else entry.name
                folders.append((name, depth + 1))
            elif entry.is_symlink():
                problems.append(f"{entry.name} is a link, and links are not followed")


@contextmanager
def problems_noted(problems: list[str], *, may_lack: bool = False) -> Iterator[None]:
    """Note what can't be read, and go on; with `may_lack`, a missing file is no problem."""
    try:
        yield
    except (OSError, Unreadable) as error:
        if not (may_lack and isinstance(error, FileNotFoundError)):
            problems.append(str(error))


def read_whole(root: Path, name: str, *, most: int) -> bytes:
    """A file's bytes.

    Raises:
        Unreadable: If there are more than `most`, or as `opened`.
        OSError: As `opened`.
    """
    with opened(root, name) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise Unreadable(f"{path_parts(name)[-1]} is larger than {most:,} bytes")
    return content


def read_object(root: Path, name: str, *, most: int) -> dict[str, Any]:
    """A file's JSON object, made harmless by `tame`.

    Raises:
        Unreadable: If it holds none, or as `read_whole`.
        OSError: As `opened`.
    """
    document = tame(parsed_json(read_whole(root, name, most=most), path_parts(name)[-1]))
    if not isinstance(document, dict):
        raise Unreadable(f"{path_parts(name)[-1]} holds no JSON object")
    return document


def parsed_json(text: bytes, name: str) -> Any:
    """The value of JSON text; errors call it by `name`.

    Raises:
        Unreadable: If it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable(f"{name} is no JSON") from None


def parsed_yaml(text: bytes, name: str) -> Any:
    """The value of YAML text, as `plain_yaml`, made harmless by `tame`.

    Raises:
        Unreadable: If it is no YAML, or as `plain_yaml`.
    """
    try:
        return tame(plain_yaml(text, name))
    except ValueError as error:
        raise Unreadable(str(error)) from None


def tame(value: Any, depth: int = 0) -> Any:
    """A JSON or YAML value that a page can show.

    Infinite numbers, NaN, integers from 2^63 on and what lies too deep become None; keys become
    text, and text passes `shown`.
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
            return {shown(str(key)): tame(member, depth + 1) for key, member in value.items()}
        case list() if depth < MOST_DEEP:
            return [tame(item, depth + 1) for item in value]
        case _:
            return None


def shown(text: str) -> str:
    """Text with unprintable characters replaced, cut after 10,000 characters."""
    text = text[:_LONGEST_TEXT]
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def texts(value: object) -> list[str]:
    """The texts in a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, str)]


def number(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def _open_at(parent: int, name: str, flags: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{name} can't be opened, or is a link ({error.strerror})") from None
