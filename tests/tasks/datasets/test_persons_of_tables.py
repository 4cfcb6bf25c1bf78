"""Persons with several rows of a table: who they are, and that their rows stay together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from pyarrow import csv, parquet

from fl_dp.tasks.datasets import DataFormat, Dataset, DataSource, load_dataset
from fl_dp.tasks.datasets.held_out import held_out_units, with_public_part, with_validation_part
from fl_dp.tasks.datasets.partitions import client_indices, partition

PERSONS = 40
FORMAT = DataFormat(classes=("well", "ill"), person_column="patient", columns=("age",))
KINDS = pytest.mark.parametrize("kind", ["csv", "parquet"])


def visits(first: int = 0, persons: int = PERSONS, *, of_numbers: bool = False) -> dict[str, Any]:
    """Rows of persons, of whom number p has 1 + p % 4, in no order; the age names the person."""
    owner = np.repeat(np.arange(persons), 1 + np.arange(persons) % 4)
    np.random.default_rng(5).shuffle(owner)
    names: Any = first + owner if of_numbers else [f"p{first + number}" for number in owner]
    labels = ["ill" if number % 2 else "well" for number in owner]
    return {"age": owner.astype(float), "patient": names, "label": labels}


def write(folder: Path, kind: str, **parts: dict[str, Any]) -> None:
    for split, columns in parts.items():
        table, file = pa.table(columns), folder / f"{split}.{kind}"
        csv.write_csv(table, file) if kind == "csv" else parquet.write_table(table, file)


def source(folder: Path, kind: str = "csv", data_format: DataFormat = FORMAT) -> DataSource:
    return DataSource(kind, data_dir=str(folder), data_format=data_format)


def persons_in(dataset: Dataset, part: str) -> set[int]:
    """Whose rows are in a part, by their feature, which no split touches."""
    rows = dataset.features(slice(None), part)
    return set(rows[:, 0].astype(int).tolist())


@KINDS
@pytest.mark.parametrize("of_numbers", [False, True])
def test_the_column_names_persons_and_is_no_feature(
    tmp_path: Path, kind: str, of_numbers: bool
) -> None:
    table = visits(of_numbers=of_numbers)
    write(tmp_path, kind, train=table, test={"age": [1.0], "label": ["ill"]})
    dataset = load_dataset(source(tmp_path, kind, replace(FORMAT, columns=None)))
    assert dataset.column_names == ("age",)
    assert dataset.train_persons is not None
    # The same person exactly where the feature is the same.
    same = dataset.train_persons[:, None] == dataset.train_persons
    assert (same == (table["age"][:, None] == table["age"])).all()


@KINDS
def test_a_fraction_holds_out_persons_with_all_of_their_rows(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind, train=visits())
    dataset = load_dataset(source(tmp_path, kind, replace(FORMAT, test_fraction=0.25)))
    training, tested = persons_in(dataset, "train"), persons_in(dataset, "test")
    assert len(tested) == PERSONS // 4 and not training & tested
    assert len(dataset.train_y) + len(dataset.test_y) == len(visits()["age"])


def test_a_validation_part_is_of_other_persons(tmp_path: Path) -> None:
    write(tmp_path, "csv", train=visits(), test=visits(100, 3))
    dataset = with_validation_part(load_dataset(source(tmp_path)))
    training, tested = persons_in(dataset, "train"), persons_in(dataset, "test")
    assert len(tested) == PERSONS // 5 and not training & tested
    assert dataset.train_persons is not None
    assert len(dataset.train_persons) == len(dataset.train_y)


def test_what_is_held_out_depends_on_nothing_but_who_there_is() -> None:
    once = held_out_units(np.array([3, 7, 9, 12, 20]), 0.4)
    several = held_out_units(np.array([3, 3, 7, 9, 9, 9, 12, 20, -1]), 0.4)
    assert once is not None and several is not None
    assert several.tolist() == [*np.repeat(once, [2, 1, 3, 1, 1]).tolist(), False]
    assert held_out_units(np.array([1, 1, 1]), 0.5) is None


def test_nobody_is_in_both_files_and_no_error_names_one(tmp_path: Path) -> None:
    write(tmp_path, "csv", train=visits(), test=visits(PERSONS - 2, 10))
    with pytest.raises(ValueError, match="2 persons are in the training and in the test") as error:
        load_dataset(source(tmp_path))
    assert "p38" not in str(error.value)


@pytest.mark.parametrize(("one", "other"), [("Ann", " ann"), ("7", "007")])
def test_one_person_is_written_in_one_way(tmp_path: Path, one: str, other: str) -> None:
    table = {"age": [1.0, 2.0], "patient": [one, other], "label": ["ill", "well"]}
    write(tmp_path, "csv", train=table, test=visits(100, 3))
    with pytest.raises(ValueError, match="names of persons differ from another") as error:
        load_dataset(source(tmp_path))
    assert "nn" not in str(error.value).split("persons", 1)[1].split("differ")[0]


def test_a_row_of_nobody_is_refused_where_all_rows_are_at_hand(tmp_path: Path) -> None:
    table = {"age": [1.0, 2.0], "patient": ["p1", ""], "label": ["ill", "well"]}
    write(tmp_path, "csv", train=table, test=visits(100, 3))
    with pytest.raises(ValueError, match=r"missing values in 'patient' \(1\)"):
        load_dataset(source(tmp_path))


def test_an_even_deal_is_one_of_persons() -> None:
    owner = visits()["age"].astype(np.int64)
    labels = owner % 2
    parts = partition(labels, num_clients=8, kind="iid", seed=1, persons=owner)
    at = [set(owner[rows].tolist()) for rows in parts]
    assert [len(persons) for persons in at] == [5] * 8
    assert len(set.union(*at)) == PERSONS  # so that nobody is at two clients
    assert sorted(np.concatenate(list(parts)).tolist()) == list(range(len(owner)))
    # The power: dealt by rows, somebody is.
    rows_dealt = partition(labels, num_clients=8, kind="iid", seed=1)
    assert sum(len(set(owner[rows].tolist())) for rows in rows_dealt) > PERSONS


def test_each_person_deals_alike_however_many_rows_somebody_has() -> None:
    few = partition(np.zeros(6), num_clients=3, kind="iid", seed=2, persons=np.arange(6))
    many = np.repeat(np.arange(6), [1, 50, 1, 1, 1, 1])
    dealt = partition(np.zeros(len(many)), num_clients=3, kind="iid", seed=2, persons=many)
    assert [set(many[rows].tolist()) for rows in dealt] == [set(rows.tolist()) for rows in few]


def test_natural_clients_have_whole_persons_or_are_refused() -> None:
    persons, clinic = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 0, 2, 2])
    with pytest.raises(ValueError, match="1 persons have rows at several clients"):
        partition(
            np.zeros(5),
            num_clients=3,
            kind="natural",
            seed=0,
            natural_clients=clinic,
            persons=persons,
        )
    # A client that takes no part divides nobody.
    parts = partition(
        np.zeros(5), num_clients=2, kind="natural", seed=0, natural_clients=clinic, persons=persons
    )
    assert [rows.tolist() for rows in parts] == [[0, 2], [3, 4]]


@pytest.mark.parametrize(
    ("kind", "records", "line"),
    [
        ("dirichlet", None, "partition 'dirichlet' deals out rows"),
        ("shards", None, "partition 'shards' deals out rows"),
        ("iid", 2, "records_per_client deals out rows"),
    ],
)
def test_what_deals_out_rows_is_refused(kind: str, records: int | None, line: str) -> None:
    owner = np.repeat(np.arange(5), 2)
    with pytest.raises(ValueError, match=line):
        partition(
            owner % 2,
            num_clients=2,
            kind=kind,
            seed=0,
            records_per_client=records,
            persons=owner,
        )
    with pytest.raises(ValueError, match="there are 5 persons; write at most 5"):
        partition(owner % 2, num_clients=6, kind="iid", seed=0, persons=owner)


def test_a_source_deals_its_persons(tmp_path: Path) -> None:
    write(tmp_path, "csv", train=visits(), test=visits(100, 3))
    of = source(tmp_path)
    dataset, parts = load_dataset(of), client_indices(of, num_clients=4, kind="iid", seed=0)
    assert dataset.train_persons is not None
    at = [set(dataset.train_persons[rows].tolist()) for rows in parts]
    assert [len(persons) for persons in at] == [10] * 4 and len(set.union(*at)) == PERSONS


def test_no_row_of_a_person_is_public(tmp_path: Path) -> None:
    write(tmp_path, "csv", train=visits(), test=visits(100, 3))
    with pytest.raises(ValueError, match="would make some rows of a person public"):
        with_public_part(load_dataset(source(tmp_path)), 3)


# One node's own rows.


NODE = replace(FORMAT, splits=("train",), leave_out_unfit=True)


@KINDS
def test_a_node_s_rows_each_say_whose_they_are(tmp_path: Path, kind: str) -> None:
    names: list[Any] = ["p1", None, "P1 ", "p2", "p2"]
    labels = ["ill", "ill", "well", "dead", "well"]
    write(tmp_path, kind, train={"age": [1.0, 2, 3, 4, 5], "patient": names, "label": labels})
    dataset = load_dataset(source(tmp_path, kind, NODE))
    assert dataset.train_persons is not None and dataset.train_fit is not None
    # Two ways of writing one are one person: it may not be two units, and nothing is refused.
    assert dataset.train_persons.tolist() == [1, -1, 1, 2, 2]
    assert dataset.train_fit.tolist() == [True, True, True, False, True]


def test_a_column_that_is_not_there_makes_all_rows_nobody_s(tmp_path: Path) -> None:
    table = {"age": [1.0, 2.0], "label": ["ill", "well"]}
    write(tmp_path, "csv", train=table)
    dataset = load_dataset(source(tmp_path, "csv", NODE))
    assert dataset.train_persons is not None and dataset.train_fit is not None
    assert dataset.train_persons.tolist() == [-1, -1] and not dataset.train_fit.any()
