"""Peers that need an environment of their own: made once, then asked turn by turn.

A peer is a script. It reads its task from standard input, one JSON object. For every further line
it does the work once and answers with a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CACHE = Path(tempfile.gettempdir()) / "fl-dp-peers"


def environment(name: str, requirements: Sequence[str], cache: Path = CACHE) -> Path:
    """The interpreter of an environment with these requirements, made if it is missing.

    Requirements are pip's, each with a version. `cache` keeps environments from run to run, each
    in a folder `name`.

    Raises:
        RuntimeError: If pip can't install them; the text has its output.
    """
    folder = cache / name
    python = folder / "bin" / "python"
    complete = folder / "requirements.txt"
    wanted = "\n".join(requirements)
    if complete.exists() and complete.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *requirements],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"pip can't install {wanted}:\n{done.stderr}")
    complete.write_text(wanted, encoding="utf-8")
    return python


class Peer:
    """A peer's process, which works once for each `run`."""

    def __init__(self, python: Path, script: Path, task: Mapping[str, Any]) -> None:
        """Start it and hand it its task."""
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask(json.dumps(task))

    def run(self) -> str:
        """Let it work once; return its answer."""
        return self._ask("run")

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the peer ended: see what it wrote above")
        return answer.strip()
