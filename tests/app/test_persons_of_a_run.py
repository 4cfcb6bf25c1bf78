"""People with several rows, from a table of one's own to the statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_trainings import real_nodes
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from hugging_face import Table
from local_grid import LocalGrid
from owned_clock import answer_at_once
from torch import nn
from worked_here import work_here

from fl_dp.accounting import default_delta
from fl_dp.app.client_arrays import client_parts
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan, make_record_plan
from fl_dp.app.private_module import train_private
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import Settings
from fl_dp.app.workload import dataset_of, public_form_of, rows_of_unit
from fl_dp.app.workload import training_rows as dealt
from fl_dp.ledger import NodeLedger
from fl_dp.statement.check import statement_differences
from fl_dp.statement.sentences import UNITS

PERSONS, CLIENTS = 60, 3
PUBLIC = ["task=csv", "task.columns=[a,b]", "task.classes=[no,yes]", "task.person_column=patient"]
SILOS = ["privacy=distributed_records", "clipping.norm=1", "privacy.secure_sum.reply_after=600"]


def write_table(folder: Path, *, persons: int = PERSONS, seed: int = 4) -> Path:
    """A table of persons with 1 to 5 rows each, who have a label in common."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    for split, number in (("train", persons), ("test", 40)):
        owner = np.repeat(np.arange(number), 1 + np.arange(number) % 5)
        middle = rng.normal(size=(number, 2))
        x = middle[owner] + 0.1 * rng.normal(size=(len(owner), 2))
        labels = np.where(middle[owner, 0] > middle[owner, 1], "yes", "no")
        lines = [
            f"{a:.3f},{b:.3f},{split}{one},{label}"
            for (a, b), one, label in zip(x, owner, labels, strict=True)
        ]
        (folder / f"{split}.csv").write_text("\n".join(["a,b,patient,label", *lines]) + "\n")
    return folder


def settings_of(folder: Path, *overrides: str) -> Settings:
    return compose_settings(
        [*PUBLIC, f"task.data_dir={folder}", f"task.num_clients={CLIENTS}", "rounds=2", *overrides]
    )


# Plans.


@pytest.mark.parametrize(
    "keys", [["privacy=dp_sgd"], ["privacy=central", "dp_sgd=on"]], ids=["alone", "with clients"]
)
def test_dp_sgd_promises_to_persons(tmp_path: Path, keys: list[str]) -> None:
    plan = make_record_plan(settings_of(write_table(tmp_path / "data"), *keys))
    assert plan is not None and plan.unit == "person"
    rows = make_record_plan(settings_of(tmp_path / "data", *keys, "task.person_column=null"))
    assert rows is not None and rows.unit == "record"


def test_silos_count_persons_and_not_their_rows(tmp_path: Path) -> None:
    write_table(tmp_path / "data")
    plan = make_plan(settings_of(tmp_path / "data", *SILOS))
    assert (plan.unit, plan.num_units) == ("person", PERSONS)
    assert plan.budget.delta == pytest.approx(default_delta(PERSONS))
    rows = make_plan(settings_of(tmp_path / "data", *SILOS, "task.person_column=null"))
    assert (rows.unit, rows.num_units) == ("record", 3 * PERSONS)


@pytest.mark.parametrize("keys", [SILOS, ["privacy=dp_sgd"]], ids=["silos", "dp_sgd"])
def test_no_number_of_a_plan_depends_on_how_many_rows_a_person_has(
    tmp_path: Path, keys: list[str]
) -> None:
    plans = []
    for folder, more in (("few", 0), ("many", 300)):
        file = write_table(tmp_path / folder) / "train.csv"
        file.write_text(file.read_text() + "0.1,0.2,train7,yes\n" * more)
        settings = settings_of(tmp_path / folder, *keys)
        plans.append(make_plan(settings) if keys is SILOS else make_record_plan(settings))
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (["task.partition=dirichlet"], "task.partition=dirichlet deals out rows"),
        (["task.partition=shards"], "task.partition=shards deals out rows"),
        (["task.records_per_client=3"], "task.records_per_client deals out rows"),
        (["task.person_column=label"], "task.label_column are both 'label'"),
        (["task.columns=[a,patient]"], "task.columns has 'patient', which is task.person_column"),
        (["features=scattering", "features.public=5"], "a person could have public and private"),
        (
            ["task=digits", "task.columns=null", "task.classes=null"],
            "task.person_column is for your own data",
        ),
        (["task=folder", "task.columns=null"], "task=folder deals out rows"),
    ],
)
def test_what_would_divide_a_person_is_refused(wrong: list[str], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        compose_settings([*PUBLIC, "privacy=dp_sgd", *wrong])


# Data.


def test_clients_have_whole_persons_where_clients_are_the_units_too(tmp_path: Path) -> None:
    settings = settings_of(write_table(tmp_path / "data"), "privacy=central")
    persons = dataset_of(settings).train_persons
    assert persons is not None
    at = [set(persons[rows].tolist()) for rows in dealt(settings)]
    assert sum(map(len, at)) == len(set.union(*at)) == PERSONS


def test_rows_that_measure_privately_are_of_other_persons(tmp_path: Path) -> None:
    settings = settings_of(write_table(tmp_path / "data"), "metrics.private_epsilon=1")
    dataset, rows = dataset_of(settings), dealt(settings)[0]
    assert dataset.train_persons is not None
    parts = [rows_of_unit(settings, dataset, rows, held_out=held_out) for held_out in (False, True)]
    trained, measured = (set(dataset.train_persons[part].tolist()) for part in parts)
    assert not trained & measured and len(trained | measured) == PERSONS // CLIENTS
    assert len(measured) == PERSONS // CLIENTS // 5


# Whole runs.


def trained(tmp_path: Path, grid: LocalGrid, *overrides: str) -> RunFolder:
    settings = settings_of(tmp_path / "data", f"output_dir={tmp_path}", "run_name=run", *overrides)
    train(grid, settings, run_id="1")
    return RunFolder(tmp_path / "run")


def units_of_ledgers(tmp_path: Path) -> list[str]:
    units = []
    for node in range(CLIENTS):
        with NodeLedger.read(tmp_path / f"node-{node}/ledger.db") as ledger:
            units += [spending.unit for spending in ledger.spendings]
    return units


def test_a_table_under_dp_sgd_is_charged_and_stated_by_person(tmp_path: Path) -> None:
    write_table(tmp_path / "data")
    done = trained(
        tmp_path,
        real_nodes(tmp_path, CLIENTS),
        *("privacy=dp_sgd", "selection.sampling_rate=1", "dp_sgd.epsilon=1e6"),
        *("dp_sgd.sampling_rate=0.5", "client.learning_rate=0.5", "rounds=4"),
    )
    assert units_of_ledgers(tmp_path) == ["person"] * CLIENTS
    statement = done.read_statement()
    assert statement["unit"] == UNITS["person"]
    assert "how many persons a client has is public" in statement["neighbours"]
    assert statement_differences(None, statement) == []
    page = (tmp_path / "run/privacy.md").read_text()
    assert "# Privacy statement: persons" in page
    assert "mean of those of their records, clipped once" in page
    assert "one person's records at several clients" in page
    assert "of a client's persons in each step" in page
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert metrics[-1]["test_accuracy"] > 0.75  # chance is 0.5


def test_a_table_across_silos_is_charged_and_stated_by_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    answer_at_once(monkeypatch)
    write_table(tmp_path / "data")
    done = trained(tmp_path, real_nodes(tmp_path, CLIENTS), *SILOS, "privacy.epsilon=8")
    assert units_of_ledgers(tmp_path) == ["person"] * CLIENTS
    statement = done.read_statement()
    assert (statement["unit"], statement["num_clients"]) == (UNITS["person"], PERSONS)
    several = statement["epsilon_of_several"]
    assert statement["epsilon"][statement["quoted"]] < several["2"] < (several["5"] or np.inf)
    assert "at 2 clients" in (tmp_path / "run/privacy.md").read_text()


def test_nodes_with_tables_of_their_own_promise_to_their_persons(tmp_path: Path) -> None:
    write_table(tmp_path / "data")
    folders = [write_table(tmp_path / f"own-{node}", seed=node) for node in range(CLIENTS)]
    trained(
        tmp_path,
        real_nodes(tmp_path, CLIENTS, dp_data_path=list(map(str, folders))),
        *("privacy=dp_sgd", "selection.sampling_rate=1", "task.partition=nodes"),
    )
    assert units_of_ledgers(tmp_path) == ["person"] * CLIENTS


@pytest.mark.parametrize(("server", "owner"), [("patient", None), ("null", "patient")])
def test_a_server_and_an_owner_mean_the_same_unit_or_nothing_is_read(
    tmp_path: Path, server: str, owner: str | None
) -> None:
    folder = write_table(tmp_path / "data")
    schema: dict[str, Any] = {"columns": ["a", "b"], "classes": ["no", "yes"]}
    if owner is not None:
        schema["person_column"] = owner
    (tmp_path / "schema.yaml").write_text(json.dumps(schema))
    config = {"dp-data-path": str(folder), "dp-data-schema": str(tmp_path / "schema.yaml")}
    keys = ("task.partition=nodes", f"task.person_column={server}")
    settings = settings_of(folder, "privacy=dp_sgd", *keys)
    with pytest.raises(ValueError, match="both have to name the persons, or neither"):
        public_form_of(settings, config)
    # Where clients are protected as a whole, an owner may name persons or not.
    public_form_of(settings_of(folder, "privacy=central", *keys), config)


# In Python.


def arrays(persons: int = 12) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    owner = np.repeat(np.arange(persons), 1 + np.arange(persons) % 3)
    x = torch.from_numpy(owner).float()[:, None].repeat(1, 2)
    return x, torch.from_numpy(owner % 2), [f"p{number}" for number in owner]


def test_rows_of_a_person_are_dealt_to_one_client() -> None:
    x, y, persons = arrays()
    parts, _ = client_parts((x, y), 4, persons=persons)
    at = [set(records[:, 0].tolist()) for records, _ in parts]
    assert [len(of_client) for of_client in at] == [3] * 4 and len(set.union(*at)) == 12
    table = Table({"x": x.tolist(), "label": y.tolist(), "who": persons})
    again, _ = client_parts(table, 4, persons="who")
    for (records, labels), (others, their) in zip(parts, again, strict=True):
        assert torch.equal(records, others) and torch.equal(labels, their)


def test_a_partition_that_divides_a_person_is_refused() -> None:
    x, y, _ = arrays(3)
    who = [0, 1, 1, 2, 2, 2]
    client_parts((x, y), [[0, 1, 2], [3, 4, 5]], persons=who)
    with pytest.raises(ValueError, match="divides 1 persons over several clients"):
        client_parts((x, y), [[0, 1], [2, 3, 4, 5]], persons=who)
    with pytest.raises(ValueError, match="6 rows, and persons of shape"):
        client_parts((x, y), 2, persons=who[1:])
    with pytest.raises(ValueError, match="write partition=100"):
        client_parts([(x, y)], None, persons=who)
    with pytest.raises(ValueError, match="no column 'who' of persons"):
        client_parts((x, y), 2, persons="who")


def test_a_module_is_trained_on_clients_of_whole_persons() -> None:
    x, y, persons = arrays(30)
    done = train_private(
        nn.Linear(2, 2), (x, y), partition=10, persons=persons, epsilon=4, rounds=1, progress=False
    )
    assert done.statement is not None and done.statement.num_clients == 10
    with pytest.raises(ValueError, match="there are 30 persons; write at most 30"):
        train_private(nn.Linear(2, 2), (x, y), partition=31, persons=persons, epsilon=4, rounds=1)
