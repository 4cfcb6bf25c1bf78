"""The table of docs/benchmarks.md is what trainings by the code of nodes reach, played again.

Noise has no seed, so its numbers and these differ by chance: within .01 and three standard errors.
"""

from __future__ import annotations

import importlib
import math
import re
import statistics
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 10
ARMS = {
    "all records in every round": "all records",
    "coins at the nodes": "coins at the nodes",
}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture
def silos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("silos")


def of_the_page(row: str, epsilon: int) -> tuple[float, float, float]:
    """Mean, its standard error, and the server learning rate."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    line = next(each for each in page.splitlines() if re.match(rf"\| \**{row}", each))
    *cells, rates = line.strip("| ").split("|")[1:]
    at = (2, 8).index(epsilon)
    mean, error = cells[at].split("±")
    return float(mean), float(error), float(rates.split(",")[at])


def played(silos: ModuleType, arm: str, epsilon: int, rate: float) -> list[float]:
    return [silos.played(f"digits_{epsilon}", arm, rate, seed) for seed in range(SEEDS)]


def apart(numbers: list[float], mean: float, error: float) -> float:
    """How far the mean of some trainings is from the page's, over what is allowed."""
    own = statistics.stdev(numbers) / math.sqrt(len(numbers))
    return abs(statistics.fmean(numbers) - mean) / (0.01 + 3.0 * math.hypot(own, error))


@pytest.mark.parametrize("epsilon", [2, 8])
@pytest.mark.parametrize("row", ARMS)
def test_the_table_of_digits_is_reached(silos: ModuleType, row: str, epsilon: int) -> None:
    mean, error, rate = of_the_page(row, epsilon)
    assert apart(played(silos, ARMS[row], epsilon, rate), mean, error) < 1.0


def test_silos_that_each_hide_their_own_records_do_not_reach_it(silos: ModuleType) -> None:
    mean, error, rate = of_the_page("all records in every round", 2)
    assert apart(played(silos, silos.OWN, 2, rate), mean, error) > 1.0
