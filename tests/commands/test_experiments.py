"""`fl-dp run -m experiment=NAME`: a table and a picture, resumed without mixing anything."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import call, changed, json_of, said_on_stderr, train_here, use

from fl_dp.app.compose import compose_settings
from fl_dp.app.local.flower_runs import RunStatus
from fl_dp.app.run_folder import RunFolder
from fl_dp.terminal.progress import CellsLeft
from fl_dp.terminal.results import read_results

TINY = [
    "-m",
    "experiment=schedules",
    "sweep.only=[constant,'linear, late']",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=2",
    "task.num_clients=20",
    "rounds=2",
    "client.epochs=1",
    "selection.sampling_rate=0.5",
    "report=none",
    "run_name=s",
    "simulation.engine=flower",  # for which the tests have a stand-in
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of an experiment of two curves and two seeds, and what it printed."""
    root = tmp_path_factory.mktemp("experiment")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, train_here)
        printed = json_of("run", "--json", *TINY, "seed=0,1", f"output_dir={root}")
    return root / "s", printed


def test_an_experiment_without_m_is_one_line_that_says_to_add_it() -> None:
    result = call("run", "experiment=privacy_levels")
    assert result.exit_code == 2
    assert "many trainings (central, distributed" in said_on_stderr(result)
    assert "add -m, as in `fl-dp run -m experiment=NAME`" in said_on_stderr(result)
    assert result.stderr.count("\n") == 1


def test_a_misspelt_key_in_the_file_of_an_experiment_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl_dp.app import compose, overrides

    conf = tmp_path / "conf"
    shutil.copytree(overrides.config_folder(), conf)
    file = conf / "experiment" / "schedules.yaml"
    file.write_text(file.read_text().replace("overrides: [schedule=step]", "overides: [a=b]"))
    monkeypatch.setattr(compose, "config_folder", lambda: conf)
    result = call("run", "-m", "experiment=schedules")
    assert result.exit_code == 2
    assert "there is no key 'sweep.curves.step, late.overides'" in said_on_stderr(result)


def test_an_experiment_ends_in_a_line_for_each_training(finished: tuple[Path, Any]) -> None:
    folder, printed = finished
    assert (folder / "experiment.png").read_bytes().startswith(b"\x89PNG")
    results = read_results(folder / "results.csv")
    assert [(r.cell, r.curve, r.x, r.seed) for r in results] == [
        ("run-0", "constant", None, 0),
        ("run-1", "constant", None, 1),
        ("run-2", "linear, late", None, 0),
        ("run-3", "linear, late", None, 1),
    ]
    for result, run in zip(results, printed["runs"], strict=True):
        assert result.accuracy == run["test_accuracy"]
        promise = result.promise
        for name in ("epsilon", "delta"):
            assert getattr(promise, name) == run["promise"][name]
        assert (promise.unit, promise.neighbours, result.rounds) == ("client", "zero-out", 2)
        assert (promise.against, result.measured_on) == ("whoever sees the models", "test")
        assert result.seconds is not None and result.seconds > 0.0
        assert "dp-accounting" in result.versions
    assert results[0].noise_multiplier == pytest.approx(2.0)
    # 2 times a norm of .5 on a sum, which 10 expected clients divide.
    assert results[0].noise_of_mean == pytest.approx(0.1)


def test_a_finished_experiment_is_not_trained_again(
    finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, printed = finished
    before = (folder / "results.csv").read_bytes()
    link = use(monkeypatch, train_here)
    assert json_of("run", "--json", f"resume={folder}") == printed
    assert link.given == link.machines == []
    assert (folder / "results.csv").read_bytes() == before


def stop_after(trainings: int, root: Path) -> Any:
    """Return a Flower that somebody stops in the training after so many."""
    started: list[Any] = []

    def how(overrides: Any, on_progress: Any) -> RunStatus:
        started.append(overrides)
        if len(started) > trainings:
            settings = compose_settings(overrides)
            RunFolder(root / "s" / str(settings.run_name)).create(settings)
            raise KeyboardInterrupt
        return train_here(overrides, on_progress)

    return how


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment of which one training is done, one begun, one missing."""
    root = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, stop_after(1, root))
        one = changed(TINY, "sweep.only=[constant]", "seed=0", "rounds=2,3,4")
        result = call("run", *one, f"output_dir={root}")
    assert result.exit_code == 130
    assert f"`fl-dp run resume={root / 's'}` continues it" in said_on_stderr(result)
    return root / "s"


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it, to change and to continue."""
    return Path(shutil.copytree(stopped_once, tmp_path / "s"))


def test_an_experiment_that_was_stopped_goes_on_with_what_is_missing(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = read_results(stopped / "results.csv")
    link = use(monkeypatch, train_here)
    printed = json_of("run", "--json", f"resume={stopped}")
    assert len(link.given) == 2 and len(printed["runs"]) == 3
    results = read_results(stopped / "results.csv")
    assert results[0] == first
    assert [result.rounds for result in results] == [2, 3, 4]
    # A training that was stopped took longer than anybody knows.
    assert [result.seconds is None for result in results] == [False, True, False]


@pytest.mark.parametrize("begun", [True, False], ids=["its config.yaml", "its overrides"])
def test_a_resumed_experiment_never_mixes_settings(
    begun: bool, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stopped / ("run-0/config.yaml" if begun else "sweep.json")
    old, new = ("epochs: 1", "epochs: 4") if begun else ("client.epochs=1", "client.epochs=4")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    link = use(monkeypatch, train_here)
    result = call("run", f"resume={stopped}")
    assert result.exit_code == 2
    assert "results of different settings are never mixed" in said_on_stderr(result)
    assert f"{stopped / ('run-0' if begun else 'run-2')} has other settings" in said_on_stderr(
        result
    )
    assert link.given == []


# Side by side.


def test_trainings_run_side_by_side_and_are_listed_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither gets past the barrier before the other is there; the first ends last."""
    both, second_done = threading.Barrier(2), threading.Event()

    def how(overrides: Any, on_progress: Any) -> RunStatus:
        both.wait()
        first = 'run_name="run-0"' in overrides
        if first:
            assert second_done.wait()
        status = train_here(overrides, on_progress)
        if not first:
            second_done.set()
        return status

    link = use(monkeypatch, how)
    printed = json_of(
        "run", "--json", *TINY, "seed=0", "sweep.side_by_side=2", f"output_dir={tmp_path}"
    )
    assert [run["variant"] for run in printed["runs"]] == ["constant", "linear, late"]
    assert [r.curve for r in read_results(tmp_path / "s" / "results.csv")] == [
        "constant",
        "linear, late",
    ]
    assert [machine.cpus for machine in link.machines] == [1, 1] or len(link.machines) == 2


def test_a_stop_ends_every_training_that_runs_beside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both, ended = threading.Barrier(2), threading.Event()

    def how(overrides: Any, on_progress: Any) -> RunStatus:
        both.wait()
        if 'run_name="run-0"' in overrides:
            raise KeyboardInterrupt
        try:
            while True:
                on_progress()  # what it raises ends the run, as in the real one
                threading.Event().wait(0.01)
        except Exception:
            ended.set()
            raise

    use(monkeypatch, how)
    result = call("run", *TINY, "seed=0", "sweep.side_by_side=2", f"output_dir={tmp_path}")
    assert result.exit_code == 130
    assert ended.is_set()
    assert "continues it" in said_on_stderr(result)


# The time left.


def test_the_time_left_of_a_sweep_goes_by_trainings_of_the_same_curve() -> None:
    left = CellsLeft(["quick"] * 3 + ["slow"] * 2)
    assert left.seconds() is None and left.in_words() == ""
    left.took("quick", 10.0)
    assert left.seconds() == pytest.approx(4 * 10.0)
    left.took("slow", 100.0)
    assert left.seconds() == pytest.approx(2 * 10.0 + 100.0)
    assert left.in_words() == "about 2 min left, "


def test_trainings_side_by_side_take_their_share_of_the_time() -> None:
    left = CellsLeft(["a"] * 5, at_once=2)
    left.took("a", 10.0)
    assert left.seconds() == pytest.approx(20.0)


def test_sweep_json_is_what_it_is_resumed_from(finished: tuple[Path, Any]) -> None:
    document = json.loads((finished[0] / "sweep.json").read_text(encoding="utf-8"))
    assert len({cell["digest"] for cell in document["cells"]}) == 4
    assert document["experiment"]["only"] == ["constant", "linear, late"]
