"""The main job through Flower's real simulation engine, as a user starts it.

One training starts the command itself. The others call it in this process, which has imported what
a command imports: Flower's own processes are started all the same. Where it is no matter how many
workers there are, there is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, said_on_stderr
from safetensors.numpy import load_file

from fl_dp import PrivacyLedger
from fl_dp.ledger import NodeLedger
from fl_dp.terminal.results import read_results

pytestmark = [pytest.mark.simulation, pytest.mark.xdist_group("simulation")]


def fl_dp(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "fl-dp"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_a_small_training_runs_end_to_end_and_its_papers_agree(tmp_path: Path) -> None:
    done = fl_dp(
        "run",
        "--json",
        "simulation.engine=flower",
        "simulation.workers=1",
        "task.num_clients=20",
        "rounds=3",
        "privacy.epsilon=4",
        "run_name=one run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "one run"
    (run,) = json.loads(done.stdout)["runs"]
    assert Path(run["path"]) == folder

    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.yaml",
        "metrics.jsonl",
        "ledger.db",
        "privacy.json",
        "privacy.md",
        "model.safetensors",
        "run.log",
    }
    statement = json.loads((folder / "privacy.json").read_text())
    ledger = PrivacyLedger.read(folder / "ledger.db")
    assert statement["epsilon"]["pld"] == ledger.epsilon().pld == run["promise"]["epsilon"]
    assert statement["ledger_hash"] == ledger.entries[-1].hash
    assert (ledger.rounds_spent, ledger.rounds_committed) == (3, 3)

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert all(line["expected_cohort"] == 5.0 for line in lines)
    assert lines[-1]["test_accuracy"] > lines[0]["test_accuracy"]
    model = load_file(folder / "model.safetensors")
    assert {name: array.shape for name, array in model.items()} == {
        "1.weight": (10, 64),
        "1.bias": (10,),
    }
    log = (folder / "run.log").read_text()
    assert "Sampled" not in log
    assert "Received" not in log


@pytest.mark.nightly
def test_a_run_that_flower_reports_as_failed_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # No step can be taken in float32, so every client fails, and one of them is shown.
    done = call(
        "run",
        "simulation.engine=flower",
        "simulation.workers=1",
        "task.num_clients=10",
        "rounds=10",
        "selection.sampling_rate=1",
        "run_name=broken",
        "privacy.epsilon=null",
        "privacy.noise_multiplier=0.3",
        "client.learning_rate=1e300",
    )
    assert done.exit_code == 1
    assert "finished:failed" in said_on_stderr(done)
    assert "every client of a round failed" in said_on_stderr(done)
    assert "RuntimeError: value cannot be converted" in said_on_stderr(done)
    folder = tmp_path / "runs" / "broken"
    with PrivacyLedger.read(folder / "ledger.db") as ledger:
        spent = ledger.rounds_spent
    assert 0 < spent < 10
    assert json.loads((folder / "privacy.json").read_text())["rounds"] == spent


@pytest.mark.nightly
def test_records_and_clients_are_protected_at_once_and_each_has_its_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(
        "run",
        "--json",
        "simulation.engine=flower",
        "simulation.workers=1",
        "privacy=central",
        "dp_sgd=on",
        "privacy.epsilon=50",
        "dp_sgd.epsilon=6",
        "task.num_clients=3",
        "rounds=2",
        "selection.sampling_rate=1",
        "dp_sgd.steps=5",
        "dp_sgd.participations=4",
        "run_name=both",
    )
    assert done.exit_code == 0, done.stderr
    folder = tmp_path / "runs" / "both"
    statement = json.loads((folder / "privacy.json").read_text())
    assert statement["unit"].startswith("one client")
    records = statement["records"]
    assert records["unit"].startswith("one record")
    assert records["budget"]["epsilon"] == 6
    # Planned for four rounds, of which two were made.
    spent, promised = records["epsilon_so_far"], records["epsilon"]
    assert spent["pld"] < promised["pld"] <= 6
    page = (folder / "privacy.md").read_text()
    assert "# Privacy statement\n" in page
    assert "# Privacy statement: records\n" in page
    for node in range(3):
        with NodeLedger.read(folder / "nodes" / f"node-{node}.db") as ledger:
            (spending,) = ledger.spendings
            assert [count for _, count in spending.history] == [10]
            assert spending.epsilon().pld == pytest.approx(spent["pld"])


@pytest.mark.nightly
def test_secure_sums_of_a_simulation_open_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(
        "run",
        "simulation.engine=flower",
        "privacy=distributed",
        "task.num_clients=12",
        "simulation.units_per_node=2",
        "rounds=3",
        "run_name=sums",
        "selection.sampling_rate=1",
        "privacy.epsilon=8",
        "clipping=adaptive",
    )
    assert done.exit_code == 0, done.stderr
    folder = tmp_path / "runs" / "sums"
    with PrivacyLedger.read(folder / "ledger.db") as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (3, 3)
    statement = json.loads((folder / "privacy.json").read_text())
    assert "opens only sums" in statement["adversary"]
    log = (folder / "run.log").read_text()
    assert "refused a secure sum" not in log
    assert "a client failed" not in log


@pytest.mark.nightly
def test_buffers_of_a_simulation_are_filled_by_who_answers_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(
        "run",
        "simulation.engine=flower",
        "privacy=buffered",
        "task.num_clients=12",
        "selection.sampling_rate=0.25",
        "rounds=4",
        "client.epochs=1",
        "selection.concurrency=5",
        "privacy.epsilon=8",
        "run_name=buffers",
    )
    assert done.exit_code == 0, done.stderr
    folder = tmp_path / "runs" / "buffers"
    with PrivacyLedger.read(folder / "ledger.db") as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (4, 4)
        entries = [entry.fields for entry in ledger.entries]
    asked = [unit for each in entries if each["kind"] == "ask" for unit in each["units"]]
    folded = [unit for each in entries if each["kind"] == "fold" for unit in each["units"]]
    assert len(folded) == 4 * 3 and len(asked) >= len(folded)  # some answer to nobody
    log = (folder / "run.log").read_text()
    assert "a client failed" not in log
    assert "released as it is" not in log


@pytest.mark.nightly
def test_two_trainings_of_an_experiment_run_side_by_side_through_flower(tmp_path: Path) -> None:
    done = fl_dp(
        "run",
        "--json",
        "-m",
        "experiment=privacy_levels",
        "sweep.only=[central]",
        "privacy.epsilon=8",
        "seed=0,1",
        "rounds=2",
        "task.num_clients=20",
        "run_name=sweep",
        "sweep.side_by_side=2",
        "simulation.engine=flower",
        "simulation.workers=1",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "sweep"
    results = read_results(folder / "results.csv")
    assert [(one.curve, one.x, one.seed) for one in results] == [
        ("central", "8", 0),
        ("central", "8", 1),
    ]
    assert all(one.epsilon <= 8.0 and one.rounds == 2 for one in results)
    assert (folder / "experiment.png").is_file()
