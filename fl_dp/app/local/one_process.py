"""Simulated nodes that answer one by one in a process of their own, without Ray.

The app's `ServerApp` and `ClientApp` run there, on a grid that passes messages in memory. With
`simulation.ray_address` that process is only the server, and a Ray cluster answers for nodes.
Flower's engine starts six processes and Ray before the first round; this one starts one. Each node
has `round_timeout` for its own answer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fl_dp.app.settings import Settings

from .cluster import own_address
from .flower_runs import RunStatus
from .launch import App, environment_of_children, require_torch
from .processes import delete_in_use, descendants, end_with, kill_all

if TYPE_CHECKING:  # Flower is loaded where a training runs
    from flwr.serverapp import ServerApp

_ENDED = "ended.json"
_PATIENCE = 10.0


class OneProcess:
    """An engine that runs all of a training's nodes in one process, new for each training.

    The first starts with the `with` block, and imports while the caller still plans.
    """

    def __init__(self, app: App | None = None, *, more_nodes: int = 0) -> None:
        """Set what to run, as `engines.engine`."""
        self._app = app or App()
        self._more_nodes = more_nodes
        self._waiting: _AppProcess | None = None

    def __enter__(self) -> Self:
        """Start the first process.

        Raises:
            LaunchError: PyTorch is not installed.
        """
        require_torch()
        self._waiting = _AppProcess(self._app, num_gpus=0.0)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop an unused process; each training stops its own."""
        if self._waiting is not None:
            self._waiting.stop()

    def run(
        self, settings: Settings, overrides: Sequence[str], on_progress: Callable[[], None]
    ) -> RunStatus:
        """Run one training to its end, as `Engine.run`."""
        simulation = settings.simulation
        request = {
            "config": {"hydra-overrides": shlex.join(overrides), **self._app.config},
            "nodes": simulation.num_nodes(settings.task.num_clients) + self._more_nodes,
            "threads": simulation.num_cpus or 1,
            "cluster": _cluster(settings),
        }
        player = self._player(simulation.num_gpus)
        try:
            _tell(player.process, request)
            while player.process.poll() is None:
                on_progress()
                time.sleep(0.1)
            on_progress()
            return player.status()
        finally:
            player.stop()

    def _player(self, num_gpus: float) -> _AppProcess:
        """The waiting process; a new one if there is none, or GPUs are needed."""
        if self._waiting is None or num_gpus > 0:
            return _AppProcess(self._app, num_gpus=num_gpus)
        player, self._waiting = self._waiting, None
        return player


class _AppProcess:
    """A process that imports the apps, then waits for its training."""

    def __init__(self, app: App, *, num_gpus: float) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="fl-dp-")
        self._folder = Path(self._temporary.name)
        self._log = self._folder / "process.log"
        with self._log.open("wb") as stream:
            self.process = subprocess.Popen(
                # -P: a module in the user's current folder is not imported in place of ours.
                [sys.executable, "-P", "-m", __name__, app.server, app.client, str(self._folder)],
                env=_environment(num_gpus),
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C reaches only us, and we stop it in order
            )

    def status(self) -> RunStatus:
        return _status(self._folder / _ENDED, self._log, self.process.returncode)

    def stop(self) -> None:
        """Stop it with everything that it started, and delete its folder."""
        _stop(self.process)
        self._temporary.cleanup()


def _cluster(settings: Settings) -> dict[str, Any] | None:
    """Arguments of a grid on a Ray cluster; None if nodes answer in the process."""
    simulation = settings.simulation
    if simulation.ray_address is None:
        return None
    return {
        "address": own_address(simulation.ray_address)[0],
        "settings": settings.for_clients().to_json(),
        "num_workers": simulation.workers or simulation.num_cpus,
        "num_gpus": simulation.num_gpus,
    }


def _environment(num_gpus: float) -> dict[str, str]:
    # Like Flower's workers, which see a GPU only if they get a share of one.
    hidden = {} if num_gpus > 0 else {"CUDA_VISIBLE_DEVICES": ""}
    return {**environment_of_children(), **hidden}


def _tell(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    """Write the request; the pipe stays open: its end tells the process that we ended."""
    stdin = process.stdin
    if stdin is None:
        raise AssertionError("the process was started with a pipe")
    with contextlib.suppress(BrokenPipeError):  # it ended at once: its status tells why
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a running process with everything that it started."""
    if process.poll() is None:
        started = descendants(process.pid)
        process.terminate()
        try:
            process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        kill_all(started)
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _status(ended: Path, log: Path, returncode: int | None) -> RunStatus:
    try:
        details = json.loads(ended.read_text(encoding="utf-8"))["details"]
    except FileNotFoundError:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        reason = f"its process ended with status {returncode}: " + " ".join(lines)
        return RunStatus(status="finished:failed", details=reason)
    if details is not None:
        return RunStatus(status="finished:failed", details=str(details))
    return RunStatus(status="finished:completed", details="")


def _play(server_module: str, client_module: str, folder: str) -> None:
    """Import the apps, then run the training that standard input asks for, if any."""
    server = importlib.import_module(server_module).app
    client = importlib.import_module(client_module).app

    importlib.import_module("fl_dp.app.server")  # early: later the app would make somebody wait

    import torch

    from .script_simulation import play

    line = sys.stdin.buffer.readline()
    if not line:  # no training is wanted, or the starting process is gone
        shutil.rmtree(folder, ignore_errors=True)
        return
    request = json.loads(line)
    end_with(sys.stdin.fileno(), lambda: delete_in_use(folder))
    if request.get("cluster") is not None:
        _play_on_a_cluster(server, client_module, request)
        return
    torch.set_num_threads(request["threads"])
    play(server, client, num_nodes=request["nodes"], run_config=request["config"])


def _play_on_a_cluster(server: ServerApp, client: str, request: dict[str, Any]) -> None:
    """Run a training as the server; a cluster's workers answer for nodes."""
    from fl_dp.app.in_process import configs_of_nodes

    from .cluster_grid import ClusterGrid
    from .script_simulation import serve_simulated

    run = {"run_id": secrets.randbits(63), "run_config": request["config"]}
    nodes = configs_of_nodes(request["nodes"])
    grid = ClusterGrid(nodes, client=client, **request["cluster"], **run)
    try:
        serve_simulated(server, grid, **run)
    finally:
        grid.close()


def main() -> None:
    """Play one training of the command line's apps, and write how it ended."""
    server, client, folder = sys.argv[1:]
    details: str | None = None
    try:
        _play(server, client, folder)
    except Exception as error:
        details = f"{type(error).__name__}: {error}"
    if Path(folder).is_dir():
        (Path(folder) / _ENDED).write_text(json.dumps({"details": details}), encoding="utf-8")


if __name__ == "__main__":
    main()
