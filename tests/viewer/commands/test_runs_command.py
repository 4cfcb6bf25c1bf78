"""`fl-dp runs`: what is in a folder, in order, and harmless to a terminal whatever it holds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import call, json_of, said_on_stderr
from written_runs import PROMISE, write_run

from fl_dp.statement.sentences import UNITS

NOW = time.time()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of their own, and a sweep of two."""
    root = tmp_path / "runs"
    write_run(root / "old", rounds=4, epsilon=8.0, written=NOW - 9000.0)
    write_run(root / "stopped", rounds=10, done=5, epsilon=2.0, written=NOW - 60.0)
    write_run(root / "sweep" / "run-0", rounds=4, epsilon=1.0, written=NOW - 30.0)
    write_run(root / "sweep" / "run-1", rounds=4, epsilon=4.0, written=NOW - 9999.0)
    cells = [{"name": "run-0", "variant": "local"}, {"name": "run-1", "variant": "central"}]
    (root / "sweep" / "sweep.json").write_text(json.dumps({"cells": cells}))
    return root


def names(*arguments: str) -> list[str]:
    return [run["name"] for run in json_of("runs", *arguments, "--json")["runs"]]


def test_runs_are_listed_newest_first_and_a_sweep_together(folder: Path) -> None:
    assert names(str(folder)) == ["sweep/run-0", "sweep/run-1", "stopped", "old"]


@pytest.mark.parametrize(
    ("order", "first", "last"),
    [
        ("name", "old", "sweep/run-1"),
        ("epsilon", "sweep/run-0", "old"),
        ("accuracy", "sweep/run-0", "stopped"),
        ("round", "stopped", "old"),
        ("state", "sweep/run-0", "stopped"),
    ],
)
def test_runs_are_sorted_as_asked(folder: Path, order: str, first: str, last: str) -> None:
    found = names(str(folder), "--sort", order)
    assert (found[0], found[-1]) == (first, last)


def test_runs_are_filtered_by_one_state_or_several(folder: Path) -> None:
    assert names(str(folder), "--state", "stopped") == ["stopped"]
    assert len(names(str(folder), "--state", "stopped", "--state", "finished")) == 4


def test_the_document_tells_state_round_accuracy_and_price(folder: Path) -> None:
    [run] = json_of("runs", str(folder), "--state", "stopped", "--json")["runs"]
    keys = ("state", "round", "rounds", "sweep", "measured_on")
    assert [run[key] for key in keys] == ["stopped", 5, 10, None, "test"]
    assert run["promise"] == PROMISE | {
        "epsilon": 2.0,
        "spent": 2.0,
        "budget": 2.0,
        "insecure": False,
    }
    assert run["accuracy"] == pytest.approx(0.5)
    assert run["when"].startswith(time.strftime("%Y-%m-%d", time.localtime(NOW - 60.0)))


def test_the_table_has_a_row_a_run_and_names_a_sweep_once(folder: Path) -> None:
    lines = call("runs", str(folder)).stdout.splitlines()
    terms = "at delta 0.003, one client (zero-out), against whoever sees the models"
    assert lines[0] == f"epsilon {terms}"
    assert lines[1].split() == ["run", "state", "round", "score", "epsilon", "when"]
    assert lines[2].split() == ["sweep", "sweep,", "2", "runs"]
    first = ["run-0", "(local)", "finished", "4/4", "test", "accuracy", "0.900", "1", "of", "1"]
    assert lines[3].split()[: len(first)] == first


def test_runs_of_different_promises_are_in_tables_of_their_own(folder: Path) -> None:
    record: dict[str, Any] = {"unit": UNITS["record"], "delta": 1e-5}
    write_run(folder / "records", written=NOW - 45.0, **record)
    write_run(folder / "early", done=1, epsilon_so_far={"pld": 0.25}, written=NOW - 46.0, **record)
    lines = call("runs", str(folder)).stdout.splitlines()
    headings = [line for line in lines if line.startswith("epsilon")]
    assert [heading.partition(" against")[0] for heading in headings] == [
        "epsilon at delta 0.003, one client (zero-out),",
        "epsilon at delta 1e-05, one record (zero-out),",
    ]
    of_records = lines[lines.index(headings[1]) :]
    assert [line.split()[0] for line in of_records[2:]] == ["records", "early"]
    assert "8 stated, 0.25 spent" in of_records[3]


def test_a_run_without_a_promise_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", quoted="none", epsilon=3.0)
    assert "no privacy" in call("runs", str(tmp_path)).stdout


# Nothing to list.


def test_nothing_to_list_is_one_line(tmp_path: Path, folder: Path) -> None:
    for arguments, status, told in (
        ([str(tmp_path / "none")], 2, "error: there is no folder"),
        ([str(tmp_path / "empty")], 0, "there are no runs in"),
        ([str(folder), "--state", "broken"], 0, "none of 4 runs in"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        result = call("runs", *arguments)
        assert (result.exit_code, result.stdout) == (status, "")
        assert said_on_stderr(result).startswith(told)
    found = json_of("runs", str(tmp_path / "empty"), "--json")
    assert found == {"runs": [], "problems": []}


# Content that anybody may have written.


def test_hostile_names_and_values_reach_no_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J"
    write_run(tmp_path / f"a{hostile}")
    write_run(tmp_path / "[red]b[/red]")
    write_run(tmp_path / "sweep" / "run-0", unit=hostile)
    write_run(tmp_path / "c", epsilon=1.0, written=NOW, delta="\u202etfel")
    cells = [{"name": "run-0", "variant": hostile, "place": hostile}]
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"cells": cells}))
    for arguments in ([], ["--json"]):
        result = call("runs", str(tmp_path), *arguments)
        assert result.exit_code == 0
        for text in (result.stdout, result.stderr):
            assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "[red]b[/red]" in call("runs", str(tmp_path)).stdout
    assert "characters that can't be shown" in said_on_stderr(call("runs", str(tmp_path)))
