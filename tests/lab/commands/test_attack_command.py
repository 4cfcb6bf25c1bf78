"""`fl-dp attack inversion`; `fl-dp run` names it where an attack is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from command_line import call as fl_dp
from command_line import changed

from fl_dp.lab.attacks.inversion.experiment import Recovery, RecoveryCell
from fl_dp.lab.attacks.inversion.recovery_results import CellResult

SMALL = (
    "model.hidden=16",
    "recovery.images=1",
    "recovery.seeds=1",
    "recovery.cohort=2",
    "recovery.attacks=[analytic]",
    "recovery.threats=[raw,client_noise]",
    "recovery.noise_multipliers=[1e-6,1]",
    "run_name=attacked",
)


def flat(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("experiment", [(), ("experiment=data_recovery",)], ids=["usual", "named"])
def test_an_attack_writes_its_table_and_says_where_recovery_fails(
    experiment: tuple[str, ...],
) -> None:
    done = fl_dp("attack", "inversion", *experiment, *SMALL)
    assert done.exit_code == 0, done.output
    folder = Path("runs/attacked")
    assert len((folder / "recovery.csv").read_text().splitlines()) == 1 + 3
    text = (folder / "summary.json").read_text()
    said = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert [each["fails"] for each in said["settings"]] == [False, False, True]
    assert "recovery fails from noise multiplier 1 on, at epsilon 4.37" in flat(done)
    assert "An attack that fails proves no privacy" in flat(done)
    assert not (folder / "ledger.db").exists()  # nothing was trained


@pytest.mark.parametrize("command", ["run", "tune", "plan"])
@pytest.mark.parametrize("experiment", ["data_recovery", "text_recovery"])
def test_what_trains_names_the_command_that_attacks(command: str, experiment: str) -> None:
    tuned = ["client.epochs=1,2"] if command == "tune" else []
    refused = fl_dp(command, f"experiment={experiment}", *tuned)
    assert refused.exit_code == 2
    assert "give `fl-dp attack inversion` these settings" in flat(refused)
    assert len(refused.stderr.splitlines()) < 4  # of one sentence
    assert not Path("runs").exists()


def test_records_of_people_do_not_end_up_in_a_file_unasked() -> None:
    refused = fl_dp("attack", "inversion", "task=folder", "task.data_dir=/nowhere")
    assert refused.exit_code == 2
    assert "reads data of your own, add --data-is-public" in flat(refused)
    assert not Path("runs").exists()
    stated = fl_dp("attack", "inversion", "task=folder", "task.data_dir=/x", "--data-is-public")
    assert "/x" in flat(stated)  # only the folder is missing then


def test_what_was_stopped_continues_with_the_cells_that_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Recovery.run
    done: list[RecoveryCell] = []

    def stopped_at_the_second(self: Recovery, cell: RecoveryCell) -> CellResult:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(cell)
        return run(self, cell)

    monkeypatch.setattr(Recovery, "run", stopped_at_the_second)
    stopped = fl_dp("attack", "inversion", *SMALL)
    assert stopped.exit_code == 130
    assert "runs/attacked` continues it" in "".join(stopped.output.split("\n"))
    first = done.pop()

    def noted(self: Recovery, cell: RecoveryCell) -> CellResult:
        done.append(cell)
        return run(self, cell)

    monkeypatch.setattr(Recovery, "run", noted)
    assert fl_dp("attack", "inversion", "resume=runs/attacked").exit_code == 0
    assert len(done) == 2
    assert first not in done


def test_a_sweep_attacks_once_with_each_value() -> None:
    done = fl_dp("attack", "inversion", *changed(SMALL, "model.hidden=8,16"), "-m")
    assert done.exit_code == 0, done.output
    for run in ("run-0", "run-1"):
        assert Path("runs/attacked", run, "recovery.csv").is_file()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["privacy=central", "privacy.noise_multiplier=2"], "is the noise of a training"),
        (["recovery.threats=[row]"], "did you mean raw?"),
        (["recovery.attacks=[analitic]"], "got 'analitic': did you mean analytic?"),
        (["recovery.noise_multipliers=[0]"], "must be positive and finite, got 0.0"),
        (["task=breast_cancer"], "recovery is measured on images"),
        (["recovery.cohort=1"], "recovery.cohort must be at least 2, got 1"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(words: list[str], cause: str) -> None:
    done = fl_dp("attack", "inversion", *words)
    assert done.exit_code == 2
    assert cause in flat(done)
    assert not Path("runs").exists()
