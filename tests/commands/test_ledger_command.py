"""`fl-dp ledger` and `resume` against what lies beside a ledger; who may read a run's folder."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import Result
from flwr.app import ArrayRecord
from typer.testing import CliRunner

from fl_dp.app.checkpoints import save_checkpoint
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.commands.app import app
from fl_dp.commands.console import out
from fl_dp.files import private_folder, write_text, written_whole
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import LedgerAnchor, PrivacyLedger
from fl_dp.plan import Plan, RecordPlan
from fl_dp.statement import NoPromise
from fl_dp.strategies import Checkpoint

OVERRIDES = ["task=digits", "task.num_clients=20", "rounds=4", "selection.sampling_rate=0.5"]
SETTINGS = compose_settings(OVERRIDES)
PLAN = make_plan(SETTINGS)


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def found_wrong(*arguments: str | Path) -> str:
    """Return the errors of a call that ends with status 1 and prints nothing else."""
    result = call(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def spend(run: RunFolder, *rounds: int, plan: Plan = PLAN) -> None:
    with PrivacyLedger.open(run.ledger, plan) as ledger:
        for number in rounds:
            ledger.commit(ledger.reserve(round=number))
            keep_checkpoint(run, number, ledger.anchor)


def keep_checkpoint(run: RunFolder, server_round: int, anchor: LedgerAnchor | None) -> None:
    checkpoint = Checkpoint(
        server_round=server_round,
        model=ArrayRecord(),
        optimizer={},
        clipping_norms=(1.0,),
        ledger=anchor,
    )
    save_checkpoint(checkpoint, run.checkpoint)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of two rounds with ledger, checkpoint and statement."""
    folder = RunFolder(tmp_path / "runs" / "one")
    folder.create(SETTINGS)
    spend(folder, 1, 2)
    folder.write_statement_of_ledger()
    return folder


def cut(run: RunFolder, entries: int = 2) -> None:
    with closing(sqlite3.connect(run.ledger)) as connection:
        connection.execute(
            "DELETE FROM entries WHERE sequence > (SELECT max(sequence) FROM entries) - ?",
            (entries,),
        )
        connection.commit()


def edit(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_run_whose_files_agree_says_what_was_compared(run: RunFolder) -> None:
    for place in (run.path, run.ledger):
        shown = " ".join(call("ledger", place).stdout.split())
        assert "Chain verified" in shown
        assert "in agreement: checkpoint.safetensors, privacy.json" in shown
    told = json.loads(call("ledger", run.path, "--json").stdout)
    assert told["compared"] == ["checkpoint.safetensors", "privacy.json"]
    assert told["entries_after_statement"] == 0


@pytest.mark.parametrize("left", ["privacy.json", "checkpoint.safetensors"])
def test_an_end_that_was_cut_off_is_status_1_by_either_file(run: RunFolder, left: str) -> None:
    for file in (run.statement, run.checkpoint):
        if file.name != left:
            file.unlink()
    cut(run)
    for options in ([], ["--json"]):
        assert f"4 entries and {left} beside it knows of 6" in found_wrong(
            "ledger", *options, run.path
        )


def test_each_edit_is_a_line_and_status_1(run: RunFolder) -> None:
    epsilon = run.read_statement()["epsilon"]
    edit(run.statement, delta=1e-9, epsilon=epsilon | {"pld": 0.1}, rounds=1)
    result = call("ledger", run.path)
    assert (result.exit_code, result.stdout) == (1, "")
    lines = sorted(result.stderr.partition("error: ")[2].splitlines())
    for line, said in zip(
        lines, ("delta is 1e-09", "epsilon.pld is 0.1", "rounds is 1"), strict=True
    ):
        assert f"privacy.json: {said} and should be" in line


def told_by(path: Path, *options: str) -> list[str]:
    """Return the lines of a call that succeeds, in a terminal of 200 columns."""
    # The console has its width from when it was imported.
    with patch.object(out, "_width", 200):
        result = CliRunner().invoke(app, ["ledger", str(path), *options])
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_a_ledger_first_says_whether_it_is_whole_and_what_was_spent(run: RunFolder) -> None:
    verified, spent, *_ = told_by(run.path)
    assert verified.startswith("Chain verified: 6 entries")
    assert spent.startswith("Spent: epsilon ")
    assert f" {Guarantee.of(PLAN).terms}, of a budget of 8, by " in spent
    assert "privacy-loss distributions" in spent


def test_equal_entries_are_one_row_and_entries_shows_all(run: RunFolder) -> None:
    [rounds] = [line for line in told_by(run.path) if "rounds 1 to 2" in line]
    assert "3 to 6" in rounds
    assert "released" in rounds
    one_by_one = told_by(run.path, "--entries")
    assert [sum(f" {kind} " in line for line in one_by_one) for kind in ("reserve", "commit")] == [
        2,
        2,
    ]


def test_a_round_without_a_known_release_or_another_attempt_keeps_its_row(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.reserve(round=2)
        ledger.commit(ledger.reserve(round=2))
        ledger.commit(ledger.reserve(round=3))
    lines = told_by(path)
    rows = [line.split("│")[2].strip() for line in lines if "round" in line and "Gaussian" in line]
    assert [row.partition(":")[0] for row in rows] == ["round 1", "round 2", "round 2", "round 3"]
    assert ["no known release" in row for row in rows] == [False, True, False, False]
    assert "attempt 2" in rows[2]
    assert any("1 of them without a known release" in line for line in lines)


def test_a_ledger_of_which_nothing_was_spent_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, PLAN):
        pass
    lines = told_by(path)
    assert any(line.startswith("Spent: epsilon 0 at ") for line in lines)
    [nothing] = [line for line in lines if line.startswith("Nothing was compared")]
    assert "--check" in nothing


def test_a_statement_that_is_written_again_keeps_what_the_run_alone_knew(run: RunFolder) -> None:
    known = {"failure": "nobody", "public_inputs": ["an encoder"], "shared_parameters": ["w"]}
    written = run.read_statement() | known
    run.statement.write_text(json.dumps(written), encoding="utf-8")
    run.write_statement_of_ledger()
    assert {name: run.read_statement()[name] for name in known} == known
    run.statement.write_text(json.dumps(written | {"rounds": 0}), encoding="utf-8")
    run.write_statement_of_ledger()  # of more rounds: the failure may be over
    assert "failure" not in run.read_statement()


def test_an_edited_page_is_status_1(run: RunFolder) -> None:
    page = run.statement_page.read_text()
    run.statement_page.write_text(page.replace("epsilon ", "epsilon 0.", 1))
    assert "privacy.md: it does not say what privacy.json says" in found_wrong("ledger", run.path)


def test_a_run_that_goes_on_beyond_its_statement_is_said(run: RunFolder) -> None:
    spend(run, 3)
    shown = " ".join(call("ledger", run.path).stdout.split())
    assert "The ledger is 3 entries ahead of the statement" in shown


def test_an_auditor_checks_two_files_wherever_they_lie(run: RunFolder, tmp_path: Path) -> None:
    ledger, statement = tmp_path / "theirs.db", tmp_path / "their-privacy.json"
    shutil.copy(run.ledger, ledger)
    shutil.copy(run.statement, statement)
    result = call("ledger", ledger, "--check", statement)
    assert result.exit_code == 0
    assert "in agreement: their-privacy.json" in " ".join(result.stdout.split())
    edit(statement, budget={"epsilon": 1.0, "delta": 1e-5})
    assert "budget.epsilon is 1.0" in found_wrong("ledger", ledger, "--check", statement)
    assert call("ledger", ledger, "--check", tmp_path / "none.json").exit_code == 2
    (tmp_path / "empty.json").write_text("")
    result = call("ledger", ledger, "--check", tmp_path / "empty.json")
    assert result.exit_code == 2
    assert "is no privacy statement" in " ".join(result.stderr.split())


def test_a_cut_ledger_is_not_trained_on(run: RunFolder) -> None:
    cut(run)
    before = run.ledger.read_bytes()
    assert "beside it knows of 6" in found_wrong("run", f"resume={run.path}")
    assert run.ledger.read_bytes() == before


def test_a_cut_ledger_does_not_take_its_statement_with_it(run: RunFolder) -> None:
    """The statement is the only witness: it was once written anew from the shorter ledger."""
    before = run.statement.read_bytes()
    cut(run)
    with pytest.raises(RuntimeError, match="beside it knows of 6"):
        run.write_statement_of_ledger()
    assert run.statement.read_bytes() == before


def test_a_crash_between_ledger_and_checkpoint_still_goes_on(run: RunFolder) -> None:
    with PrivacyLedger.open(run.ledger, PLAN) as ledger:
        ledger.reserve(round=3)  # and the process ends here
    assert run.read_plan() == PLAN
    assert call("ledger", run.path).exit_code == 0


def test_a_checkpoint_of_an_older_version_is_refused_with_what_to_do(run: RunFolder) -> None:
    from safetensors.numpy import save_file

    save_file({}, run.checkpoint, metadata={"fl-dp": json.dumps({"version": 1})})
    result = call("ledger", run.path)
    assert result.exit_code == 2
    assert "continue with the one that wrote it" in " ".join(result.stderr.split())
    run.checkpoint.write_bytes(b"")
    assert call("ledger", run.path).exit_code == 2


def test_a_statement_of_records_alone_is_checked_by_its_parameters(tmp_path: Path) -> None:
    from fl_dp.ledger import NodeLedger
    from fl_dp.ledger.node import Account
    from fl_dp.statement import record_statement

    plan = RecordPlan.from_noise_multiplier(
        1.0, delta=1e-5, sampling_rate=0.1, steps=5, participations=4, clipping_norm=1.0
    )
    run = RunFolder(tmp_path / "records")
    run.create(SETTINGS)
    private_folder(run.node_ledgers)
    with NodeLedger.open(run.node_ledgers / "node-0.db") as ledger:
        account = Account(unit="record", source="partition-0")
        ledger.charge(account, plan.event, count=5, budget=plan.budget, what="round 1")
    run.keep_record_plan(plan)
    statement = record_statement(plan, participations=1, num_clients=20)
    run.write_statement(replace(statement, rounds=1))
    run.statement_page.unlink()
    assert call("ledger", run.path).exit_code == 0
    edit(run.statement, epsilon={"pld": 0.1})
    assert "epsilon.pld is 0.1" in found_wrong("ledger", run.path)


# Who may read what ---------------------------------------------------------------------------


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_not_for_others_is_the_owners_alone(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = RunFolder(tmp_path / "runs" / "one")
        folder.create(SETTINGS)
        spend(folder, 1)
        folder.write_statement_of_ledger()
        folder.write_model(ArrayRecord())
        folder.append_metrics({"round": 1})
        folder.drop_metrics_after(1)
        private_folder(folder.node_ledgers)
    finally:
        os.umask(before)
    assert permissions(folder.path) == permissions(folder.node_ledgers) == 0o700
    for file in (folder.ledger, folder.checkpoint, folder.config, folder.log):
        assert permissions(file) == 0o600
    for file in (folder.statement, folder.statement_page, folder.model, folder.metrics):
        assert permissions(file) == 0o666 & ~mask


# Files that are replaced ---------------------------------------------------------------------


def test_a_disk_that_fills_up_leaves_the_statement_as_it_was(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (run.statement, run.statement_page, run.metrics, run.model, run.checkpoint, run.config)
    run.append_metrics({"round": 0})
    run.write_model(ArrayRecord())
    before = {file: file.read_bytes() for file in files}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writes: tuple[Callable[[], object], ...] = (
        lambda: run.write_statement(NoPromise(rounds=1)),
        lambda: run.drop_metrics_after(-1),
        lambda: run.write_model(ArrayRecord()),
        lambda: keep_checkpoint(run, 9, None),
    )
    for write in writes:
        with pytest.raises(OSError, match=rf"{run.path} .*\(No space left on device\): make room"):
            write()
    assert {file: file.read_bytes() for file in files} == before
    assert not list(run.path.glob(".*.tmp"))


def test_a_full_disk_names_the_run_s_folder_when_a_round_is_noted(run: RunFolder) -> None:
    run.metrics.unlink(missing_ok=True)
    run.metrics.symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"{run.path} .*\(No space left on device\): make room"):
        run.append_metrics({"round": 0})


def test_a_reader_finds_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_text(file, "old")
    with written_whole(file) as temporary:
        temporary.write_text("half")
        assert file.read_text() == "old"
    assert file.read_text() == "half"
    with pytest.raises(ZeroDivisionError), written_whole(file) as temporary:
        temporary.write_text("never")
        _ = 1 / 0
    assert file.read_text() == "half"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
