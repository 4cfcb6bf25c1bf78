"""Adult (Kohavi 1996): 48,842 rows of the US census of 1994; who earned above 50,000 dollars?

Six columns of numbers and seven of categories, where `?` is a category like any other. `education`
is left out: `education-num` says the same. The published split is kept: 32,561 rows to train,
16,281 to test.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.columns import Columns, Number, codes, encoded_rows
from fl_dp.tasks.datasets.dataset import Dataset

_NAMES = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
# The lists are those of adult.names; the constants are round numbers, not fitted.
COLUMNS: Columns = {
    "age": Number(centre=40, scale=15),
    "workclass": (
        "?", "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov",
        "State-gov", "Without-pay", "Never-worked",
    ),
    "fnlwgt": Number(centre=200_000, scale=100_000),
    "education-num": Number(centre=10, scale=3),
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
        "Married-spouse-absent", "Married-AF-spouse",
    ),
    "occupation": (
        "?", "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial",
        "Prof-specialty", "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical",
        "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv",
        "Armed-Forces",
    ),
    "relationship": (
        "Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried",
    ),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "capital-gain": Number(scale=10_000),
    "capital-loss": Number(scale=1_000),
    "hours-per-week": Number(centre=40, scale=12),
    "native-country": (
        "?", "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
        "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran",
        "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal",
        "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti",
        "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia",
        "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
    ),
}  # fmt: skip
_INCOMES = ("<=50K", ">50K")


def load_adult(data_dir: str | None = None) -> Dataset:
    """Load Adult with its published split: float32 rows `(n, 92)`.

    Label 1 is an income above 50,000 dollars.
    """
    files = sources.published_files("adult", sources.require_folder("adult", data_dir))
    (train_x, train_y), (test_x, test_y) = (
        parse_adult(raw.decode("ascii")) for raw in files.values()
    )
    return Dataset(
        name="adult",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=2,
        class_names=_INCOMES,
    )


def parse_adult(text: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Encode one of the two files: comma-separated cells, one row per line.

    Empty lines and the test file's first, which starts with `|`, are skipped. Labels may end with
    a full stop.

    Returns:
        Inputs `(n, 92)` and labels `(n,)`.

    Raises:
        ValueError: If a row does not have fifteen cells, or a cell can't be read.
    """
    rows = [_cells(line) for line in text.splitlines() if line.strip() and not line.startswith("|")]
    labels = codes("income", [row[-1].removesuffix(".") for row in rows], _INCOMES)
    return encoded_rows((dict(zip(_NAMES, row, strict=True)) for row in rows), COLUMNS), labels


def _cells(line: str) -> Sequence[str]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_NAMES):
        raise ValueError(f"a row of Adult has {len(_NAMES)} cells, this one {len(cells)}: {line!r}")
    return cells
