"""Pages for whoever comes from elsewhere: what they show is run, what they count is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from local_grid import LocalGrid, answer_with_update

from fl_dp import PrivacyLedger

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_on_clipping_norms_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "choosing.md").read_text()
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {
        "grid": LocalGrid(answer_with_update([{"w": np.full(4, 0.5)}] * 20), 20),
        "initial_arrays": ArrayRecord({"w": Array(np.zeros(4))}),
    }
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "docs/choosing.md", "exec"), given)
    assert given["clipping_norm"] == pytest.approx(0.1)
    with PrivacyLedger.read(tmp_path / "adapted.db") as ledger:
        assert ledger.rounds_committed == 10


def diffs() -> list[list[str]]:
    page = (DOCS / "migration.md").read_text()
    return [each.splitlines() for each in re.findall(r"```diff\n(.*?)```", page, re.DOTALL)]


def test_the_legacy_script_after_its_changes_trains_privately(
    tmp_path: Path,
) -> None:
    code = "\n".join(line[1:] for line in diffs()[0] if not line.startswith("-"))
    code = code.replace("/srv/fl/ledger.db", str(tmp_path / "ledger.db"))

    exec(compile(code, "docs/migration.md", "exec"), {})
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == 10


def test_the_legacy_page_counts_its_lines() -> None:
    page = (DOCS / "migration.md").read_text()
    counted = re.search(r"(\d+) lines go and (\d+) come", page)
    assert counted is not None
    script = diffs()[0]
    for sign, number in zip("-+", counted.groups(), strict=True):
        assert sum(line.startswith(sign) for line in script) == int(number)


def test_every_legacy_line_that_goes_is_python() -> None:
    for lines in diffs():
        for sign in "-+":
            of_one = [line[1:] for line in lines if line.startswith((sign, " "))]
            compile("\n".join(of_one), "docs/migration.md", "exec")
