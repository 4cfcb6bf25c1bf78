"""What docs/stock_flower.md shows of ours is held by the test that it names."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| (.*) \| .* \| .* \| \[(.*)\]\(\.\./(.*)\) \|$",
    (ROOT / "docs/stock_flower.md").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks/stock_flower.py"
    spec = importlib.util.spec_from_file_location("stock_flower", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("words", "file"), [row[1:] for row in ROWS])
def test_every_row_names_a_test_that_exists(words: str, file: str) -> None:
    name = "test_" + words.replace(" ", "_")
    assert re.search(rf"^def {re.escape(name)}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_the_page_has_the_rows_of_the_script(script: ModuleType) -> None:
    assert [row[0] for row in ROWS] == [case.name for case in script.CASES]
    assert [row[2] for row in ROWS] == [case.test.split("::")[0] for case in script.CASES]


# Enough of them: the others take seconds.
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("claims 1000 records", "moves the mean by 0.100 C: multiplier 1.00"),
        ("two of ten clients reply", "moves the mean by 0.100 C: multiplier 1.00"),
        ("updates is zero", "moves by 0.22"),
        ("NaN", "moves by 0.22"),
        ("Training metrics", "none"),
        ("A node leaves", "3 of 3 rounds, 3 charged"),
        ("arrays in another order", "a = 0.25, b = 4.50"),
    ],
)
def test_our_side_of_a_row_is_what_the_page_says(
    script: ModuleType, words: str, expected: str
) -> None:
    # Noise of multiplier 0.001 on a mean of ten: four digits stand, all but surely.
    (case,) = [case for case in script.CASES if words in case.name]
    assert expected in case.ours()
