"""Machines of a Ray cluster as processes of this one, each on an address of its own of loopback.

>>> with RayMachines() as machines:
...     machines.start(), machines.start()
...     machines.address
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from fl_dp.app.local.processes import descendants, kill_all

_STARTED = "Ray runtime started"
_PATIENCE = 120.0
_ATTEMPTS = 3  # Ray gives its own processes 30 s, which a busy machine exceeds
_SMALLEST_STORE = 80_000_000  # bytes: Ray takes no less


class RayMachines:
    """A cluster on 127.0.0.2, 127.0.0.3, ...: Ray replaces 127.0.0.1 by the machine's address.

    It asks for a token, which `environment` holds.

    Attributes:
        address: Of its head.
        environment: For processes that are to join it.
    """

    def __init__(self, *, object_store: int = _SMALLEST_STORE) -> None:
        """Choose ports; nothing is started yet.

        Args:
            object_store: Bytes of each machine's.
        """
        self._object_store = object_store
        self._port = _free_port()
        self.address = f"127.0.0.2:{self._port}"
        self.environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",  # on a busy machine
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        self._machines: list[subprocess.Popen[bytes] | None] = []

    def __enter__(self) -> Self:
        """Make a folder: short, as Ray's sockets lie below it."""
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")
        return self

    def __exit__(self, *error: object) -> None:
        """End every process that was started, and remove the folder."""
        for number in range(len(self._machines)):
            self.kill(number)
        self._folder.cleanup()

    def start(self, *, cpus: int = 1, again: int | None = None) -> str:
        """Start the head, or another machine, and return its address.

        Args:
            cpus: Processors that it hands out.
            again: Number of a killed machine to start again; None: a new one.

        Raises:
            RuntimeError: If Ray does not come up.
        """
        if again is None:
            self._machines.append(None)
            again = len(self._machines) - 1
        host = f"127.0.0.{again + 2}"
        role = ["--address", self.address]
        if again == 0:
            role = ["--head", f"--port={self._port}", "--include-dashboard=false"]
            role.append(f"--temp-dir={self._folder.name}")
        log = Path(self._folder.name) / f"machine-{host}.log"
        for _ in range(_ATTEMPTS):
            self._machines[again] = self._started([*role, f"--num-cpus={cpus}"], host, log)
            if self._is_up(again, log):
                return host
            self.kill(again)
        raise RuntimeError(f"Ray did not start on {host}: {log.read_text(encoding='utf-8')[-500:]}")

    def _started(self, words: list[str], host: str, log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        command += [f"--node-ip-address={host}", "--disable-usage-stats"]
        with log.open("wb") as stream:
            return subprocess.Popen(
                [*command, f"--object-store-memory={self._object_store}"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_up(self, number: int, log: Path) -> bool:
        machine, deadline = self._machines[number], time.monotonic() + _PATIENCE
        while machine is not None and machine.poll() is None and time.monotonic() < deadline:
            if _STARTED in log.read_text(encoding="utf-8", errors="replace"):
                return True
            time.sleep(0.2)
        return False

    def kill(self, number: int) -> None:
        """Kill all processes of a machine, as if its plug were pulled."""
        machine = self._machines[number]
        if machine is not None and machine.poll() is None:
            kill_all([machine.pid, *descendants(machine.pid)])
            machine.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.2", 0))
        return int(one.getsockname()[1])
