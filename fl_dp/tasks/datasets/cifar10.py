"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32x32 in ten classes.

The package holds six PNG files, one image per row of 1,024 RGB pixels, and two lists of labels.
Pillow decodes them once into the cache.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.cache import cached_array
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.sources import SOURCES

_TRAIN = tuple(f"data_batch_{number}.png" for number in range(1, 6))
_TEST = ("test_batch.png",)
_SIDE = 32
# Of the training pixels after division by 255, red, green, blue; public constants.
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)
_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def load_cifar10(data_dir: str | None = None) -> Dataset:
    """Load CIFAR-10 with its published split.

    Returns:
        uint8 images `(n, 3, 32, 32)`, memory-mapped if the cache folder can be written.
        `Dataset.features` standardises them by channel.
    """
    folder = sources.require_folder("cifar10", data_dir)
    trust_cache = data_dir is None
    return Dataset(
        name="cifar10",
        train_x=_images(folder, _TRAIN, trust_cache=trust_cache),
        train_y=_labels(folder, "train_lables.json"),
        test_x=_images(folder, _TEST, trust_cache=trust_cache),
        test_y=_labels(folder, "test_lables.json"),
        num_classes=10,
        class_names=_CLASSES,
        mean=_MEAN,
        std=_STD,
    )


def _images(folder: Path, files: tuple[str, ...], *, trust_cache: bool) -> NDArray[np.uint8]:
    md5 = SOURCES["cifar10"].md5
    paths = [sources.find(folder, file) for file in files]
    digest = hashlib.sha256("".join(md5[file] for file in files).encode()).hexdigest()[:32]

    def decode() -> NDArray[np.uint8]:
        raws = [
            sources.read_published(path, md5[file]) for path, file in zip(paths, files, strict=True)
        ]
        return np.concatenate([decode_rows(raw) for raw in raws])

    split = "train" if files == _TRAIN else "test"
    verify = () if trust_cache else paths
    return cached_array(f"cifar10-{split}-{digest}", decode, verify)


def decode_rows(raw: bytes) -> NDArray[np.uint8]:
    """Decode a PNG picture, RGB and 1,024 pixels wide, with one image per row.

    Returns:
        uint8 images `(n, 3, 32, 32)`, channels first.

    Raises:
        ImportError: If Pillow is missing.
        ValueError: If the picture is not RGB or not that wide.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("task=cifar10 reads PNG files: pip install pillow brings it") from error
    # Ten million pixels are expected: Pillow need not suspect a bomb.
    with Image.open(io.BytesIO(raw), formats=["PNG"]) as picture:
        if picture.mode != "RGB" or picture.width != _SIDE * _SIDE:
            raise ValueError(
                f"a picture is {picture.mode}, {picture.width} pixels wide; "
                f"expected RGB, {_SIDE * _SIDE} wide, an image of {_SIDE}x{_SIDE} a row"
            )
        rows = np.asarray(picture, np.uint8)
    return np.ascontiguousarray(rows.reshape(-1, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2))


def _labels(folder: Path, file: str) -> NDArray[np.int64]:
    raw = sources.read_published(sources.find(folder, file), SOURCES["cifar10"].md5[file])
    return np.array(json.loads(raw), dtype=np.int64)
