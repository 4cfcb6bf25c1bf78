"""Each row of docs/security.md and docs/migration.md links a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(\.\./(tests/[\w/]+\.py)#(\w+)\)")
NAMED = sorted(
    {
        (page, name, file)
        for page in ("security.md", "migration.md")
        for file, name in LINK.findall((ROOT / "docs" / page).read_text("utf-8"))
    }
)


def test_each_row_names_a_test_that_exists() -> None:
    assert NAMED
    for page, name, file in NAMED:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE), (page, name)


def test_each_row_of_what_may_be_sent_names_one() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:client|node|server|owner|neighbour|another|file).*", page, re.M)
    sent = [row for row in rows if row.count(" | ") == 3]
    assert len(sent) > 20
    assert [row for row in sent if "](../tests/" not in row] == []
