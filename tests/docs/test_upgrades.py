"""The page on upgrades names the versions of the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from fl_dp.app import checkpoints
from fl_dp.ledger.entries import SCHEMA
from fl_dp.ledger.node import NODE_SCHEMA
from fl_dp.protocol.flower_versions import TESTED
from fl_dp.protocol.keys import WIRE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/upgrades.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ")
][1:]


def test_each_row_names_the_version_of_the_code() -> None:
    checks = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    pythons = checks["jobs"]["tests"]["strategy"]["matrix"]["python-version"]
    assert [version for _, version, *_ in ROWS] == [
        str(WIRE),
        str(SCHEMA),
        str(NODE_SCHEMA),
        str(checkpoints._VERSION),
        " and ".join(TESTED),
        f"{pythons[0]} to {pythons[-1]}",
    ]


def test_the_policy_on_deprecation_has_three_sentences() -> None:
    policy = PAGE.partition("## Deprecation\n")[2]
    assert len(re.findall(r"\.$", policy.strip(), re.MULTILINE)) == 3
