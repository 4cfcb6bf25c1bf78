"""Noise with memory in shares on a real SuperLink with three real SuperNodes, one killed."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from deployment import Deployment
from wards import ROOT, SETTINGS, write_tables

from fl_dp.app.run_folder import RunFolder
from fl_dp.clients.noise_memory import MEMORY_FILE
from fl_dp.ledger import NodeLedger, PrivacyLedger

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.simulation,
    pytest.mark.xdist_group("simulation"),
    pytest.mark.timeout(900),
]

NODES = ("north", "south", "east")
KILLED = "east"
ROUNDS, TURNS = 4, 2
CYCLIC = (
    f"rounds={ROUNDS}",
    "task.num_clients=3",
    "task.num_records=600",
    "task.max_records=200",
    "privacy=distributed_records",
    "privacy.epsilon=40",
    "privacy.delta=1e-4",
    "privacy.secure_sum.reply_after=null",
    f"selection.sampling_rate={1 / TURNS:g}",
    "noise=cyclic",
    # Nobody colludes: else all three would have to answer, and none could be lost.
    "privacy.secure_sum.least=2",
    "privacy.secure_sum.colluding=0",
    "privacy.secure_sum.threshold=2",
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Data of three owners, and the server's."""
    write_tables(tmp_path, NODES)
    for name in NODES:
        (tmp_path / name / "ledger").mkdir()
    return tmp_path


@pytest.fixture
def deployment(place: Path) -> Iterator[Deployment]:
    with Deployment(place / "processes", database=True) as running:
        for name in NODES:
            join(running, place, name)
        yield running


def join(running: Deployment, place: Path, name: str) -> None:
    running.join(
        name,
        {
            "data-path": str(place / name),
            "unit-name": name,
            "ledger-path": str(place / name / "ledger" / "ledger.db"),
            "max-epsilon": 50.0,
            "max-delta": 1e-1,
            "require-privacy": "distributed-records",
            "secagg-colluding": 0,
            "allow-unverified-apps": True,  # the SuperLink is our own
        },
    )


def overrides(place: Path) -> list[str]:
    paths = (f"task.data_dir={place / 'public'}", f"output_dir={place / 'runs'}")
    return [*SETTINGS, *CYCLIC, *paths, "run_name=run"]


def folder_of(place: Path) -> RunFolder:
    return RunFolder(place / "runs" / "run")


def marks(place: Path, role: str) -> int:
    """How many numbers the node that is killed has used up in a role, as its own store says."""
    return _count(place, "SELECT count(*) FROM once WHERE role = ?", role)


def _count(place: Path, query: str, value: str) -> int:
    file = place / KILLED / "ledger" / "secagg.db"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return int(db.execute(query, (value,)).fetchone()[0])
    return 0


def memory(place: Path, name: str = KILLED) -> Path:
    return place / name / "ledger" / MEMORY_FILE


def once(happens: Callable[[], bool], then: Callable[[], object]) -> threading.Thread:
    """Do something as soon as something else has happened, beside the training."""

    def wait() -> None:
        while not happens():
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def charges(place: Path, name: str) -> int:
    file = place / name / "ledger" / "ledger.db"
    if not file.exists():  # killed before it was ever asked for a sum
        return 0
    with NodeLedger.read(str(file)) as ledger:
        return sum(each.charges for each in ledger.spendings)


def require_complete(place: Path, *, burnt: int = 0) -> None:
    """All rounds but burnt ones were released, and nobody is charged beyond a position's visits."""
    folder = folder_of(place)
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_committed == ROUNDS - burnt
        assert ledger.rounds_spent == ROUNDS
        assert ledger.epsilon().best <= ledger.plan.epsilon().best * (1.0 + 1e-9)
    assert folder.read_metrics()[-1]["test_accuracy"] > 0.6  # .5 untrained
    visits = ROUNDS // TURNS
    for name in NODES:
        assert charges(place, name) <= visits


@pytest.mark.parametrize("phase", ["key", "turn", "memory", "open"])
def test_a_node_that_is_killed_in_any_phase_ends_no_training(
    deployment: Deployment, place: Path, phase: str
) -> None:
    # "memory": its file is there, so it draws or has drawn its second answer.
    happens = {
        "key": lambda: _count(place, "SELECT count(*) FROM kept WHERE key = ?", "run-key") > 0,
        "turn": lambda: marks(place, "turn") > 1,
        "memory": lambda: marks(place, "turn") > 1 and memory(place).exists(),
        "open": lambda: marks(place, "open") > 1,
    }[phase]
    killer = once(happens, lambda: deployment.leave(KILLED))
    assert deployment.run(ROOT, overrides(place), timeout=None) == "finished:completed"
    killer.join(timeout=1.0)
    assert not killer.is_alive()
    require_complete(place)
    assert charges(place, "north") == ROUNDS // TURNS


def test_a_killed_node_that_comes_back_takes_part_again(
    deployment: Deployment, place: Path
) -> None:
    def again() -> None:
        deployment.leave(KILLED)
        join(deployment, place, KILLED)

    killer = once(lambda: marks(place, "turn") > 1, again)
    assert deployment.run(ROOT, overrides(place), timeout=None) == "finished:completed"
    assert not killer.is_alive()
    require_complete(place)


def test_a_server_that_is_killed_goes_on_and_no_index_is_used_twice(
    deployment: Deployment, place: Path
) -> None:
    run = deployment.begin(ROOT, overrides(place))
    while marks(place, "turn") < 2:
        time.sleep(0.01)
    deployment.kill_server_app()
    assert deployment.status(run) == 1
    again = deployment.begin(ROOT, [f"resume={place / 'runs' / 'run'}"])
    assert deployment.status(again) == 0, deployment.log("superlink")
    require_complete(place, burnt=1)
    assert not any(memory(place, name).exists() for name in NODES)


def test_a_memory_that_is_gone_ends_in_no_refusal(deployment: Deployment, place: Path) -> None:
    lost = []

    def lose() -> None:
        lost.append(memory(place).stat().st_size)
        memory(place).unlink()

    thief = once(lambda: marks(place, "turn") > 1 and memory(place).exists(), lose)
    assert deployment.run(ROOT, overrides(place), timeout=None) == "finished:completed"
    assert not thief.is_alive() and lost and lost[0] > 0
    require_complete(place)
    assert "Refused" not in deployment.log(KILLED)
    for name in NODES:
        assert charges(place, name) == ROUNDS // TURNS
        assert not memory(place, name).exists()
