"""A label that is a number: trained, measured and told in its own unit, within the same promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_trainings import grid_of, real_nodes
from flwr.app import Context, RecordDict
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from local_grid import FIRST_NODE, LocalGrid
from owned_clock import answer_at_once
from safetensors.numpy import load_file
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from worked_here import work_here

from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import SETTINGS_KEY, Settings
from fl_dp.app.task_client import TaskClient
from fl_dp.app.workload import dataset_of, initial_arrays_of
from fl_dp.protocol.message_keys import STATISTIC_QUERY_KEY
from fl_dp.tasks.datasets.schema_file import read_schema

CLIENTS, LOW, HIGH = 20, 100.0, 300.0


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Return a folder of tables whose label is a line in two columns, and some noise."""
    generator = np.random.Generator(np.random.PCG64(3))
    folder = tmp_path / "tables"
    folder.mkdir()
    for split, count in (("train", 600), ("test", 100)):
        x = generator.normal(size=(count, 2))
        price = 200 + 30 * x[:, 0] - 20 * x[:, 1] + generator.normal(scale=5, size=count)
        rows = [f"{a:.4f},{b:.4f},{c:.3f}" for (a, b), c in zip(x, price, strict=True)]
        (folder / f"{split}.csv").write_text("\n".join(["a,b,price", *rows]) + "\n")
    return folder


def settings_for(tmp_path: Path, tables: Path, *overrides: str) -> Settings:
    return compose_settings(
        [
            "task=csv",
            f"task.data_dir={tables}",
            "task.label_column=price",
            f"task.label_range=[{LOW:g},{HIGH:g}]",
            f"task.num_clients={CLIENTS}",
            "client.learning_rate=0.1",
            "rounds=6",
            f"output_dir={tmp_path}",
            "run_name=run",
            *overrides,
        ]
    )


def run(settings: Settings, tmp_path: Path) -> RunFolder:
    train(grid_of(settings), settings, run_id="1")
    return RunFolder(tmp_path / "run")


LITTLE_NOISE = (
    "privacy.noise_multiplier=0.05",
    "privacy.epsilon=null",
    "privacy.insecure_seed=1",
    "selection.sampling_rate=1",
    "clipping.norm=3",
)


@pytest.mark.parametrize(
    "overrides",
    [
        LITTLE_NOISE,
        (*LITTLE_NOISE, "simulation.units_per_node=10"),
        ("privacy=none",),
    ],
    ids=" ".join,
)
def test_a_number_is_learned_and_measured_as_scikit_learn_does(
    tmp_path: Path, tables: Path, overrides: tuple[str, ...]
) -> None:
    done = run(settings_for(tmp_path, tables, *overrides), tmp_path)
    first, last = done.read_metrics()[0], done.read_metrics()[-1]
    assert first["test_r2"] < 0.25 < 0.4 < last["test_r2"]
    assert "test_accuracy" not in last
    arrays = load_file(done.model)
    if set(arrays) != {"1.weight", "1.bias"}:
        return
    features, price = np.split(
        np.loadtxt(tables / "test.csv", delimiter=",", skiprows=1), [2], axis=1
    )
    output = features @ arrays["1.weight"].T + arrays["1.bias"]
    predicted = LOW + (HIGH - LOW) * (output + 1) / 2
    price = price.clip(LOW, HIGH)
    assert last["test_r2"] == pytest.approx(r2_score(price, predicted), abs=1e-5)
    assert last["test_mae"] == pytest.approx(mean_absolute_error(price, predicted), rel=1e-5)
    assert last["test_rmse"] == pytest.approx(root_mean_squared_error(price, predicted), rel=1e-5)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalGrid:
    """Return five real nodes of this process, each with a ledger of its own."""
    work_here(monkeypatch)
    answer_at_once(monkeypatch)
    return real_nodes(tmp_path, 5)


@pytest.mark.parametrize(
    "overrides",
    [
        (
            *("privacy=dp_sgd", "dp_sgd.epsilon=8", "dp_sgd.steps=12"),
            *("selection.sampling_rate=1", "rounds=3", "client.learning_rate=0.3"),
        ),
        (
            "privacy=distributed_records",
            "privacy.epsilon=8",
            "privacy.secure_sum.reply_after=600",
            "clipping.norm=1",
            "client.learning_rate=0.3",
        ),
    ],
    ids=lambda overrides: str(overrides[0]),
)
def test_records_are_protected_while_a_number_is_learned(
    tmp_path: Path,
    tables: Path,
    nodes: LocalGrid,
    overrides: tuple[str, ...],
) -> None:
    settings = settings_for(tmp_path, tables, *overrides, "task.num_clients=5")
    train(nodes, settings, run_id="1")
    done = RunFolder(tmp_path / "run")
    lines = done.read_metrics()
    plan = done.read_record_plan()
    if plan is not None:  # each node takes part in each round
        spent = [min(8.0, plan.epsilon(number).best) for number in range(1, 4)]
        assert [line["epsilon"] for line in lines] == [0.0, *spent]
    # Untrained it is about 0, and the noise of epsilon 8 leaves room above this.
    assert lines[-1]["test_r2"] > 0.3 > 0.1 > lines[0]["test_r2"]


def test_a_label_outside_of_the_range_counts_as_its_end(tmp_path: Path, tables: Path) -> None:
    with (tables / "train.csv").open("a") as file:
        file.write("0,0,1e9\n0,0,-1e9\n0,0,150\n")
    dataset = dataset_of(settings_for(tmp_path, tables))
    assert dataset.train_y.dtype == np.float32
    assert dataset.train_y[-3:].tolist() == [1.0, -1.0, -0.5]
    assert dataset.form.is_of_numbers


def test_a_client_measures_in_the_label_s_unit(tmp_path: Path, tables: Path) -> None:
    settings = settings_for(tmp_path, tables, "metrics.private_epsilon=2")
    config: dict[str, Any] = {SETTINGS_KEY: settings.to_json(), STATISTIC_QUERY_KEY: "any"}
    client = TaskClient(Context(1, FIRST_NODE, {"partition-id": 0}, RecordDict(), {}))
    arrays = initial_arrays_of(settings).to_numpy_ndarrays()
    _, _, measured = client.evaluate(arrays, config)
    assert 5.0 < float(measured["mae"]) < (HIGH - LOW) / 2


def test_the_last_model_is_measured_privately_in_the_label_s_unit(
    tmp_path: Path, tables: Path
) -> None:
    asked = ("metrics.private_epsilon=2", "privacy.epsilon=6", "client.learning_rate=0.05")
    done = run(settings_for(tmp_path, tables, *asked), tmp_path)
    mae = json.loads(done.private_metrics.read_text())["estimates"]["mae"]
    assert 0.0 <= mae["value"] <= HIGH - LOW
    statement = done.read_statement()
    assert statement["epsilon"][statement["quoted"]] <= 6.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.classes=[a,b]", r"leave out task\.classes"),
        ("metrics.accuracy=[0,1]", r"task\.label_range\) has no accuracy: write metrics\.loss"),
        ("metrics.public=[auc]", "has auc, and the labels are numbers: write of r2, mae, rmse"),
    ],
)
def test_what_is_of_classes_is_refused_in_a_line(
    tmp_path: Path, tables: Path, override: str, message: str
) -> None:
    from fl_dp.app.workload import check_model

    with pytest.raises(ValueError, match=message) as refused:
        settings = settings_for(tmp_path, tables, override)
        check_model(settings)
        make_plan(settings)
    assert "\n" not in str(refused.value)


def test_metrics_of_numbers_are_refused_for_classes() -> None:
    from fl_dp.app.workload import check_model

    with pytest.raises(ValueError, match="has mae, and the labels are classes: write of balanced"):
        check_model(compose_settings(["metrics.public=[mae]"]))


def test_an_owner_s_schema_may_say_the_range(tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("columns: [a, b]\nlabel_column: price\nlabel_range: [100, 300]\n")
    assert read_schema(schema).label_range == (100.0, 300.0)
    schema.write_text("columns: [a, b]\nlabel_range: [300, 100]\n")
    with pytest.raises(ValueError, match=r"schema\.yaml: label_range must be two finite numbers"):
        read_schema(schema)
