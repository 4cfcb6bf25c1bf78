"""`simulation.ray_address`: which cluster is meant, and a training on two machines of one.

The machines are processes of this one, on loopback addresses of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_dp.app.compose import compose_settings
from fl_dp.app.local import cluster, cluster_grid
from fl_dp.app.local.auto_hosting import hosted
from fl_dp.app.local.cluster import Cluster, ClusterMember, code_digest, own_address
from fl_dp.app.local.cluster_grid import ClusterGrid, Work, Worker
from fl_dp.app.local.devices import WORKER_MEMORY, busy_workers
from fl_dp.app.local.processes import descendants
from fl_dp.app.local.superlink import FOLDER_VARIABLE
from fl_dp.app.overrides import ConfigError
from fl_dp.app.run_folder import RunFolder
from fl_dp.commands.jobs import find_jobs
from fl_dp.protocol.flower_compat import ErrorCode

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
TWO = Cluster(
    address="10.0.0.1:6379",
    members=(
        ClusterMember(host="10.0.0.1", cpus=4, gpus=1),
        ClusterMember(host="10.0.0.2", cpus=2, gpus=0),
    ),
    has_token=False,
)


# Which cluster is meant.


@pytest.fixture
def processes(tmp_path: Path) -> Callable[..., Path]:
    """Add a process to a folder like `/proc`."""
    count = iter(range(100, 200))

    def add(*words: str, environment: str = "") -> Path:
        folder = tmp_path / "proc" / str(next(count))
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
        (folder / "environ").write_bytes(environment.encode() + b"\0")
        return folder.parent

    return add


def raylet(address: str) -> tuple[str, str, str]:
    return "/usr/lib/ray/raylet/raylet", "--node_ip_address=10.0.0.2", f"--gcs-address={address}"


def test_auto_is_the_one_cluster_of_this_user(processes: Callable[..., Path]) -> None:
    processes("python", "raylet", "--gcs-address=1.2.3.4:1")  # only speaks of one
    processes(*raylet("127.0.0.1:5"), environment=f"A=b\0{FOLDER_VARIABLE}=/tmp/of-a-run")
    there = processes(*raylet("10.0.0.1:6379"), environment="A=b\0RAY_AUTH_MODE=token")
    assert own_address("auto", there) == ("10.0.0.1:6379", True)
    assert own_address("10.0.0.1:6379", there) == ("10.0.0.1:6379", True)
    there = processes(*raylet("10.0.0.9:6379"))
    assert own_address("10.0.0.9:6379", there) == ("10.0.0.9:6379", False)
    with pytest.raises(ValueError, match=r"is 2 of .*10\.0\.0\.9:6379\): name one"):
        own_address("auto", there)


def test_another_address_is_refused_without_a_connection(processes: Callable[..., Path]) -> None:
    there = processes(*raylet("10.0.0.1:6379"))
    with pytest.raises(ValueError, match=r"is: 10\.0\.0\.1:6379.*ray start --address="):
        own_address("10.0.0.1:6380", there)
    with pytest.raises(ValueError, match=r"is none of .*is: none.*ray start --head"):
        own_address("auto", there / "nothing")


def test_a_ray_of_another_user_is_nobody_s(
    processes: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = processes(*raylet("10.0.0.1:6379"))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(ValueError, match=r"there is: none"):
        own_address("auto", there)


@pytest.mark.parametrize(
    "overrides",
    [
        ["simulation.ray_address=ray://10.0.0.1:10001"],
        ["simulation.ray_address=auto", "simulation.engine=flower"],
        ["simulation.engine=cluster"],
    ],
)
def test_other_addresses_and_engines_are_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"simulation\.ray_address"):
        compose_settings(overrides)


# What its machines are asked for.


def test_a_round_is_one_message_for_each_processor_of_the_cluster() -> None:
    settings, _ = hosted(
        compose_settings(["simulation.ray_address=auto", "task.num_clients=600"]), TWO.machine
    )
    assert settings.simulation.engine == "cluster"
    assert settings.simulation.num_nodes(600) == 6
    many = Cluster(
        address="a:1", members=(ClusterMember(host="a", cpus=400, gpus=0),), has_token=True
    )
    assert busy_workers(settings.simulation, many.machine) == 400
    assert many.caution is None and "runs programs as you" in str(TWO.caution)
    assert "2 machines: 10.0.0.1 (4 CPUs), 10.0.0.2 (2 CPUs)" in TWO.summary


def test_the_command_asks_the_cluster_and_says_that_it_has_no_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "cluster_at", lambda address: TWO)
    asked = ["simulation.ray_address=10.0.0.1:6379", f"output_dir={tmp_path}"]
    [job] = find_jobs(asked, multirun=False).trainings
    said = " ".join(capsys.readouterr().err.split())
    assert "has 2 machines" in said and "asks for no token" in said
    assert "simulation.engine=cluster" in job.sent
    with pytest.raises(ValueError, match=r"can have simulation\.ray_address"):
        find_jobs([*asked, "seed=0,1", "sweep.side_by_side=2"], multirun=True)


# The grid, with Ray played by a few lines.


class PlayedRay:
    """Ray whose workers answer at once, and die when told to."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.workers: list[SimpleNamespace] = []
        self.room = 3
        self.deaths = 0
        self.exceptions = SimpleNamespace(RayError=ConnectionError)

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.asked = options
        return lambda made: SimpleNamespace(remote=lambda *args: self._start(made(*args)))

    def _start(self, worker: Worker) -> Any:
        number = len(self.workers)
        waits = number >= self.room
        handle: Any = SimpleNamespace(number=number)

        def method(name: str) -> Any:
            def call(*args: Any) -> Any:
                return self._call(worker, name, args, waits=waits)

            return SimpleNamespace(remote=call, options=lambda **_: method(name))

        handle = Handle(number, {name: method(name) for name in ("ready", "lacks", "answer")})
        self.workers.append(handle)
        return handle

    def _call(self, worker: Worker, name: str, args: Any, *, waits: bool) -> Any:
        if name == "ready":
            return Ref(("machine-a", None), waits=waits)
        if name == "lacks":
            return Ref(worker.lacks(*args))
        worker._app = remembering
        if self.deaths:
            self.deaths -= 1
            return Ref(ConnectionError("gone")), Ref(ConnectionError("gone"))
        state, reply = worker.answer(*args)
        return Ref(state), Ref(reply)

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return [each for each in refs if not each.waits], [each for each in refs if each.waits]

    def get(self, ref: Any) -> Any:
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def kill(self, worker: Any) -> None:
        """Take note of nothing."""

    def shutdown(self) -> None:
        """Take note of nothing."""


class Handle:
    """A worker as its owner has it."""

    def __init__(self, number: int, methods: dict[str, Any]) -> None:
        self.number = number
        self.ready, self.lacks, self.answer = (
            methods[name] for name in ("ready", "lacks", "answer")
        )


class Ref:
    """A result that is there, or never comes."""

    def __init__(self, value: Any, *, waits: bool = False) -> None:
        self.value, self.waits = value, waits


def remembering(message: Message, context: Context) -> Message:
    """Say how often this node was asked."""
    seen = context.state["seen"] if "seen" in context.state else ConfigRecord({"times": 0})
    times = int(seen["times"]) + 1  # type: ignore[arg-type]  # a number, as it was put there
    context.state["seen"] = ConfigRecord({"times": times})
    return Message(RecordDict({"said": ConfigRecord({"times": times})}), reply_to=message)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    played = PlayedRay()
    monkeypatch.setitem(sys.modules, "ray", played)
    monkeypatch.setattr(cluster_grid, "join", lambda address: None)
    monkeypatch.setattr(cluster_grid, "members", lambda: TWO.members)
    monkeypatch.setattr(cluster_grid, "_OTHER_WORKERS", 0.0)
    return played


def grid_of(nodes: int = 2, **options: Any) -> ClusterGrid:
    return ClusterGrid(
        [{"partition-id": node} for node in range(nodes)],
        address="10.0.0.1:6379",
        client="somebody_s.client_app",
        settings="{}",
        run_id=7,
        run_config={},
        **{"num_workers": None, "num_gpus": 0.0, **options},
    )


def ask(grid: ClusterGrid, node: int, ttl: float = 60.0) -> str:
    message = Message(RecordDict(), dst_node_id=node, message_type="train", ttl=ttl)
    [message_id] = grid.push_messages([message])
    return message_id


def test_each_worker_asks_for_its_resources_on_any_machine(ray: PlayedRay) -> None:
    ray.room = 100
    grid_of(num_gpus=0.25)
    assert ray.asked == {
        "num_cpus": 1,
        "num_gpus": 0.25,
        "memory": WORKER_MEMORY,
        "scheduling_strategy": "SPREAD",
    }
    assert len(ray.workers) == 4  # the other machine has no GPU
    grid_of(num_workers=5)
    assert len(ray.workers) == 4 + 5
    grid_of()
    assert len(ray.workers) == 4 + 5 + 6
    # A share is of one GPU: what is left of two is no third one.
    assert ClusterMember(host="a", cpus=8, gpus=2).worker_slots(0.6) == 2
    assert ClusterMember(host="a", cpus=8, gpus=4).worker_slots(2.0) == 2


def test_nodes_answer_and_remember_from_message_to_message(ray: PlayedRay) -> None:
    grid = grid_of()
    for times in (1, 2):
        asked = [ask(grid, node) for node in grid.get_node_ids()]
        replies = [reply for each in asked for reply in grid.pull_messages([each])]
        assert [reply.content["said"]["times"] for reply in replies] == [times, times]
        assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2]
    assert list(grid.pull_messages(asked)) == []  # each once
    [reply] = grid.send_and_receive([Message(RecordDict(), dst_node_id=1, message_type="train")])
    assert reply.content["said"]["times"] == 3


def test_a_lost_worker_is_an_error_of_its_message_alone_and_is_replaced(
    ray: PlayedRay, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of()
    ray.deaths, ray.room = 1, 100
    asked = [ask(grid, 1), ask(grid, 2)]
    first, second = (reply for each in asked for reply in grid.pull_messages([each]))
    assert first.has_error() and first.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert first.metadata.reply_to_message_id == asked[0]
    assert not second.has_error()
    assert len(ray.workers) == 6 + 1
    assert "is lost" in caplog.text and "machine-a" in caplog.text


def test_what_nobody_waits_for_any_more_is_not_worked_on(ray: PlayedRay) -> None:
    grid = grid_of()
    late = ask(grid, 1, ttl=-1.0)
    assert list(grid.pull_messages([late])) == []
    [reply] = grid.pull_messages([ask(grid, 1)])
    assert reply.content["said"]["times"] == 1


def test_a_cluster_without_workers_ends_the_run_in_a_line(
    ray: PlayedRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.room = 1
    grid = grid_of()
    ray.deaths = 1
    monkeypatch.setattr(cluster_grid, "_WITHOUT_WORKER", 0.0)
    ask(grid, 1)
    with pytest.raises(RuntimeError, match=r"no worker any more; .* resume=FOLDER"):
        for _ in range(100):
            grid.pull_messages([])
    ray.room = 0
    monkeypatch.setattr(cluster_grid, "_FIRST_WORKER", 0.0)
    with pytest.raises(ValueError, match="no room for a worker"):
        grid_of()


def test_ledgers_of_nodes_need_a_folder_that_every_machine_sees(
    ray: PlayedRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.room = 100
    grid = grid_of()
    grid.require_shared([tmp_path / "ledgers"])
    assert len(list((tmp_path / "ledgers").iterdir())) == 1
    grid.close()
    assert not list((tmp_path / "ledgers").iterdir())
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    with pytest.raises(ValueError, match=r"machine-a: it does not see .*ledgers.*privacy=central"):
        grid_of().require_shared([tmp_path / "ledgers"])


@pytest.fixture
def on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.2")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(util=util))


@pytest.mark.usefixtures("on_a_machine")
@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, None),
        ({"code": "0" * 64}, "other code than the server's"),
        ({"client": "fl_dp.no_such_module"}, "ModuleNotFoundError: No module named"),
        ({"settings": "task=csv task.data_dir=/nowhere"}, "Error"),
    ],
)
def test_a_machine_without_code_or_data_says_so_before_anything_is_spent(
    changed: dict[str, str], wrong: str | None
) -> None:
    overrides = changed.get("settings", "task.num_clients=6").split()
    if "settings" in changed:
        overrides += ["task.columns=[a]", "task.label_column=b", "task.classes=[c,d]"]
    settings = compose_settings(overrides).to_json()
    asked = {"client": "fl_dp.app.task_client", "code": code_digest(), "run_id": 7} | changed
    host, said = Worker(Work(**{**asked, "settings": settings})).ready([])  # type: ignore[arg-type]
    assert host == "10.0.0.2"
    assert said is None if wrong is None else wrong in str(said)


# All of it, on two machines.


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(descendants(os.getpid()))
    with importlib.import_module("ray_machines").RayMachines() as started:
        started.start()
        started.start()
        yield started
    assert not set(descendants(os.getpid())) - before


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_a_training_on_two_machines_survives_the_loss_of_one_and_resumes(
    machines: Any, tmp_path: Path
) -> None:
    overrides = (
        f"simulation.ray_address={machines.address} simulation.units_per_node=10 rounds=30 "
        f"task.num_clients=200 client.epochs=10 privacy.noise_multiplier=1 report=none "
        f"output_dir={tmp_path} run_name=run"
    )

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fl_dp", "run", *words],
            env={**machines.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until(rounds: int, running: subprocess.Popen[str]) -> None:
        while running.poll() is None:
            if len(folder.read_metrics()) > rounds:
                return
            time.sleep(0.2)
        raise AssertionError(running.communicate()[0])

    folder = RunFolder(tmp_path / "run")
    refused = start(*overrides.split(), RAY_AUTH_TOKEN="0" * 64)
    said = refused.communicate(timeout=200)[0]
    assert refused.returncode == 2 and "can't be joined" in said
    assert not folder.path.exists()

    running = start(*overrides.split())
    until(2, running)
    machines.kill(1)
    until(6, running)  # it goes on
    machines.kill(0)  # the head
    said = running.communicate(timeout=200)[0]
    assert running.returncode == 1 and "has no worker any more" in said
    log = folder.log.read_text(encoding="utf-8")
    assert f"Workers on the Ray cluster {machines.address}: 127.0.0.2 1, 127.0.0.3 1" in log
    assert "A worker on 127.0.0.3 is lost" in log
    assert "a failed client contributes zero" in log

    machines.start(again=0)
    resumed = start(f"resume={folder.path}")
    said = resumed.communicate(timeout=300)[0]
    assert resumed.returncode == 0, said
    assert [line["round"] for line in folder.read_metrics()] == list(range(31))
    # What was lost on the way was charged, too.
    assert json.loads(folder.statement.read_text(encoding="utf-8"))["rounds"] >= 30
