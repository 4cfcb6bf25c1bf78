"""Training records on the device: the same ones, moved once if there is room. CPU only here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fl_dp.tasks.datasets import Dataset, load_dataset
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import DeviceData, evaluate, train_locally

CPU = torch.device("cpu")
ROWS = np.array([5, 0, 7])
DIGITS = load_dataset("digits")
BYTES = 1437 * (64 * 4 + 8)  # float32 features and int64 labels
TOKENS = Dataset(
    name="tokens",
    train_x=np.arange(40, dtype=np.uint8).reshape(10, 4),
    train_y=np.arange(10),
    test_x=np.zeros((0, 4), np.uint8),
    test_y=np.zeros(0, np.int64),
    num_classes=10,
    vocabulary_size=40,
)


@pytest.mark.parametrize(
    ("dataset", "size"), [(DIGITS, BYTES), (TOKENS, 10 * (4 * 8 + 8))], ids=["digits", "tokens"]
)
def test_a_set_is_moved_if_it_takes_at_most_a_quarter_of_the_free_memory(
    dataset: Dataset, size: int
) -> None:
    assert DeviceData(dataset, CPU, free_memory=4 * size).resident
    assert not DeviceData(dataset, CPU, free_memory=4 * size - 1).resident


@pytest.mark.parametrize("dataset", [DIGITS, TOKENS], ids=["digits", "tokens"])
@pytest.mark.parametrize("free_memory", [0, 10**9])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:0]], ids=["some", "none"])
def test_records_are_those_of_the_data_set(
    dataset: Dataset, free_memory: int, rows: np.ndarray
) -> None:
    features, labels = DeviceData(dataset, CPU, free_memory=free_memory).records(rows)
    expected = dataset.features(rows)
    assert features.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(features.numpy(), expected)
    np.testing.assert_array_equal(labels.numpy(), dataset.labels(rows))


@pytest.mark.parametrize("free_memory", [0, 10**9])
def test_records_are_copies(free_memory: int) -> None:
    data = DeviceData(DIGITS, CPU, free_memory=free_memory)
    for values in data.records(ROWS):
        values.fill_(7)
    features, labels = data.records(ROWS)
    np.testing.assert_array_equal(features.numpy(), DIGITS.features(ROWS))
    np.testing.assert_array_equal(labels.numpy(), DIGITS.labels(ROWS))


def test_everything_ends_up_on_the_device() -> None:
    # "meta" holds no values: whatever stayed behind on the CPU would show.
    meta = torch.device("meta")
    for free_memory in (0, 10**9):
        data = DeviceData(DIGITS, meta, free_memory=free_memory)
        assert [values.device.type for values in data.records(ROWS)] == ["meta", "meta"]


def test_training_and_evaluation_take_tensors_as_they_take_arrays() -> None:
    features, labels = DeviceData(DIGITS, CPU, free_memory=10**9).records(np.arange(50))
    models = [
        build_model("logistic", input_shape=(1, 8, 8), num_classes=10, seed=0) for _ in range(2)
    ]
    how: dict[str, Any] = {"learning_rate": 0.1, "epochs": 2, "batch_size": 8, "seed": 3}
    train_locally(models[0], features, labels, **how)
    train_locally(models[1], features.numpy(), labels.numpy(), **how)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert evaluate(models[0], features, labels) == evaluate(
        models[1], features.numpy(), labels.numpy()
    )
