"""Gauges of ledgers that nobody named: computed in a process of its own, which has limits.

A ledger that was found in a folder of runs may be anybody's. Its database can define a table that
never ends, and its plan can be one whose epsilon takes days: neither may keep the dashboard.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from .ledger_gauges import LedgerGauge, gauges_of

_SECONDS = 20  # of a processor, for one ledger
_LONGEST = 300.0  # of a clock, for all: a backstop on a machine that is busy
_MEMORY = 1 << 30
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_MOST_HANGING = 2  # processes that end at a limit


def read_apart(files: Sequence[str], *, seconds: int = _SECONDS) -> dict[str, list[LedgerGauge]]:
    """Return the gauges of ledgers by their files.

    Args:
        files: Of the ledgers.
        seconds: Of a processor that one ledger may take; it has no gauge then.
    """
    found: dict[str, list[LedgerGauge]] = {}
    ended = 0
    while left := [file for file in files if file not in found]:
        if ended == _MOST_HANGING:
            problem = "not looked at: others took too long"
            return found | {file: [LedgerGauge(ledger=file, problem=problem)] for file in left}
        said, over = _asked({"files": left, "seconds": seconds})
        for line in said.decode(errors="replace").splitlines():
            try:
                document = json.loads(line)
                found[document["file"]] = [LedgerGauge(**each) for each in document["gauges"]]
            except (ValueError, TypeError, KeyError):
                continue  # half a line
        if blamed := next((file for file in left if file not in found), None):
            ended += 1
            problem = f"it takes more than {seconds} s of a processor" if over else "it broke off"
            found[blamed] = [LedgerGauge(ledger=blamed, problem=problem)]
    return found


def _asked(question: dict[str, object]) -> tuple[bytes, bool]:
    """Return what a process of our own says, and whether time ended it."""
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            env={**os.environ, **_ONE_THREAD},  # each of more would ask for memory
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=_LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", True
    return answer.stdout, answer.returncode == -signal.SIGXCPU


def _main() -> None:
    """Answer a line for each ledger that the question at the input names."""
    question = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for file in question["files"]:
        used = sum(os.times()[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + question["seconds"], hard))
        gauges = [asdict(gauge) for gauge in gauges_of(file)]
        print(json.dumps({"file": file, "gauges": gauges}), flush=True)


if __name__ == "__main__":
    _main()
