"""A training's trackers: which names reach their files, and that nothing else depends on them."""

from __future__ import annotations

import gc
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_line import call, said_on_stderr
from local_grid import LocalGrid, answer_with_app
from tracked_files import (
    Written,
    mlflow_run,
    records_of_wandb,
    tensorboard_files,
    wandb_runs,
)
from waiting import until

from fl_dp.app.checkpoints import save_checkpoint
from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.app.keys import FOLDERS, SECRET, all_keys
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import OPTIONS
from fl_dp.app.settings.options import chosen_by
from fl_dp.app.task_client import app as client_app
from fl_dp.app.trackers import TRACKED, make_tracker, tracked_settings
from fl_dp.app.tracking import FINAL, PROMISE, ROUND, RunStart, Tracker
from fl_dp.app.tracking.metrics_page import MetricsPage
from fl_dp.app.tracking.mlflow_runs import MLflowTracker
from fl_dp.app.tracking.tensorboard_files import TensorBoardTracker
from fl_dp.ledger import SpentLedger
from fl_dp.strategies import Checkpoint

PRIVATE: dict[str, Any] = {
    "cohort": [3, 7],
    "participants": 2,
    "update_norms": [0.25, 0.5],
    "node": "ward-7",
    "seconds": 1.25,
}
# Long enough that no random name and no date of a tracker holds it by chance.
SECRETS = ("insecure_seed", "424243444546", "ward-7", "participants", "update_norms")
OWN = {  # names that the trackers themselves write, none of which comes from the run
    "state",
    "group",
    "id",
    "status",
    "_wandb",
    "_runtime",
    "mlflow.runName",
    "mlflow.note.content",
    "fl_dp.run",
    "fl_dp.sweep",
    "fl_dp.state",
}


def train_small(
    folder: Path, *overrides: str, trackers: tuple[Tracker, ...] = (), name: str = "run"
) -> RunFolder:
    settings = compose_settings(
        [
            "task.num_clients=12",
            "rounds=3",
            "client.epochs=1",
            "privacy.epsilon=4",
            f"output_dir={folder}",
            f"run_name={name}",
            "privacy.insecure_seed=424243444546",
            *overrides,
        ]
    )
    grid = LocalGrid(answer_with_app(client_app, 12), 12)
    train(grid, settings, run_id="1", trackers=trackers)
    return RunFolder(folder / name)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell of a sweep with every tracker, whose metrics would carry what is private, too."""
    folder = tmp_path_factory.mktemp("runs") / "ward-sweep"
    folder.mkdir()
    (folder / "sweep.json").write_text("{}")
    path = folder / "run-0"
    gc.collect()  # whatever earlier tests left would be finalised while the packages are imported
    trackers = tuple(
        make_tracker(OPTIONS["tracking"][name], path, shared=folder)
        for name in ("tensorboard", "mlflow", "wandb")
    )
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as proxy:
        patch.setattr("fl_dp.app.server._released", _released_and_more)
        proxy.setblocking(False)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            for each in (name, name.lower()):
                patch.setenv(each, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        # What an environment asks for sends nothing: a setting has to.
        patch.setenv("WANDB_MODE", "online")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("WANDB_API_KEY", "0" * 40)
        train_small(folder, "metrics.loss=[0,5]", trackers=trackers, name="run-0")
        # Whoever calls a server asks the proxy first: W&B does if it is online.
        with pytest.raises(BlockingIOError):
            proxy.accept()
    until(lambda: _wandb_has_ended(path))
    return folder


def _wandb_has_ended(folder: Path) -> bool:
    """Whether all is on the disk: W&B's own process writes on after the run's end."""
    return all("state" in written.facts for written in wandb_runs(folder))


def _released_and_more(strategy: Any) -> dict[str, Any]:
    clients = dict(strategy.released_metrics) | {"ward-7": 0.5}
    return {**PRIVATE, "clients": clients, "bytes_up": strategy.bytes_up}


@pytest.fixture(params=["tensorboard", "mlflow", "wandb"])
def written(request: pytest.FixtureRequest, sweep: Path) -> Written:
    match request.param:
        case "tensorboard":
            return tensorboard_files(sweep / "run-0" / "tensorboard")
        case "mlflow":
            return mlflow_run(sweep / "mlflow")
        case _:
            [only] = wandb_runs(sweep / "run-0")
            return only


# What reaches the files of the real trackers.


def test_a_file_of_wandb_is_read_up_to_what_is_half_written(sweep: Path) -> None:
    [file] = (sweep / "run-0").glob("wandb/offline-run-*/*.wandb")
    written = file.read_bytes()
    whole = list(records_of_wandb(written))
    for end in range(7, len(written), 37):
        read = list(records_of_wandb(written[:end]))
        assert read == whole[: len(read)]


def test_every_name_of_a_round_is_on_the_closed_list(written: Written) -> None:
    assert sorted(written.rounds) == [0, 1, 2, 3]
    assert {name for values in written.rounds.values() for name in values} == {
        "test_loss",
        "test_accuracy",
        "epsilon",
        "expected_cohort",
        "bytes_up",
        "clients/loss",
    }
    assert {name for values in written.rounds.values() for name in values} <= ROUND


def test_every_other_name_is_a_setting_or_a_fact_that_may_be_told(written: Written) -> None:
    assert set(written.facts) - OWN <= TRACKED | PROMISE | FINAL
    assert {"privacy.epsilon", "promise/epsilon", "final/epsilon"} <= set(written.facts)
    # Its noise can be predicted.
    assert written.facts["promise/guarantee"].strip('"') == "no privacy"


def test_the_values_are_those_of_the_run(sweep: Path, written: Written) -> None:
    lines = RunFolder(sweep / "run-0").read_metrics()
    for line in lines:
        told = written.rounds[line["round"]]
        assert told["epsilon"] == pytest.approx(line["epsilon"], rel=1e-6)
        assert told["test_accuracy"] == pytest.approx(line["test_accuracy"], rel=1e-6)
    assert float(written.facts["final/epsilon"]) <= 4.0


def test_no_file_of_a_tracker_holds_the_time_of_a_round(written: Written) -> None:
    [began] = written.times
    assert began % 60 == 0


def test_no_file_of_a_tracker_names_the_machine_its_folders_or_what_is_private(sweep: Path) -> None:
    # Of W&B's folder, the file that is sent: its logs stay beside it.
    files = [
        *(sweep / "run-0" / "tensorboard").iterdir(),
        *(sweep / "run-0").glob("wandb/*/*.wandb"),
    ]
    assert len({file.resolve() for file in files}) == 2
    forbidden = [*SECRETS, str(sweep), socket.gethostname(), str(Path.home())]
    for file in files:
        content = file.read_bytes()
        for text in [each for each in forbidden if len(each) > 3]:
            assert text.encode() not in content, f"{text} in {file.name}"
            assert text not in file.name
    database = (sweep / "mlflow" / "mlflow.db").read_bytes()
    for text in [*SECRETS, socket.gethostname()]:
        assert len(text) <= 3 or text.encode() not in database.replace(b"mlflow", b""), text


def test_a_cell_is_one_run_that_names_its_sweep(sweep: Path) -> None:
    assert mlflow_run(sweep / "mlflow").facts["fl_dp.sweep"] == "ward-sweep"
    assert mlflow_run(sweep / "mlflow").facts["mlflow.runName"] == "ward-sweep/run-0"
    [of_wandb] = wandb_runs(sweep / "run-0")
    assert of_wandb.facts["group"] == "ward-sweep"


def test_what_they_write_only_the_owner_enters(sweep: Path) -> None:
    for folder in (sweep / "mlflow", sweep / "run-0" / "tensorboard", sweep / "run-0"):
        assert folder.stat().st_mode & 0o077 == 0, folder


# Which settings are told.


def test_secrets_folders_addresses_and_what_is_of_one_site_are_not_told() -> None:
    withheld = all_keys().keys() - TRACKED
    chosen = {f"{group}.{chosen_by(group)}" for group in OPTIONS if group != "tracking"}
    assert TRACKED - all_keys().keys() == chosen
    assert withheld >= SECRET | FOLDERS
    assert {
        key
        for key in withheld
        if not key.startswith(("sweep.", "statistic.", "recovery.", "tune."))
    } == {
        *SECRET,
        *FOLDERS,
        "report",
        "features.module",
        "model.shared",
        *(f"task.{name}" for name in ("classes", "columns", "types")),
        *(f"task.{name}" for name in ("label_column", "client_column")),
        "task.person_column",
        "task.mean",
        "task.std",
        "privacy.secure_sum.reply_after",
        *(f"simulation.{name}" for name in ("num_cpus", "num_gpus", "ray_address", "workers")),
        *(f"tracking.{name}" for name in ("project", "uri", "mode", "metrics_port")),
    }


def test_told_settings_are_plain_values_and_null_is_left_out() -> None:
    told = tracked_settings(
        compose_settings(["metrics.loss=[0,5]", "privacy.insecure_seed=424243444546"])
    )
    assert told["metrics.loss"] == "[0.0, 5.0]"
    assert "metrics.accuracy" not in told and "privacy.insecure_seed" not in told


# The page for Prometheus.


def test_a_real_training_is_scraped_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen: list[str] = []
    ended = MetricsPage.ended

    def scraped_first(page: MetricsPage, *how: Any) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            seen.append(answer.read().decode())
        ended(page, *how)

    monkeypatch.setattr(MetricsPage, "ended", scraped_first)
    train_small(tmp_path, f"tracking.metrics_port={port}")
    (text,) = seen
    assert 'fl_dp_promise_epsilon{run="run"} 4.0' in text
    assert not any(secret in text for secret in SECRETS)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=120)


def test_a_port_that_is_taken_ends_a_run_before_it_has_a_ledger(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match="choose another port"):
            train_small(tmp_path, f"tracking.metrics_port={port}")
    assert not RunFolder(tmp_path / "run").ledger.exists()


# Nothing of a run depends on them.


class Failing:
    """A tracker that fails from its first round on."""

    def started(self, run: RunStart) -> None: ...

    def released(self, server_round: int, values: Any) -> None:
        raise SystemExit("a tracker wants to end the process")

    def ended(self, state: str, final: Any) -> None:
        raise AssertionError("it was left out before")


def test_a_tracker_that_fails_changes_no_model_and_no_charge(tmp_path: Path) -> None:
    plain = train_small(tmp_path, name="plain")
    failing = train_small(tmp_path, trackers=(Failing(),), name="failing")
    assert failing.read_metrics() == plain.read_metrics()
    assert failing.model.read_bytes() == plain.model.read_bytes()
    with SpentLedger.read(plain.ledger) as one, SpentLedger.read(failing.ledger) as other:
        assert other.epsilon() == one.epsilon()
    assert failing.log.read_text().count("Failing failed (released: SystemExit") == 1


def test_a_missing_package_ends_in_one_line_before_there_is_even_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mlflow"
    monkeypatch.setattr("fl_dp.app.tracking.tracker.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'fl-dp\[{name}\]'"):
        train_small(tmp_path, f"tracking={name}")
    result = call("run", f"tracking={name}", f"output_dir={tmp_path}")
    assert result.exit_code == 2
    assert said_on_stderr(result) == (
        f"error: tracking={name} needs the package {name}: pip install 'fl-dp[{name}]'"
    )
    assert list(tmp_path.iterdir()) == []


# A run that goes on.


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_resumed_run_goes_on_in_the_same_tracker_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_or_die(checkpoint: Checkpoint, path: Path) -> None:
        save_checkpoint(checkpoint, path)
        if checkpoint.server_round == 2:
            raise RuntimeError("the power failed")

    with monkeypatch.context() as patch:
        patch.setattr("fl_dp.app.server.save_checkpoint", save_or_die)
        with pytest.raises(RuntimeError, match="the power failed"):
            train_small(tmp_path, f"tracking={name}")
    folder, recorder = RunFolder(tmp_path / "run"), _Recorder()
    grid = LocalGrid(answer_with_app(client_app, 12), 12)
    train(grid, compose_settings([f"resume={folder.path}"]), run_id="2", trackers=[recorder])
    assert [at for at, _ in recorder.starts[0].before] == [0, 1, 2]
    assert recorder.starts[0].identity == folder.identity.read_text()
    if name == "tensorboard":
        assert sorted(tensorboard_files(folder.path / name).rounds) == [0, 1, 2, 3]
        return
    until(lambda: _wandb_has_ended(folder.path))
    first, second = wandb_runs(folder.path)
    assert (first.facts["state"], second.facts["state"]) == ('"failed"', '"finished"')
    assert first.facts["id"] == second.facts["id"] == recorder.starts[0].identity
    assert (sorted(first.rounds), sorted(second.rounds)) == ([0, 1, 2], [0, 1, 2, 3])


def test_mlflow_goes_on_in_the_run_of_the_same_identity(sweep: Path) -> None:
    known = mlflow_run(sweep / "mlflow").facts["fl_dp.run"]
    tracker = MLflowTracker(None, experiment="fl-dp", folder=sweep / "mlflow")
    tracker.started(RunStart(name="again", identity=known, before=((3, {}),)))
    tracker.released(4, {"epsilon": 4.0})
    tracker.ended("stopped", {})
    found = mlflow_run(sweep / "mlflow")  # still the one
    assert sorted(found.rounds) == [0, 1, 2, 3, 4]
    assert found.facts["status"] == "KILLED"


def test_tensorboard_drops_rounds_that_are_done_again(tmp_path: Path) -> None:
    for last, before in ((3, ()), (4, ((0, {}), (1, {})))):
        tracker = TensorBoardTracker(tmp_path / "events")
        tracker.started(RunStart(name="run", before=before))
        for at in range(len(before), last + 1):
            tracker.released(at, {"epsilon": float(last)})
        tracker.ended("finished", {})
    found = tensorboard_files(tmp_path / "events").rounds
    assert {at: values["epsilon"] for at, values in found.items()} == {0: 3, 1: 3, 2: 4, 3: 4, 4: 4}


class _Recorder:
    def __init__(self) -> None:
        self.starts: list[RunStart] = []

    def started(self, run: RunStart) -> None:
        self.starts.append(run)

    def released(self, server_round: int, values: Any) -> None: ...

    def ended(self, state: str, final: Any) -> None: ...


# Settings.


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("tracking.mode=online", "is a key of tracking=mlflow or wandb, which is not chosen"),
        ("tracking=mlflow tracking.mode=online", "the address of MLflow as tracking.uri"),
        ("tracking=mlflow tracking.uri=mlruns", "must be like https://mlflow.example.org"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_to_write(
    overrides: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_settings(overrides.split())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_address_with_a_password_is_refused_and_the_password_not_repeated() -> None:
    uri = '"https://me:hunter2@mlflow.example.org"'
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as refused:
        compose_settings(["tracking=mlflow", f"tracking.uri={uri}", "tracking.mode=online"])
    assert "hunter2" not in str(refused.value)
