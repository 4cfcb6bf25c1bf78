"""`fl-dp ledger` shows what is in any ledger, exports it, and refuses what was forged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flat_plans import noised_plan
from forged_ledgers import FORGED, PLANS, Change, charge_unread, hashed_again, taken_off, written
from trainings import plan_of
from typer.testing import CliRunner

from fl_dp import PrivacyLedger
from fl_dp.accounting import CyclicSampling, PoissonSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.codec import encode_text
from fl_dp.commands.app import app
from fl_dp.ledger import LedgerAnchor, NodeLedger, verify_chain
from fl_dp.ledger.node import Use
from fl_dp.mechanisms.mechanism_events import LaplaceEvent
from fl_dp.plan import Banded
from fl_dp.promise import Enforcement
from fl_dp.statement import privacy_statement
from fl_dp.terminal.ledger_view import ledger_json, ledger_table, write_csv
from fl_dp.terminal.node_ledger_view import node_uses_json, node_uses_tables

PLAN = noised_plan(
    1.0, delta=1e-3, rounds=9, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)
NAMES = [f"ward-{number}" for number in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "ledger.db"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there" / "ledger.heads"


def spend(path: Path, *rounds: int) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        for number in rounds:
            ledger.commit(ledger.reserve(round=number))


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(name, change, id=f"{name}: {what}") for name, what, change, _ in FORGED],
)
def test_what_the_plan_would_not_have_charged_is_refused(
    path: Path, name: str, change: Change
) -> None:
    written(path, PLANS[name])
    hashed_again(path, change)
    told = CliRunner().invoke(app, ["ledger", str(path)])
    assert told.exit_code == 1 and "can't be read" in " ".join(told.stderr.split())


def test_a_node_s_charge_that_was_taken_off_the_data_for_no_reason_is_refused(path: Path) -> None:
    charge_unread(path)
    told = CliRunner().invoke(app, ["ledger", str(path)])
    assert told.exit_code == 0, told.stderr
    hashed_again(path, taken_off)
    for command in (["ledger"], ["node", "ledger"]):
        told = CliRunner().invoke(app, [*command, str(path)])
        assert told.exit_code == 1
        assert "there was room for it" in " ".join(told.stderr.split())


def test_an_export_is_verified_without_fl_dp(path: Path) -> None:
    spend(path, 1, 2, 3)
    document = CliRunner().invoke(app, ["ledger", str(path), "--json"])
    assert document.exit_code == 0, document.output
    export = path.with_name("export.json")
    for text, verdict in ((document.stdout, 0), (document.stdout.replace('"run"', '"ran"'), 1)):
        export.write_text(text)
        command = [sys.executable, "-I", "-S", str(verify_chain.__file__), str(export)]
        assert subprocess.run(command, check=False).returncode == verdict


def test_asks_of_a_buffer_are_a_line_with_their_units(path: Path) -> None:
    plan = plan_of(6, rounds=9, sampling=BufferedSampling(cohort=2))
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.reserve(round=1, index=0)
        ledger.ask(NAMES[:3])
        assert "asked ward-0 ward-1 ward-2" in str(ledger_table(ledger).columns[2]._cells)


def test_groups_that_were_dealt_are_a_line_of_what_is_shown(path: Path) -> None:
    turns = CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=0.5))
    plan = plan_of(6, rounds=10, sampling=turns, correlation=Banded(coefficients=(4096, 2000)))
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.assign(NAMES)
    result = CliRunner().invoke(app, ["ledger", str(path)])
    assert (result.exit_code, result.exception) == (0, None)
    assert "units to groups: 6 to 4" in " ".join(result.stdout.split())
    shown = json.loads(CliRunner().invoke(app, ["ledger", str(path), "--json"]).stdout)
    assert shown["entries"][-1]["groups"]["ward-4"] == 0


def test_only_the_opening_of_a_ledger_has_a_time(path: Path) -> None:
    """The gap between two rounds shows a client that hung, and so that it took part."""
    means = LaplaceEvent(noise_multiplier=20.0)
    plan = replace(PLAN, other_releases=((means, 1),)).with_spent_budget()
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.commit(ledger.reserve_release("means", means))
    entries = path.with_name("entries.csv")
    with PrivacyLedger.read(path) as ledger:
        write_csv(ledger, entries)
        document: dict[str, Any] = ledger_json(ledger)
        document["statement"] = privacy_statement(ledger).to_dict()
    for exported in (entries.read_text(), json.dumps(document)):
        assert len(re.findall(r"T\d\d:\d\d", exported)) == 1


def test_the_command_begins_compares_and_refuses(path: Path, file: Path) -> None:
    def call(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["ledger", *map(str, arguments)])
        return result.exit_code, " ".join(result.output.split())

    spend(path, 1)
    assert call(path, "--begin-witness", file)[0] == 0
    status, said = call(path, "--witness", file)
    assert status == 0
    assert "agreement: its witness" in said
    with file.open("ab") as stream:
        later = LedgerAnchor(entries=9, hash="0" * 64)
        stream.write(encode_text(later).encode() + b"\n")
    status, said = call(path, "--witness", file)
    assert status == 1
    assert "older copy" in said
    assert call(path, "--begin-witness", file)[0] == 2  # it knows something
    assert call(path, "--begin-witness", file, "--csv", str(path.with_suffix(".csv")))[0] == 2
    assert list(path.parent.iterdir()) == [path]


def test_one_witness_is_of_one_node(tmp_path: Path, file: Path) -> None:
    for number in range(2):
        NodeLedger.open(tmp_path / f"node-{number}.db").close()
    result = CliRunner().invoke(app, ["ledger", str(tmp_path), "--witness", str(file)])
    assert result.exit_code == 2
    assert "a witness belongs to one ledger, and here are 2" in " ".join(result.output.split())


def test_a_ledger_without_a_witness_says_what_would_not_show(path: Path) -> None:
    NodeLedger.open(path).close()
    shown = CliRunner().invoke(app, ["ledger", str(path)])
    assert "entries that are cut off the end" in " ".join(shown.stdout.split())


def test_answers_that_relied_upon_the_server_are_a_table_of_their_own(tmp_path: Path) -> None:
    bundle = f"hospital/heart@4f0c2f7d8a5b{'1' * 52}"
    use = Use(run=5, purpose="train", app=bundle, enforcement=Enforcement.COOPERATIVE)
    with NodeLedger.open(tmp_path / "node.db") as ledger:
        for _ in range(3):
            ledger.note_reliance("north", clipping_norm=0.5, use=use)
        [told] = node_uses_json(ledger)["relied_upon_the_server"]
        tables = node_uses_tables(ledger)
        assert len(tables) == 3
        [shown] = tables[2].columns[1].cells
        assert str(shown) == "hospital/heart@4f0c2f7d8a5b... (cooperative)"
    assert told["app"] == bundle
    assert (told["data"], told["answers"], told["purpose"]) == ("north", 3, "train")
