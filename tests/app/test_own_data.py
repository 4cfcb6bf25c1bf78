"""Nodes that bring their own data: a folder each, a server with none of it, one model."""

from __future__ import annotations

import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_trainings import grid_of_nodes
from command_line import call
from flwr.app import ConfigRecord, Context, Message, RecordDict
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from local_grid import FIRST_NODE, LocalGrid, answer_with_app
from numpy.typing import NDArray

from fl_dp.app import workload
from fl_dp.app.compose import compose_settings
from fl_dp.app.overrides import ConfigError
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import SETTINGS_KEY, Settings
from fl_dp.app.task_client import TaskClient, app, hosted_units
from fl_dp.app.workload import (
    check_data,
    data_of_unit,
    dataset_of,
    initial_arrays_of,
    training_rows,
)
from fl_dp.codec import encode_text
from fl_dp.commands.jobs import find_jobs
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import (
    CONTRIBUTION_METRIC,
    INSTRUCTION_KEY,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
)
from fl_dp.statistics import Count
from fl_dp.tasks.device import training_device

CLINICS = 4
ROWS = 30
PUBLIC = ["task=csv", f"task.num_clients={CLINICS}", "task.columns=[a,b]", "task.classes=[no,yes]"]


def rows_of(clinic: int | str, number: int = ROWS) -> list[str]:
    """Return lines of a table with a pattern to learn; one clinic has one class only."""
    generator = np.random.Generator(np.random.PCG64(7 if clinic == "test" else int(clinic)))
    a, b = generator.normal(size=(2, number)).round(3)
    labels = ["yes" if clinic == 1 or x > y else "no" for x, y in zip(a, b, strict=True)]
    return [f"{x},{y},{clinic},{label}" for x, y, label in zip(a, b, labels, strict=True)]


def table(folder: Path, split: str, lines: list[str]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{split}.csv").write_text("\n".join(["a,b,clinic,label", *lines]) + "\n")
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Return the server's folder: a public test table and nothing else."""
    return table(tmp_path / "server", "test", rows_of("test", 200))


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    """Return one folder a node, with training rows and nothing else."""
    return [table(tmp_path / f"clinic-{c}", "train", rows_of(c)) for c in range(CLINICS)]


def settings_for(folder: Path, server: Path, *overrides: str) -> Settings:
    return compose_settings(
        [
            *PUBLIC,
            "rounds=3",
            "client.learning_rate=0.5",
            "privacy.insecure_seed=1",
            "selection.sampling_rate=1",
            "privacy.noise_multiplier=0.01",
            "clipping.norm=5",
            "privacy.epsilon=null",
            f"task.data_dir={server}",
            f"output_dir={folder}",
            "run_name=run",
            *overrides,
        ]
    )


def on_nodes(folder: Path, server: Path, configs: list[dict[str, Any]]) -> RunFolder:
    train(grid_of_nodes(configs), settings_for(folder, server, "task.partition=nodes"), run_id="1")
    return RunFolder(folder / "run")


def model_of(done: RunFolder) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load_file

    return dict(load_file(done.model))


def own(folders: list[Path]) -> list[dict[str, Any]]:
    return [
        {"partition-id": number, "dp-data-path": str(folder)}
        for number, folder in enumerate(folders)
    ]


# A whole run.


def test_nodes_with_their_own_data_train_the_model_of_a_simulation_of_them(
    tmp_path: Path, server: Path, clinics: list[Path]
) -> None:
    everybody = table(tmp_path / "all", "train", [r for c in range(CLINICS) for r in rows_of(c)])
    table(everybody, "test", rows_of("test", 200))
    one_batch = f"client.batch_size={ROWS}"
    simulated = settings_for(
        tmp_path / "simulated",
        everybody,
        "task.partition=natural",
        "task.client_column=clinic",
        one_batch,
    )
    train(LocalGrid(answer_with_app(app, CLINICS), CLINICS), simulated, run_id="1")
    deployed = on_nodes(tmp_path / "deployed", server, own(clinics))
    expected = model_of(RunFolder(tmp_path / "simulated" / "run"))
    for name, values in model_of(deployed).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)
    assert deployed.read_metrics()[-1]["test_accuracy"] > 0.8


def test_a_node_whose_data_does_not_fit_contributes_zero_and_keeps_the_reason(
    tmp_path: Path, server: Path, clinics: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    (clinics[2] / "train.csv").write_text("a,b,label\n0.1,secret,yes\n")
    nodes = grid_of_nodes(own(clinics))
    replies: list[Message] = []
    answer = nodes.answer

    def heard(message: Message, node: int) -> Message | None:
        reply = answer(message, node)
        if node == 2 and reply is not None:
            replies.append(reply)
        return reply

    nodes.answer = heard
    with caplog.at_level(logging.ERROR, "flwr.fl_dp.client"):
        train(nodes, settings_for(tmp_path, server, "task.partition=nodes"), run_id="1")
    assert "'b'" in caplog.text and "are not numbers" in caplog.text
    failed = [reply for reply in replies if reply.has_error()]
    assert len(failed) == 3  # one a round
    assert {reply.error.reason for reply in failed} == {"ValueError"}
    assert len(RunFolder(tmp_path / "run").read_metrics()) == 4


def test_a_node_without_a_data_path_is_an_error_where_nodes_bring_the_data(
    tmp_path: Path, server: Path
) -> None:
    reply = ask_to_train(
        settings_for(tmp_path, server, "task.partition=nodes"), {"partition-id": 0}
    )
    assert reply.error.reason == "ValueError"


def ask_to_train(settings: Settings, node_config: dict[str, Any]) -> Message:
    content = RecordDict(
        {
            "arrays": initial_arrays_of(settings),
            "config": ConfigRecord({SETTINGS_KEY: settings.to_json(), "server-round": 1}),
        }
    )
    message = Message(content, dst_node_id=FIRST_NODE, message_type="train")
    [reply] = grid_of_nodes([node_config]).send_and_receive([message])
    return reply


# What a node reads.


def test_a_data_path_is_all_that_a_node_reads(
    tmp_path: Path, server: Path, clinics: list[Path]
) -> None:
    for overrides in (["task.partition=nodes"], ["task.partition=iid"]):
        settings = settings_for(tmp_path, Path("/named/by/the/server"), *overrides)
        found = data_of_unit(settings, 0, {"dp-data-path": str(clinics[3])})
        assert found is not None
        dataset, rows = found
        assert rows.tolist() == list(range(ROWS))
        assert len(dataset.train_y) == ROWS
        assert dataset.test_x.shape == (0, 2)


def test_a_node_with_its_own_data_needs_no_partition_id(
    tmp_path: Path, server: Path, clinics: list[Path]
) -> None:
    settings = settings_for(tmp_path, server, "task.partition=nodes")
    reply = ask_to_train(settings, {"dp-data-path": str(clinics[0])})
    assert not reply.has_error()
    [arrays] = reply.content.array_records.values()
    before = initial_arrays_of(settings).to_numpy_ndarrays()
    pairs = zip(arrays.to_numpy_ndarrays(), before, strict=True)
    assert all((after != start).any() for after, start in pairs)


def test_a_node_with_its_own_data_is_one_unit(clinics: list[Path]) -> None:
    settings = compose_settings(["simulation.units_per_node=50"])
    context = Context(1, 1, {"dp-data-path": str(clinics[0])}, RecordDict(), {})
    assert hosted_units(context, {SETTINGS_KEY: settings.to_json()}) == 1


def test_statistics_are_about_the_node_s_own_rows(
    tmp_path: Path, server: Path, clinics: list[Path]
) -> None:
    settings = settings_for(tmp_path, server, "task.partition=nodes")
    config: dict[str, Any] = {
        STATISTIC_QUERY_KEY: encode_text(Count(max_records=1000)),
        STATISTIC_VALUES_KEY: "records",
        SETTINGS_KEY: settings.to_json(),
    }
    message = Message(
        RecordDict({"config": ConfigRecord(config)}),
        dst_node_id=FIRST_NODE,
        message_type=f"query.{STATISTIC_ACTION}",
    )
    [reply] = grid_of_nodes(own(clinics[:1])).send_and_receive([message])
    [metrics] = reply.content.metric_records.values()
    assert metrics[CONTRIBUTION_METRIC] == [ROWS]


@pytest.mark.parametrize(
    ("overrides", "path", "message"),
    [
        (
            ["task=digits"],
            "/some/folder",
            "task=digits has no files that could lie in dp-data-path",
        ),
        (PUBLIC, "folder", "dp-data-path must be absolute"),
        (PUBLIC[:2], "/", r"task\.columns and task\.classes must be given"),
    ],
)
def test_a_data_path_that_can_t_be_used_is_refused(
    overrides: list[str], path: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        data_of_unit(compose_settings(overrides), 0, {"dp-data-path": path})


def test_a_public_set_is_read_from_the_data_path(tmp_path: Path) -> None:
    settings = compose_settings(["task=fashion_mnist", "task.data_dir=/somewhere/else"])
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        data_of_unit(settings, 0, {"dp-data-path": str(tmp_path)})


# What the server needs.


def test_a_server_of_nodes_needs_a_test_part_alone(tmp_path: Path, server: Path) -> None:
    check_data(settings_for(tmp_path, server, "task.partition=nodes"))
    with pytest.raises(FileNotFoundError, match=r"train\.csv.*task\.partition=nodes"):
        check_data(settings_for(tmp_path, server))


def test_a_server_with_an_empty_test_part_is_refused(tmp_path: Path) -> None:
    table(tmp_path, "test", [])
    with pytest.raises(ValueError, match="the test part has no rows"):
        check_data(settings_for(tmp_path, tmp_path, "task.partition=nodes"))


def test_a_simulation_has_no_nodes_with_their_own_data(tmp_path: Path, server: Path) -> None:
    with pytest.raises(ValueError, match=r"SuperNodes that bring their own data.*dp-data-path="):
        training_rows(settings_for(tmp_path, server, "task.partition=nodes"))


# Where it trains.


def test_training_is_on_the_gpu_where_torch_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
        assert training_device().type == device


def test_model_and_records_are_on_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = compose_settings([])
    dataset = dataset_of(settings)
    # A device that holds no values stands for a GPU: what is left on the CPU would show.
    monkeypatch.setattr(workload, "training_device", lambda: torch.device("meta"))
    places = [values.device.type for values in workload.records_of(dataset, np.arange(3))]
    places += [values.device.type for values in workload.model_of(settings).parameters()]
    assert set(places) == {"meta"}
    # The first weights are sent: they never are anywhere but on the CPU.
    assert len(workload.initial_arrays_of(settings).to_numpy_ndarrays()) == 2


def test_clients_that_are_left_out_have_no_part(tmp_path: Path) -> None:
    lines = [line for clinic in range(CLINICS) for line in rows_of(clinic)]
    folder = table(table(tmp_path, "train", lines), "test", rows_of("test"))

    def parts(number: int, *overrides: str) -> tuple[NDArray[Any], list[int]]:
        settings = compose_settings(
            [
                *PUBLIC,
                "task.client_column=clinic",
                "task.partition=natural",
                f"task.data_dir={folder}",
                f"task.num_clients={number}",
                *overrides,
            ]
        )
        rows = training_rows(settings)
        return dataset_of(settings).features(np.concatenate(rows)), [len(each) for each in rows]

    whole, _ = parts(CLINICS)
    private, sizes = parts(CLINICS - 1, "task.clients=['!2']")
    np.testing.assert_array_equal(private, np.delete(whole, np.s_[2 * ROWS : 3 * ROWS], axis=0))
    assert sizes == [ROWS] * 3
    np.testing.assert_array_equal(parts(1, "task.clients=['2']")[0], whole[2 * ROWS : 3 * ROWS])
    with pytest.raises(ValueError, match="names 3 clients with records; write at most 3"):
        parts(CLINICS, "task.clients=['!2']")


# One row of a node's own table, where a record is the unit.

HIGH, BOUND = 4.0, 20
ODD_ROWS = {
    "an empty cell": ",1.0,0,yes",
    "a word": "1.0,high,0,yes",
    "a class of its own": "1.0,1.0,0,maybe",
    "too few cells": "1.0",
    "an open quote": '"1.0,1.0,0,yes',
    "infinity": "inf,1.0,0,yes",
    "far out": "1e30,-1e30,0,yes",
}


@cache
def selecting(server: Path, metric: str, bound: int) -> Settings:
    """Return settings of a selection that is charged for records, as a node gets them."""
    return settings_for(
        server,
        server,
        "selection=exponential",
        f"selection.utility={metric}",
        f"selection.utility_high={HIGH}",
        f"selection.records_per_client={bound}",
        "privacy.unit=record",
        "privacy.neighboring_relation=replace-one",
        "privacy.noise_multiplier=1",
        "task.partition=nodes",
    ).for_clients()


def utilities(server: Path, folder: Path, *, metric: str, bound: int = BOUND) -> float:
    """Return what a node with that folder tells the selection of its records; NaN for nothing."""
    client = TaskClient(Context(1, 1, {"dp-data-path": str(folder)}, RecordDict(), {}))
    asked = RoundInstruction(server_round=1, utility=metric)
    settings = selecting(server, metric, bound)
    config = {SETTINGS_KEY: settings.to_json(), INSTRUCTION_KEY: encode_text(asked)}
    sent = [np.array([[0.3, 0.1], [0.1, 0.3]], np.float32), np.zeros(2, np.float32)]
    _, count, metrics = client.fit(sent, dict(config))
    assert count == ROWS
    return float(metrics.get(metric, math.nan))


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_a_row_that_does_not_fit_moves_a_utility_of_records_as_any_other_row_does(
    tmp_path: Path, server: Path, metric: str
) -> None:
    """By half the range over the number of rows, the null being its middle; else by all of it."""
    usual = utilities(server, table(tmp_path / "usual", "train", rows_of(2)), metric=metric)
    for name, odd in ODD_ROWS.items():
        folder = table(tmp_path / name, "train", [odd, *rows_of(2)[1:]])
        moved = utilities(server, folder, metric=metric) - usual
        most = HIGH if name == "far out" else HIGH / 2.0
        assert abs(moved) <= most / ROWS + 1e-6, name


def test_a_unit_with_fewer_records_than_its_charge_supposes_tells_no_utility(
    tmp_path: Path, server: Path
) -> None:
    folder = table(tmp_path / "few", "train", rows_of(2))
    assert math.isnan(utilities(server, folder, metric="loss", bound=ROWS + 1))


def test_a_table_of_which_no_row_fits_has_the_middle_of_the_range(
    tmp_path: Path, server: Path
) -> None:
    folder = table(tmp_path / "odd", "train", ["x"] * ROWS)
    assert utilities(server, folder, metric="loss") == pytest.approx(HIGH / 2.0)
    assert utilities(server, folder, metric="accuracy") == pytest.approx(0.5)


def test_a_client_as_a_unit_still_refuses_a_table_with_a_bad_row(
    tmp_path: Path, server: Path
) -> None:
    folder = table(tmp_path / "odd", "train", [ODD_ROWS["an empty cell"], *rows_of(2)[1:]])
    settings = settings_for(folder, server, "task.partition=nodes")
    with pytest.raises(ValueError, match="missing values"):
        data_of_unit(settings, 0, {"dp-data-path": str(folder)})


def test_a_run_of_real_nodes_is_gone_on_with_by_the_command_that_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "real")
    folder.create(compose_settings([*PUBLIC, "task.partition=nodes"]))
    with pytest.raises(ConfigError, match=r"flwr run \. CONNECTION --stream") as refused:
        find_jobs([f"resume={folder.path}"], multirun=False)
    assert f"hydra-overrides='resume={folder.path}'" in str(refused.value)


# A schema beside the table.

BESIDE = """\
label_column: outcome
classes: [no, yes]
shares: [0.9, 0.1]
client_column: clinic
columns:
  age: {kind: integer, range: [0, 100], missing: [-999]}
  sex: {kind: category, categories: [f, m], missing: []}
"""


def test_a_table_with_text_and_gaps_trains_by_the_schema_beside_it(
    fresh_data_sets: None, tmp_path: Path
) -> None:
    lines = ["clinic,age,sex,outcome"]
    lines += [
        f"{row % 4},{(-999, 20, 80)[row % 3]},{('f', '', 'm')[row % 3]},no" for row in range(40)
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("\n".join([*lines, "0,80,m,yes"]) + "\n")
    (tmp_path / "schema.yaml").write_text(BESIDE)
    beside = ["task=csv", f"task.data_dir={tmp_path}"]
    clinics = [*beside, "task.partition=natural", "task.num_clients=4", "privacy=none", "rounds=1"]
    clinics.append("selection.sampling_rate=1")  # else nobody may be drawn
    written = [f"output_dir={tmp_path}", "run_name=one", "simulation.engine=in_process"]
    assert call("run", *clinics, *written).exit_code == 0
    [_, last] = RunFolder(tmp_path / "one").read_metrics()
    assert "test_auc" in last and "test_accuracy" not in last  # of a rare class it says little
    settings = compose_settings(beside)
    rows = dataset_of(settings).train_x * np.sqrt(2)
    expected = np.array([[0, 1, 1, 0, 0], [-0.6, 0, 0, 0, 1]])
    np.testing.assert_allclose(rows[:2], expected, rtol=1e-5)
    assert compose_settings([*beside, "task.shares=[0.5,0.5]"]).task.shares == [0.5, 0.5]


def test_a_schema_is_read_anew_unless_columns_are_written_and_blanks_train_nothing(
    fresh_data_sets: None, tmp_path: Path
) -> None:
    (tmp_path / "schema.yaml").write_text(BESIDE)
    beside = ["task=csv", f"task.data_dir={tmp_path}"]
    assert compose_settings(beside).task.columns == ["age", "sex"]
    (tmp_path / "schema.yaml").write_text(BESIDE.replace("[f, m]", ""))
    with pytest.raises(ConfigError, match="column 'sex': its categories are blank: write what is"):
        compose_settings(beside)
    # As they are, for a statistic that fills a blank.
    assert compose_settings([*beside, "task.columns=[age]"]).task.types is None
