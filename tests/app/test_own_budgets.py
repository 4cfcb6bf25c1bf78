"""`privacy=grouped` from its keys to the statement, with shares and with a file of owners."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from local_grid import FIRST_NODE, LocalGrid, introducing

from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import Settings
from fl_dp.app.task_client import app

CLIENTS = 10
SHARED = ("selection.budgets=[2,8]", "selection.shares=[0.5,0.5]")


def overrides(tmp_path: Path, *others: str) -> list[str]:
    return [
        "privacy=grouped",
        "task=digits",
        f"task.num_clients={CLIENTS}",
        "rounds=3",
        f"output_dir={tmp_path}",
        "run_name=run",
        *others,
    ]


def ward(message: Message, number: int) -> Message:
    """Answer as a node that tells its name."""
    named: dict[str, bool | float | int | str] = {
        "partition-id": number,
        "num-partitions": CLIENTS,
        "dp-unit-name": f"ward-{number}",
    }
    return app(message, Context(1, FIRST_NODE + number, named, RecordDict(), {}))


def trained(settings: Settings, tmp_path: Path) -> RunFolder:
    train(LocalGrid(introducing(ward), CLIENTS), settings, run_id="1")
    return RunFolder(tmp_path / "run")


def test_a_run_says_the_promise_to_each_group_and_goes_by_its_ledger(tmp_path: Path) -> None:
    alone = "simulation.units_per_node=1"
    done = trained(compose_settings(overrides(tmp_path, alone, *SHARED)), tmp_path)
    groups = done.read_statement()["own_budgets"]
    assert [group["budget"] for group in groups] == [2.0, 8.0]
    assert all(0.99 * each["budget"] < each["epsilon"] <= each["budget"] for each in groups)
    again = trained(compose_settings([f"resume={done.path}"]), tmp_path)
    assert again.read_statement()["own_budgets"] == groups
    assert again.read_statement()["rounds_committed"] == 3


def test_owners_of_a_file_are_promised_their_own_number(tmp_path: Path) -> None:
    owners = tmp_path / "budgets.yaml"
    owners.write_text("".join(f"ward-{n}: {2 if n < 4 else 8}\n" for n in range(CLIENTS)))
    asked = overrides(tmp_path, f"selection.owners={owners}", "simulation.units_per_node=1")
    groups = trained(compose_settings(asked), tmp_path).read_statement()["own_budgets"]
    assert [(group["budget"], group["share"]) for group in groups] == [(2.0, 0.4), (8.0, 0.6)]


@pytest.mark.parametrize(
    ("others", "file", "message"),
    [
        ((), None, r"needs selection\.budgets="),
        ((*SHARED, "privacy.epsilon=4"), None, "epsilon=4.0 must be the largest"),
        (SHARED, "ward: 2\n", "and not both"),
        ((), "ward: 2\n", "names 1 nodes"),
        ((), "a: [", "can't be read"),
    ],
)
def test_a_budget_that_can_t_be_meant_is_refused_before_anything_is_spent(
    tmp_path: Path, others: tuple[str, ...], file: str | None, message: str
) -> None:
    if file is not None:
        (tmp_path / "budgets.yaml").write_text(file)
        others = (*others, f"selection.owners={tmp_path / 'budgets.yaml'}")
    with pytest.raises(ValueError, match=message):
        make_plan(compose_settings(overrides(tmp_path, *others)))
    assert not (tmp_path / "run").exists()
