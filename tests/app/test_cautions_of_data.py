"""Large numbers in somebody's own table, which a model learns little from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from fresh_data_sets import fresh_data_sets as fresh_data_sets

from fl_dp.app.cautions import cautions, cautions_of_data
from fl_dp.app.compose import compose_settings
from fl_dp.app.settings import Settings
from fl_dp.app.settings_encoder import what_was_public
from fl_dp.app.workload import dataset_of


def settings_of(folder: Path, *overrides: str) -> Settings:
    return compose_settings(
        ["task=csv", f"task.data_dir={folder}", "task.classes=[no,yes]", *overrides]
    )


def written(folder: Path, columns: dict[str, tuple[float, float]]) -> Path:
    """Write both parts of a table, each column with a mean and a deviation of its own."""
    rng = np.random.default_rng(0)
    for split, rows in (("train", 60), ("test", 200)):
        lines = [",".join([*columns, "label"])]
        for row in range(rows):
            values = [f"{rng.normal(mean, std):.4f}" for mean, std in columns.values()]
            lines.append(",".join([*values, ("no", "yes")[row % 2]]))
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_columns_of_large_numbers_are_named_and_what_to_write_mends_them(tmp_path: Path) -> None:
    written(tmp_path, {"age": (50.0, 20.0), "dose": (0.0, 1.0), "pressure": (130.0, 0.0)})
    (said,) = cautions_of_data(settings_of(tmp_path))
    assert "age (up to" in said and "pressure (up to 130)" in said and "dose (" not in said
    scale = shlex.split(" ".join(re.findall(r"'task\.\w+=\[.*?\]'", said)))
    assert len(scale) == 2
    mended = settings_of(tmp_path, *scale)
    assert cautions_of_data(mended) == []
    test = dataset_of(mended).features(slice(None), "test")
    assert np.abs(test.mean(axis=0)).max() < 0.01
    assert np.abs(test.std(axis=0) - [1.0, 1.0, 0.0]).max() < 0.01


def test_a_mean_is_proposed_as_finely_as_its_deviation(tmp_path: Path) -> None:
    written(tmp_path, {"pressure": (101_325.0, 200.0)})
    (said,) = cautions_of_data(settings_of(tmp_path))
    mended = settings_of(tmp_path, *shlex.split(" ".join(re.findall(r"'task\.\w+=\[.*?\]'", said))))
    test = dataset_of(mended).features(slice(None), "test")
    assert np.abs(test.mean(axis=0)).max() < 0.01


@pytest.mark.parametrize("rows", ["task.validation=true", "task.test_fraction=0.2"])
def test_rows_that_are_not_public_are_not_looked_at(tmp_path: Path, rows: str) -> None:
    written(tmp_path, {"age": (50.0, 20.0)})
    assert cautions_of_data(settings_of(tmp_path))
    if "fraction" in rows:
        (tmp_path / "test.csv").unlink()
    settings = settings_of(tmp_path, rows)
    assert cautions_of_data(settings) == []
    assert any("write task.mean and task.std" in line for line in cautions(settings))
    (stated,) = what_was_public(settings) or ()
    assert stated.startswith(f"rows of the own data, held out by {rows}")
    scaled = settings_of(tmp_path, rows, "task.mean=[50]", "task.std=[20]")
    assert not any("task.mean" in line for line in cautions(scaled))


def test_a_counted_number_of_own_records_is_outside_the_promise(tmp_path: Path) -> None:
    written(tmp_path, {"age": (50.0, 20.0)})
    counted = settings_of(tmp_path, "privacy=distributed_records")
    assert any("exact number" in line for line in cautions(counted))
    assert what_was_public(counted) == (
        "the exact number of training records, counted by privacy.num_records=null: it is "
        "written here as it is, and all else about each record keeps the promise",
    )
    declared = settings_of(tmp_path, "privacy=distributed_records", "privacy.num_records=100")
    assert not any("exact number" in line for line in cautions(declared))
    assert what_was_public(declared) is None


def test_small_numbers_and_what_is_shipped_are_left_alone(tmp_path: Path) -> None:
    written(tmp_path, {"a": (0.0, 1.0), "b": (5.0, 5.0)})
    assert cautions_of_data(settings_of(tmp_path)) == []
    for task in ("digits", "breast_cancer"):
        assert cautions_of_data(compose_settings([f"task={task}"])) == []


def test_many_columns_make_no_endless_line(tmp_path: Path) -> None:
    written(tmp_path, {f"lab_{number}": (500.0, 100.0) for number in range(100)})
    (said,) = cautions_of_data(settings_of(tmp_path))
    assert "88 more" in said and "task.mean=[...]" in said
    assert len(said) < 600


def test_a_server_of_real_nodes_looks_at_its_own_public_part(tmp_path: Path) -> None:
    written(tmp_path, {"age": (50.0, 20.0)})
    (tmp_path / "train.csv").unlink()
    (said,) = cautions_of_data(
        settings_of(tmp_path, "task.partition=nodes", "task.columns=[age]", "task.num_clients=3")
    )
    assert "age (up to" in said
