"""The embedded sets, and what every data set promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_dp.tasks.datasets import DATASETS, EMBEDDED, Dataset, data_source, idx_files, load_dataset
from fl_dp.tasks.datasets.data_source import PUBLIC_FORMS
from fl_dp.tasks.datasets.sources import SOURCES


def made(**changes: Any) -> Dataset:
    parts: dict[str, Any] = {
        "name": "made",
        "train_x": np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2),
        "train_y": np.array([0, 1, 0, 1, 0, 1]),
        "test_x": np.full((2, 1, 2, 2), 255, np.uint8),
        "test_y": np.array([0, 1]),
        "num_classes": 2,
        "mean": 0.25,
        "std": 0.5,
    }
    return Dataset(**(parts | changes))


def test_digits_have_the_documented_shapes_and_range() -> None:
    digits = load_dataset("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.input_shape == (1, 8, 8)
    assert digits.train_x.dtype == np.float32
    assert digits.train_y.dtype == digits.test_y.dtype == np.int64
    assert digits.train_x.min() == np.float32(-0.3)
    assert digits.train_x.max() == np.float32(0.7)
    assert digits.num_classes == 10


def test_digits_test_part_is_stratified_and_disjoint_from_training() -> None:
    digits = load_dataset("digits")
    ratio = np.bincount(digits.test_y) / (np.bincount(digits.train_y) + np.bincount(digits.test_y))
    np.testing.assert_allclose(ratio, 0.2, atol=0.005)
    train, test = ({x.tobytes() for x in part} for part in (digits.train_x, digits.test_x))
    assert not train & test


def test_digits_split_neither_uses_nor_changes_the_global_random_state() -> None:
    from fl_dp.tasks.datasets.shipped import load_digits

    np.random.seed(1)
    first, left = load_digits(), np.random.random()
    np.random.seed(1)
    assert np.random.random() == left
    np.testing.assert_array_equal(first.test_x, load_digits().test_x)
    # Pinned, so that a change of the split can't go unseen.
    assert first.test_y[:10].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3]


def test_shared_arrays_are_read_only() -> None:
    with pytest.raises(ValueError):
        load_dataset("digits").train_x[0] = 0


def test_features_scale_only_bytes() -> None:
    scaled = made().features(np.array([5, 0]))
    assert scaled.dtype == np.float32
    expected = (np.array([[20, 21, 22, 23], [0, 1, 2, 3]]) / 255 - 0.25) / 0.5
    np.testing.assert_allclose(scaled.reshape(2, 4), expected, rtol=1e-5)
    digits = load_dataset("digits")
    np.testing.assert_array_equal(digits.features(slice(3, 9)), digits.train_x[3:9])


def test_features_and_labels_take_slices_splits_and_no_rows() -> None:
    dataset = made()
    np.testing.assert_allclose(dataset.features(slice(None), "test"), 1.5, rtol=1e-6)
    assert dataset.labels(slice(None), "test").tolist() == [0, 1]
    assert dataset.labels(np.array([1, 2])).tolist() == [1, 0]
    nobody = np.array([], dtype=np.int64)
    assert dataset.features(nobody).shape == (0, 1, 2, 2)
    assert dataset.labels(nobody).shape == (0,)


def test_features_are_a_copy_of_their_own() -> None:
    digits = load_dataset("digits")
    digits.features(slice(0, 2))[:] = 7
    assert digits.train_x.max() < 1
    digits.labels(slice(0, 2))[:] = 77
    assert digits.train_y.max() == 9


@pytest.mark.parametrize(
    "changes",
    [
        {"train_y": np.array([0])},
        {"test_y": np.array([0])},
        {"train_x": np.zeros((6, 1, 2, 2))},
        {"test_x": np.zeros((2, 1, 3, 3), np.uint8)},
        {"mean": (0.1, 0.2)},
        {"vocabulary_size": 256},
        {"client_names": ("a",)},
        {"train_clients": np.zeros(5, np.int64), "client_names": ("a",)},
        {"train_clients": np.zeros(6, np.int32), "client_names": ("a",)},
        {"train_clients": np.array([0, 1, 2, 0, 1, 2]), "client_names": ("a", "b")},
        {"train_clients": np.array([0, 1, -1, 0, 1, 0]), "client_names": ("a", "b")},
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        made(**changes)


def tokens(**changes: Any) -> Dataset:
    parts = {
        "train_x": np.arange(24, dtype=np.uint8).reshape(6, 4),
        "test_x": np.full((2, 4), 23, np.uint8),
        "vocabulary_size": 24,
    }
    return made(**(parts | changes))


def test_tokens_come_as_integers_without_scaling() -> None:
    chosen = tokens().features(np.array([5, 0]))
    assert chosen.dtype == np.int64
    assert chosen.tolist() == [[20, 21, 22, 23], [0, 1, 2, 3]]
    assert tokens().input_shape == (4,)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocabulary_size": 23},
        {"test_x": np.full((2, 4), 24, np.uint8)},
        {"train_x": np.zeros((6, 4), np.float32)},
    ],
)
def test_tokens_outside_the_vocabulary_or_not_bytes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        tokens(**changes)


def test_each_channel_is_scaled_by_its_own_constants() -> None:
    images = np.full((6, 3, 2, 2), 255, np.uint8)
    dataset = made(train_x=images, test_x=images[:2], mean=(0.0, 0.5, 1.0), std=(1.0, 0.25, 2.0))
    scaled = dataset.features(slice(2, 4))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[:, 0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(scaled[:, 1], 2.0, rtol=1e-6)
    np.testing.assert_allclose(scaled[:, 2], 0.0, atol=1e-6)


def test_breast_cancer_is_in_the_unit_ball_by_constants_and_split_by_label() -> None:
    biopsies = load_dataset("breast_cancer")
    assert biopsies.train_x.shape == (455, 30)
    assert biopsies.test_x.shape == (114, 30)
    everything = np.concatenate([biopsies.train_x, biopsies.test_x])
    assert np.linalg.norm(everything, axis=1).max() <= 1.0
    # Two deviations about the mean are all of a column's range.
    deviations = everything * np.sqrt(30) * 2
    np.testing.assert_allclose(np.median(np.abs(deviations), axis=0), 0.6, atol=0.2)
    assert np.bincount(biopsies.test_y).tolist() == [42, 72]


def test_a_set_that_is_not_here_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "fashion_mnist"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], system_folder=None))
    monkeypatch.setattr(idx_files, "find_spec", lambda module: None)
    data_source._load_once.cache_clear()  # another test may have had it
    with pytest.raises(FileNotFoundError) as raised:
        load_dataset(name)
    for way in (f"`fl-dp data {name}`", SOURCES[name].package, "task.data_dir=/folder with"):
        assert way in str(raised.value)


def test_every_set_is_either_embedded_or_has_a_source_and_a_configuration() -> None:
    conf = Path(__file__).resolve().parents[3] / "conf" / "task"
    assert sorted((*EMBEDDED, *SOURCES)) == sorted(PUBLIC_FORMS)
    for name in PUBLIC_FORMS:
        assert name in DATASETS
        assert f"name: {name}\n" in (conf / f"{name}.yaml").read_text()
