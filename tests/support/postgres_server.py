"""A throw-away PostgreSQL server: its own folder, a Unix socket only, gone afterwards."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NEEDED = ("initdb", "postgres")
_UNPRIVILEGED = ("postgres", "nobody")  # who runs it when the tests are run by root
_START_SECONDS = 240.0


class PostgresServer:
    """A running server that trusts its superuser `postgres` without a password."""

    def __init__(self, binaries: Path, user: str | None) -> None:
        """Make the data folder and start; `user` is whom to run as, None for the caller."""
        self._binaries = binaries
        self._as_user: dict[str, Any] = {}
        # A socket's path has at most about 100 bytes, which pytest's own folders exceed.
        self.folder = Path(tempfile.mkdtemp(prefix="fldp-pg-", dir="/tmp"))
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._names = (f"test_{number}" for number in itertools.count())
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._run_initdb()
            self.start()
        except BaseException:
            self.remove()
            raise

    def _run_initdb(self) -> None:
        made = subprocess.run(
            [
                self._binaries / "initdb",
                "--pgdata",
                self.folder / "data",
                "--username",
                "postgres",
                "--auth",
                "trust",
                "--no-sync",
                "--encoding",
                "UTF8",
                "--no-locale",
                "--no-instructions",
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **self._as_user,
        )
        assert made.returncode == 0, f"initdb failed: {made.stderr}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        import psycopg

        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [
                self._binaries / "postgres",
                "-D",
                self.folder / "data",
                "-k",
                self.folder,
                "-c",
                "listen_addresses=",
                # Quick to stop; the log of what was committed is still written before it answers.
                "-c",
                "fsync=off",
                "-c",
                "max_connections=20",
                "-c",
                "shared_buffers=16MB",
            ],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            **self._as_user,
        )
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                text = (self.folder / "log").read_text()
                assert self._process.poll() is None, f"the server ended: {text}"
                assert time.monotonic() < deadline, f"the server does not answer: {text}"
                time.sleep(0.05)

    def connect(self, database: str) -> Any:
        """A psycopg connection that commits each statement."""
        import psycopg

        return psycopg.connect(
            host=str(self.folder), user="postgres", dbname=database, autocommit=True
        )

    def new_database(self) -> str:
        """Create an empty database and return its name."""
        name = next(self._names)
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str, *, user: str = "postgres", query: str = "") -> str:
        """A SQLAlchemy URL; `user` may carry a password, which is ignored."""
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}{query}"

    def crash(self) -> None:
        """End the server at once, as a crash does, and start it again on the same data."""
        self.vanish()
        self.start()

    def vanish(self) -> None:
        """End the server at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Delete the server with all its data, which nobody needs on disk before."""
        self.vanish()
        shutil.rmtree(self.folder, ignore_errors=True)


def _binaries() -> Path | None:
    candidates = []
    if (config := shutil.which("pg_config")) is not None:
        told = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(told.stdout.strip() or "."))
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    candidates += [Path(folder) for folder in os.get_exec_path()]
    for folder in candidates:
        if all(os.access(folder / name, os.X_OK) for name in _NEEDED):
            return folder
    return None


def _user_to_run_as() -> str | None:
    accounts = {account.pw_name for account in pwd.getpwall()}
    return next((name for name in _UNPRIVILEGED if name in accounts), None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all of a session's tests that ask for it, or skip with the reason."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed: initdb and postgres were not found")
    user = None
    if os.geteuid() == 0:
        user = _user_to_run_as()
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
    server = PostgresServer(binaries, user)
    yield server
    server.remove()
