"""Files of ledgers in memory, and processes that share one or die with it."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import Forked


@contextmanager
def fresh_path() -> Iterator[Path]:
    """A file for one example; in memory where possible, as thousands of syncs are slow."""
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as name:
        yield Path(name) / "ledger.db"


def start_python(script: str) -> Forked:
    """Start a program in a process of its own, with pipes to talk to it."""
    program = compile(textwrap.dedent(script), "<script>", "exec")
    return Forked(lambda: exec(program, {"__name__": "__main__"}))


def kill_when_reserved(script: str) -> None:
    """Start a script that prints `reserved` and waits; kill it then."""
    child = start_python(script)
    assert child.stdout.readline() == "reserved\n"
    child.kill()
    child.wait()


def killed_at_statement(number: int, work: Callable[[], object]) -> bool:
    """Do work in a forked process, killed before its SQLite statement of that number.

    Number 0: as soon as it opens a database.

    Returns:
        Whether it was killed; False: it was done before.
    """
    child = os.fork()
    if not child:
        statements, connect = 0, sqlite3.connect

        def count(_: str) -> None:
            nonlocal statements
            if statements == number:
                os.kill(os.getpid(), signal.SIGKILL)
            statements += 1

        def counting(*args: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **options)
            connection.set_trace_callback(count)
            if statements == number == 0:
                count("")
            return connection

        sqlite3.connect = counting  # type: ignore[assignment]  # in this process alone
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def race(script: str) -> list[int]:
    """Run two copies of a script that print `ready`, wait for a line, and print a number each."""
    children = [start_python(script) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    return [int(child.rest()) for child in children]
