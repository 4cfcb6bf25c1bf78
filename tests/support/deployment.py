"""A real SuperLink and real SuperNodes on loopback, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

_BIN = Path(sys.executable).parent
_PATIENCE = 120.0  # a busy machine takes half a minute to import torch


class Deployment:
    """A SuperLink for as long as the `with` block lasts, and the SuperNodes that join it."""

    def __init__(self, folder: Path) -> None:
        """Keep logs and Flower's own files in a folder."""
        self._folder = folder
        self._home = folder / "flower"
        self._home.mkdir(parents=True)
        self._port = _free_port()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "FLWR_HOME": str(self._home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> Self:
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "real"\n\n[superlink.real]\n'
            f'address = "127.0.0.1:{self._port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        self._link = self._start(
            "superlink",
            *("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self._port)),
            *("--control-api-address", f"127.0.0.1:{_free_port()}"),
            "--disable-runtime-dependency-installation",
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=1.0)
                return self
            if time.monotonic() > deadline or self._link.poll() is not None:
                raise RuntimeError(f"no SuperLink:\n{self.log('superlink')}")
            time.sleep(0.2)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in (*self._nodes.values(), self._link):
            _stop(process)

    def join(self, name: str, node_config: Mapping[str, str | int | float]) -> None:
        """Start a SuperNode."""
        said = " ".join(f"{key}={json.dumps(value)}" for key, value in node_config.items())
        self._nodes[name] = self._start(
            name,
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._port}"),
            *("--port", str(_free_port()), "--node-config", said),
        )

    def leave(self, name: str) -> None:
        """Stop a SuperNode with all that it started."""
        _stop(self._nodes.pop(name))

    def run(
        self, app: Path, overrides: Sequence[str], *, timeout: float | None = 3 * _PATIENCE
    ) -> str:
        """Run an app to its end and return Flower's word for how it ended."""
        config = self._folder / "run-config.toml"
        config.write_text(tomli_w.dumps({"hydra-overrides": shlex.join(overrides)}))
        said = subprocess.run(
            [str(_BIN / "flwr"), "run", str(app), "real", "--stream", "--run-config", str(config)],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        started = re.search(r"Successfully started run (\d+)", said.stdout + said.stderr)
        if started is None:
            raise RuntimeError(f"no run:\n{said.stdout}{said.stderr}\n{self.log('superlink')}")
        return self._status(started.group(1), said.stdout + said.stderr)

    def log(self, name: str) -> str:
        """Return what a process has said."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _status(self, run_id: str, said: str) -> str:
        answer = subprocess.run(
            [str(_BIN / "flwr"), "list", "real", "--run-id", run_id, "--format", "json"],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        run: dict[str, Any] = json.loads(answer.stdout)["runs"][0]
        status = str(run["status"])
        return status if status == "finished:completed" else f"{status}: {run}\n{said}"

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


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10.0)
            return


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
