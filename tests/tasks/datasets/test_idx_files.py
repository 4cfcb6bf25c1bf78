"""The loader of idx files, on tiny made ones; the real Fashion-MNIST where Debian's package is."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_dp.tasks.datasets import Dataset, idx_files, sources
from fl_dp.tasks.datasets.idx_files import load_fashion_mnist, load_mnist

TRAIN_X, TRAIN_Y, TEST_X, TEST_Y = NAMES = sources.IDX_FILES
ARRAYS = {
    TRAIN_X: (np.arange(6 * 28 * 28) % 251).astype(np.uint8).reshape(6, 28, 28),
    TRAIN_Y: np.array([9, 0, 3, 3, 1, 2], np.uint8),
    TEST_X: (np.arange(2 * 28 * 28) % 199).astype(np.uint8).reshape(2, 28, 28),
    TEST_Y: np.array([4, 5], np.uint8),
}
REAL = Path("/usr/share/datasets/fashion-mnist")
needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + (
        values.tobytes()
    )


def md5(raw: bytes) -> str:
    return hashlib.md5(raw).hexdigest()


def expect(monkeypatch: pytest.MonkeyPatch, task: str = "fashion_mnist", **changes: Any) -> None:
    """Expect other files than the published ones."""
    monkeypatch.setitem(sources.SOURCES, task, replace(sources.SOURCES[task], **changes))


def expect_md5(monkeypatch: pytest.MonkeyPatch, name: str, digest: str) -> None:
    expect(monkeypatch, md5=dict(sources.SOURCES["fashion_mnist"].md5) | {name: digest})


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect the tiny files, keep the cache below tmp_path, and hide what the machine has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = {name: md5(idx(ARRAYS[name])) for name in NAMES}
    for task in ("fashion_mnist", "mnist"):
        expect(monkeypatch, task, md5=made, system_folder=None)
    monkeypatch.setattr(idx_files, "find_spec", lambda name: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with four tiny archives."""
    path = tmp_path / "data"
    path.mkdir()
    for name in NAMES:
        (path / f"{name}.gz").write_bytes(gzip.compress(idx(ARRAYS[name])))
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for the `datasets` library, which serves the tiny arrays."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "datasets.py").write_text("calls = []\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    import datasets

    def serve(name: str) -> dict[str, dict[str, Any]]:
        datasets.calls.append(name)
        return {
            "train": {"image": list(ARRAYS[TRAIN_X]), "label": ARRAYS[TRAIN_Y].tolist()},
            "test": {"image": list(ARRAYS[TEST_X]), "label": ARRAYS[TEST_Y].tolist()},
        }

    datasets.load_dataset = serve
    monkeypatch.setattr(idx_files, "find_spec", lambda name: True)
    yield datasets
    sys.modules.pop("datasets", None)


def check_content(dataset: Dataset) -> None:
    assert dataset.train_x.dtype == np.uint8
    assert dataset.train_y.dtype == dataset.test_y.dtype == np.int64
    np.testing.assert_array_equal(dataset.train_x[:, 0], ARRAYS[TRAIN_X])
    np.testing.assert_array_equal(dataset.train_y, ARRAYS[TRAIN_Y])
    np.testing.assert_array_equal(dataset.test_x[:, 0], ARRAYS[TEST_X])
    np.testing.assert_array_equal(dataset.test_y, ARRAYS[TEST_Y])


def is_mapped(array: np.ndarray | None) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def cached_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "fl-dp").glob("*"))


def test_a_folder_of_archives_loads_as_memory_mapped_bytes(folder: Path) -> None:
    dataset = load_fashion_mnist(str(folder))
    check_content(dataset)
    assert dataset.input_shape == (1, 28, 28)
    assert dataset.num_classes == 10
    assert is_mapped(dataset.train_x)
    assert is_mapped(dataset.test_x)


def test_a_folder_of_plain_files_loads(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.gz").unlink()
        (folder / name).write_bytes(idx(ARRAYS[name]))
    check_content(load_fashion_mnist(str(folder)))


def test_features_are_standardised_with_the_published_constants(folder: Path) -> None:
    dataset = load_fashion_mnist(str(folder))
    features = dataset.features(np.array([1, 4]))
    assert features.shape == (2, 1, 28, 28)
    assert features.dtype == np.float32
    expected = (ARRAYS[TRAIN_X][[1, 4], np.newaxis] / 255 - 0.2860) / 0.3530
    np.testing.assert_allclose(features, expected, atol=1e-6)


def test_fetched_files_are_found_without_a_setting(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / "fl-dp").mkdir(parents=True)
    folder.rename(tmp_path / "cache" / "fl-dp" / "fashion_mnist")
    check_content(load_fashion_mnist())


def test_mnist_is_read_from_the_same_files_with_constants_of_its_own(folder: Path) -> None:
    dataset = load_mnist(str(folder))
    check_content(dataset)
    assert dataset.name == "mnist"
    expected = (ARRAYS[TRAIN_X][[2], np.newaxis] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(dataset.features(np.array([2])), expected, atol=1e-6)


def test_a_missing_file_is_named_even_with_a_full_cache(folder: Path) -> None:
    load_fashion_mnist(str(folder))
    (folder / f"{TEST_Y}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=f"{folder} holds neither {TEST_Y} nor {TEST_Y}.gz"):
        load_fashion_mnist(str(folder))


def test_other_content_is_refused_with_both_md5s(folder: Path) -> None:
    other = idx(ARRAYS[TRAIN_X][::-1])
    (folder / f"{TRAIN_X}.gz").write_bytes(gzip.compress(other))
    with pytest.raises(ValueError, match=f"found md5 {md5(other)}"):
        load_fashion_mnist(str(folder))


@pytest.mark.parametrize("damage", ["cut short", "a bit", "no archive"])
def test_a_damaged_archive_is_refused(folder: Path, damage: str) -> None:
    file = folder / f"{TRAIN_X}.gz"
    raw = bytearray(file.read_bytes())
    if damage == "cut short":
        del raw[40:]
    elif damage == "a bit":
        raw[len(raw) // 2] ^= 0xFF
    else:
        raw[:] = b"<html>not found</html>"
    file.write_bytes(raw)
    with pytest.raises(ValueError, match="is damaged or cut short"):
        load_fashion_mnist(str(folder))


@pytest.mark.parametrize("raw", [b"\x00\x00\x08", idx(ARRAYS[TRAIN_Y])])
def test_a_wrong_magic_is_refused_even_if_the_md5_were_expected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    expect_md5(monkeypatch, TRAIN_X, md5(raw))
    (folder / TRAIN_X).write_bytes(raw)
    with pytest.raises(ValueError, match="no idx file of 3 dimensions"):
        load_fashion_mnist(str(folder))


def test_the_second_load_neither_reads_nor_hashes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_fashion_mnist(str(folder))

    def fail(*arguments: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(sources, "read_plain", fail)
    monkeypatch.setattr(sources, "md5_of", fail)
    check_content(load_fashion_mnist(str(folder)))
    check_content(load_fashion_mnist())


def test_a_named_file_that_changed_is_verified_again(folder: Path) -> None:
    load_fashion_mnist(str(folder))
    (folder / f"{TRAIN_Y}.gz").write_bytes(gzip.compress(idx(ARRAYS[TRAIN_Y] + 1)))
    with pytest.raises(ValueError, match="not the published file"):
        load_fashion_mnist(str(folder))


@pytest.mark.parametrize("size", [0, 200])
def test_a_torn_cache_file_is_written_again(folder: Path, tmp_path: Path, size: int) -> None:
    load_fashion_mnist(str(folder))
    for file in cached_files(tmp_path):
        os.truncate(file, min(size, file.stat().st_size))
    check_content(load_fashion_mnist(str(folder)))
    check_content(load_fashion_mnist())


def test_a_failed_write_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "save", full)
    dataset = load_fashion_mnist(str(folder))
    check_content(dataset)
    assert not is_mapped(dataset.train_x)
    assert cached_files(tmp_path) == []


def test_an_unwritable_cache_falls_back_to_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    dataset = load_fashion_mnist(str(folder))
    check_content(dataset)
    assert not is_mapped(dataset.train_x)


def test_the_datasets_library_serves_the_same_set_with_one_download(hub: Any) -> None:
    check_content(load_fashion_mnist())
    check_content(load_fashion_mnist())
    assert hub.calls == ["zalandoresearch/fashion_mnist"]


def test_other_content_from_the_datasets_library_is_refused(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_md5(monkeypatch, TRAIN_X, "0" * 32)
    with pytest.raises(ValueError, match=r"zalandoresearch/fashion_mnist is not the published"):
        load_fashion_mnist()


@needs_real
def test_the_installed_package_is_the_published_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    dataset = load_fashion_mnist(str(REAL))
    assert dataset.train_x.shape == (60000, 1, 28, 28)
    assert dataset.test_x.shape == (10000, 1, 28, 28)
    assert np.bincount(dataset.train_y).tolist() == [6000] * 10
    assert np.bincount(dataset.test_y).tolist() == [1000] * 10
    features = dataset.features(slice(0, 10000))
    assert features.mean() == pytest.approx(0, abs=0.02)
    assert features.std() == pytest.approx(1, abs=0.02)
