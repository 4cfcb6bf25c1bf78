"""The whole app on a grid in this process: every setting that changes the path of a round."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from app_trainings import grid_of
from flwr.app import Message
from local_grid import INTRODUCTION, LocalGrid, introducing

from fl_dp.app.checkpoints import load_checkpoint
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import Settings
from fl_dp.app.workload import data_of_unit, metrics_of
from fl_dp.ledger import LedgerCorrupted, PrivacyLedger

SMALL = ["task.num_clients=12", "rounds=3", "client.epochs=1", "privacy.epsilon=4"]


def settings_for(folder: Path, *overrides: str) -> Settings:
    return compose_settings([*SMALL, f"output_dir={folder}", "run_name=run", *overrides])


def run(folder: Path, *overrides: str) -> tuple[RunFolder, dict[str, Any]]:
    settings = settings_for(folder, *overrides)
    train(grid_of(settings), settings, run_id="1")
    done = RunFolder(folder / "run")
    return done, done.read_statement()


@pytest.mark.parametrize(
    "overrides",
    [
        # At a given noise: the search for it takes twenty seconds, and has its own tests.
        ["selection=truncated_poisson", "privacy.noise_multiplier=2"],
        ["selection=public", "selection.participation_cap=2"],
        ["selection=exponential", "selection.participation_cap=2"],
        ["selection=exponential", "selection.utility=update_norm"],
        ["selection=exponential", "selection.utility=records", "selection.utility_high=200"],
        [
            "selection=exponential",
            "privacy.unit=record",
            "privacy.neighboring_relation=replace-one",
            "selection.records_per_client=50",
        ],
        ["selection.coins_at_nodes=true"],
        ["selection.coins_at_nodes=true", "simulation.units_per_node=5"],
        ["simulation.units_per_node=5", "clipping=adaptive", "metrics.loss=[0,3]"],
        ["selection=exponential", "simulation.units_per_node=5"],
        ["clipping=per_layer", "clipping.norms=[0.3,0.1]"],
        ["weight_cap=200", "total_weight=8"],
        ["selection.sampling_rate=1", "selection.participation_cap=2"],
        ["compression.up=quantize", "compression.bits=4", "compression.down=bfloat16"],
        ["compression.up=top_k", "compression.fraction=0.2", "clipping=adaptive"],
        ["compression.up=float16", "metrics.loss=[0,3]", "metrics.accuracy=[0,1]"],
    ],
    ids=" ".join,
)
def test_every_way_to_run_a_round_trains_within_its_budget(
    tmp_path: Path, overrides: list[str]
) -> None:
    done, statement = run(tmp_path, *overrides)
    lines = done.read_metrics()
    capped = any("participation_cap=2" in one for one in overrides) and "public" not in str(
        overrides
    )
    assert statement["epsilon"][statement["quoted"]] <= 4.0
    assert statement["rounds_committed"] == len(lines) - 1
    assert statement["rounds_committed"] == 3 or capped
    assert lines[-1]["test_loss"] != lines[0]["test_loss"]
    with PrivacyLedger.read(done.ledger) as ledger:
        assert all(count <= 2 for count in ledger.participations.values()) or not capped


@pytest.mark.parametrize("scheme", ["gaussian", "laplace", "exponential"])
def test_noise_at_the_clients_is_stated_as_such(tmp_path: Path, scheme: str) -> None:
    _, statement = run(
        tmp_path,
        "privacy=local",
        f"privacy.scheme={scheme}",
        "privacy.epsilon=4",
        "selection=public",
        "selection.participation_cap=2",
    )
    assert scheme in statement["mechanism"]
    assert "server itself" in statement["adversary"]
    assert statement["epsilon"][statement["quoted"]] <= 4.0


@pytest.mark.parametrize(("scheme", "up"), [("gaussian", "quantize"), ("exponential", "top_k")])
def test_an_encoding_after_the_clients_noise_changes_no_promise(
    tmp_path: Path, scheme: str, up: str
) -> None:
    local = (
        "privacy=local",
        f"privacy.scheme={scheme}",
        "selection=public",
        "selection.participation_cap=2",
    )
    statements = []
    for name, overrides in (("plain", ()), ("encoded", (f"compression.up={up}",))):
        (tmp_path / name).mkdir()
        statements.append(run(tmp_path / name, *local, *overrides)[1])
    plain, encoded = ({key: each[key] for key in ("epsilon", "mechanism")} for each in statements)
    assert plain == encoded


def test_the_bytes_of_a_message_stand_beside_each_round(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "compression.up=quantize", "compression.bits=1")
    first, *rounds = done.read_metrics()
    assert "bytes_up" not in first
    parameters = 64 * 10 + 10
    for line in rounds:
        assert line["bytes_down"] == 4 * parameters + 2 * 128  # two arrays with their headers
        assert "clients" not in line
        assert line["bytes_up"] == math.ceil(parameters / 8) + 16 + 2 * 128  # codes and scales


def test_a_run_without_privacy_promises_nothing_and_learns(tmp_path: Path) -> None:
    folder = [f"output_dir={tmp_path}", "run_name=run", "task.num_clients=12", "rounds=6"]
    settings = compose_settings(["privacy=none", "client.epochs=3", *folder])
    train(grid_of(settings), settings, run_id="1")
    done = RunFolder(tmp_path / "run")
    statement = done.read_statement()
    assert (statement["quoted"], statement["epsilon"]) == ("none", {})
    assert "Nothing is promised" in done.statement_page.read_text()
    assert not done.ledger.exists()
    assert done.read_metrics()[-1]["test_accuracy"] > 0.6
    assert "epsilon" not in done.read_metrics()[-1]


def test_released_metrics_stand_in_the_folder_and_no_others(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "metrics.loss=[0,3]", "clipping=adaptive")
    first, *rounds = done.read_metrics()
    assert "clients" not in first
    for line in rounds:
        assert set(line["clients"]) == {"loss"}
        assert 0.0 <= line["clients"]["loss"] <= 3.0
        assert line["next_clipping_norm"] > 0.0


def test_public_metrics_stand_in_the_folder_under_their_names(tmp_path: Path) -> None:
    asked = "metrics.public=[auc,f1,confusion_matrix]"
    done, _ = run(tmp_path, "rounds=2", asked, "task.name=breast_cancer")
    for line in done.read_metrics():
        assert 0.0 <= line["test_f1"] <= 1.0 and 0.0 <= line["test_auc"] <= 1.0
        ((a, b), (c, d)) = line["test_confusion_matrix"]
        assert line["test_accuracy"] == (a + d) / (a + b + c + d)
        assert line["test_classes"] == ["malignant", "benign"]
        assert "test_balanced_accuracy" not in line


def test_without_a_word_what_people_report_is_measured(tmp_path: Path) -> None:
    names = metrics_of(settings_for(tmp_path, "task.name=breast_cancer"))
    assert {"auc", "balanced_accuracy"} <= set(names)
    assert not {"f1", "perplexity"} & set(names)


@pytest.mark.parametrize(
    ("task", "names"),
    [("digits", ["accuracy", "count"]), ("breast_cancer", ["auc", "accuracy"])],
)
def test_the_last_model_is_measured_on_rows_that_clients_hold_out_within_the_budget(
    tmp_path: Path, task: str, names: list[str]
) -> None:
    asked = ["metrics.private_epsilon=1.5", f"task.name={task}", "task.num_clients=40"]
    done, statement = run(tmp_path, *asked, "privacy.epsilon=4")
    answer = json.loads(done.private_metrics.read_text())
    assert list(answer["estimates"])[:2] == names
    assert 0.0 <= answer["estimates"]["accuracy"]["value"] <= 1.0
    (event,) = answer["events"]
    counts = {each["event"]: each["count"] for each in statement["releases"]}
    assert counts[event["event"]] == 1 and len(counts) == 2
    assert statement["epsilon"][statement["quoted"]] <= 4.0
    # What the answer costs is missing to the training.
    whole = make_plan(settings_for(tmp_path, *asked[1:]))
    assert done.read_plan().noise_multiplier > whole.noise_multiplier


def test_a_resumed_run_is_measured_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done, before = run(tmp_path, "metrics.private_epsilon=1.5", "task.num_clients=40")
    answer = done.private_metrics.read_text()
    resumed = compose_settings([f"resume={done.path}"])
    train(grid_of(done.read_settings()), resumed, run_id="2")
    assert done.private_metrics.read_text() == answer
    assert done.read_statement()["epsilon"] == before["epsilon"]
    done.private_metrics.unlink()  # as if the process had ended between the charge and the answer
    train(grid_of(done.read_settings()), resumed, run_id="3")
    assert not done.private_metrics.exists()
    assert "was not measured on clients' rows" in caplog.text
    assert done.read_statement()["epsilon"] == before["epsilon"]


def test_a_client_trains_on_no_row_that_it_is_measured_on() -> None:
    settings = settings_for(Path("/none"), "metrics.private_epsilon=0.5")
    trained, held_out = (
        data_of_unit(settings, 3, {}, held_out=held_out) for held_out in (False, True)
    )
    assert trained is not None and held_out is not None
    everything = data_of_unit(settings_for(Path("/none")), 3, {})
    assert everything is not None
    assert not set(trained[1]) & set(held_out[1])
    assert {*trained[1], *held_out[1]} == set(everything[1])
    assert len(held_out[1]) == len(everything[1]) // 5


class Crash(Exception):
    """Stands for the end of the ServerApp's process."""


def crashing(grid: LocalGrid, *, after: int) -> LocalGrid:
    """End the process in the middle of a round, when that many messages have been answered."""
    answer, seen = grid.answer, [0]

    def answer_or_crash(message: Message, partition: int) -> Message | None:
        seen[0] += message.metadata.message_type != INTRODUCTION
        if seen[0] > after:
            raise Crash
        return answer(message, partition)

    grid.answer = introducing(answer_or_crash)
    return grid


@pytest.mark.parametrize(("optimizer", "after"), [("fedadam", 0), ("fedavgm", 15), ("fedadam", 25)])
def test_a_crashed_run_goes_on_with_its_ledger_and_pays_for_the_lost_round(
    tmp_path: Path, optimizer: str, after: int
) -> None:
    settings = settings_for(
        tmp_path,
        "rounds=4",
        "selection.sampling_rate=0.9",
        f"server_optimizer={optimizer}",
        "clipping=adaptive",
    )
    with pytest.raises(Crash):
        train(crashing(grid_of(settings), after=after), settings, run_id="1")
    folder = RunFolder(tmp_path / "run")
    assert folder.statement.exists()
    before = load_checkpoint(folder.checkpoint)
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (
            before.server_round + 1,
            before.server_round,
        )
    resumed = compose_settings([f"resume={folder.path}"])
    train(grid_of(settings), resumed, run_id="2")
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_spent == 4
        assert ledger.rounds_committed == 3
        assert ledger.epsilon().best <= 4.0
    rounds = [line["round"] for line in folder.read_metrics()]
    assert rounds == [0, 1, 2, 3]
    assert folder.read_statement()["rounds_committed"] == 3


def test_a_finished_run_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    folder, before = run(tmp_path)
    settings = settings_for(tmp_path)
    train(grid_of(settings), compose_settings([f"resume={folder.path}"]), run_id="2")
    after = folder.read_statement()
    assert (after["rounds"], after["epsilon"]) == (before["rounds"], before["epsilon"])
    assert len(folder.read_metrics()) == 4
    # Whoever starts nodes without saying what they host has one client on each.
    assert settings.simulation.units_per_node == "auto"
    assert folder.read_settings().simulation.units_per_node == 1
    assert folder.read_plan().hosting.max_units == 1


def test_what_was_released_without_its_ledger_can_not_go_on(tmp_path: Path) -> None:
    folder, _ = run(tmp_path)
    older = tmp_path / "older.db"
    with PrivacyLedger.open(older, folder.read_plan()) as ledger:
        ledger.commit(ledger.reserve(round=1))
    settings = settings_for(tmp_path)
    folder.ledger.unlink()
    resumed = compose_settings([f"resume={folder.path}"])
    with pytest.raises(ValueError, match="a checkpoint and no ledger"):
        train(grid_of(settings), resumed, run_id="2")
    older.rename(folder.ledger)
    with pytest.raises(LedgerCorrupted, match=r"4 entries and .* knows of 8"):
        train(grid_of(settings), resumed, run_id="3")


def test_clients_learn_neither_the_operators_folders_nor_a_seed(tmp_path: Path) -> None:
    witnessed = f"privacy.witness_dir={tmp_path}"
    settings = settings_for(tmp_path, "privacy.insecure_seed=12345678", witnessed)
    grid = grid_of(settings)
    train(grid, settings, run_id="1")
    sent = str([dict(record) for m in grid.sent for record in m.content.config_records.values()])
    assert "fl-dp-settings" in sent
    assert str(tmp_path) not in sent
    assert "12345678" not in sent


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (
            "selection.utility=update_norm",
            "utility=update_norm by any amount",
        ),
        ("selection.utility_high=0.5", "write utility_high=1, got 0.5"),
    ],
)
def test_what_a_record_moves_too_far_is_no_utility_of_records(
    tmp_path: Path, override: str, why: str
) -> None:
    records = [
        "selection=exponential",
        "privacy.unit=record",
        "selection.records_per_client=5",
        "privacy.neighboring_relation=replace-one",
        "selection.utility=accuracy",
    ]
    with pytest.raises(ValueError, match=why):
        run(tmp_path, *records, override)


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    settings = compose_settings([f"resume={tmp_path}/nothing"])
    with pytest.raises(FileNotFoundError, match=r"no run in .*nothing"):
        train(grid_of(settings), settings, run_id="1")


def test_the_checkpoint_holds_no_randomness(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, "privacy.insecure_seed=12345678")
    stored = folder.checkpoint.read_bytes()
    assert b"12345678" not in stored
    assert b"seed" not in stored
    assert json.loads(folder.statement.read_text())["insecure"] is True


def test_a_run_whose_ledger_was_put_back_does_not_go_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    done, _ = run(tmp_path, f"privacy.witness_dir={disk}")
    witness = done.witness(done.read_settings())
    assert witness is not None
    with PrivacyLedger.read(done.ledger) as ledger:
        assert witness.anchors()[-1] == ledger.anchor
    with closing(sqlite3.connect(done.ledger)) as connection:
        connection.execute("DELETE FROM entries WHERE sequence > 3")
        connection.commit()
    # Everything else that knows is put back with it.
    done.statement.unlink()
    done.checkpoint.unlink()
    settings = compose_settings([f"resume={done.path}"])
    with pytest.raises(LedgerCorrupted, match=r"its witness .*run\.heads knows of"):
        train(grid_of(done.read_settings()), settings, run_id="2")
