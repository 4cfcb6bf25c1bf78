"""The user's cache: a folder of fetched files per data set, and arrays that processes share.

An array is unpacked once into a `.npy` file of bytes and memory-mapped: a simulation's processes
share one copy.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.files import cache_folder, written_whole


def fetched_folder(name: str) -> Path | None:
    """The folder for a data set's fetched files, present or not; None without a cache."""
    cache = cache_folder()
    return None if cache is None else cache / name


def cached_array(
    key: str, make: Callable[[], NDArray[np.uint8]], verify: Sequence[Path] = ()
) -> NDArray[np.uint8]:
    """Map one array from the cache, filled if need be.

    Args:
        key: Name of the cached file, with a digest of the content.
        make: Reads, verifies and unpacks the array.
        verify: Files to verify once themselves; () trusts the cache.

    Returns:
        Read-only, memory-mapped where the cache allows it.
    """
    cache = cache_folder()
    if cache is None:
        return make()
    array_file = cache / f"{key}.npy"
    stamp = cache / f"{key}-{_fingerprint(verify)}.verified" if verify else None
    if stamp is None or stamp.exists():
        # A cache that is absent, unreadable or torn is filled again.
        with contextlib.suppress(OSError, ValueError, EOFError):
            return _map(array_file)
    array = make()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with written_whole(array_file) as temporary, temporary.open("wb") as stream:
            np.save(stream, array)
        if stamp is not None:
            stamp.touch()
        return _map(array_file)
    except OSError:
        return array


def _map(array_file: Path) -> NDArray[np.uint8]:
    # The plain view drops numpy.memmap's bookkeeping for each access, and keeps the mapping.
    return np.asarray(np.load(array_file, mmap_mode="r"))


def _fingerprint(files: Sequence[Path]) -> str:
    identity = []
    for file in files:
        status = file.stat()
        identity.append(f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}")
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
