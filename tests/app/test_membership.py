"""The membership game on the app itself: it finds members where nothing protects them.

Each training is a real one over a grid in this process: strategy, ledger, mechanism and client.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from flwr.app import ArrayRecord
from typer.testing import CliRunner

from fl_dp.accounting import NeighboringRelation, epsilon
from fl_dp.app.compose import compose_settings
from fl_dp.app.membership import Played, _trained, play, promise_to
from fl_dp.app.settings import Settings
from fl_dp.app.workload import dataset_of, initial_arrays_of, parts_of
from fl_dp.attacks.membership import ATTACKS, attacked
from fl_dp.commands.app import app

FALSE_ALARM = 1e-6
TINY = ("task.num_clients=4", "rounds=1", "client.epochs=1", "selection.sampling_rate=1")


def settings_of(*overrides: str) -> Settings:
    return compose_settings([*TINY, *overrides])


def model_of_members(
    settings: Settings, folder: Path, members: np.ndarray, unit: str
) -> ArrayRecord:
    return _trained(settings, members, unit, folder)


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([each.numpy().ravel() for each in arrays.values()])


@pytest.mark.parametrize(
    ("unit", "overrides"),
    [
        ("record", ["privacy=none"]),
        ("client", ["privacy=none"]),
        ("client", ["privacy=none", "simulation.units_per_node=1"]),
    ],
)
def test_a_training_without_members_leaves_the_model_as_it_was(
    tmp_path: Path, unit: str, overrides: list[str]
) -> None:
    settings = settings_of(*overrides)
    nobody = np.zeros(len(dataset_of(settings).train_y), dtype=bool)
    trained = model_of_members(settings, tmp_path / "0", nobody, unit)
    assert np.array_equal(flat(trained), flat(initial_arrays_of(settings)))


def test_a_client_that_is_out_moves_a_private_model_by_exactly_nothing(tmp_path: Path) -> None:
    # With the noise of a seed two trainings differ by what their members add, and by nothing else.
    settings = settings_of(
        *("privacy.epsilon=null", "privacy.noise_multiplier=1", "privacy.insecure_seed=7"),
        *("privacy.contribution_check=false", "simulation.units_per_node=4"),
    )
    nobody = np.zeros(len(dataset_of(settings).train_y), dtype=bool)
    one = nobody.copy()
    one[parts_of(settings)[2]] = True
    without = flat(model_of_members(settings, tmp_path / "0", nobody, "client"))
    again = flat(model_of_members(settings, tmp_path / "1", nobody, "client"))
    with_one = flat(model_of_members(settings, tmp_path / "2", one, "client"))
    assert np.array_equal(without, again)
    step = settings.server_optimizer.learning_rate * settings.clipping.norm / 4  # of a mean of 4
    assert np.linalg.norm(with_one - without) == pytest.approx(step, rel=1e-3)


def test_noise_is_drawn_anew_for_every_training(tmp_path: Path) -> None:
    settings = settings_of("privacy=dp_sgd", "task.num_clients=2")
    everybody = np.ones(len(dataset_of(settings).train_y), dtype=bool)
    one, two = (
        flat(model_of_members(settings, tmp_path / name, everybody, "record")) for name in "ab"
    )
    assert not np.isclose(one, two).any()


def test_a_record_that_is_out_of_dp_sgd_has_no_gradient(tmp_path: Path) -> None:
    # Nearly no noise: without any record the model stays where it was.
    settings = settings_of("privacy=dp_sgd", "dp_sgd.epsilon=null", "dp_sgd.noise_multiplier=1e-4")
    nobody = np.zeros(len(dataset_of(settings).train_y), dtype=bool)
    trained = flat(model_of_members(settings, tmp_path / "0", nobody, "record"))
    moved = np.linalg.norm(trained - flat(initial_arrays_of(settings)))
    assert moved < 1e-2
    some = nobody.copy()
    some[::2] = True
    trained = flat(model_of_members(settings, tmp_path / "1", some, "record"))
    assert np.linalg.norm(trained - flat(initial_arrays_of(settings))) > 10.0 * moved


@pytest.mark.parametrize(
    ("unit", "overrides", "message"),
    [
        ("clients", [], "membership is that of a record or a client, got 'clients'"),
        ("client", ["privacy=local"], "models of privacy=local are not trained in one process"),
        ("client", ["privacy=distributed"], "models of privacy=distributed are not trained in one"),
        ("client", ["privacy.insecure_seed=1"], "every training would draw the same noise"),
        ("client", ["schedule=plateau"], "there is no curve to compare with"),
        (
            "client",
            ["privacy.unit=record", "privacy.neighboring_relation=replace-one"],
            "nothing is promised to clients: attack records",
        ),
        (
            "record",
            ["task=csv", "task.partition=nodes", "simulation.units_per_node=1"],
            "only a simulation can be attacked",
        ),
    ],
)
def test_what_can_not_be_attacked_is_refused(unit: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        promise_to(settings_of(*overrides), unit)


def test_two_models_are_too_few() -> None:
    with pytest.raises(ValueError, match="3 models are too few: train at least 4"):
        play(settings_of("privacy=none"), "client", models=3)


def test_the_promise_to_a_client_is_that_of_the_plan() -> None:
    promise = promise_to(settings_of("privacy.epsilon=3", "privacy.delta=1e-5"), "client")
    assert promise is not None
    assert promise.epsilon == pytest.approx(3.0, rel=2e-3)
    assert promise.full_curve()(0.01) <= promise.curve()(0.01)


def test_a_record_of_a_protected_client_has_the_promise_of_clients_that_are_replaced() -> None:
    settings = settings_of("privacy.epsilon=3", "privacy.delta=1e-5")
    client, record = (promise_to(settings, unit) for unit in ("client", "record"))
    assert client is not None and record is not None
    assert record.neighboring_relation is NeighboringRelation.REPLACE_ONE
    assert record.epsilon > client.epsilon
    spent = epsilon(record.history, 1e-5, neighboring_relation=NeighboringRelation.REPLACE_ONE).best
    assert record.epsilon == spent


def test_without_privacy_nothing_is_promised() -> None:
    assert promise_to(settings_of("privacy=none"), "client") is None
    assert promise_to(settings_of("privacy=dp_sgd"), "client") is None


OVERFITTED = (
    *("privacy=none", "selection.sampling_rate=1", "server_optimizer=fedavg"),
    *("model=mlp", "model.hidden=64", "simulation.units_per_node=1"),
)


def found_at(played: Played, rate: float) -> dict[str, float]:
    return {name: attacked(played.seen, attack).at(rate).tpr for name, attack in ATTACKS.items()}


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["attack", "membership", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
