"""The membership game on the app itself: it finds members where nothing protects them.

Each training is a real one over a grid in this process: strategy, ledger, mechanism and client.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from flwr.app import ArrayRecord
from typer.testing import CliRunner

from fl_dp.accounting import NeighboringRelation, epsilon
from fl_dp.app.compose import compose_settings
from fl_dp.app.settings import Settings
from fl_dp.app.workload import dataset_of, initial_arrays_of, training_rows
from fl_dp.commands.app import app
from fl_dp.lab.attacks.membership.observations import Observations
from fl_dp.lab.games.membership import GameResult, play_membership, promise_to, train_with

TINY = ("task.num_clients=4", "rounds=1", "client.epochs=1", "selection.sampling_rate=1")


Members: TypeAlias = np.ndarray  # of the training rows, bool


def settings_of(*overrides: str) -> Settings:
    return compose_settings([*TINY, *overrides])


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([each.numpy().ravel() for each in arrays.values()])


def nobody(settings: Settings) -> Members:
    return np.zeros(len(dataset_of(settings).train_y), dtype=bool)


def moved(settings: Settings, members: Members, unit: str, folder: Path) -> np.ndarray:
    """Return how far a training with these members moves the model."""
    trained = train_with(settings, members, unit, folder)
    apart: np.ndarray = flat(trained) - flat(initial_arrays_of(settings))
    return apart


@pytest.mark.parametrize(
    ("unit", "overrides"),
    [
        ("record", ["privacy=none"]),
        ("client", ["privacy=none"]),
        ("client", ["privacy=none", "simulation.units_per_node=1"]),
        # Noise for records would make who is out more than zero.
        ("client", ["privacy=dp_sgd", "dp_sgd.epsilon=null", "dp_sgd.noise_multiplier=1"]),
    ],
)
def test_a_training_without_members_leaves_the_model_as_it_was(
    tmp_path: Path, unit: str, overrides: list[str]
) -> None:
    settings = settings_of(*overrides)
    assert not moved(settings, nobody(settings), unit, tmp_path / "0").any()


def test_a_client_that_is_out_moves_a_private_model_by_exactly_nothing(tmp_path: Path) -> None:
    # With the noise of a seed two trainings differ by what their members add, and by nothing else.
    settings = settings_of(
        "privacy.epsilon=null",
        "privacy.noise_multiplier=1",
        "privacy.insecure_seed=7",
        "simulation.units_per_node=4",
    )
    one = nobody(settings)
    one[training_rows(settings)[2]] = True
    without, again, with_one = (
        moved(settings, members, "client", tmp_path / str(number))
        for number, members in enumerate((nobody(settings), nobody(settings), one))
    )
    assert np.array_equal(without, again)
    step = settings.server_optimizer.learning_rate * settings.clipping.norm / 4  # of a mean of 4
    assert np.linalg.norm(with_one - without) == pytest.approx(step, rel=1e-3)


def test_noise_is_drawn_anew_for_every_training(tmp_path: Path) -> None:
    settings = settings_of("privacy=dp_sgd", "task.num_clients=2")
    one, two = (moved(settings, ~nobody(settings), "record", tmp_path / name) for name in "ab")
    assert not np.isclose(one, two).any()


def test_a_record_that_is_out_of_dp_sgd_has_no_gradient(tmp_path: Path) -> None:
    # Nearly no noise: without any record the model stays where it was.
    settings = settings_of("privacy=dp_sgd", "dp_sgd.epsilon=null", "dp_sgd.noise_multiplier=1e-4")
    some = nobody(settings)
    some[::2] = True
    by_none, by_some = (
        np.linalg.norm(moved(settings, members, "record", tmp_path / name))
        for name, members in (("0", nobody(settings)), ("1", some))
    )
    assert by_none < 1e-2
    assert by_some > 10.0 * by_none


@pytest.mark.parametrize(
    ("unit", "overrides"),
    [
        ("clients", []),
        ("client", ["privacy=local"]),
        ("client", ["privacy=distributed"]),
        ("client", ["privacy.insecure_seed=1"]),
        ("client", ["privacy.unit=record", "privacy.neighboring_relation=replace-one"]),
        ("record", ["task=csv", "task.partition=nodes", "simulation.units_per_node=1"]),
    ],
)
def test_what_can_not_be_attacked_is_refused(unit: str, overrides: list[str]) -> None:
    settings = settings_of(*overrides)
    with pytest.raises(ValueError):
        promise_to(settings, unit)


def test_the_promise_to_a_client_is_that_of_the_plan() -> None:
    promise = promise_to(settings_of("privacy.epsilon=3", "privacy.delta=1e-5"), "client")
    assert promise is not None
    assert promise.epsilon == pytest.approx(3.0, rel=2e-3)
    assert promise.full_curve()(0.01) <= promise.curve()(0.01)


def test_the_promise_to_a_record_of_dp_sgd_is_that_of_all_its_steps() -> None:
    promise = promise_to(settings_of("privacy=dp_sgd", "rounds=3"), "record")
    assert promise is not None
    relation = promise.neighboring_relation
    charged = epsilon(promise.history, promise.delta, neighboring_relation=relation).best
    assert charged == pytest.approx(promise.epsilon, rel=1e-2)
    assert promise_to(settings_of("privacy=dp_sgd"), "client") is None


def test_a_record_of_a_protected_client_has_the_promise_of_clients_that_are_replaced() -> None:
    settings = settings_of("privacy.epsilon=3", "privacy.delta=1e-5")
    client, record = (promise_to(settings, unit) for unit in ("client", "record"))
    assert client is not None and record is not None
    assert record.neighboring_relation is NeighboringRelation.REPLACE_ONE
    assert record.epsilon > client.epsilon
    spent = epsilon(record.history, 1e-5, neighboring_relation=NeighboringRelation.REPLACE_ONE).best
    assert record.epsilon == spent


@pytest.fixture(scope="module")
def random_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records whose labels can only be learned by heart: 100 to train on, 60 to compare with."""
    folder = tmp_path_factory.mktemp("random")
    draws = np.random.default_rng(0)
    for split, size in (("train", 100), ("test", 60)):
        rows = np.column_stack([draws.normal(size=(size, 100)), draws.integers(0, 2, size)])
        heading = ",".join([*(f"x{place}" for place in range(100)), "label"])
        formats = [*["%.4f"] * 100, "%d"]
        np.savetxt(folder / f"{split}.csv", rows, formats, ",", header=heading, comments="")
    return folder


def attack_records(folder: Path, data: Path, *more: str, status: int = 0) -> Any:
    """Attack the records of two clients that learn them by heart, and return what was printed."""
    options = (
        "--unit record --data-is-public --json task=csv task.num_clients=2 model=mlp rounds=1 "
        "client.learning_rate=0.5 client.batch_size=64 server_optimizer=fedavg "
        "selection.sampling_rate=1 run_name=found"
    )
    places = [f"task.data_dir={data}", f"output_dir={folder}"]
    arguments = ["attack", "membership", *options.split(), *places, *more]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, result.stderr
    return json.loads(result.stdout)


def rates_at(document: Any, fpr: float) -> dict[str, float]:
    return {row["attack"]: row["tpr"] for row in document["attacks"] if row["asked_fpr"] == fpr}


@pytest.mark.slow
def test_members_of_an_overfitted_model_are_found(tmp_path: Path, random_labels: Path) -> None:
    found = attack_records(
        tmp_path, random_labels, "privacy=none", "client.epochs=60", "--models", "16"
    )
    assert found["train_accuracy"] > 0.9 and found["test_accuracy"] < 0.6
    rates = rates_at(found, 0.01)
    for name in ("lira offline", "lira online"):
        assert rates[name] >= 10 * 0.01, name  # ten times chance; measured: 0.54 and 0.57
    assert rates["rmia, 1 reference"] > 3 * 0.01
    assert found["promised"] is None and not found["exceeds"]
    with (tmp_path / "found" / "membership.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["attack"], float(row["tpr"])) for row in rows] == [
        (row["attack"], row["tpr"]) for row in found["attacks"]
    ]
    assert (tmp_path / "found" / "roc.png").stat().st_size > 10_000


@pytest.mark.slow
def test_members_of_a_private_model_are_found_no_better_than_its_curve_allows(
    tmp_path: Path, random_labels: Path
) -> None:
    found = attack_records(
        tmp_path,
        random_labels,
        "privacy=dp_sgd",
        "dp_sgd.epsilon=1",
        "client.epochs=4",
        "dp_sgd.sampling_rate=0.2",
        "--models",
        "6",
    )
    assert found["promised"]["unit"] == "record"
    assert found["promised"]["epsilon"] == pytest.approx(1.0, rel=1e-2)
    # At a false-alarm rate of 1e-6 over all attacks and rates.
    assert not found["exceeds"]
    assert max(rates_at(found, 0.01).values()) < 0.1


def test_an_attack_above_the_curve_ends_with_status_1(
    tmp_path: Path, random_labels: Path, monkeypatch: pytest.MonkeyPatch, perfect: GameResult
) -> None:
    # A promise that the trainings do not keep: they are not private at all.
    promise = promise_to(settings_of("privacy.epsilon=1", "privacy.delta=1e-5"), "client")
    monkeypatch.setattr("fl_dp.lab.games.membership.promise_to", lambda settings, unit: promise)
    monkeypatch.setattr("fl_dp.lab.games.membership.play_membership", lambda *_, **__: perfect)
    found = attack_records(tmp_path, random_labels, "privacy=none", status=1)
    assert found["exceeds"]


@pytest.fixture
def perfect() -> GameResult:
    """A game in which every member shines."""
    draws = np.random.default_rng(0)
    members = draws.random((8, 200)) < 0.5
    seen = Observations(
        members=members,
        candidates=draws.normal(size=(8, 200)) + 20.0 * members,
        population=draws.normal(size=(8, 50)),
    )
    return GameResult(observations=seen, train_accuracy=[1.0], test_accuracy=[0.5])


def test_data_of_your_own_need_a_word(random_labels: Path) -> None:
    result = CliRunner().invoke(
        app, ["attack", "membership", "task=csv", f"task.data_dir={random_labels}", "privacy=none"]
    )
    assert result.exit_code == 2
    assert "add --data-is-public if everybody may see them" in result.stderr


def test_clients_that_share_records_are_refused() -> None:
    settings = settings_of("privacy=none", "task.records_per_client=1000")
    with pytest.raises(ValueError, match="clients share records"):
        play_membership(settings, "record", models=4)
