"""Public tables, encoded by the schemas in `schemas/`, as a user's own tables are.

Adult (Kohavi 1996) has 48,842 rows of the US census of 1994: who earned above 50,000 dollars? Its
published split is kept: 32,561 rows to train, 16,281 to test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.columns import Cells, encoded_rows, encoding_of
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import DataFormat
from fl_dp.tasks.datasets.own_data import class_numbers
from fl_dp.tasks.datasets.schema_file import read_schema

_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip


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
    return read_schema(Path(__file__).with_name("schemas") / f"{name}.yaml")


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
