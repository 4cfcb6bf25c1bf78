"""The CIFAR-10 loader, on pictures of a few rows."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.cifar10 import decode_rows, load_cifar10

PICTURES = {
    name: np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (3, 1024, 3), np.uint8)
    for seed, name in enumerate([*(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png"])
}
LABELS = {"train_lables.json": [number % 10 for number in range(15)], "test_lables.json": [3, 1, 4]}


def png(pixels: np.ndarray, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with eight tiny files, which are expected."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = {name: png(pixels) for name, pixels in PICTURES.items()}
    files |= {name: json.dumps(labels).encode() for name, labels in LABELS.items()}
    path = tmp_path / "data"
    path.mkdir()
    for name, raw in files.items():
        (path / name).write_bytes(raw)
    made = {name: hashlib.md5(raw).hexdigest() for name, raw in files.items()}
    monkeypatch.setitem(sources.SOURCES, "cifar10", replace(sources.SOURCES["cifar10"], md5=made))
    return path


def test_rows_become_images_with_channels_first() -> None:
    pixels = PICTURES["test_batch.png"]
    images = decode_rows(png(pixels))
    assert images.shape == (3, 3, 32, 32)
    # The pixel in line 5, column 9 of image 2, green.
    assert images[2, 1, 5, 9] == pixels[2, 5 * 32 + 9, 1]


def test_the_batches_follow_one_another(folder: Path) -> None:
    dataset = load_cifar10(str(folder))
    assert dataset.train_x.shape == (15, 3, 32, 32)
    assert dataset.train_y.tolist() == LABELS["train_lables.json"]
    assert dataset.test_y.tolist() == [3, 1, 4]
    np.testing.assert_array_equal(
        dataset.train_x[4], decode_rows(png(PICTURES["data_batch_2.png"]))[1]
    )


def test_each_channel_has_its_own_constants(folder: Path) -> None:
    dataset = load_cifar10(str(folder))
    expected = (dataset.test_x[1, 2] / 255 - 0.4465) / 0.2616
    np.testing.assert_allclose(dataset.features(slice(1, 2), "test")[0, 2], expected, atol=1e-5)


def test_the_second_load_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_cifar10(str(folder))
    monkeypatch.setattr(
        "fl_dp.tasks.datasets.cifar10.decode_rows", lambda raw: pytest.fail("decoded again")
    )
    np.testing.assert_array_equal(load_cifar10(str(folder)).train_x, first.train_x)


@pytest.mark.parametrize(
    ("pixels", "mode"),
    [(np.zeros((2, 1024, 3), np.uint8), "L"), (np.zeros((2, 32, 3), np.uint8), "RGB")],
)
def test_a_picture_of_another_shape_is_refused(pixels: np.ndarray, mode: str) -> None:
    with pytest.raises(ValueError):
        decode_rows(png(pixels, mode))
