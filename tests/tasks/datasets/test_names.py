"""Names of classes and clients: one order and one equality, for tables and for folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from PIL import Image

from fl_dp.app.cautions import cautions_of_data
from fl_dp.app.compose import compose_settings
from fl_dp.tasks.datasets import DataFormat, Dataset, DataSource, load_dataset
from fl_dp.tasks.datasets.names import alike, in_order

GREY = np.arange(72, dtype=np.uint8).reshape(8, 9)
ORDER = ["0", "1", "2", "10", "11", "100", "1a", "Ann", "ann", "zoe"]


def folders(folder: Path, *paths: str) -> Path:
    """Write an image at each path, as CLASS or CLIENT/CLASS below train or test."""
    for path in paths:
        (folder / path).mkdir(parents=True, exist_ok=True)
        Image.fromarray(GREY).save(folder / path / "1.png")
    return folder


def table(folder: Path, train: list[tuple[str, str]], test: list[tuple[str, str]]) -> Path:
    """Write rows of client and label."""
    for split, rows in (("train", train), ("test", test)):
        lines = [f"{0.5 + row},{client},{label}" for row, (client, label) in enumerate(rows)]
        (folder / f"{split}.csv").write_text("\n".join(["x,clinic,label", *lines, ""]))
    return folder


def load(task: str, folder: Path, **public: Any) -> Dataset:
    data_format = DataFormat(client_column="clinic" if task == "csv" else None, **public)
    return load_dataset(DataSource(task, data_dir=str(folder), data_format=data_format))


def test_whole_numbers_come_first_by_their_values() -> None:
    assert in_order([*reversed(ORDER), "2"]) == ORDER
    assert in_order(["01", "1", "10" * 3000]) == ["01", "1", "10" * 3000]


def test_names_are_alike_if_only_their_writing_differs() -> None:
    assert alike(["Cat", "cat", "dog"]) == ["Cat", "cat"]
    assert alike(["7", "007", "7.0", "70"]) == ["7", "007", "7.0"]
    assert alike(ORDER) == ["Ann", "ann"]


def test_class_folders_are_numbered_as_a_table_s_labels(tmp_path: Path) -> None:
    numbers = [str(number) for number in range(12)]
    images = load("folder", folders(tmp_path, "test/0", *(f"train/{name}" for name in numbers)))
    assert images.class_names == tuple(numbers)
    rows = [("north", name) for name in numbers]
    by_table = load("csv", table(tmp_path, rows, rows[:1]))
    labels = images.train_y[np.argsort(images.train_y)]
    assert labels.tolist() == by_table.train_y.tolist() == list(range(12))


def test_clients_of_folders_and_tables_have_one_order(tmp_path: Path) -> None:
    clients = ["10", "2", "b", "a", "1"]
    rows = [(client, str(row % 2)) for row, client in enumerate(clients)]
    by_table = load("csv", table(tmp_path, rows, rows[:1]))
    paths = [f"train/{client}/cat" for client in clients]
    by_folder = load("folder", folders(tmp_path, "test/cat", "test/dog", *paths))
    assert by_table.client_names == by_folder.client_names == ("1", "2", "10", "a", "b")
    assert by_table.train_clients is not None
    assert by_table.train_clients.tolist() == [2, 1, 4, 3, 0]  # in the order of the rows


@pytest.mark.parametrize("other", ["Cat", "c at", "CAT"])
def test_classes_that_are_alike_are_refused_unless_they_are_listed(
    other: str, tmp_path: Path
) -> None:
    folders(tmp_path, "train/cat", "train/dog", f"train/{other}", "test/cat")
    with pytest.raises(ValueError, match=r"write each in one way, or list them") as refused:
        load("folder", tmp_path)
    assert repr(other) in str(refused.value)
    assert load("folder", tmp_path, classes=("cat", "dog", other)).num_classes == 3


def test_a_listed_class_is_not_another_way_to_write_it(tmp_path: Path) -> None:
    folders(tmp_path, "train/Cat", "train/dog", "test/dog")
    rows = [("north", "Cat"), ("north", "dog")]
    table(tmp_path, rows, rows)
    for task in ("folder", "csv"):
        with pytest.raises(ValueError, match=r"does not list: 'Cat'"):
            load(task, tmp_path, classes=("cat", "dog"))


@pytest.mark.parametrize("task", ["folder", "csv"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_class_of_the_test_part_alone_is_named(task: str, alone: bool, tmp_path: Path) -> None:
    trained = ["0", "1"] if alone else ["0", "1", "2"]
    folders(tmp_path, "test/2", *(f"train/{name}" for name in trained))
    table(tmp_path, [("north", name) for name in trained], [("north", "2")])
    columns = "task.columns=[x]" if task == "csv" else "task.image_shape=[1,8,9]"
    settings = compose_settings([f"task={task}", f"task.data_dir={tmp_path}", columns])
    lines = [line for line in cautions_of_data(settings) if "of the test part alone" in line]
    assert len(lines) == alone
    assert all("'2'" in line for line in lines)
