"""Simulated nodes that answer one after the other in a process of their own, without Ray.

The app's own `ServerApp` and `ClientApp` run there, on a grid that hands messages over in memory.
With `simulation.ray_address` that process is the server alone, and a Ray cluster answers for nodes.
Flower's engine starts six processes and Ray before the first round; this starts one. It trains one
node at a time; when `round_timeout` is over, nodes that were not asked yet are not asked any more.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
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
from .launch import SILENT, App, require_torch
from .processes import descendants, end_with, kill_all

if TYPE_CHECKING:  # Flower is loaded where a training runs
    from flwr.serverapp import ServerApp

_ENDED = "ended.json"
_PATIENCE = 10.0


class OneProcess:
    """An engine that plays all nodes of a training in one process, a new one for each training."""

    def __init__(self, app: App | None = None, *, more_nodes: int = 0) -> None:
        """Say what it will run.

        Args:
            app: The training, unless given.
            more_nodes: Virtual nodes besides those of the settings' clients.
        """
        self._app = app or App()
        self._more_nodes = more_nodes

    def __enter__(self) -> Self:
        """Look whether it can train: each training starts what it needs.

        Raises:
            LaunchError: If PyTorch is not installed.
        """
        require_torch()
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: each training stops what it started."""

    def run(
        self, settings: Settings, overrides: Sequence[str], on_progress: Callable[[], None]
    ) -> RunStatus:
        """Run one training to its end.

        Args:
            settings: What `overrides` compose to.
            overrides: Hydra overrides for the ServerApp; every path in them absolute.
            on_progress: Called a few times a second while the run goes on.
        """
        simulation = settings.simulation
        with tempfile.TemporaryDirectory(prefix="fl-dp-") as name:
            folder = Path(name)
            asked = {
                "server": self._app.server,
                "client": self._app.client,
                "config": {"hydra-overrides": shlex.join(overrides), **self._app.config},
                "nodes": simulation.num_nodes(settings.task.num_clients) + self._more_nodes,
                "threads": simulation.num_cpus or 1,
                "folder": str(folder),
                "cluster": _cluster(settings),
            }
            log = folder / "process.log"
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    # -P: a module that lies where the user stands is not imported for ours.
                    [sys.executable, "-P", "-m", __name__],
                    env=_environment(simulation.num_gpus),
                    stdin=subprocess.PIPE,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    start_new_session=True,  # Ctrl-C reaches us alone, and we stop it in order
                )
            try:
                _tell(process, asked)
                while process.poll() is None:
                    on_progress()
                    time.sleep(0.1)
            finally:
                _stop(process)
            on_progress()
            return _status(folder / _ENDED, log, process.returncode)


def _cluster(settings: Settings) -> dict[str, Any] | None:
    """Return what a grid on a Ray cluster takes; None: the nodes answer in the process."""
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
    # As Flower's workers, which see a GPU only if they get a share of one.
    hidden = {} if num_gpus > 0 else {"CUDA_VISIBLE_DEVICES": ""}
    return {**SILENT, **os.environ, **hidden}


def _tell(process: subprocess.Popen[bytes], asked: dict[str, Any]) -> None:
    """Write what is asked; the pipe stays open, and its end tells the process that we ended."""
    stdin = process.stdin
    if stdin is None:
        raise AssertionError("the process was started with a pipe")
    with contextlib.suppress(BrokenPipeError):  # it ended at once: its status tells why
        stdin.write(json.dumps(asked).encode() + b"\n")
        stdin.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that still runs, with everything that it started."""
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


def _status(ended: Path, log: Path, returncode: int) -> RunStatus:
    """Return how a training ended, in Flower's words."""
    try:
        details = json.loads(ended.read_text(encoding="utf-8"))["details"]
    except FileNotFoundError:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        reason = f"its process ended with status {returncode}: " + " ".join(said)
        return RunStatus(status="finished:failed", details=reason)
    if details is not None:
        return RunStatus(status="finished:failed", details=str(details))
    return RunStatus(status="finished:completed", details="")


def _play(asked: dict[str, Any]) -> None:
    """Run a training as the server and all of its nodes."""
    server = importlib.import_module(asked["server"]).app

    import torch

    from .simulation import play

    if asked["cluster"] is not None:
        _play_on_a_cluster(server, asked)
        return
    client = importlib.import_module(asked["client"]).app
    torch.set_num_threads(asked["threads"])
    play(server, client, num_nodes=asked["nodes"], run_config=asked["config"])


def _play_on_a_cluster(server: ServerApp, asked: dict[str, Any]) -> None:
    """Run a training as the server, whose nodes are answered for by a cluster's workers."""
    from .cluster_grid import ClusterGrid
    from .simulation import configs_of_nodes, serve

    run = {"run_id": secrets.randbits(63), "run_config": asked["config"]}
    nodes = configs_of_nodes(asked["nodes"])
    grid = ClusterGrid(nodes, client=asked["client"], **asked["cluster"], **run)
    try:
        serve(server, grid, **run)
    finally:
        grid.close()


def main() -> None:
    """Play the training that standard input asks for, and write how it ended."""
    asked = json.loads(sys.stdin.buffer.readline())
    end_with(sys.stdin.fileno(), lambda: shutil.rmtree(asked["folder"]))
    details: str | None = None
    try:
        _play(asked)
    except Exception as error:
        details = f"{type(error).__name__}: {error}"
    (Path(asked["folder"]) / _ENDED).write_text(json.dumps({"details": details}), encoding="utf-8")


if __name__ == "__main__":
    main()
