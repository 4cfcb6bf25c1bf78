"""The embedded digits, and what every data set promises."""

import numpy as np
import pytest

from fl_dp.tasks import Dataset, load_dataset


def made(**changes):
    parts = {
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


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'mnits'.*digits, fashion_mnist"):
        load_dataset("mnits")


def test_digits_have_the_documented_shapes_and_range():
    digits = load_dataset("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.input_shape == (1, 8, 8)
    assert digits.train_x.dtype == np.float32
    assert digits.train_y.dtype == digits.test_y.dtype == np.int64
    assert digits.train_x.min() == np.float32(-0.3)
    assert digits.train_x.max() == np.float32(0.7)
    assert digits.num_classes == 10


def test_digits_test_part_is_stratified_and_disjoint_from_training():
    digits = load_dataset("digits")
    ratio = np.bincount(digits.test_y) / (np.bincount(digits.train_y) + np.bincount(digits.test_y))
    np.testing.assert_allclose(ratio, 0.2, atol=0.005)
    train, test = ({x.tobytes() for x in part} for part in (digits.train_x, digits.test_x))
    assert not train & test


def test_digits_split_ignores_the_global_seed():
    from fl_dp.tasks.digits import load_digits

    np.random.seed(1)
    first = load_digits()
    np.random.seed(2)
    np.testing.assert_array_equal(first.test_x, load_digits().test_x)
    # Pinned, so that a change of the split can't go unseen.
    assert first.test_y[:10].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3]


def test_digits_load_leaves_the_global_random_state_alone():
    from fl_dp.tasks.digits import load_digits

    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    load_digits()
    assert np.random.random() == expected


def test_a_set_is_loaded_once_per_process():
    assert load_dataset("digits") is load_dataset("digits", data_dir=None)
    assert load_dataset("digits") is load_dataset("digits", data_dir="/unused")


def test_shared_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        load_dataset("digits").train_x[0] = 0


def test_features_scale_only_bytes():
    scaled = made().features(np.array([5, 0]))
    assert scaled.dtype == np.float32
    expected = (np.array([[20, 21, 22, 23], [0, 1, 2, 3]]) / 255 - 0.25) / 0.5
    np.testing.assert_allclose(scaled.reshape(2, 4), expected, rtol=1e-5)
    digits = load_dataset("digits")
    np.testing.assert_array_equal(digits.features(slice(3, 9)), digits.train_x[3:9])


def test_features_and_labels_take_slices_splits_and_no_rows():
    dataset = made()
    np.testing.assert_allclose(dataset.features(slice(None), "test"), 1.5, rtol=1e-6)
    assert dataset.labels(slice(None), "test").tolist() == [0, 1]
    assert dataset.labels(np.array([1, 2])).tolist() == [1, 0]
    nobody = np.array([], dtype=np.int64)
    assert dataset.features(nobody).shape == (0, 1, 2, 2)
    assert dataset.labels(nobody).shape == (0,)


def test_features_are_a_copy_of_their_own():
    digits = load_dataset("digits")
    digits.features(slice(0, 2))[:] = 7
    assert digits.train_x.max() < 1
    digits.labels(slice(0, 2))[:] = 77
    assert digits.train_y.max() == 9


def test_unknown_split_is_refused():
    with pytest.raises(ValueError, match="'validation'; write 'train' or 'test'"):
        made().features(slice(1), "validation")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_y": np.array([0])}, "6 train images but 1 labels"),
        ({"test_y": np.array([0])}, "2 test images but 1 labels"),
        ({"train_x": np.zeros((6, 1, 2, 2))}, "float64; convert"),
        ({"test_x": np.zeros((2, 1, 3, 3), np.uint8)}, "one shape"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)
