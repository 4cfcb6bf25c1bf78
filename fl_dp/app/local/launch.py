"""Runs the Flower app on a private local SuperLink, and watches it.

`flwr run` keeps one SuperLink daemon for all projects. It has its first caller's environment,
outlives the call, and no command stops it. So `fl-dp run` starts its own, on free ports with its
own home, and stops it again.

SuperLink and Ray would run what any other user of the machine sends them, as the user who started
them. So the SuperLink answers only its own user (`superlink.py`). Ray gets a token that only this
run's processes have, and a folder that others can't enter.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import tomli_w

from fl_dp.app.settings import Settings
from fl_dp.files import full_disk_named

from .devices import Machine, num_workers
from .flower_runs import BIN, RunStatus, RunUnknown, run_status
from .processes import stop_with_descendants
from .superlink import CLOSED_PATH, FOLDER_VARIABLE, RETURNED, users_can_be_told_apart

if TYPE_CHECKING:  # with ledgers and accountants, while engines can already start
    from fl_dp.app.run_folder import RunFolder

_CONNECTION = "fl-dp"
_RUN_END = "fl_dp.app.local.run_end"
_STARTUP_TIMEOUT = 240.0  # seconds, for a busy machine
_LONGEST_FOLDER = 25  # it holds the folder of Ray's sockets; their paths have at most 103 bytes

SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Disables reports of usage to the makers of Flower and Ray, unless the caller wants them."""

_PROXY_VARIABLES = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
_OWN_ADDRESSES = "localhost,127.0.0.1,::1"
_SHORT_FOLDER = "/tmp"

logger = logging.getLogger("flwr.fl_dp")


def environment_of_children() -> dict[str, str]:
    """Environment of processes that talk to each other only on this machine.

    A proxy of the environment would not know this machine's addresses.
    """
    direct = {
        name: ",".join(filter(None, [os.environ.get(name), _OWN_ADDRESSES]))
        for name in _PROXY_VARIABLES
    }
    return {**SILENT, **os.environ, **direct}


def answers(address: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a server of this machine answers, without a proxy."""
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(address, timeout=1.0):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _folder_for_sockets() -> str:
    """Folder for temporary folders with short enough paths for sockets."""
    usual = tempfile.gettempdir()
    for folder in (usual, _SHORT_FOLDER):
        if len(os.fsencode(folder)) <= _LONGEST_FOLDER and os.access(folder, os.W_OK):
            return folder
    raise LaunchError(
        f"paths in the temporary folder {usual} are too long for sockets: write TMPDIR=FOLDER with "
        f"one of at most {_LONGEST_FOLDER} characters, or simulation.engine=in_process"
    )


@dataclass(frozen=True, kw_only=True)
class App:
    """The app for Flower: it only points at the installed library.

    Attributes:
        server: Module with the `ServerApp`.
        client: Module with the `ClientApp`.
        config: Its run config besides the overrides.
    """

    server: str = "fl_dp.server_app"
    client: str = "fl_dp.app.task_client"
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """Content of its files, by path."""
        project = {
            "project": {
                "name": "fl-dp-run",
                "version": "1.0.0",
                "description": "Points Flower at the installed fl-dp",
                "license": "Apache-2.0",
                "dependencies": [],
            },
            "tool": {
                "flwr": {
                    "app": {
                        "publisher": "fl-dp",
                        "components": {
                            "serverapp": "fl_dp_run.server:app",
                            "clientapp": "fl_dp_run.client:app",
                        },
                        "config": {"hydra-overrides": "", **self.config},
                    }
                }
            },
        }
        return {
            "pyproject.toml": tomli_w.dumps(project),
            "fl_dp_run/__init__.py": "",
            "fl_dp_run/server.py": (
                f"from {self.server} import app as training\n"
                f"from {_RUN_END} import announced\n\n"
                "app = announced(training)\n"
            ),
            "fl_dp_run/client.py": f"from {self.client} import app\n\n__all__ = ['app']\n",
        }


class LaunchError(RuntimeError):
    """Flower could not be started, or its run failed."""


def require_torch() -> None:
    """Check that the app's clients can train, before anything starts.

    Raises:
        LaunchError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise LaunchError("the app trains with PyTorch: pip install 'fl-dp[torch]'")


class Engine(Protocol):
    """An engine that runs trainings, one at a time, inside its `with` block."""

    def run(
        self, settings: Settings, overrides: Sequence[str], on_progress: Callable[[], None]
    ) -> RunStatus:
        """Run one training to its end.

        Args:
            settings: The composed settings.
            overrides: Hydra overrides that compose to them; their paths are absolute.
            on_progress: Called a few times a second during the run.
        """


class LocalSuperLink:
    """A SuperLink with Flower's simulation engine, during the `with` block."""

    def __init__(
        self, app: App | None = None, *, more_nodes: int = 0, machine: Machine | None = None
    ) -> None:
        """Set what to run, on which resources; see `engines.engine`."""
        self._runs = app or App()
        self._more_nodes, self._machine = more_nodes, machine
        self._command: subprocess.Popen[bytes] | None = None  # of the latest run

    def __enter__(self) -> Self:
        """Start it; the first training waits until it answers.

        Raises:
            LaunchError: PyTorch or Ray is not installed, or no temporary path is short enough.
        """
        require_torch()
        if find_spec("ray") is None:
            raise LaunchError(
                "simulation.engine=flower needs Ray: pip install 'fl-dp[simulation]', or write "
                "simulation.engine=in_process"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="fl-dp-", dir=_folder_for_sockets())
        home = Path(self._folder.name)
        self._port = port = _free_port()
        self._app = home / "fl-dp-run"
        with full_disk_named(home):
            for name, text in self._runs.files.items():
                target = self._app / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            (home / "config.toml").write_text(
                f'[superlink]\ndefault = "{_CONNECTION}"\n\n'
                f'[superlink.{_CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
                encoding="utf-8",
            )
        self._log = home / "superlink.log"
        self._environment = {
            **environment_of_children(),
            "FLWR_HOME": str(home),
            FOLDER_VARIABLE: str(home),
            # The app points at the installed library; nothing is fetched for it.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "RAY_ADDRESS": "local",  # its own Ray, whatever cluster is on this machine or elsewhere
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": str(home),
            # Flower's workers have an environment of their own: Ray would start others for nothing.
            "RAY_prestart_worker_first_driver": "0",
        }
        if (elsewhere := os.environ.get("RAY_ADDRESS", "local")) != "local":
            logger.warning(
                "RAY_ADDRESS=%s is not used: the nodes run in a Ray of this run alone", elsewhere
            )
        if not users_can_be_told_apart():
            logger.warning(
                "this system does not say who connects to a port: another user of this machine can "
                "run programs as you while this run lasts; use a machine of your own"
            )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    # -P: a module in the user's current folder is not imported in place of ours.
                    sys.executable,
                    "-P",
                    "-m",
                    "fl_dp.app.local.superlink",
                    "--insecure",
                    "--simulation",
                    "--isolation",
                    "subprocess",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(port),
                ],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,  # its end tells the SuperLink that we were killed
                start_new_session=True,  # Ctrl-C reaches only us, and we stop it in order
            )
        return self

    def __exit__(self, *error: object) -> None:
        """Stop it with everything that it started."""
        self._stop()

    def run(
        self, settings: Settings, overrides: Sequence[str], on_progress: Callable[[], None]
    ) -> RunStatus:
        """Run one training to its end, as `Engine.run`: its ServerApp's, not Flower's own.

        Raises:
            LaunchError: The SuperLink does not start, or Flower does not accept the run.
        """
        self.wait()
        if self._command is not None:
            self._command.wait()  # Ray of the run before is gone
        returned = self._app.parent / RETURNED
        returned.unlink(missing_ok=True)
        run_config = self._app.parent / "run-config.toml"
        text = tomli_w.dumps({"hydra-overrides": shlex.join(overrides)})
        with full_disk_named(run_config.parent):
            run_config.write_text(text, encoding="utf-8")
        output = self._app.parent / "flwr-run.log"
        with output.open("wb") as log:
            self._command = process = subprocess.Popen(
                [
                    str(BIN / "flwr"),
                    "run",
                    str(self._app),
                    _CONNECTION,
                    "--stream",
                    "--federation-config",
                    self._federation(settings),
                    "--run-config",
                    str(run_config),
                ],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        try:
            while process.poll() is None and not returned.exists():
                on_progress()
                time.sleep(0.2)
        except BaseException:
            process.terminate()
            raise
        on_progress()
        if returned.exists():
            return RunStatus(status="finished:completed", details="")
        log_text = output.read_text(encoding="utf-8", errors="replace")
        started = re.search(r"Successfully started run (\d+)", log_text)
        if started is None:
            raise LaunchError(f"Flower did not start the run:\n{log_text.strip()}")
        status = self._status(started.group(1))
        if status.succeeded:
            return status
        return status.explained_by(log_text)

    def _federation(self, settings: Settings) -> str:
        return federation_config(settings, self._machine, more_nodes=self._more_nodes)

    def _status(self, run_id: str) -> RunStatus:
        try:
            return run_status(run_id, _CONNECTION, environment=self._environment)
        except RunUnknown as error:
            raise LaunchError(str(error)) from error

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            LaunchError: It does not start.
        """
        # The guard's own answer: a SuperLink that started without the guard is not used.
        path = CLOSED_PATH if users_can_be_told_apart() else "/health"
        deadline = time.monotonic() + _STARTUP_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            if answers(f"http://127.0.0.1:{self._port}{path}"):
                return
            time.sleep(0.1)
        log_text = self._log.read_text(encoding="utf-8", errors="replace")
        raise LaunchError(f"Flower's SuperLink did not start:\n{log_text.strip()}")

    def _stop(self) -> None:
        if self._command is not None and self._command.poll() is None:
            self._command.terminate()
            self._command.wait()
        stop_with_descendants(self._process)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._folder.cleanup()


def federation_config(
    settings: Settings, machine: Machine | None = None, *, more_nodes: int = 0
) -> str:
    """Argument of `flwr run --federation-config`; see `engines.engine`."""
    simulation = settings.simulation
    workers = num_workers(settings, machine or Machine.here())
    # Flower starts one worker for each CPU in this number, whether the machine has it or not.
    return (
        f"num-supernodes={simulation.num_nodes(settings.task.num_clients) + more_nodes} "
        f"client-resources-num-cpus=1 client-resources-num-gpus={simulation.num_gpus} "
        f"init-args-num-cpus={workers}"
    )


def run_and_follow(
    engine: Engine,
    settings: Settings,
    overrides: Sequence[str],
    folder: RunFolder,
    on_round: Callable[[dict[str, Any]], None],
    on_progress: Callable[[], None] | None = None,
) -> None:
    """Run one training as `Engine.run`, and report each round as it is written.

    `on_round` is called with each metrics line in `folder`, which the training writes.
    `on_progress` is called a few times a second; an exception from it ends the run.

    Raises:
        LaunchError: The run failed, with Flower's reason.
    """
    num_lines = 0

    def follow() -> None:
        nonlocal num_lines
        if on_progress is not None:
            on_progress()
        lines = folder.read_metrics()
        for line in lines[num_lines:]:
            on_round(line)
        num_lines = len(lines)

    status = engine.run(settings, overrides, follow)
    if not status.succeeded:
        hint = ""
        if "timed out during startup" in str(status.details):
            hint = (
                "; a busy machine does that: try again, or write simulation.engine=in_process, "
                "which starts no Ray"
            )
        raise LaunchError(f"the run ended as '{status.status}': {status.details}{hint}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
