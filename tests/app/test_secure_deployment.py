"""Secure sums on a real SuperLink with three real SuperNodes, one of which is killed on the way."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from deployment import Deployment
from typer.testing import CliRunner
from wards import train_wards, write_tables

from fl_dp.app.run_folder import RunFolder
from fl_dp.commands.app import app
from fl_dp.ledger import NodeLedger, PrivacyLedger

NODES = ("north", "south", "east")
KILLED = "east"
ROUNDS = 2
SECURE = (
    "task.num_clients=3",
    f"rounds={ROUNDS}",
    "privacy=distributed",
    "privacy.epsilon=40",
    "privacy.delta=0.01",
    # Nobody colludes: else all three would have to answer, and none could be lost.
    "privacy.secure_sum.least=2",
    "privacy.secure_sum.colluding=0",
    "privacy.secure_sum.threshold=2",
)


def run_cli(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Data, identities and a roster, as three owners and a server have them."""
    write_tables(tmp_path, NODES)
    lines = []
    for name in NODES:
        (tmp_path / name / "ledger").mkdir()
        lines.append(json.loads(run_cli("node", "identity", keys(tmp_path, name), "--name", name)))
    roster = {"federation": "three wards", "members": lines}
    (tmp_path / "roster.json").write_text(json.dumps(roster))
    return tmp_path


def keys(place: Path, name: str) -> str:
    return str(place / name / "ledger" / "ledger.db")


def node_config(place: Path, name: str) -> dict[str, str | float]:
    return {
        "dp-data-path": str(place / name),
        "dp-unit-name": name,
        "dp-ledger-path": keys(place, name),
        "dp-max-epsilon": 50.0,
        "dp-max-delta": 1e-1,
        "dp-require-privacy": "distributed",
        "dp-secagg-roster": str(place / "roster.json"),
        "dp-secagg-colluding": 0,  # else all three would have to answer
        "dp-allow-unverified-apps": True,  # the SuperLink is our own
    }


@pytest.fixture
def deployment(place: Path) -> Iterator[Deployment]:
    with Deployment(place / "processes") as running:
        for name in NODES:
            running.join(name, node_config(place, name))
        yield running


def reached(place: Path, phase: str) -> bool:
    """Whether the node that will be killed is in a phase, as its own store says."""
    query = {
        "key": "SELECT count(*) FROM kept WHERE key = 'run-key'",
        "sum": "SELECT count(*) FROM once WHERE role = 'sum'",
        "open": "SELECT count(*) FROM once WHERE role = 'open'",
    }[phase]
    file = place / KILLED / "ledger" / "secagg.db"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return bool(db.execute(query).fetchone()[0])
    return False


def train(deployment: Deployment, place: Path, name: str) -> RunFolder:
    roster = f"privacy.secure_sum.roster={place / 'roster.json'}"
    return train_wards(deployment, place, name, *SECURE, roster)


def sums_charged(place: Path, name: str) -> int:
    with NodeLedger.read(keys(place, name)) as ledger:
        (spending,) = ledger.spendings
        return sum(count for _, count in spending.history)


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_owners_with_a_roster_train(deployment: Deployment, place: Path) -> None:
    folder = train(deployment, place, "first")
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_committed == ROUNDS
    assert folder.read_metrics()[-1]["test_accuracy"] > 0.6  # .5 untrained
    for name in NODES:
        assert sums_charged(place, name) == ROUNDS


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", ["key", "sum", "open"])
def test_a_node_that_is_killed_in_any_phase_ends_no_training(
    deployment: Deployment, place: Path, phase: str
) -> None:
    def kill() -> None:
        while not reached(place, phase):
            time.sleep(0.01)
        deployment.leave(KILLED)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    folder = train(deployment, place, phase)
    killer.join()
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_spent == ROUNDS
        assert ledger.rounds_committed == ROUNDS
    assert sums_charged(place, "north") == ROUNDS
