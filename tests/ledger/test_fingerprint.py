"""A data set's fingerprint: the same in whatever order, and of no other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_dp.ledger.fingerprint import fingerprint, fingerprint_of_files

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(40, 3, 2)).astype(np.float32)
LABELS = GENERATOR.integers(0, 3, 40)
NAME = fingerprint(FEATURES, LABELS)


def test_the_order_of_the_records_does_not_matter() -> None:
    order = GENERATOR.permutation(40)
    assert fingerprint(FEATURES[order], LABELS[order]) == NAME


def test_which_label_belongs_to_which_record_matters() -> None:
    assert fingerprint(FEATURES, np.roll(LABELS, 1)) != NAME
    assert fingerprint(FEATURES, np.sort(LABELS)) != NAME


@pytest.mark.parametrize("row", [0, 17, 39])
def test_one_changed_value_changes_it(row: int) -> None:
    changed = FEATURES.copy()
    changed[row, 2, 1] = np.nextafter(changed[row, 2, 1], np.float32(np.inf))
    assert fingerprint(changed, LABELS) != NAME


def test_one_record_more_less_or_twice_changes_it() -> None:
    names = {
        fingerprint(FEATURES[rows], LABELS[rows])
        for rows in (range(40), range(39), [*range(40), 0], [*range(40), 0, 0], [*range(39), 0])
    }
    assert len(names) == 5


def test_how_the_memory_is_laid_out_does_not_matter() -> None:
    assert fingerprint(np.asfortranarray(FEATURES), LABELS) == NAME
    assert fingerprint(np.repeat(FEATURES, 2, axis=0)[::2], LABELS.tolist()) == NAME


@pytest.mark.parametrize(
    "columns",
    [
        (FEATURES.astype(np.float64), LABELS),
        (FEATURES.reshape(40, 6), LABELS),
        (FEATURES.transpose(0, 2, 1), LABELS),
        (FEATURES, LABELS.astype(np.int32)),
        (FEATURES.view(np.int32), LABELS),
        (FEATURES, LABELS[:, None]),
        (LABELS, FEATURES),
        (FEATURES,),
    ],
    ids=["float64", "flat", "transposed", "int32", "bits", "column", "swapped", "no labels"],
)
def test_dtypes_shapes_and_columns_are_part_of_it(columns: tuple[Any, ...]) -> None:
    assert fingerprint(*columns) != NAME


def test_no_records_of_one_form_are_not_those_of_another() -> None:
    empty = fingerprint(FEATURES[:0], LABELS[:0])
    assert empty == fingerprint(FEATURES[:0].copy(), LABELS[:0])
    assert empty != fingerprint(LABELS[:0])


def test_it_is_a_hash_and_no_data() -> None:
    assert len(NAME) == 64
    assert set(NAME) <= set("0123456789abcdef")


def test_columns_that_are_no_data_set_are_refused() -> None:
    with pytest.raises(ValueError, match=r"equally long, got \[39, 40\] rows"):
        fingerprint(FEATURES, LABELS[:39])
    with pytest.raises(ValueError, match="convert columns of objects"):
        fingerprint(np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="equally long"):
        fingerprint()


def test_files_have_one_name_whatever_they_are_called_and_another_if_one_changes(
    tmp_path: Path,
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder / "below").mkdir(parents=True)
    (tmp_path / "here/a.csv").write_text("1")
    (tmp_path / "here/below/b.csv").write_text("2")
    (tmp_path / "there/c.csv").write_text("2")
    (tmp_path / "there/below/d.csv").write_text("1")
    here, there = (fingerprint_of_files(tmp_path / each) for each in ("here", "there"))
    assert here == there
    (tmp_path / "there/below/d.csv").write_text("10")
    assert fingerprint_of_files(tmp_path / "there") != here
    (tmp_path / "there/below/d.csv").unlink()
    assert fingerprint_of_files(tmp_path / "there") != here
