"""The same app on a real SuperLink with two real SuperNodes that bring their own data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from deployment import Deployment

from fl_dp.app.run_folder import RunFolder
from fl_dp.ledger import NodeLedger, PrivacyLedger

ROOT = Path(__file__).resolve().parents[2]
NODES = ("north", "south")
STEPS = 5
SHARED = (
    *("task=csv", "task.partition=nodes", "task.num_clients=2", "task.label_column=ill"),
    *("task.columns=[age,pressure]", "task.classes=[no,yes]", "model=logistic"),
    *("selection.sampling_rate=1", "server_optimizer=fedavg", "client.epochs=1", "rounds=1"),
    "client.learning_rate=0.5",
)
RECORDS = ("privacy=dp_sgd", f"dp_sgd.steps={STEPS}", "dp_sgd.participations=4")


def write_table(path: Path, seed: int) -> None:
    random = np.random.Generator(np.random.PCG64(seed))
    table = random.normal(size=(200, 2))
    rows = [f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}" for a, b in table]
    path.parent.mkdir(parents=True)
    path.write_text("age,pressure,ill\n" + "\n".join(rows) + "\n")


def node_config(place: Path, name: str) -> dict[str, str | float]:
    return {
        "data-path": str(place / name),
        "unit-name": name,
        "ledger-path": str(place / f"{name}.db"),
        "max-epsilon": 20.0,
        "max-delta": 1e-5,
        "allow-unverified-apps": True,  # the SuperLink is our own
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_table(tmp_path / "public" / "test.csv", 0)
    for seed, name in enumerate(NODES, start=1):
        write_table(tmp_path / name / "train.csv", seed)
    return tmp_path


@pytest.fixture
def deployment(place: Path) -> Iterator[Deployment]:
    with Deployment(place / "processes") as running:
        for name in NODES:
            running.join(name, node_config(place, name))
        yield running


def steps_spent(place: Path, name: str) -> int:
    with NodeLedger.read(place / f"{name}.db") as ledger:
        (spending,) = ledger.spendings
        assert spending.sources == {name}
        return sum(count for _, count in spending.history)


def train(deployment: Deployment, place: Path, name: str, *overrides: str) -> RunFolder:
    ended = deployment.run(
        ROOT,
        [
            *SHARED,
            *overrides,
            f"task.data_dir={place / 'public'}",
            f"output_dir={place / 'runs'}",
            f"run_name={name}",
        ],
    )
    assert ended == "finished:completed", ended
    return RunFolder(place / "runs" / name)


@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_real_nodes_keep_their_data_and_their_ledgers_over_runs_and_restarts(
    deployment: Deployment, place: Path
) -> None:
    first = train(deployment, place, "first", *RECORDS)
    assert [steps_spent(place, name) for name in NODES] == [STEPS, STEPS]
    assert first.read_statement()["unit"].startswith("one record")
    assert first.read_metrics()[-1]["test_accuracy"] > 0.6  # .5 untrained; both nodes agree

    deployment.leave("north")
    deployment.join("north", node_config(place, "north"))
    second = train(deployment, place, "second", *RECORDS)
    assert [steps_spent(place, name) for name in NODES] == [2 * STEPS, 2 * STEPS]
    assert json.loads(second.record_plan.read_text())["participations"] == 4

    for name in NODES:  # a cap requires privacy at the node, unless its owner takes that back
        deployment.leave(name)
        deployment.join(name, node_config(place, name) | {"require-privacy": "none"})
    central = train(deployment, place, "central", "privacy.epsilon=50")
    with PrivacyLedger.read(central.ledger) as ledger:
        assert ledger.rounds_committed == 1
    assert central.read_statement()["unit"].startswith("one client")
    assert [steps_spent(place, name) for name in NODES] == [2 * STEPS, 2 * STEPS]
