"""Files that are written as a whole or not at all, readable by their owner alone by default."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OWNER = 0o600
_EVERYBODY = 0o666  # less the umask
_OWNERS_FOLDER = 0o700


def cache_folder() -> Path | None:
    """`fl-dp` in the user's cache folder; None without a home."""
    # The XDG base directory specification ignores relative paths.
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "fl-dp"
    try:
        return Path.home() / ".cache" / "fl-dp"
    except RuntimeError:
        # A container's user may have no home.
        return None


def simulations_folder() -> Path:
    """Where simulated nodes store what real ones store beside their ledgers."""
    return Path.home() / ".fl-dp" / "simulations"


def private_folder(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder that only its owner can enter, whatever the umask; parents as usual.

    An existing folder keeps its permissions.

    Raises:
        FileExistsError: The name exists, unless it is a folder and `exist_ok`.
        OSError: The folder can't be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=_OWNERS_FOLDER)
    except FileExistsError:
        if not (exist_ok and folder.is_dir()):
            raise
    else:
        folder.chmod(_OWNERS_FOLDER)  # a strict umask may have removed some of the mode


def private_file(file: Path) -> None:
    """Make an empty file that only its owner can read, whatever the umask, unless it exists.

    Raises:
        StorageUnavailable: The disk is full.
        OSError: It can't be made otherwise.
    """
    with contextlib.suppress(FileExistsError), full_disk_named(file.parent):
        _create(file, _OWNER)


class StorageUnavailable(OSError):
    """A file or database can't be read or written: its disk is full, or it can't be reached.

    The text says all in one line, so logs show it without a traceback.
    """


class HeldElsewhere(OSError):
    """Another process holds the lock."""


@contextlib.contextmanager
def held_alone(file: Path, activity: str) -> Iterator[None]:
    """Hold a file's lock for the block; the system releases it when the process dies.

    A forked child does not hold it: the lock ends with the process that took it.

    Args:
        file: The file to lock, made if missing, in an existing folder.
        activity: What the lock's holder does, as a verb, for the error.

    Raises:
        HeldElsewhere: Another process holds it, on this machine or on a network's file system.
        OSError: The file system has no locks, which an SQLite ledger also needs.
    """
    private_file(file)
    descriptor = os.open(file, os.O_RDWR)  # to write: without it a network's files have no locks
    _HELD.add(descriptor)
    try:
        try:
            # Not `lockf`: any close of the file in this process would release that lock.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeldElsewhere(
                f"another process {activity}: wait until it has ended, or stop it"
            ) from error
        yield
    finally:
        if descriptor in _HELD:
            _HELD.discard(descriptor)
            os.close(descriptor)


_HELD: set[int] = set()


def _release_locks() -> None:
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_release_locks)


@contextlib.contextmanager
def written_whole(file: Path, *, public: bool = False) -> Iterator[Path]:
    """Yield a temporary path, so that others see the whole new file or the old one.

    This holds after a power cut: the content is on disk before it gets the file's name.

    Args:
        file: The path after a block without error; its folder must exist.
        public: Whether others may read it, as far as the umask allows.

    Yields:
        A temporary file in the same folder, gone after the block.
    """
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    try:
        with full_disk_named(file.parent):
            _create(temporary, _EVERYBODY if public else _OWNER)
            yield temporary
            _sync(temporary)
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems have no folders to sync
        _sync(file.parent)


@contextlib.contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Say in the error of a full disk or quota, which itself names no path, what to do.

    Raises:
        StorageUnavailable: The disk or quota is full.
        OSError: Whatever else the block raises.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        file = error.filename or folder
        raise StorageUnavailable(
            f"{file} can't be written ({error.strerror}): make room on its disk"
        ) from error


def write_text(file: Path, text: str, *, public: bool = False) -> None:
    """Replace a file by UTF-8 text, as `written_whole` does."""
    with written_whole(file, public=public) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(file: Path) -> str:
    """A file's SHA-256 in hexadecimal.

    Raises:
        OSError: The file can't be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json_object(file: str | Path, name: str) -> dict[str, Any]:
    """Read a JSON object; `name`, e.g. `privacy statement`, is its name in errors.

    Raises:
        OSError: The file can't be read.
        ValueError: It holds no JSON object.
    """
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the latter: nested without an end
        raise ValueError(
            f"{file} is no {name} ({error}): put the right one in its place, or move it away"
        ) from error
    if not isinstance(document, dict):
        raise ValueError(f"{file} is no {name}: it holds no JSON object")
    return document


def _create(file: Path, mode: int) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        if mode == _OWNER:
            os.fchmod(descriptor, mode)  # a strict umask may have removed some of the mode
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
