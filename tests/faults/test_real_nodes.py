"""Faults of real SuperNodes, of their clients, of the server and of the network between them.

One federation plays several faults in every run of the suite. Those that wait for Flower's minutes
are run by hand: pytest -m waits tests/faults. docs/reliability.md has their outcomes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment
from fault_app import SECRET, FaultApp
from flat_plans import calibrated_plan
from loopback_proxy import LoopbackProxy
from soundness import require_sound, require_sound_buffers
from stages import STAGES
from waiting import until

from fl_dp import PrivacyBudget
from fl_dp.accounting.sampling import BufferedSampling

NODES = ("steady", "faulty")
ROUNDS = 2
real_nodes = [
    pytest.mark.simulation,
    pytest.mark.xdist_group("simulation"),
    pytest.mark.timeout(900),
]
pytestmark = real_nodes


@pytest.fixture
def app(tmp_path: Path) -> FaultApp:
    return FaultApp(tmp_path, nodes=len(NODES), rounds=ROUNDS)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path / "processes", database=True) as started:
        yield started


def join(running: Deployment, *names: str) -> None:
    for name in names:
        running.join(name, {"dp-unit-name": name})


def require_complete(app: FaultApp, *, lost: int = 0) -> None:
    """All rounds were released, each once, and so many more were charged."""
    assert [line["round"] for line in app.place.shown()] == [1, 2]
    assert require_sound(app.place) == (ROUNDS + lost, ROUNDS, ROUNDS)


@pytest.mark.nightly
def test_a_node_a_client_and_the_server_fail_and_one_command_goes_on(
    running: Deployment, app: FaultApp
) -> None:
    join(running, *NODES)
    app.tell("steady", f"raise {SECRET}")
    app.tell("faulty", "sleep 60")
    run = running.begin(app.path)
    until(lambda: app.began("faulty") and app.began("steady"))
    running.kill("faulty")  # while its client trains
    app.tell("faulty", "")
    join(running, "faulty")  # at once
    until(lambda: len(app.place.shown()) == 1)
    running.kill_server_app()  # round 2 is charged, or will be in the next run
    assert running.status(run) == 1
    lost = require_sound(app.place).charged - 1
    app.tell("steady", "")
    app.wait_for(nobody=False)

    assert running.status(running.begin(app.path)) == 0
    require_complete(app, lost=lost)
    assert app.began("faulty") >= 2  # also after its restart
    assert SECRET not in running.log("superlink")
    assert SECRET in running.log("steady")  # where its owner looks


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_node_that_is_killed_and_restarted_at_once_costs_its_contribution_alone(
    running: Deployment, app: FaultApp, when: str
) -> None:
    join(running, *NODES)
    if when == "after":
        app.tell("steady", "sleep 15")  # the round is still open when the other one has trained
        app.wait_for(nobody=False)
    else:
        app.place.die_at("charged, nobody asked", 1)  # there the nodes are known and idle
    run = running.begin(app.path)
    if when == "after":
        until(lambda: app.began("faulty"))
        until(lambda: running.log("faulty").count("Sending: train") == 1)
        until(lambda: running.log("faulty").rpartition("Sending: train")[2].count("successfully"))
    else:
        assert running.status(run) == 1
    running.kill("faulty")
    join(running, "faulty")
    if when == "before":
        run = running.begin(app.path)
    assert running.status(run) == 0
    require_complete(app, lost=when == "before")


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["die", "sleep 3600"])
def test_a_client_that_dies_or_hangs_leaves_a_node_that_answers_again(
    running: Deployment, app: FaultApp, what: str
) -> None:
    join(running, *NODES)
    app.tell("faulty", what)
    run = running.begin(app.path)
    until(lambda: app.began("faulty"))
    app.tell("faulty", "")
    assert running.status(run) == 0
    require_complete(app)
    asked = app.began("faulty")
    app.place.checkpoint.unlink()  # another training on the same ledger: one round is left
    run = running.begin(app.path)
    until(lambda: app.began("faulty") > asked)
    running.status(run)
    require_sound(app.place)


@pytest.mark.nightly
def test_a_network_that_is_cut_slow_and_lossy_ends_no_training(
    running: Deployment, app: FaultApp
) -> None:
    with (
        LoopbackProxy(running.port, delay=0.02, loss=0.02) as poor,
        LoopbackProxy(running.port) as cut,
    ):
        for name, proxy in zip(NODES, (poor, cut), strict=True):
            running.join(name, {"dp-unit-name": name}, through=proxy.port)
        app.tell("faulty", "sleep 4")
        run = running.begin(app.path)
        until(lambda: app.began("faulty"))
        cut.cut()  # its reply finds no way
        until(lambda: app.place.shown())
        cut.mend()
        assert running.status(run) == 0
        require_complete(app)
        assert poor.passed and cut.passed
        assert poor.broken and cut.broken


@pytest.mark.nightly
@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_is_killed_at_any_stage_goes_on_with_one_command(
    running: Deployment, app: FaultApp, stage: str
) -> None:
    app.wait_for(nobody=False)
    join(running, *NODES)
    app.place.die_at(stage, 1)
    assert running.status(running.begin(app.path)) == 1
    before = require_sound(app.place)
    assert running.status(running.begin(app.path)) == 0
    after = require_sound(app.place)
    assert after.committed == after.charged - (stage in STAGES[1:5])
    assert after.charged == before.charged + ROUNDS - (stage == STAGES[-1])


@pytest.mark.nightly
def test_a_superlink_that_is_killed_and_restarted_with_its_database_ends_the_run_and_keeps_nodes(
    running: Deployment, app: FaultApp
) -> None:
    app.wait_for(nobody=False)
    join(running, *NODES)
    app.tell("steady", "sleep 5")
    run = running.begin(app.path)
    until(lambda: app.began("steady"))
    running.kill_link()
    running.start_link()
    assert running.status(run) == 1  # Flower can't go on with it
    before = require_sound(app.place)
    assert running.status(running.begin(app.path)) == 0
    require_complete(app, lost=before.charged - before.shown)


@pytest.mark.nightly
def test_a_run_that_flower_stops_goes_on_with_one_command(
    running: Deployment, app: FaultApp
) -> None:
    app.wait_for(nobody=False)
    join(running, *NODES)
    app.tell("steady", "sleep 5")
    run = running.begin(app.path)
    until(lambda: app.began("steady"))
    assert running.flwr("flwr", "stop", run, "real").returncode == 0
    assert running.status(run) == 3
    before = require_sound(app.place)
    assert running.status(running.begin(app.path)) == 0
    require_complete(app, lost=before.charged - before.shown)


@pytest.mark.nightly
def test_a_supernode_that_is_stopped_in_its_tracks_is_passed_over_until_it_goes_on(
    running: Deployment, app: FaultApp
) -> None:
    join(running, *NODES)
    app.tell("faulty", "sleep 4")
    run = running.begin(app.path)
    until(lambda: app.began("faulty"))
    os.kill(running.pid("faulty"), signal.SIGSTOP)  # neither alive nor gone
    until(lambda: app.place.shown())
    os.kill(running.pid("faulty"), signal.SIGCONT)
    assert running.status(run) == 0
    require_complete(app)


@pytest.mark.nightly
def test_buffers_outlast_a_slow_node_one_that_is_killed_and_their_server(
    running: Deployment, tmp_path: Path
) -> None:
    rounds = 7
    plan = calibrated_plan(
        PrivacyBudget(epsilon=20.0, delta=1e-5),
        rounds=rounds + 3,
        num_clients=3,
        sampling=BufferedSampling(cohort=2),
        participation_cap=rounds + 2,
        clipping_norm=1.0,
    )
    app = FaultApp(tmp_path, nodes=3, rounds=rounds, plan=plan)
    app.wait_for(nobody=False)
    join(running, "slow", *NODES)
    app.tell("slow", "sleep 15")
    run = running.begin(app.path)
    until(lambda: len(app.place.shown()) >= 2)  # of the other two
    app.tell("faulty", "sleep 120")
    asked = app.began("faulty")
    until(lambda: app.began("faulty") > asked)
    running.kill("faulty")  # while its client trains; the slow one fills its place
    app.tell("faulty", "")
    shown = len(app.place.shown())
    until(lambda: len(app.place.shown()) > shown)
    late = [each.folded - each.asked for each in require_sound_buffers(app.place)]
    assert max(late) >= 1  # in a later release than that of its ask
    running.kill_server_app()
    assert running.status(run) == 1
    before = require_sound_buffers(app.place)
    join(running, "faulty")

    assert running.status(running.begin(app.path)) == 0
    after = require_sound_buffers(app.place)
    assert after[: len(before)] == before
    assert {each.unit for each in after[len(before) :]} == {"slow", *NODES}
    assert [line["round"] for line in app.place.shown()] == list(range(1, rounds + 1))
    assert require_sound(app.place).charged <= rounds + 1
