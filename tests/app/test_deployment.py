"""The same app on a real SuperLink with two real SuperNodes that bring their own data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment
from wards import train_wards, write_tables

from fl_dp.ledger import NodeLedger, PrivacyLedger

NODES = ("north", "south")
STEPS = 5
SHARED = ("task.num_clients=2", "rounds=1")
RECORDS = ("privacy=dp_sgd", f"dp_sgd.steps={STEPS}", "dp_sgd.participations=4")


def node_config(place: Path, name: str) -> dict[str, str | float]:
    return {
        "dp-data-path": str(place / name),
        "dp-unit-name": name,
        "dp-ledger-path": str(place / f"{name}.db"),
        "dp-max-epsilon": 20.0,
        "dp-max-delta": 1e-5,
        "dp-allow-unverified-apps": True,  # the SuperLink is our own
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_tables(tmp_path, NODES)
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


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_real_nodes_keep_their_data_and_their_ledgers_over_runs_and_restarts(
    deployment: Deployment, place: Path
) -> None:
    first = train_wards(deployment, place, "first", *SHARED, *RECORDS)
    assert [steps_spent(place, name) for name in NODES] == [STEPS, STEPS]
    assert first.read_statement()["unit"].startswith("one record")
    assert first.read_metrics()[-1]["test_accuracy"] > 0.6  # .5 untrained; both nodes agree

    for name in NODES:  # a cap requires privacy at the node, unless its owner takes that back
        deployment.leave(name)
        deployment.join(name, node_config(place, name) | {"dp-require-privacy": "none"})
    second = train_wards(deployment, place, "second", *SHARED, *RECORDS)
    assert [steps_spent(place, name) for name in NODES] == [2 * STEPS, 2 * STEPS]
    assert json.loads(second.record_plan.read_text())["participations"] == 4

    central = train_wards(deployment, place, "central", *SHARED, "privacy.epsilon=50")
    with PrivacyLedger.read(central.ledger) as ledger:
        assert ledger.rounds_committed == 1
    assert central.read_statement()["unit"].startswith("one client")
    assert [steps_spent(place, name) for name in NODES] == [2 * STEPS, 2 * STEPS]
