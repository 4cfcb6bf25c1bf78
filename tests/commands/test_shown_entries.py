"""Entries of an account, as `fl-dp ledger` shows them."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from accounts import RECORDS, plan_of
from rich.console import Console

from fl_dp.commands.shown_ledger import show_ledger
from fl_dp.ledger import enter_records, enter_sweep, enter_unprotected


def test_every_entry_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter_records(file, "dp-sgd", RECORDS)
    enter_sweep(file, "sweep", {f"sweep/{n}": plan_of(1.0, delta=1e-5) for n in range(2)})
    enter_unprotected(file, "baseline", "a training without noise", delta=1e-5)
    shown = show_ledger(str(file), csv=None, check=None, entries=True)
    entries = {entry["name"]: entry for entry in shown.document["account"]["trainings"]}
    assert [entry["kind"] for entry in entries.values()] == ["records", "sweep", "unprotected"]
    assert entries["sweep"]["trainings"] == ["sweep/0", "sweep/1"]
    assert 1.0 < entries["sweep"]["budget"] < 2.0
    assert entries["baseline"]["budget"] is None
    console = Console(width=200, record=True, file=StringIO())
    for line in shown.lines:
        console.print(line)
    text = console.export_text()
    none = "no privacy: something has no promise"
    for words in ("sweep: 2 trainings", "2 plans together", none):
        assert words in text
    with_epsilon = [line for line in text.splitlines() if "epsilon" in line]
    assert len(with_epsilon) >= 5  # two in each table, and what is left
    for line in with_epsilon:
        assert re.search(r"at delta \S+, one (client|record) \(.+\), against ", line) or (
            "and no cap on epsilon" in line
        ), line
