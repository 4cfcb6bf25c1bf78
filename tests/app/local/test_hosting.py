"""`simulation.units_per_node=auto`: as few nodes as keep the workers busy, decided once."""

import math
from dataclasses import asdict
from pathlib import Path

import pytest

from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.app.local.auto_hosting import hosted
from fl_dp.app.local.devices import Machine, num_workers
from fl_dp.app.planning import make_plan, make_record_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import Settings
from fl_dp.commands.jobs import find_jobs

TINY = ["rounds=2", "privacy.noise_multiplier=20", "privacy.epsilon=50"]


def machine(cpus: int = 4, gpus: int = 0) -> Machine:
    return Machine(cpus=cpus, free_memory=None, gpus=gpus)


def decided(*overrides: str, cpus: int = 4, gpus: int = 0) -> Settings:
    """Through Flower's engine, unless said otherwise."""
    through_flower = ["simulation.engine=flower", *overrides]
    return hosted(compose_settings(through_flower), machine(cpus, gpus))[0]


def nodes_of(settings: Settings) -> int:
    return settings.simulation.num_nodes(settings.task.num_clients)


@pytest.mark.parametrize(("cpus", "units", "nodes"), [(1, 200, 1), (6, 34, 6), (999, 7, 29)])
def test_there_is_a_node_for_each_processor(cpus: int, units: int, nodes: int) -> None:
    settings = decided(cpus=cpus)
    assert settings.simulation.units_per_node == units
    assert nodes_of(settings) == num_workers(settings, machine(cpus)) == nodes


@pytest.mark.parametrize("asked", ["simulation.workers=5", "simulation.num_cpus=5"])
def test_there_is_a_node_for_each_worker_that_is_asked_for(asked: str) -> None:
    assert nodes_of(decided(asked)) == 5


def test_nodes_that_answer_in_one_process_are_one_node() -> None:
    assert nodes_of(decided("simulation.engine=in_process", cpus=64)) == 1


@pytest.mark.parametrize(
    ("overrides", "engine"),
    [
        ([], "in_process"),
        (["task=fashion_mnist"], "flower"),
        (["task=csv", "task.data_dir=/tmp"], "flower"),
        (["simulation.workers=2"], "flower"),
        (["simulation.num_gpus=0.5"], "flower"),
        (["task=fashion_mnist", "simulation.engine=in_process"], "in_process"),
    ],
)
def test_small_tasks_are_simulated_in_one_process_unless_somebody_says_otherwise(
    overrides: list[str], engine: str
) -> None:
    settings, said = hosted(compose_settings(overrides), machine(gpus=1))
    assert settings.simulation.engine == engine
    by_itself = not any("engine" in each for each in overrides) and engine == "in_process"
    assert ("simulation.engine=flower" in (said or "")) == by_itself


@pytest.mark.parametrize("task", ["csv", "parquet"])
def test_a_small_table_is_trained_in_one_process_by_itself(tmp_path: Path, task: str) -> None:
    own = compose_settings([f"task={task}", f"task.data_dir={tmp_path}"])
    for size, engine in ((1_000_000, "in_process"), (2_000_000, "flower")):
        (tmp_path / f"train.{task}").write_bytes(b"0" * size)
        settings, said = hosted(own, machine())
        assert settings.simulation.engine == engine
        assert (f"task={task} is small" in (said or "")) == (engine == "in_process")


def test_a_run_s_folder_keeps_the_engine_that_was_taken(tmp_path: Path) -> None:
    [job] = find_jobs([f"output_dir={tmp_path}"], multirun=False).trainings
    assert compose_settings(job.sent).simulation.engine == "in_process"


def test_workers_of_a_single_process_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"simulation.workers=5 are for simulation.engine=flower"):
        decided("simulation.engine=in_process", "simulation.workers=5")


@pytest.mark.parametrize(
    ("share", "gpus", "nodes"),
    [(None, 1, 1), (None, 4, 4), (0.25, 2, 8), (0.4, 2, 4), (0.6, 3, 3), (2, 4, 2)],
)
def test_one_worker_trains_on_a_gpu_unless_somebody_names_a_share(
    share: float | None, gpus: int, nodes: int
) -> None:
    asked = [] if share is None else [f"simulation.num_gpus={share}"]
    settings = decided("simulation=gpu", *asked, cpus=64, gpus=gpus)
    assert settings.simulation.engine == "flower"
    assert nodes_of(settings) == nodes
    assert settings.simulation.units_per_node == math.ceil(settings.task.num_clients / nodes)


@pytest.mark.parametrize("selection", ["fixed", "truncated_poisson"])
@pytest.mark.parametrize("num_clients", [197, 210])
def test_a_cohort_of_declared_clients_has_nodes_of_one_size(
    selection: str, num_clients: int
) -> None:
    asked = ["simulation.engine=flower", f"selection={selection}"]
    composed = compose_settings([*asked, f"task.num_clients={num_clients}"])
    for cpus in (1, 4, 7, 32):
        settings, _ = hosted(composed, machine(cpus))
        assert num_clients % settings.simulation.units_at_node == 0
        assert settings.simulation.units_at_node <= math.ceil(num_clients / cpus)  # its share


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("task=csv task.partition=nodes", "each brings its own data"),
        ("privacy=none", "privacy=none has no sums at nodes"),
        ("privacy=distributed selection=public", "hides a node among nodes"),
        ("privacy=dp_sgd", "each trains by DP-SGD"),
        ("compression.up=float16", "compression.up=float16 encodes each update"),
        (
            "selection=exponential selection.utility=update_norm",
            "selection.utility=update_norm needs each update",
        ),
    ],
)
def test_one_client_a_node_where_each_reply_is_needed(overrides: str, reason: str) -> None:
    settings, said = hosted(compose_settings(overrides.split()), machine())
    assert settings.simulation.units_per_node == 1
    assert said is not None
    assert said.startswith("one client per node: ")
    assert reason in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "selection=truncated_poisson",
        "selection=exponential selection.utility=update_norm",
        "selection.coins_at_nodes=true",
        "clipping=adaptive metrics.loss=[0,3]",
        "compression.up=top_k",
        "dp_sgd=on dp_sgd.noise_multiplier=5",
        "privacy=correlated selection=public privacy.separation=2",
    ],
)
def test_what_is_decided_can_be_planned(overrides: str) -> None:
    settings = decided(*TINY, *overrides.split())
    plan = make_plan(settings)
    assert plan.hosting.max_units == settings.simulation.units_per_node
    make_record_plan(settings)


def test_a_number_stays_as_it_is() -> None:
    settings = decided("simulation.units_per_node=3")
    assert settings.simulation.units_per_node == 3
    assert hosted(settings, machine()) == (settings, None)


def test_nothing_else_changes() -> None:
    before, after = asdict(compose_settings(["simulation.engine=flower"])), asdict(decided())
    assert before.pop("simulation") | {"units_per_node": 50} == after.pop("simulation")
    assert before == after


def test_undecided_is_one_client_a_node() -> None:
    """As under a bare `flwr run`, and on real nodes: nobody there puts clients together."""
    settings = compose_settings([])
    assert settings.simulation.units_per_node == "auto"
    assert settings.simulation.units_at_node == 1
    assert make_plan(compose_settings(TINY)).hosting.max_units == 1


def test_the_server_is_sent_the_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = find_jobs([f"output_dir={tmp_path}", "simulation.workers=4"], multirun=False)
    [job] = jobs.trainings
    assert job.settings.simulation.units_per_node == 50
    assert compose_settings(job.sent).simulation.units_per_node == 50
    said = [line for line in capsys.readouterr().err.splitlines() if "simulation uses" in line]
    assert said == [
        "the simulation uses 4 nodes of up to 50 clients for the 200 clients; "
        "each node clips its own"
    ]


def test_a_sweep_says_once_what_was_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["privacy.epsilon=2,4,8", f"output_dir={tmp_path}", "simulation.workers=4"]
    jobs = find_jobs(cells, multirun=True)
    assert {job.settings.simulation.units_per_node for job in jobs.trainings} == {50}
    assert capsys.readouterr().err.count("simulation uses") == 1


@pytest.mark.parametrize("tasks", ["digits,fashion_mnist", "fashion_mnist,digits"])
def test_a_sweep_over_tasks_starts_as_many_as_the_most_demanding_allows(
    tasks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: machine(cpus=4)))
    jobs = find_jobs([f"task={tasks}", f"output_dir={tmp_path}"], multirun=True)
    assert [job.settings.simulation.engine for job in jobs.trainings].count("in_process") == 1
    assert jobs.side_by_side == 1  # by digits alone, as many as there are processors


def test_fewer_clients_than_workers_have_a_node_each() -> None:
    assert nodes_of(decided("task.num_clients=3", cpus=8)) == 3


def test_a_resumed_run_keeps_its_number_on_any_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(decided(cpus=7))
    [job] = find_jobs([f"resume={folder.path}"], multirun=False).trainings
    assert job.settings.simulation.units_per_node == 29
    assert "simulation uses" not in capsys.readouterr().err


@pytest.mark.parametrize("written", ["atuo", "0"])
def test_what_is_neither_a_number_nor_auto_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"simulation\.units_per_node must be"):
        compose_settings([f"simulation.units_per_node={written}"])
