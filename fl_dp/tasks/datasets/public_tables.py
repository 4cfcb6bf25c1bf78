"""Public tables, encoded by the schemas in `schemas/`, as a user's own tables are.

Adult (Kohavi 1996): 48,842 rows of the US census of 1994, who earned above 50,000 dollars? Its
published split is kept. Hospital stays (azpro of Hilbe 2011): 3,589 patients of 17 hospitals, who
stayed more than eight days? Lending (LendingClub): 9,857 loans in 50 states, which went bad?
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.columns import Cells, encoded_rows, encoding_of
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import DataFormat
from fl_dp.tasks.datasets.held_out import with_test_part
from fl_dp.tasks.datasets.names import numbered
from fl_dp.tasks.datasets.own_data import class_numbers
from fl_dp.tasks.datasets.r_data import rows_of_table
from fl_dp.tasks.datasets.schema_file import read_schema

SCHEMAS = Path(__file__).with_name("schemas")
"""Folder of the public tables' schemas."""

_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
_LONG_STAY = 8  # days


def load_adult(data_dir: str | None = None) -> Dataset:
    """Load Adult with its published split: float32 rows `(n, 92)`.

    Label 1 is an income above 50,000 dollars.
    """
    files = sources.published_files("adult", sources.require_folder("adult", data_dir))
    train, test = (adult_rows(raw.decode("ascii")) for raw in files.values())
    (train_x, train_y), (test_x, test_y) = encoded_part("adult", train), encoded_part("adult", test)
    return Dataset(
        name="adult",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=2,
        class_names=tuple(schema_of("adult").classes or ()),
    )


def load_hospital_stay(data_dir: str | None = None) -> Dataset:
    """Load hospital stays, each hospital a client: float32 rows `(n, 4)`; label 1 is a long one."""
    folder = sources.require_folder("hospital_stay", data_dir)
    (raw,) = sources.published_files("hospital_stay", folder).values()
    rows = list(csv.DictReader(raw.decode("ascii").splitlines()))
    for row in rows:
        row["stay"] = "long" if float(row["los"]) > _LONG_STAY else "short"
        # The code is a number, which its program rounded.
        row["hospital"] = f"hospital {float(row['hospital']):.1f}"
    return _of_natural_clients("hospital_stay", rows)


def load_lending(data_dir: str | None = None) -> Dataset:
    """Load loans, each state a client: float32 rows `(n, 69)`; label 1 is a bad loan."""
    folder = sources.require_folder("lending", data_dir)
    index, database = sources.published_files("lending", folder).values()
    return _of_natural_clients("lending", rows_of_table(index, database, "lending_club"))


def _of_natural_clients(name: str, rows: Sequence[Mapping[str, str]]) -> Dataset:
    schema = schema_of(name)
    assert schema.client_column is not None and schema.classes is not None
    clients = numbered([row[schema.client_column] for row in rows])
    x, y = encoded_part(name, rows)
    whole = with_test_part(name, x, y, num_classes=len(schema.classes), clients=clients)
    return replace(whole, class_names=schema.classes, shares=schema.shares or ())


def adult_rows(text: str) -> list[dict[str, str]]:
    """Read one of the two files: comma-separated cells, one row per line.

    Empty lines and the test file's first, which starts with `|`, are skipped. Labels may end with
    a full stop.

    Raises:
        ValueError: If a row does not have fifteen cells.
    """
    rows = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.removesuffix(".").split(",")]
        if len(cells) != len(_ADULT):
            raise ValueError(
                f"a row of Adult has {len(_ADULT)} cells, this one {len(cells)}: {line!r}"
            )
        rows.append(dict(zip(_ADULT, cells, strict=True)))
    return rows


def schema_of(name: str) -> DataFormat:
    """The schema of a public table."""
    return read_schema(SCHEMAS / f"{name}.yaml")


def encoded_part(
    name: str, rows: Sequence[Mapping[str, str]]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Encode a public table's rows, cells by column.

    Returns:
        Inputs `(n, width)` and labels `(n,)`.

    Raises:
        ValueError: If a cell or a label is none of the schema's.
    """
    schema = schema_of(name)
    columns, encoding = schema.columns, encoding_of(schema)
    assert columns is not None and encoding is not None and schema.classes is not None
    x = encoded_rows(encoding, [Cells.of(row[column] for row in rows) for column in columns])
    if not np.isfinite(x).all():
        raise ValueError(f"a cell of {name} is none that its schema describes")
    labels = Cells.of(row[schema.label_column] for row in rows)
    numbers = class_numbers([str(text) for text in labels.names], schema.classes, source=name)
    return x.astype(np.float32), numbers[labels.codes]
