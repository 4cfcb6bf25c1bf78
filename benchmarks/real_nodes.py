"""Seconds a round on three real SuperNodes: secure and plain sums, with gates or without, in turn.

A SuperLink and three SuperNodes each, all on this machine: this compares the messages a round
waits for and Flower's work for each, not a network. A gate answers at a public instant whatever
the app took, so its SuperNode's processor time counts, too.

    python benchmarks/real_nodes.py [--only sums] [--rounds 6] [--turns 2] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

# What `make federation` and the tests use: real processes, and tables of three wards.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deploy"))

from deployment import Deployment
from wards import train_wards, write_tables

NODES = ("north", "south", "east")
PLAIN, SECURE = "plain sums", "secure sums"
APP, GATE = "noise in the app", "noise in the gate"  # of 1 M parameters
ANSWER_AFTER = 15.0
"""Seconds from a message to the answer of a gate."""

BESIDE = {PLAIN: PLAIN, SECURE: PLAIN, APP: APP, GATE: APP}
"""What the time of each is divided by."""

SHARED = (
    "task.num_clients=3",
    "privacy.epsilon=40",
    "privacy.delta=0.01",
    "roster_timeout=600",  # a busy machine starts a process a message slowly
)
OVERRIDES = {
    PLAIN: ("privacy=central",),
    SECURE: (
        "privacy=distributed",
        "privacy.secure_sum.least=2",
        "privacy.secure_sum.colluding=0",
        "privacy.secure_sum.threshold=2",
    ),
    APP: ("privacy=local", "model=mlp", "model.hidden=1000"),
}
OVERRIDES[GATE] = OVERRIDES[APP]


class GatedDeployment(Deployment):
    """SuperNodes behind gates."""

    def _supernode(self, name: str) -> Sequence[str]:
        folder = self._folder.parent / name
        policy = {
            "dp-unit-name": name,
            "dp-ledger-path": str(folder / "ledger" / "ledger.db"),
            "dp-max-epsilon": 500.0,
            "dp-max-delta": 0.5,
            "dp-gate-promise": "local",
            "dp-gate-clipping-norm": 0.5,
            "dp-gate-noise-multiplier": 0.1,
            "dp-gate-answer-after": ANSWER_AFTER,
        }
        file = folder / "gate.yaml"
        file.write_text(yaml.safe_dump(policy), encoding="utf-8")
        command = (sys.executable, "-P", "-m", "fl_dp", "supernode", "--policy", str(file))
        return (*command, "--cooperative", "--insecure")


def configured(folder: Path, name: str, kind: str) -> dict[str, str | float]:
    """What an owner configures, or what apps behind a gate get."""
    if kind == GATE:
        return {"dp-data-path": str(folder / name)}
    config: dict[str, str | float] = {
        "dp-data-path": str(folder / name),
        "dp-unit-name": name,
        "dp-ledger-path": str(folder / name / "ledger" / "ledger.db"),
        "dp-allow-unverified-apps": True,  # the SuperLink is our own
    }
    if kind != PLAIN:
        # Owners of plain sums trust the server: a cap would require more.
        config |= {"dp-max-epsilon": 500.0, "dp-max-delta": 0.5}
    if kind == SECURE:
        config["dp-require-privacy"] = "distributed"
        config["dp-secagg-roster"] = str(folder / "roster.json")
        config["dp-secagg-colluding"] = 0
    return config


def write_folder(folder: Path) -> None:
    """Write tables, identities and the roster of three owners."""
    write_tables(folder, NODES)
    members = []
    for name in NODES:
        (folder / name / "ledger").mkdir()
        ledger = str(folder / name / "ledger" / "ledger.db")
        output = subprocess.run(
            [sys.executable, "-m", "fl_dp", "node", "identity", ledger, "--name", name],
            capture_output=True,
            text=True,
            check=True,
        )
        members.append(json.loads(output.stdout))
    roster = {"federation": "three wards", "members": members}
    (folder / "roster.json").write_text(json.dumps(roster), encoding="utf-8")


@contextmanager
def clocked(metrics: Path) -> Iterator[list[float]]:
    """Note when each line of a run's metrics appears."""
    seen: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            lines = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
            seen.extend(time.monotonic() for _ in range(lines - len(seen)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
        time.sleep(0.1)
    finally:
        ended.set()
        thread.join()


def processor_time(deployment: Deployment) -> float:
    """Seconds that the SuperNodes' own processes have worked, on average."""
    ticks = 0
    for name in NODES:
        fields = Path(f"/proc/{deployment.pid(name)}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
    return ticks / os.sysconf("SC_CLK_TCK") / len(NODES)


def seconds_of_rounds(
    deployment: Deployment, folder: Path, kind: str, turn: int, rounds: int
) -> list[float]:
    """Train once; return the seconds of each round but the first, which sets up."""
    name = f"{kind}-{turn}".replace(" ", "-")
    roster = [f"privacy.secure_sum.roster={folder / 'roster.json'}"] if kind == SECURE else []
    asked = [f"rounds={rounds}", *SHARED, *OVERRIDES[kind], *roster]
    with clocked(folder / "runs" / name / "metrics.jsonl") as seen:
        train_wards(deployment, folder, name, *asked, timeout=None)  # a busy machine takes long
    times = [after - before for before, after in itertools.pairwise(seen)]
    return times[1:]


def main() -> None:
    """Time each kind and print a table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description="Rounds on real SuperNodes")
    parser.add_argument("--only", default="", help="time what has this text in its name")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of a training (default: 6)")
    parser.add_argument("--turns", type=int, default=2, help="trainings a side (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the timings as JSON")
    options = parser.parse_args()
    times: dict[str, list[float]] = {kind: [] for kind in OVERRIDES if options.only in kind}
    worked: dict[str, list[float]] = {kind: [] for kind in times}
    with tempfile.TemporaryDirectory() as folder:
        places = {kind: Path(folder) / kind.replace(" ", "-") for kind in times}
        for node_folder in places.values():
            write_folder(node_folder)
        for turn in range(options.turns):
            for kind in sorted(times, reverse=turn % 2 == 1):
                print(f"{kind}, training {turn + 1} of {options.turns}", file=sys.stderr)
                # One deployment at a time: idle nodes ask for work, too.
                node_folder = places[kind]
                deployed = GatedDeployment if kind == GATE else Deployment
                with deployed(node_folder / f"processes-{turn}") as deployment:
                    for name in NODES:
                        deployment.join(name, configured(node_folder, name, kind))
                    before = processor_time(deployment)
                    times[kind] += seconds_of_rounds(
                        deployment, node_folder, kind, turn, options.rounds
                    )
                    spent = processor_time(deployment) - before
                    worked[kind].append(spent / options.rounds)
    medians = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    if options.json:
        document = {
            "load": os.getloadavg()[0],
            "answer_after_s": ANSWER_AFTER,
            "seconds": times,
            "median_s": medians,
            "processor_s_per_round": worked,
        }
        print(json.dumps(document, indent=2))
        return
    table = Table(title=f"Seconds of a round on {len(NODES)} SuperNodes of this machine")
    for column in ("", "least", "median", "ratio", "a SuperNode's processor"):
        table.add_column(column, justify="right" if column else "left")
    for kind, seconds in times.items():
        base = medians.get(BESIDE[kind])
        ratio = "" if base is None else f"{medians[kind] / base:.2f}"
        work = f"{statistics.median(worked[kind]):.2f}"
        table.add_row(kind, f"{min(seconds):.2f}", f"{medians[kind]:.2f}", ratio, work)
    Console().print(table)


if __name__ == "__main__":
    main()
