"""`fl-dp ledger --summary`: budget, spent, left and when, and nobody's name."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from command_line import call, json_of

from fl_dp.commands.terminal.governance import count_of, nodes_summary, summary_lines
from fl_dp.ledger import PrivacyLedger
from fl_dp.plan import PrivacyPlan


def plan_of(num_clients: int) -> PrivacyPlan:
    return PrivacyPlan.from_noise_multiplier(
        1.2, delta=1e-4, rounds=6, sampling_rate=0.2, clipping_norm=1.0, num_clients=num_clients
    )


def test_small_counts_are_told_as_such() -> None:
    few = "fewer than 10"
    assert [count_of(number) for number in (0, 9, 10, 200)] == [few, few, 10, 200]


def test_no_ledger_at_all_has_spent_nothing() -> None:
    assert summary_lines(nodes_summary([]))[-1] == "Nothing was spent"


def test_what_is_left_is_rounded_down_and_what_is_spent_up() -> None:
    summary = {"kind": "nodes", "ledgers": 12, "budget": 1.0, "delta": 1e-5}
    lines = summary_lines(summary | {"spent": 0.33333333, "left": 0.66666667})
    assert "Spent: 0.3334" in lines
    assert "Left: 0.6666" in lines


def test_a_broken_promise_is_said() -> None:
    summary = {"kind": "nodes", "ledgers": 12, "budget": None, "spent": None, "insecure": 3}
    assert any("nothing is promised" in line for line in summary_lines(summary))


def test_a_summary_of_a_training_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "st-mary.db"
    with PrivacyLedger.open(path, plan_of(7), run_id="st-mary-run") as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.reserve(round=2)
        spent = ledger.epsilon().best
    said = json_of("ledger", "--summary", "--json", str(path))
    assert "st-mary" not in str(said)
    assert said["clients"] == "fewer than 10"
    assert (said["rounds_spent"], said["rounds_planned"]) == (2, 6)
    assert said["spent"] == pytest.approx(spent)
    assert said["left"] == pytest.approx(max(said["budget"] - spent, 0.0))
    page = call("ledger", "--summary", str(path)).stdout
    assert "st-mary" not in page
    assert "fewer than 10" in page


def test_a_summary_of_an_altered_ledger_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, plan_of(70)) as ledger:
        ledger.reserve(round=1)
        ledger.reserve(round=2)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries WHERE sequence = 3")
    assert call("ledger", "--summary", str(path)).exit_code == 1


def test_a_summary_has_no_entries_to_export(tmp_path: Path) -> None:
    result = call("ledger", "--summary", "--csv", str(tmp_path / "x.csv"), "anything")
    assert result.exit_code == 2
    assert "leave out --csv" in result.stderr
