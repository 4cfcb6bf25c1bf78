"""Noise with memory in shares on a real SuperLink with three real SuperNodes, one killed."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
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
    pytest.mark.timeout(2700),  # above what is waited for, so that a wait says what it was for
]

NODES = ("north", "south", "east")
KILLED = "east"
ROUNDS, TURNS = 4, 2
PATIENCE = 900.0  # seconds; on a busy machine a whole training takes two thirds of them
CYCLIC = (
    f"rounds={ROUNDS}",
    "roster_timeout=180",  # seconds; in 60 a busy machine may not start a client's process
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


def keys(place: Path) -> int:
    """How many runs the node that is killed has keys for."""
    return _count(place, "SELECT count(*) FROM kept WHERE key = ?", "run-key")


def _count(place: Path, query: str, value: str) -> int:
    file = place / KILLED / "ledger" / "secagg.db"
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            return int(db.execute(query, (value,)).fetchone()[0])
    except sqlite3.OperationalError as error:
        not_yet = error.sqlite_errorname in ("SQLITE_CANTOPEN", "SQLITE_BUSY")
        if not_yet or "no such table" in str(error):
            return 0
        raise


def memory(place: Path, name: str = KILLED) -> Path:
    return place / name / "ledger" / MEMORY_FILE


def await_that(what: str, happens: Callable[[], bool], place: Path) -> None:
    """Wait until something has happened, and not for ever.

    Raises:
        TimeoutError: If it has not, with what has.
    """
    deadline = time.monotonic() + PATIENCE
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} at {KILLED} in {PATIENCE:g} s: {seen(place)}")
        time.sleep(0.01)


def seen(place: Path) -> str:
    """Say how far the node that is killed has come, and the server."""
    roles = {role: marks(place, role) for role in ("turn", "open")}
    log = folder_of(place).log
    said = log.read_text(encoding="utf-8")[-2000:] if log.exists() else "nothing"
    return (
        f"it has {keys(place)} run keys, marks {roles} and "
        f"{'a' if memory(place).exists() else 'no'} memory; the server said:\n{said}"
    )


def once(
    what: str, happens: Callable[[], bool], place: Path, then: Callable[[], object]
) -> threading.Event:
    """Do something as soon as something else has happened, beside the training.

    Returns:
        What is set when it is done.
    """
    done = threading.Event()

    def wait() -> None:
        await_that(what, happens, place)
        then()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    return done


def train_until(done: threading.Event, deployment: Deployment, place: Path) -> None:
    """Train to the end, by which what is done beside the training must be done."""
    assert deployment.run(ROOT, overrides(place), timeout=PATIENCE) == "finished:completed"
    assert done.wait(1.0), seen(place)


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
        "key": lambda: keys(place) > 0,
        "turn": lambda: marks(place, "turn") > 1,
        "memory": lambda: marks(place, "turn") > 1 and memory(place).exists(),
        "open": lambda: marks(place, "open") > 1,
    }[phase]
    train_until(once(phase, happens, place, lambda: deployment.leave(KILLED)), deployment, place)
    require_complete(place)
    assert charges(place, "north") == ROUNDS // TURNS


def test_a_killed_node_that_comes_back_takes_part_again(
    deployment: Deployment, place: Path
) -> None:
    def again() -> None:
        deployment.leave(KILLED)
        join(deployment, place, KILLED)

    came = once("second turn", lambda: marks(place, "turn") > 1, place, again)
    train_until(came, deployment, place)
    require_complete(place)


def test_a_server_that_is_killed_goes_on_and_no_index_is_used_twice(
    deployment: Deployment, place: Path
) -> None:
    run = deployment.begin(ROOT, overrides(place))
    await_that("second turn", lambda: marks(place, "turn") > 1, place)
    deployment.kill_server_app()
    assert deployment.status(run) == 1
    again = deployment.begin(ROOT, [f"resume={place / 'runs' / 'run'}"])
    assert deployment.status(again, timeout=PATIENCE) == 0, seen(place)
    require_complete(place, burnt=1)
    assert not any(memory(place, name).exists() for name in NODES)


def test_a_memory_that_is_gone_ends_in_no_refusal(deployment: Deployment, place: Path) -> None:
    lost = []

    def lose() -> None:
        lost.append(memory(place).stat().st_size)
        memory(place).unlink()

    def remembers() -> bool:
        return marks(place, "turn") > 1 and memory(place).exists()

    train_until(once("memory", remembers, place, lose), deployment, place)
    assert lost and lost[0] > 0
    require_complete(place)
    assert "Refused" not in deployment.log(KILLED)
    for name in NODES:
        assert charges(place, name) == ROUNDS // TURNS
        assert not memory(place, name).exists()
