"""`fl-dp node check` reads the node's rows by the schema that their owner wrote down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.clients.owner.policy_description import PolicyDescription
from fl_dp.commands import words_of_data as place
from fl_dp.commands.words_of_data import words_of_data

SCHEMA = 'label_column: ill\nclasses: ["no", "yes"]\ncolumns: [age, pressure]\n'
FITS = "age,pressure,ill\n61,140,yes\n40,120,no\n"


def said_of(folder: Path, schema: str | None = SCHEMA, **files: str) -> PolicyDescription:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for name, text in files.items():
        (data / name.replace("_", ".")).write_text(text)
    config: dict[str, Any] = {"dp-data-path": str(data)}
    if schema is not None:
        (folder / "schema.yaml").write_text(schema)
        config["dp-data-schema"] = str(folder / "schema.yaml")
    return words_of_data(NodeConfig.of(config))


def test_rows_that_fit_are_counted(tmp_path: Path) -> None:
    words = said_of(tmp_path, train_csv=FITS)
    assert not words.wrong
    assert any(text.startswith("All 2 rows") for text in words.sentences)
    assert any("mean and std in the schema" in text for text in words.sentences)


def test_rows_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    words = said_of(tmp_path, train_csv=FITS + "forty,120,no\n40,120,Yes\n")
    assert not words.wrong
    assert any(text.startswith("2 of the 4 rows") for text in words.sentences)


@pytest.mark.parametrize(
    "table",
    [
        "age,pressure,ill\n61,140,True\n",  # classes of other names
        "age,pressure,ill\n",  # a header alone
    ],
)
def test_a_table_of_which_nothing_fits_is_wrong(tmp_path: Path, table: str) -> None:
    [wrong] = said_of(tmp_path, train_csv=table).wrong
    assert "fits the schema" in wrong and "train.csv" in wrong


def test_data_that_are_not_there_are_wrong(tmp_path: Path) -> None:
    [wrong] = said_of(tmp_path).wrong
    assert "which is empty" in wrong
    [wrong] = said_of(tmp_path, None).wrong
    assert "which is empty" in wrong
    [wrong] = said_of(tmp_path, training_csv=FITS).wrong
    assert "no train.csv or train.parquet" in wrong
    images = 'classes: ["no", "yes"]\nimage_shape: [1, 8, 8]\n'
    [wrong] = said_of(tmp_path, images).wrong
    assert "no train, which the schema is for" in wrong


def test_a_schema_by_which_no_row_can_be_read_is_wrong(tmp_path: Path) -> None:
    for schema in ("columns: [age]\n", "classes: [a, b]\n"):
        [wrong] = said_of(tmp_path, schema, train_csv=FITS).wrong
        assert "must name the classes, and the columns" in wrong


def test_a_file_that_this_user_can_not_read_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> Any:  # root, as which tests may run, reads everything
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    [wrong] = said_of(tmp_path, train_csv=FITS).wrong
    assert wrong == f"{tmp_path / 'data'} can't be read by this user: check as the node's own user"


def test_a_table_that_takes_long_is_not_read_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_MOST_BYTES", 10)
    words = said_of(tmp_path, train_csv=FITS)
    assert not words.wrong and not any("rows of" in text for text in words.sentences)
