"""Held-out rows are those of scikit-learn, without its import."""

import numpy as np
import pytest
from sklearn import datasets
from sklearn.model_selection import train_test_split

from fl_dp.tasks.datasets import DataSource, load_dataset
from fl_dp.tasks.datasets.held_out import stratified_split
from fl_dp.tasks.datasets.shipped import shipped_table


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("counts", [(36, 5, 9), (7, 7, 7, 7), (1000, 13), (10, 11, 12, 13, 14)])
@pytest.mark.parametrize("test_fraction", [0.2, 0.25, 0.5])
def test_rows_are_those_of_scikit_learn(
    counts: tuple[int, ...], test_fraction: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    theirs = train_test_split(
        np.arange(len(labels)), test_size=test_fraction, random_state=seed, stratify=labels
    )
    ours = stratified_split(labels, test_fraction, seed)
    for expected, rows in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(rows, expected)


def test_shipped_tables_are_those_of_scikit_learn() -> None:
    digits = np.c_[datasets.load_digits(return_X_y=True)]
    np.testing.assert_array_equal(shipped_table("digits.csv.gz"), digits)
    biopsies = np.c_[datasets.load_breast_cancer(return_X_y=True)]
    np.testing.assert_array_equal(shipped_table("breast_cancer.csv", skipped_rows=1), biopsies)


def test_the_validation_part_is_a_fifth_of_the_training_part_and_nothing_of_the_test_part() -> None:
    digits, chosen_by = load_dataset("digits"), load_dataset(DataSource("digits", validation=True))

    def rows(records: np.ndarray, labels: np.ndarray) -> list[bytes]:
        return sorted(r.tobytes() + bytes([y]) for r, y in zip(records, labels, strict=True))

    assert len(chosen_by.test_y) == round(0.2 * len(digits.train_y) + 0.5)
    together = [*rows(chosen_by.train_x, chosen_by.train_y)]
    together += rows(chosen_by.test_x, chosen_by.test_y)
    assert sorted(together) == rows(digits.train_x, digits.train_y)
    shares = np.bincount(chosen_by.test_y) / np.bincount(digits.train_y)
    assert shares.min() > 0.18 and shares.max() < 0.22
    assert not chosen_by.train_x.flags.writeable
