"""A name for data, whatever their place or order."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

_MODULUS = 2**256


def fingerprint(*columns: ArrayLike) -> str:
    """Return a data set's SHA-256 fingerprint, whatever the order of its rows.

    It stays in the node's ledger: anyone who has it can test a guess of the whole data set.

    Args:
        *columns: Arrays of equal length, one row per record: for instance features and labels.

    Raises:
        ValueError: They differ in length, or hold Python objects.
    """
    arrays = [np.ascontiguousarray(column) for column in columns]
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise ValueError(f"columns of one data set are equally long, got {sorted(lengths)} rows")
    if any(array.dtype.hasobject for array in arrays):
        raise ValueError("a fingerprint is of numbers: convert columns of objects first")
    (rows,) = lengths
    form = [(array.dtype.str, array.shape[1:]) for array in arrays]
    total = 0
    for row in range(rows):
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(array[row].tobytes())
        total += int.from_bytes(digest.digest(), "big")
    whole = f"{form}\n{rows}\n{total % _MODULUS:064x}"
    return hashlib.sha256(whole.encode()).hexdigest()


def fingerprint_of_files(folder: str | Path) -> str:
    """Return a SHA-256 fingerprint of a file, or of all below a folder, whatever their names.

    It does not depend on how files are read: a server that chooses columns and classes can't make
    two data sets look alike. A file's digest is cached until the file changes.

    Raises:
        OSError: A file can't be read.
    """
    total = 0
    given = Path(folder)
    for file in [given] if given.is_file() else sorted(filter(Path.is_file, given.rglob("*"))):
        status = file.stat()
        digest = _digest(file, status.st_size, status.st_mtime_ns)
        total += int.from_bytes(digest, "big")
    return hashlib.sha256(f"files\n{total % _MODULUS:064x}".encode()).hexdigest()


@lru_cache(maxsize=100_000)
def _digest(file: Path, size: int, changed: int) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()
