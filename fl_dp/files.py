"""Files that are there as a whole or not at all, and that only their owner reads unless said so."""

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
_MEMORY = Path("/proc/meminfo")


def free_memory(meminfo: Path = _MEMORY) -> int | None:
    """Return the bytes that could be taken without swapping; None where no file says so."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(kilobytes)


def cache_folder() -> Path | None:
    """Return `fl-dp` in the user's cache folder; None for a user without a home."""
    # The XDG base directory specification has relative paths ignored.
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "fl-dp"
    try:
        return Path.home() / ".cache" / "fl-dp"
    except RuntimeError:
        # A container's user may have no home.
        return None


def simulations_folder() -> Path:
    """Return where simulated nodes keep what real ones keep beside their ledgers."""
    return Path.home() / ".fl-dp" / "simulations"


def private_folder(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder that only its owner enters, whatever the umask; parents as usual.

    One that is there already keeps its permissions.

    Raises:
        FileExistsError: If there is something of that name, unless it is a folder that may be.
        OSError: If it can't be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=_OWNERS_FOLDER)
    except FileExistsError:
        if not (exist_ok and folder.is_dir()):
            raise
    else:
        folder.chmod(_OWNERS_FOLDER)  # a strict umask took some of it


def private_file(file: Path) -> None:
    """Make an empty file that only its owner reads, whatever the umask, unless there is one.

    Raises:
        OSError: If it can't be made.
    """
    with contextlib.suppress(FileExistsError):
        _create(file, _OWNER)


class HeldElsewhere(OSError):
    """Another process works where this one was about to."""


@contextlib.contextmanager
def held_alone(file: Path, what: str) -> Iterator[None]:
    """Keep other processes out of a place for the block; the system lets go of one that dies.

    A process that is forked off has no part in it, so that it ends with the one that took it.

    Args:
        file: Whose lock it is; made where it is not there, in a folder that is.
        what: That other processes are kept from, for the error.

    Raises:
        HeldElsewhere: If another process has it, on this machine or on a network's file system.
        OSError: If the file system has no locks, which an SQLite ledger needs, too.
    """
    private_file(file)
    descriptor = os.open(file, os.O_RDWR)  # to write: without it a network's files have no locks
    _HELD.add(descriptor)
    try:
        try:
            # Not by `lockf`: whoever reads the file in this process would let go of that.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeldElsewhere(
                f"another process {what}: wait until it has ended, or stop it"
            ) from error
        yield
    finally:
        if descriptor in _HELD:
            _HELD.discard(descriptor)
            os.close(descriptor)


_HELD: set[int] = set()


def _let_go() -> None:
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def written_whole(file: Path, *, public: bool = False) -> Iterator[Path]:
    """Give a place to write to, so that others see all of a file or what was there before.

    After a power cut, too: what was written is on disk before it takes the file's name.

    Args:
        file: Where the file goes when the block ends well; its folder must exist.
        public: Let others read it, as far as the umask does.

    Yields:
        A temporary file in the same folder, which is gone after the block.
    """
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    _create(temporary, _EVERYBODY if public else _OWNER)
    try:
        with full_disk_named(file.parent):
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
    """Add the folder to the error of a full disk or quota, which by itself names no place.

    Raises:
        OSError: Whatever the block raises.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = str(folder)
        raise


def write_text(file: Path, text: str, *, public: bool = False) -> None:
    """Replace a file by a text, UTF-8, as `written_whole` does."""
    with written_whole(file, public=public) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal text.

    Raises:
        OSError: If it can't be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json_object(file: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        file: Where it is.
        what: What it should be, for instance `privacy statement`.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is no JSON object.
    """
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the latter: nested without an end
        raise ValueError(
            f"{file} is no {what} ({error}): put the right one in its place, or move it away"
        ) from error
    if not isinstance(document, dict):
        raise ValueError(f"{file} is no {what}: it holds no JSON object")
    return document


def _create(file: Path, mode: int) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        if mode == _OWNER:
            os.fchmod(descriptor, mode)  # a strict umask took some of it
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
