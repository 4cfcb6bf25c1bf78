"""Settings that can't go together: refused in one place each, and all of them in the guide."""

from __future__ import annotations

import ast
import traceback
from functools import cache
from pathlib import Path

import pytest
from exclusions import EXCLUSIONS, refusal

from fl_dp.accounting import IncompatibleOptions

ROOT = Path(__file__).resolve().parents[2]
Place = tuple[str, int]


@cache
def refused_at(overrides: str) -> Place:
    """Where it is refused: the statement that raises, as file and line."""
    error: BaseException | None = refusal(overrides)
    assert error is not None, f"{overrides} is not refused"
    while error is not None and not isinstance(error, IncompatibleOptions):
        error = error.__cause__
    assert error is not None, f"{overrides} is refused for another reason"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = Path(frame.filename).resolve().relative_to(ROOT)
    return str(place), frame.lineno or 0


def raising_places() -> set[tuple[str, range]]:
    """Every statement of the source that raises the error."""
    found = set()
    for folder in ("fl_dp", "strategies"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and "IncompatibleOptions" in ast.unparse(node):
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    found.add((str(file.relative_to(ROOT)), lines))
    return found


@pytest.mark.parametrize("row", EXCLUSIONS, ids=lambda row: row[0].replace(" ", ","))
def test_all_settings_of_a_row_are_refused_in_one_place(row: tuple[str, ...]) -> None:
    assert len({refused_at(overrides) for overrides in row}) == 1


def test_every_place_that_refuses_a_combination_has_a_row() -> None:
    met = {refused_at(row[0]) for row in EXCLUSIONS}
    unmet = {
        f"{file}:{lines.start}"
        for file, lines in raising_places()
        if not any(file == at and line in lines for at, line in met)
    }
    assert unmet == set()


def test_what_goes_together_is_not_refused() -> None:
    assert refusal("privacy.noise_multiplier=2 privacy.epsilon=null rounds=1") is None
    assert refusal("privacy=none") is None
