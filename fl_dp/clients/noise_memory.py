"""A node's file of remembered noise, beside its keys for secure sums.

Losing it is harmless, and so is any doubt about it: then it is forgotten. It is as secret as the
node's data, belongs in no backup, and is overwritten when its training ends; on flash memory
overwriting promises nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fl_dp.files import private_file
from fl_dp.mechanisms.banded_share import BandedShare, CarriedNoise

MEMORY_FILE = "secagg-noise.bin"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_KEY_BYTES = 32
_WHOLE = b"whole" + bytes(3)
_HEADER = _KEY_BYTES + len(_WHOLE)
_WIDTH = 8
_CHUNK = 1 << 20


@contextmanager
def carried_noise(folder: Path, share: BandedShare, *, run: int) -> Iterator[CarriedNoise]:
    """Open the memory of a run, for one process at a time; empty if there is none that fits.

    What was left by another run or other noise, torn by a crash or older than the machine's last
    start counts as nothing.

    Args:
        folder: Of the node's keys.
        share: Whose noise is remembered: coefficients, scale, sizes and norms in steps.
        run: Of the secure sums.

    Raises:
        OSError: If the file can't be made, or would take more than half of what the disk has left.
    """
    bands, size = share.bands, share.segments[0].size
    kept = bands - 1
    counts = (kept, kept * kept, kept * size)
    length = _HEADER + _WIDTH * sum(counts)
    file = folder / MEMORY_FILE
    private_file(file)
    descriptor = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        key = _key_of(share, run)
        known = os.pread(descriptor, _HEADER, 0)
        fits = known == key + _WHOLE and os.fstat(descriptor).st_size == length
        if not fits:
            _overwrite(descriptor)
            os.ftruncate(descriptor, 0)
            _require_room(descriptor, length)
            os.posix_fallocate(descriptor, 0, length)  # a full disk shows here, not in a fault
        mapped = mmap.mmap(descriptor, length)
        # Not whole until the block is over: a process that dies in it has forgotten all.
        mapped[:_HEADER] = key + bytes(len(_WHOLE))
        starts = _HEADER + _WIDTH * np.cumsum((0, *counts[:-1]))
        indices = np.frombuffer(mapped, np.int64, counts[0], int(starts[0]))
        covariance = np.frombuffer(mapped, np.float64, counts[1], int(starts[1]))
        rows = np.frombuffer(mapped, np.float64, counts[2], int(starts[2]))
        if not fits:
            indices[:] = -1
        yield CarriedNoise(indices, covariance.reshape(kept, kept), rows.reshape(kept, size))
        mapped[:_HEADER] = key + _WHOLE
    finally:
        # A mapping keeps the file open, and who logs an error may keep that for good.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def forget_noise(folder: Path) -> None:
    """Overwrite and remove what a node remembers of its noise, if it does."""
    file = folder / MEMORY_FILE
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _overwrite(descriptor)
        file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _overwrite(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    for start in range(0, size, _CHUNK):
        os.pwrite(descriptor, bytes(min(_CHUNK, size - start)), start)


def _require_room(descriptor: int, length: int) -> None:
    """Check that a file takes no more than half of a disk: its size is the server's word."""
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    if length > free // 2:
        raise OSError(
            errno.ENOSPC,
            f"remembered noise takes {length} bytes, and the disk has {free} left: use fewer bands "
            "or a larger disk",
        )


def _key_of(share: BandedShare, run: int) -> bytes:
    """Return a digest of all that has to be the same for remembered noise to count."""
    # Adaptive clipping moves grids with their norms, and by a rounding error their product.
    steps = [f"{each.scale * each.clipping_norm:.10e}" for each in share.segments]
    sizes = [each.size for each in share.segments]
    try:
        boot = _BOOT.read_text(encoding="ascii")
    except OSError:
        boot = f"process {os.getpid()}"  # who can't tell whether the machine was started again
    # What is remembered in finer steps than sums are exact in would make them inexact.
    noise = share.coefficients, share.noise_scale.hex(), share.fine_bits
    form = (*noise, share.rotated, sizes, steps)
    said = (run, form, boot)
    return hashlib.sha256(repr(said).encode()).digest()
