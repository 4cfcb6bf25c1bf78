"""Gauges of one ledger: verified and read, never written; unnamed ones in a limited process.

A ledger in a folder of runs may be a stranger's. Its database can define a table that never ends,
and its plan can have an epsilon that takes days: neither may stop the dashboard.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fl_dp.guarantee import Guarantee
from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger
from fl_dp.terminal.node_ledger_view import guarantee_at_node


@dataclass(frozen=True, kw_only=True)
class LedgerGauge:
    """One account of a node's ledger, or one training of a server's.

    Attributes:
        ledger: Its file or database, without a password, and the training's name if it has several.
        kind: `training` for a server's ledger, `node` for a node's; empty if it can't be read.
        account: Number of the account within a node's ledger, from 1; no site is named.
        promise: What was spent of which budget; None where nothing can be read.
        rounds: Number of rounds or charges so far.
        problem: Reason why there are no numbers.
        altered: Whether the reason is an altered ledger.
    """

    ledger: str
    kind: str = ""
    account: int = 1
    promise: Guarantee | None = None
    rounds: int = 0
    problem: str = ""
    altered: bool = False


def gauges_of(location: str) -> list[LedgerGauge]:
    """One ledger's gauges, or its problem."""
    try:
        if NodeLedger.is_one(location):
            with NodeLedger.read(location) as node:
                return _of_node(node)
        with SpentLedger.read(location) as ledger:
            return _of_account(ledger)
    except LedgerCorrupted as error:
        return [LedgerGauge(ledger=_name(location), problem=str(error), altered=True)]
    except (OSError, ValueError, RuntimeError) as error:
        return [LedgerGauge(ledger=_name(location), problem=str(error))]


def _of_account(ledger: SpentLedger) -> list[LedgerGauge]:
    if len(ledger.account.trainings) == 1:
        return [_of_training(ledger, ledger.location)]
    gauges: list[LedgerGauge] = []
    for name in ledger.account.trainings:
        training = ledger.as_of(len(ledger.entries), training=name)
        gauges.append(_of_training(training, f"{ledger.location}: {name}"))
    return gauges


def _of_training(ledger: SpentLedger, name: str) -> LedgerGauge:
    spent = ledger.epsilon().best
    return LedgerGauge(
        ledger=name,
        kind="training",
        promise=Guarantee.of(ledger.plan, spent=spent, insecure=ledger.insecure),
        rounds=ledger.rounds_spent,
    )


def _of_node(ledger: NodeLedger) -> list[LedgerGauge]:
    gauges = []
    for account, spending in enumerate(ledger.spendings, 1):
        gauge = LedgerGauge(
            ledger=ledger.location,
            kind="node",
            account=account,
            promise=guarantee_at_node(spending),
            rounds=spending.charges,
        )
        gauges.append(gauge)
    if not gauges:
        gauges.append(
            LedgerGauge(ledger=ledger.location, kind="node", problem="nothing was spent yet")
        )
    return gauges


def _name(location: str) -> str:
    """A location without what may be a password."""
    scheme, separator, _ = location.partition("://")
    return f"{scheme}://…" if separator else location


_SECONDS = 20  # of a processor, for one ledger
_LONGEST = 300.0  # of wall time for all, a backstop on a busy machine
_MEMORY = 1 << 30
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_MOST_HANGING = 2  # processes that end at a limit


def read_apart(files: Sequence[str], *, seconds: int = _SECONDS) -> dict[str, list[LedgerGauge]]:
    """Gauges of ledgers by file, computed in a limited process.

    `seconds` of processor time are for each ledger; a slower one has a problem instead of numbers.
    """
    gauges: dict[str, list[LedgerGauge]] = {}
    ended = 0
    while remaining := [file for file in files if file not in gauges]:
        if ended == _MOST_HANGING:
            problem = "not looked at: others took too long"
            for file in remaining:
                gauges[file] = [LedgerGauge(ledger=file, problem=problem)]
            break
        output, timed_out = _answer({"files": remaining, "seconds": seconds})
        for line in output.decode(errors="replace").splitlines():
            try:
                document = json.loads(line)
                gauges[document["file"]] = [_read(fields) for fields in document["gauges"]]
            except (ValueError, TypeError, KeyError):
                continue  # half a line
        unanswered = [file for file in remaining if file not in gauges]
        if unanswered:
            ended += 1
            problem = "it broke off"
            if timed_out:
                problem = f"it takes more than {seconds} s of a processor"
            gauges[unanswered[0]] = [LedgerGauge(ledger=unanswered[0], problem=problem)]
    return gauges


def _read(fields: dict[str, Any]) -> LedgerGauge:
    return LedgerGauge(**fields | {"promise": Guarantee.read(fields.get("promise"))})


def _answer(question: dict[str, object]) -> tuple[bytes, bool]:
    """Output of our own process, and whether time ended it."""
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
    """Print a line for each ledger in the question on stdin."""
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
