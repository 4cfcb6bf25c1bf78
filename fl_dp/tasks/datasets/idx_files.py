"""MNIST and Fashion-MNIST: 60,000 + 10,000 images of 28x28 in four idx files.

They come from a folder, a package, or the hub through the `datasets` library. Their uncompressed
bytes must always have the published md5. They are unpacked once into the cache and memory-mapped.
"""

from __future__ import annotations

import importlib
import itertools
import struct
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.cache import cached_array
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.sources import IDX_FILES, SOURCES

# Split and column of each file.
_HUB_COLUMNS = dict(
    zip(IDX_FILES, itertools.product(("train", "test"), ("image", "label")), strict=True)
)


# Of the training pixels after division by 255; public constants, so they cost no privacy.
_MNIST = {"mean": 0.1307, "std": 0.3081}
_FASHION_MNIST = {"mean": 0.2860, "std": 0.3530}
_CLOTHES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip


def load_mnist(data_dir: str | None = None) -> Dataset:
    """Load MNIST (LeCun et al. 1998) with its published split; see `load_idx`."""
    return load_idx("mnist", data_dir, hub="ylecun/mnist", **_MNIST)


def load_fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Load Fashion-MNIST (Xiao et al. 2017) with its published split; see `load_idx`."""
    hub = "zalandoresearch/fashion_mnist"
    return replace(
        load_idx("fashion_mnist", data_dir, hub=hub, **_FASHION_MNIST), class_names=_CLOTHES
    )


def load_idx(name: str, data_dir: str | None, *, hub: str, mean: float, std: float) -> Dataset:
    """Load a set of four idx files with its published split.

    Args:
        name: A key of `SOURCES`.
        data_dir: Folder with the four files, each plain or as `.gz`. None searches the folders of
            the set's package and of `fl-dp data`, then the cache, then the `datasets` library, if
            installed.
        hub: The set's name for that library.
        mean: Mean of the training pixels after division by 255.
        std: Their standard deviation.

    Returns:
        Ten classes of uint8 images `(n, 1, 28, 28)`, memory-mapped if the cache folder can be
        written. `Dataset.features` standardises them.

    Raises:
        FileNotFoundError: If the folder or a file is missing, or no source can be read.
        ValueError: If a file is damaged or not the published one.
    """
    folder = sources.folder_of(name, data_dir)
    if folder is None:
        arrays = _from_hub(name, hub)
    else:
        # A folder that the user names is checked even if the cache is enough.
        arrays = _from_folder(name, folder, trust_cache=data_dir is None)
    train_x, train_y, test_x, test_y = arrays
    return Dataset(
        name=name,
        train_x=train_x[:, np.newaxis],
        train_y=train_y.astype(np.int64),
        test_x=test_x[:, np.newaxis],
        test_y=test_y.astype(np.int64),
        num_classes=10,
        mean=mean,
        std=std,
    )


def parse_idx(file: str, raw: bytes, md5: str, source: str) -> NDArray[np.uint8]:
    """Check an idx file's uncompressed bytes by their md5, and view them as an array.

    The file's name contains the number of dimensions; `source` is for error messages.

    Returns:
        uint8 array of the header's shape.

    Raises:
        ValueError: If the bytes are not an idx file, or not the published one.
    """
    dimensions = 3 if "idx3" in file else 1
    # Two zero bytes, 8 for unsigned bytes, the number of dimensions.
    magic = bytes([0, 0, 8, dimensions])
    header = 4 + 4 * dimensions
    if raw[:4] != magic or len(raw) < header:
        raise ValueError(
            f"{source} is no idx file of {dimensions} dimensions: it starts with "
            f"{raw[:4].hex() or 'nothing'}, not {magic.hex()}; found md5 {sources.md5_of(raw)} of "
            f"the uncompressed bytes, expected {md5}; fetch it again"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    sources.verified(raw, md5, source)
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _from_folder(name: str, folder: Path, *, trust_cache: bool) -> list[NDArray[np.uint8]]:
    paths = {file: sources.find(folder, file) for file in IDX_FILES}

    def read(file: str) -> NDArray[np.uint8]:
        path, md5 = paths[file], SOURCES[name].md5[file]
        return parse_idx(file, sources.read_plain(path, md5), md5, str(path))

    arrays = []
    for file, path in paths.items():
        verify = () if trust_cache else (path,)
        arrays.append(cached_array(_key(name, file), partial(read, file), verify))
    return arrays


def _from_hub(name: str, hub: str) -> list[NDArray[np.uint8]]:
    splits: dict[str, Any] = {}

    def read(file: str) -> NDArray[np.uint8]:
        if not splits:
            splits.update(_download(name, hub))
        split, column = _HUB_COLUMNS[file]
        values = np.stack([np.asarray(value, np.uint8) for value in splits[split][column]])
        # Written as the original idx file, so that the same md5 proves the same content.
        raw = struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim, *values.shape) + (
            values.tobytes()
        )
        return parse_idx(file, raw, SOURCES[name].md5[file], f"{file} from {hub}")

    return [cached_array(_key(name, file), partial(read, file)) for file in IDX_FILES]


def _download(name: str, hub: str) -> Any:
    ways = sources.missing(name, "`pip install datasets`, which downloads it")
    if find_spec("datasets") is None:
        raise ways
    try:
        return importlib.import_module("datasets").load_dataset(hub)
    except Exception as error:  # the library passes on anything that its network stack raises
        raise FileNotFoundError(f"{ways} (the download failed: {error})") from error


def _key(name: str, file: str) -> str:
    return f"{name.replace('_', '-')}-{file}-{SOURCES[name].md5[file]}"
