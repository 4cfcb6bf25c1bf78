"""Data sets whose records are vectors, computed once and kept in the user's cache.

The file's name is a digest of the encoder and of every record, so that neither is ever mistaken for
another. Only the user who runs the node reads it: the vectors say what the records say.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.files import cache_folder, private_folder, written_whole
from fl_dp.tasks.datasets import Dataset

from .encoder import Encoder
from .progress import told
from .public_statistics import PublicStatistics

_ROWS = 1024  # encoded and written at a time


def digest_of_records(dataset: Dataset, *splits: str) -> str:
    """Return the SHA-256 of records as a model would get them, as hexadecimal text."""
    digest = hashlib.sha256(repr((dataset.mean, dataset.std)).encode())
    for split in splits:
        records = getattr(dataset, f"{split}_x")
        digest.update(f"{split} {records.dtype} {records.shape}".encode())
        digest.update(np.ascontiguousarray(records).data)
    return digest.hexdigest()


def fitted(
    encoder: Encoder, dataset: Dataset, digest: str, *, project: int | None, shrink: int | None
) -> Encoder:
    """Return an encoder with the statistics of the data set's public part.

    Args:
        encoder: Without statistics.
        dataset: With a public part.
        digest: Of the encoder, its statistics included.
        project: See `PublicStatistics.fit`.
        shrink: See `PublicStatistics.fit`.

    Raises:
        ValueError: If the public part is too small.
    """
    place = _place(f"{_short(digest)}.safetensors")
    if place is not None:
        with contextlib.suppress(OSError, ValueError):  # absent or torn: computed again
            return encoder.by(PublicStatistics.read(place))
    found = encoder.fitted(dataset.features(slice(None), "public"), project=project, shrink=shrink)
    if place is not None and found.statistics is not None:
        with contextlib.suppress(OSError):
            private_folder(place.parent)
            found.statistics.save(place)
    return found


def encoded(
    dataset: Dataset,
    encoder: Callable[[], Encoder],
    digest: str,
    *,
    only_for: str | None = None,
) -> Dataset:
    """Return a data set with the vectors of its records in their place, less its public part.

    Args:
        dataset: Images or rows; labels, clients and what did not fit stay.
        encoder: Makes the encoder, which is asked for where nothing is kept yet.
        digest: Of the encoder.
        only_for: Folder of somebody's own data, of which one file is kept: what was kept of its
            earlier records is removed. None: of data that everybody has.
    """
    records = digest_of_records(dataset, "train", "test")
    owner = "" if only_for is None else f"{_short(only_for)}-"
    place = _place(f"{owner}{_short(digest + records)}.npy")
    rows = len(dataset.train_y)
    vectors = _kept(place, rows + len(dataset.test_y))
    if vectors is None:
        vectors = _computed(dataset, encoder(), place)
        if place is not None and owner:
            for other in place.parent.glob(f"{owner}*.npy"):
                if other != place:
                    other.unlink(missing_ok=True)
    vectors.setflags(write=False)
    return replace(
        dataset,
        train_x=vectors[:rows],
        test_x=vectors[rows:],
        mean=0.0,
        std=1.0,
        column_names=(),
        public_x=None,
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _place(name: str) -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / "features" / name


def _kept(place: Path | None, rows: int) -> NDArray[np.float32] | None:
    if place is None:
        return None
    with contextlib.suppress(OSError, ValueError, EOFError):  # absent or torn: computed again
        # The plain view drops numpy.memmap's bookkeeping for each access, and keeps the mapping.
        vectors = np.asarray(np.load(place, mmap_mode="r"))
        if vectors.dtype == np.float32 and len(vectors) == rows:
            return vectors
    return None


def _computed(dataset: Dataset, encoder: Encoder, place: Path | None) -> NDArray[np.float32]:
    """Encode every record, in a file of the cache where there can be one."""
    rows = len(dataset.train_y) + len(dataset.test_y)
    shape = rows, encoder.width(dataset.input_shape)
    if place is not None:
        # Written, not mapped: a full disk is then an error and no signal.
        with contextlib.suppress(OSError):
            private_folder(place.parent)
            with written_whole(place) as unfinished, unfinished.open("wb") as stream:
                form = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, form)
                for part in _parts(dataset, encoder):
                    stream.write(part.astype("<f4", copy=False).tobytes())
            kept = _kept(place, rows)
            if kept is not None:
                return kept
    return np.concatenate([np.empty((0, shape[1]), np.float32), *_parts(dataset, encoder)])


def _parts(dataset: Dataset, encoder: Encoder) -> Iterator[NDArray[np.float32]]:
    parts = (
        encoder(dataset.features(slice(start, start + _ROWS), split))
        for split, labels in (("train", dataset.train_y), ("test", dataset.test_y))
        for start in range(0, len(labels), _ROWS)
    )
    return told(parts, len(dataset.train_y) + len(dataset.test_y), "records")
