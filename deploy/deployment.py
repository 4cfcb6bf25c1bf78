"""A real SuperLink and real SuperNodes on loopback, each its own process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import tomli_w
from keys import make_server

from fl_dp.app.local.flower_runs import run_status
from fl_dp.app.local.launch import answers, environment_of_children
from fl_dp.app.local.processes import descendants, kill_all, stop_with_descendants
from fl_dp.app.local.superlink import OPEN_TO_NODES

_BIN = Path(sys.executable).parent
_CONNECTION = "real"
_PATIENCE = 120.0  # a busy machine takes half a minute to import torch


class Deployment:
    """A SuperLink for the time of the `with` block, and the SuperNodes that join it.

    Nothing is encrypted or checked: a subclass says how its SuperLink and nodes are started.
    """

    def __init__(self, folder: Path, *, database: bool = False) -> None:
        """Keep logs and Flower's files in a folder, and with `database` the SuperLink's state."""
        self._folder = folder
        self._home = folder / "flower"
        self._home.mkdir(parents=True)
        self._port = free_port()
        self._database = folder / "superlink.db" if database else None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = environment_of_children() | {
            "FLWR_HOME": str(self._home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> Self:
        """Start the SuperLink and wait until it answers."""
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "real"\n\n[superlink.real]\n'
            f'address = "127.0.0.1:{self._port}"\n{self._trusts()}\n',
            encoding="utf-8",
        )
        self.start_link()
        return self

    def start_link(self) -> None:
        """Start the SuperLink, or restart it, and wait until it answers."""
        database = [] if self._database is None else ["--database", str(self._database)]
        self._link = self._start(
            "superlink",
            *self._superlink(),
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--disable-runtime-dependency-installation",
            *database,
        )
        try:
            self._wait_until_healthy()
        except BaseException:
            stop_with_descendants(self._link)
            raise

    def _trusts(self) -> str:
        """The line of Flower's configuration that says how it trusts the SuperLink."""
        return "insecure = true"

    def _superlink(self) -> Sequence[str]:
        """The SuperLink's command, without its address."""
        return ("flower-superlink", "--insecure")

    def _supernode(self, name: str) -> Sequence[str]:
        """A SuperNode's command, without its addresses and configuration."""
        del name
        return ("flower-supernode", "--insecure")

    @staticmethod
    def _words(node_config: Mapping[str, str | int | float]) -> str:
        """A node's configuration, as its SuperNode takes it."""
        return " ".join(f"{key}={json.dumps(value)}" for key, value in node_config.items())

    def _health(self) -> tuple[str, ssl.SSLContext | None]:
        """The address that answers once the SuperLink is up, and whom to trust there."""
        return f"http://127.0.0.1:{self._port}/health", None

    def _wait_until_healthy(self) -> None:
        address, trusted = self._health()
        deadline = time.monotonic() + _PATIENCE
        while True:
            if answers(address, trusted):
                return
            if time.monotonic() > deadline or self._link.poll() is not None:
                raise RuntimeError(f"no SuperLink:\n{self.log('superlink')}")
            time.sleep(0.2)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop all that was started."""
        # Each takes seconds to say goodbye to the SuperLink, which is there until they have.
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(stop_with_descendants, self._nodes.values()))
        finally:
            stop_with_descendants(self._link)

    def join(
        self,
        name: str,
        node_config: Mapping[str, str | int | float],
        *,
        through: int | None = None,
    ) -> None:
        """Start a SuperNode; `through` is the port of something between it and the SuperLink."""
        self._nodes[name] = self._start(
            name,
            *self._supernode(name),
            "--superlink",
            f"127.0.0.1:{through or self._port}",
            "--port",
            str(free_port()),
            "--node-config",
            self._words(node_config),
        )

    def leave(self, name: str) -> None:
        """Stop a SuperNode with all that it started."""
        stop_with_descendants(self._nodes.pop(name))

    def kill(self, name: str) -> None:
        """Kill a SuperNode with all that it started, as a power cut does."""
        _kill(self._nodes.pop(name))

    def pid(self, name: str) -> int:
        """A SuperNode's process id."""
        return self._nodes[name].pid

    def kill_link(self) -> None:
        """Kill the SuperLink with all that it started."""
        _kill(self._link)

    def kill_server_app(self) -> None:
        """Kill the running ServerApp's process."""
        for pid in descendants(self._link.pid):
            with contextlib.suppress(OSError):
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def flwr(
        self, *arguments: str, timeout: float | None = 3 * _PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Call one of Flower's or our own commands in this deployment's environment.

        Raises:
            TimeoutError: If it does not end in time, with what the SuperLink said last.
        """
        try:
            return subprocess.run(
                [str(_BIN / arguments[0]), *arguments[1:]],
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(
                f"{error}; the SuperLink said:\n{self.log('superlink')[-4000:]}"
            ) from error

    @property
    def port(self) -> int:
        """The SuperLink's port."""
        return self._port

    def begin(self, app: Path | str, overrides: Sequence[str] = ()) -> str:
        """Start a run and return its number."""
        return self._number(self.flwr(*self._run(app, overrides)))

    def status(self, run_id: str, *, timeout: float = 3 * _PATIENCE) -> int:
        """Wait for a run with our own command; return its exit status: 4 if it goes on."""
        seconds = "--timeout", f"{timeout:g}"
        asked = ("fl-dp", "status", run_id, _CONNECTION, "--wait", *seconds)
        return self.flwr(*asked, timeout=timeout + _PATIENCE).returncode

    def run(
        self, app: Path | str, overrides: Sequence[str], *, timeout: float | None = 3 * _PATIENCE
    ) -> str:
        """Run an app, a folder or `@publisher/name`; return Flower's word for how it ended."""
        return self.streamed(app, overrides, timeout=timeout)[0]

    def streamed(
        self,
        app: Path | str,
        overrides: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> tuple[str, str]:
        """Run an app; return Flower's word for how it ended, and what the run has logged.

        `overrides` are of an app with our settings; None: as the app's own configuration says.
        """
        said = self.flwr(*self._run(app, overrides), "--stream", timeout=timeout)
        logged = said.stdout + said.stderr
        return self._status(self._number(said), logged), logged

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _run(self, app: Path | str, overrides: Sequence[str] | None) -> list[str]:
        if overrides is None:
            return ["flwr", "run", str(app), _CONNECTION]
        config = self._folder / "run-config.toml"
        config.write_text(tomli_w.dumps({"hydra-overrides": shlex.join(overrides)}))
        return ["flwr", "run", str(app), _CONNECTION, "--run-config", str(config)]

    def _number(self, said: subprocess.CompletedProcess[str]) -> str:
        started = re.search(r"Successfully started run (\d+)", said.stdout + said.stderr)
        if started is None:
            raise RuntimeError(f"no run:\n{said.stdout}{said.stderr}\n{self.log('superlink')}")
        return started.group(1)

    def _status(self, run_id: str, said: str) -> str:
        ended = run_status(run_id, _CONNECTION, environment=self._environment)
        return ended.status if ended.succeeded else f"{ended.status}: {ended.details}\n{said}"

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(_BIN / command[0]), *command[1:]],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


class SecuredDeployment(Deployment):
    """A deployment whose SuperLink has TLS, a database, and the keys of its nodes."""

    def __init__(self, folder: Path, tls: Path, *, days: int = 90) -> None:
        """Make the SuperLink's certificates, for so many days, in a folder of their own."""
        super().__init__(folder, database=True)
        self.authority = make_server(tls, ("localhost",), days=days)

    def register(self, name: str, key: Path) -> int:
        """Register the public half of a node's key, as an operator does; return the node's id.

        Raises:
            RuntimeError: Flower refuses it.
        """
        command = ("supernode", "register", str(key), _CONNECTION, "--name", name)
        return int(json.loads(self._flwr(*command, "--format", "json"))["node-id"])

    def _flwr(self, *command: str, cwd: Path | None = None) -> str:
        said = subprocess.run(
            [str(_BIN / "flwr"), *command],
            env=self._environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode:
            raise RuntimeError(f"flwr {' '.join(command)}:\n{said.stdout}{said.stderr}")
        return said.stdout

    def _trusts(self) -> str:
        return f'root-certificates = "{self.authority}"'

    def _health(self) -> tuple[str, ssl.SSLContext | None]:
        trusted = ssl.create_default_context(cafile=str(self.authority))
        return f"https://127.0.0.1:{self._port}/health", trusted

    def _superlink(self) -> Sequence[str]:
        tls = self.authority.parent
        return (
            "python",
            "-P",
            "-m",
            "fl_dp.app.local.superlink",
            OPEN_TO_NODES,
            "--enable-supernode-auth",
            "--ssl-ca-certfile",
            str(tls / "ca.crt"),
            "--ssl-certfile",
            str(tls / "server.pem"),
            "--ssl-keyfile",
            str(tls / "server.key"),
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    kill_all([process.pid, *descendants(process.pid)])
    process.wait()


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
