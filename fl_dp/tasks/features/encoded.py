"""Data sets whose records are vectors, computed once and cached for the user.

The file's name is a digest of the encoder and every record, so neither is mistaken for another.
Only the user who runs the node can read it: vectors say what records say.
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
from .encoding_progress import logged
from .public_statistics import PublicStatistics

_ROWS = 1024  # encoded and written at a time


def digest_of_records(dataset: Dataset, *splits: str) -> str:
    """SHA-256 of records as a model would get them, hexadecimal."""
    digest = hashlib.sha256(repr((dataset.mean, dataset.std)).encode())
    for split in splits:
        records = getattr(dataset, f"{split}_x")
        digest.update(f"{split} {records.dtype} {records.shape}".encode())
        digest.update(np.ascontiguousarray(records).data)
    return digest.hexdigest()


def fitted(
    encoder: Encoder, dataset: Dataset, digest: str, *, project: int | None, shrink: int | None
) -> Encoder:
    """An encoder with the statistics of the data set's public part.

    `digest` is that of the encoder, its statistics included; `project` and `shrink` are as for
    `PublicStatistics.fit`.

    Raises:
        ValueError: If the public part is too small.
    """
    file = _cached_file(f"{_short(digest)}.safetensors")
    if file is not None:
        with contextlib.suppress(OSError, ValueError):  # absent or torn: computed again
            return encoder.with_statistics(PublicStatistics.read(file))
    images = dataset.features(slice(None), "public")
    encoder = encoder.fitted(images, project=project, shrink=shrink)
    if file is not None and encoder.statistics is not None:
        with contextlib.suppress(OSError):
            private_folder(file.parent)
            encoder.statistics.save(file)
    return encoder


def encoded(
    dataset: Dataset,
    encoder: Callable[[], Encoder],
    digest: str,
    *,
    only_for: str | None = None,
) -> Dataset:
    """A data set of the records' vectors, without its public part.

    Args:
        dataset: Images, rows or texts; labels, clients and `train_fit` stay as they are.
        encoder: Makes the encoder, if no vectors are cached.
        digest: Digest of the encoder.
        only_for: Folder of one owner's data: one file is cached for it, and files of its earlier
            records are removed. None: data that everybody has.
    """
    records = digest_of_records(dataset, "train", "test")
    owner = "" if only_for is None else f"{_short(only_for)}-"
    file = _cached_file(f"{owner}{_short(digest + records)}.npy")
    rows = len(dataset.train_y)
    vectors = _cached(file, rows + len(dataset.test_y))
    if vectors is None:
        vectors = _computed(dataset, encoder(), file)
        if file is not None and owner:
            for other in file.parent.glob(f"{owner}*.npy"):
                if other != file:
                    other.unlink(missing_ok=True)
    vectors.setflags(write=False)
    return replace(
        dataset,
        train_x=vectors[:rows],
        test_x=vectors[rows:],
        mean=0.0,
        std=1.0,
        vocabulary_size=None,
        column_names=(),
        public_x=None,
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _cached_file(name: str) -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / "features" / name


def _cached(file: Path | None, rows: int) -> NDArray[np.float32] | None:
    if file is None:
        return None
    with contextlib.suppress(OSError, ValueError, EOFError):  # absent or torn: computed again
        # The plain view drops numpy.memmap's bookkeeping for each access, and keeps the mapping.
        vectors = np.asarray(np.load(file, mmap_mode="r"))
        if vectors.dtype == np.float32 and len(vectors) == rows:
            return vectors
    return None


def _computed(dataset: Dataset, encoder: Encoder, file: Path | None) -> NDArray[np.float32]:
    """Encode every record, into a file of the cache where possible."""
    rows = len(dataset.train_y) + len(dataset.test_y)
    shape = rows, encoder.width(dataset.input_shape)
    if file is not None:
        # Written, not mapped: a full disk is then an error and not a signal.
        with contextlib.suppress(OSError):
            private_folder(file.parent)
            with written_whole(file) as unfinished, unfinished.open("wb") as stream:
                form = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, form)
                for part in _parts(dataset, encoder):
                    stream.write(part.astype("<f4", copy=False).tobytes())
            cached = _cached(file, rows)
            if cached is not None:
                return cached
    return np.concatenate([np.empty((0, shape[1]), np.float32), *_parts(dataset, encoder)])


def _parts(dataset: Dataset, encoder: Encoder) -> Iterator[NDArray[np.float32]]:
    parts = (
        encoder(dataset.features(slice(start, start + _ROWS), split))
        for split, labels in (("train", dataset.train_y), ("test", dataset.test_y))
        for start in range(0, len(labels), _ROWS)
    )
    return logged(parts, len(dataset.train_y) + len(dataset.test_y), "records")
