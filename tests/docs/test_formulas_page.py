"""The formulas that go wrong, of docs/pitfalls.md: each of its numbers, computed again."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_dp.accounting.gaussian_formulas import gaussian_epsilon, gaussian_noise_multiplier

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pitfalls.md").read_text()
DELTA = 1e-5


def _rows(heading: str) -> list[list[float]]:
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n### ")[0]
    lines = re.findall(r"^\| (\**[\d.]+.*) \|$", section, re.MULTILINE)
    return [[float(cell.strip("* ")) for cell in line.split("|")] for line in lines]


@pytest.mark.parametrize(
    ("heading", "factor"),
    [
        ("Gaussian noise without delta", 1.0),
        ("The classic formula above epsilon 1", math.sqrt(2.0 * math.log(1.25 / DELTA))),
    ],
)
def test_noise_of_a_formula_and_its_true_epsilon(heading: str, factor: float) -> None:
    rows = _rows(heading)
    assert len(rows) >= 4
    for claimed, multiplier, epsilon, needed in rows:
        assert multiplier == pytest.approx(factor / claimed, rel=2e-3)
        assert epsilon == pytest.approx(gaussian_epsilon(factor / claimed, DELTA), rel=5e-3)
        assert needed == pytest.approx(gaussian_noise_multiplier(claimed, DELTA), rel=2e-3)


def test_one_draw_for_a_vector_hides_nothing() -> None:
    rng = np.random.default_rng(0)
    for value in (0.0, 1.0) * 50:
        gradient = np.array([value, 0.0])
        noisy = gradient + rng.normal(0.0, 1e3)
        assert round(noisy[0] - noisy[1]) == value
    hidden = np.array([1.0, 0.0]) + rng.normal(0.0, 1e3, size=(100, 2))
    assert np.mean(np.round(hidden[:, 0] - hidden[:, 1]) == 1.0) < 0.1  # one draw a coordinate


def test_an_exponential_mechanism_without_its_two_is_twice_as_loud() -> None:
    rows = _rows("An exponential mechanism without its two")
    assert len(rows) == 3
    # A unit raises one utility by 1 and lowers so many others that the denominator moves with them.
    before, after = np.ones(10**6), np.zeros(10**6)
    before[0], after[0] = 0.0, 1.0
    for claimed, stated in rows:
        ratio = _log_chance(claimed, after) - _log_chance(claimed, before)
        assert ratio == pytest.approx(stated, rel=1e-3)


def _log_chance(rate: float, utilities: NDArray[np.float64]) -> float:
    """Return the logarithm of the first candidate's probability."""
    scaled = rate * utilities
    return float(scaled[0] - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum()))


def test_who_sees_a_message_faces_a_part_of_the_noise() -> None:
    rows = _rows("The noise of a cohort, for one message")
    assert len(rows) == 2
    for multiplier, clients, of_sum, of_message in rows:
        assert of_sum == pytest.approx(gaussian_epsilon(multiplier, DELTA), rel=5e-3)
        alone = gaussian_epsilon(multiplier / math.sqrt(clients), DELTA)
        assert of_message == pytest.approx(alone, rel=5e-3)
