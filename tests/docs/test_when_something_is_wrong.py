"""The page on faults quotes what the code says, word for word."""

from __future__ import annotations

import re
from pathlib import Path

from fl_dp.gate.figures import FiguresOfNode, GateFigures
from fl_dp.gate.superlink_signs import Signs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "when_something_is_wrong.md").read_text(encoding="utf-8")


def texts_of_the_code() -> str:
    """The code with each literal in one piece, as Python joins those that follow each other."""
    files = [file for folder in ("fl_dp", "strategies") for file in (ROOT / folder).rglob("*.py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r'"\n\s*f?"', "", code)


def test_every_line_that_the_page_quotes_is_one_that_the_code_says() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 4]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(quoted) > 25
    code = texts_of_the_code()
    missing = [text for text in quoted if text not in code and text != "flwr run"]
    assert not missing, missing


def test_every_figure_that_the_page_names_is_shown(tmp_path: Path) -> None:
    figures = FiguresOfNode(GateFigures(signs=Signs(1.0, 1.0)), tmp_path / "no policy")
    shown = {name for name, _, _ in figures()} | {"fl_dp_node_epsilon_left"}
    assert set(re.findall(r"fl_dp_node_\w+", PAGE)) <= shown
