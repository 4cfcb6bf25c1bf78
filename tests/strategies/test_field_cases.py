"""What docs/migration.md shows of ours is held by the test that it names."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import flwr
import pytest

from fl_dp.protocol.flower_versions import TESTED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*) \| .* \| .* \| (\[.*\]\(\.\./.*\)) \|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks/stock_flower.py"
    spec = importlib.util.spec_from_file_location("stock_flower", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_every_row_of_the_script_names_a_test_that_exists(script: ModuleType) -> None:
    for case in script.CASES:
        file, name = case.test.split("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), case.test


def test_the_page_has_the_rows_and_the_tests_of_the_script(script: ModuleType) -> None:
    assert [(case.name, script.link(case)) for case in script.CASES] == ROWS


def test_the_page_is_about_the_files_of_the_version_that_is_tested(script: ModuleType) -> None:
    """Who tests another version, whose files differ, measures again; a newer one is no failure."""
    [versions] = re.findall(r"^\| case \| flwr (.*?) \|", PAGE, re.MULTILINE)
    assert {version.rpartition(".")[0] for version in versions.split(", ")} == set(TESTED)
    if flwr.__version__ in versions.split(", "):
        assert f"`{script.digest_of_flower()}`" in PAGE


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
        ("np.random.seed(42)", "0 of 20000 coordinates are equal"),
    ],
)
def test_our_side_of_a_row_is_what_the_page_says(
    script: ModuleType, words: str, expected: str
) -> None:
    # Noise of multiplier 0.001 on a mean of ten: four digits stand, all but surely.
    (case,) = [case for case in script.CASES if words in case.name]
    assert expected in case.ours()
