"""Files of ledgers in memory, and processes that share one or die with it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fresh_path() -> Iterator[Path]:
    """A file for one example; in memory where that is possible, as thousands of syncs are slow."""
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as name:
        yield Path(name) / "ledger.db"


def start_python(script: str) -> subprocess.Popen[str]:
    """Start a Python of its own with pipes to talk to it."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
