"""A seed that anybody may know, or an epsilon that bounds nothing: every screen says no privacy."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
from command_line import call, said_on_stderr, train_here, use

from fl_dp.promise import is_promise
from fl_dp.strategies import DPFedAvg

TINY = [
    "task.num_clients=10",
    "rounds=2",
    "selection.sampling_rate=1",
    "simulation.engine=in_process",
    "privacy.contribution_check=false",
]
MEANS_NOTHING = {
    "seed": ["privacy.insecure_seed=3"],
    "epsilon": ["privacy.epsilon=500", "privacy.delta=1e-3"],
}


def test_one_function_says_what_is_a_promise() -> None:
    assert is_promise(8.0)
    assert not is_promise(8.0, insecure=True)
    assert is_promise(50.0)
    assert not is_promise(50.1)
    assert not is_promise(math.inf)
    assert not is_promise(None)


def test_every_screen_of_a_run_says_no_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use(monkeypatch, train_here)
    done = call("run", *TINY, *MEANS_NOTHING["seed"], "run_name=seen", "report=html")
    assert done.exit_code == 0, done.stderr
    terminal = " ".join(done.stdout.split())
    assert terminal.count("no privacy") >= 2  # of the last round, and in the table
    assert "epsilon 8" not in terminal
    folder = tmp_path / "runs" / "seen"
    [listed] = [line for line in call("runs", "runs").stdout.splitlines() if "seen" in line]
    assert "no privacy" in listed
    page = (folder / "privacy.md").read_text()
    assert "> **No privacy at all.**" in page
    assert "| promise | **no privacy**" in page
    report = (folder / "report.html").read_text()
    assert "Nothing is promised" in report
    [card] = json.loads(call("runs", "runs", "--json").stdout)["runs"]
    assert card["promises"] is False


@pytest.mark.parametrize("why", MEANS_NOTHING)
def test_a_plan_says_it_before_anything_is_trained(why: str) -> None:
    planned = call("plan", *TINY, *MEANS_NOTHING[why])
    assert planned.exit_code == 0
    assert "NO PRIVACY" in said_on_stderr(planned)
    assert "NO PRIVACY" not in said_on_stderr(call("plan", *TINY))


OF_RECORDS = ["task.num_clients=4", *TINY[1:-1], "privacy=dp_sgd", "dp_sgd.steps=2"]


def test_a_promise_to_records_says_it_in_the_plan_and_in_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use(monkeypatch, train_here)
    generator = call("plan", *OF_RECORDS, "dp_sgd.secure_randomness=false")
    assert "NO PRIVACY" in said_on_stderr(generator)
    settings = [*OF_RECORDS, "dp_sgd.epsilon=500", "dp_sgd.delta=1e-5"]
    assert "NO PRIVACY" in said_on_stderr(call("plan", *settings))
    done = call("run", *settings, "run_name=seen", "report=none")
    assert done.exit_code == 0, done.stderr
    for server_round in (1, 2):
        [line] = [each for each in done.stdout.splitlines() if f"round {server_round}/2" in each]
        assert "no privacy" in line
        assert "epsilon" not in line
    assert "NO PRIVACY: epsilon 500" in (tmp_path / "runs" / "seen" / "run.log").read_text()


def test_with_budget_says_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for epsilon in (8.0, 500.0):
        strategy = DPFedAvg.with_budget(
            epsilon=epsilon,
            rounds=2,
            num_clients=10,
            sampling_rate=1.0,
            clipping_norm=1.0,
            ledger=str(tmp_path / f"{epsilon:g}.db"),
        )
        strategy.summary()
        strategy.ledger.close()
        assert ("NO PRIVACY" in caplog.text) is (epsilon == 500.0)
