"""Growth over many rounds: memory, open files, threads and processes, and what stays behind.

    python benchmarks/endurance.py [--rounds 40] [--engine in_process] [--json]

`fl-dp run` trains digits with ten clients, all in every round. Meanwhile all its processes are
counted and measured once a second. `--engine flower` goes through Flower's simulation and Ray. The
first fifth is start-up; growth is from the second fifth to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_dp.app.local.processes import descendants

PARTS = 5
PAGE = os.sysconf("SC_PAGE_SIZE")
MEBIBYTE = 2**20
SHARED_MEMORY = Path("/dev/shm")  # where Ray keeps objects


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Figures of all a run's processes together at one moment.

    Attributes:
        round: Last released.
        memory_mib: Resident memory; shared memory counts in each process.
        temporary_kib: Size of the run's temporary files, which all go at its end.
    """

    round: int
    memory_mib: float
    open_files: float
    threads: float
    processes: float
    temporary_kib: float


def sample(pid: int, metrics: Path, temporary: Path) -> Sample:
    """Measure a process and all that it started."""
    memory = files = threads = processes = 0
    for process in (pid, *descendants(pid)):
        folder = Path(f"/proc/{process}")
        try:
            memory += int((folder / "statm").read_text().split()[1]) * PAGE
            files += sum(1 for _ in (folder / "fd").iterdir())
            threads += sum(1 for _ in (folder / "task").iterdir())
        except OSError:  # it has just ended
            continue
        processes += 1
    lines = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
    return Sample(
        round=lines - 1,
        memory_mib=memory / MEBIBYTE,
        open_files=files,
        threads=threads,
        processes=processes,
        temporary_kib=_size(temporary) / 1024,
    )


def growth(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Each figure's median in the second and the last fifth of the rounds."""
    last = max(sample.round for sample in samples)
    second = [sample for sample in samples if last / PARTS <= sample.round < 2 * last / PARTS]
    # After the last round processes end, one after the other: that is no round any more.
    end = [sample for sample in samples if (PARTS - 1) * last / PARTS <= sample.round < last]
    if not second or not end:
        raise ValueError(f"{last} rounds were too quick to be measured: ask for more --rounds")
    return {
        field.name: {
            "second_fifth": statistics.median(getattr(sample, field.name) for sample in second),
            "last_fifth": statistics.median(getattr(sample, field.name) for sample in end),
        }
        for field in fields(Sample)
    }


def measure(rounds: int, engine: str) -> dict[str, Any]:
    """Train; return the figures' growth and what was left behind."""
    in_memory = _objects()
    with (
        # Short: Ray's sockets lie below it, and a socket's path has at most 103 bytes.
        tempfile.TemporaryDirectory(prefix="e-", dir="/tmp") as temporary,
        tempfile.TemporaryDirectory(prefix="endurance-") as name,
    ):
        folder = Path(name)
        metrics = folder / "it" / "metrics.jsonl"
        command = [
            sys.executable,
            "-P",
            "-m",
            "fl_dp",
            "run",
            f"simulation.engine={engine}",
            f"rounds={rounds}",
            "task.num_clients=10",
            "selection.sampling_rate=1",
            "client.epochs=1",
            "report=none",
            f"output_dir={folder}",
            "run_name=it",
        ]
        began = time.monotonic()
        with (folder / "said").open("wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | {"TMPDIR": temporary},
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
        samples: list[Sample] = []
        try:
            while process.poll() is None:
                samples.append(sample(process.pid, metrics, Path(temporary)))
                time.sleep(1.0)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        seconds = time.monotonic() - began
        if process.returncode:
            raise RuntimeError(f"the run failed: {(folder / 'said').read_text(errors='replace')}")
        sizes = {
            file.name: file.stat().st_size // 1024
            for file in sorted((folder / "it").iterdir())
            if file.is_file()
        }
        left = [*Path(temporary).iterdir(), *(_objects() - in_memory)]
    return {
        "rounds": rounds,
        "engine": engine,
        "seconds": round(seconds, 1),
        "growth": growth(samples),
        "run_folder_kib": sizes,
        "left_behind": sorted(map(str, left)),
    }


def _objects() -> set[Path]:
    return set(SHARED_MEMORY.glob("plasma*")) if SHARED_MEMORY.is_dir() else set()


def _size(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                total += os.lstat(Path(folder) / file).st_size
            except OSError:  # it was just taken away
                continue
    return total


def main() -> None:
    """Measure and print a table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description="Growth over many rounds")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--engine", choices=("in_process", "flower"), default="in_process")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    report = measure(asked.rounds, asked.engine)
    if asked.json:
        print(json.dumps(report, indent=2))
        return
    table = Table(title=f"{asked.rounds} rounds, {asked.engine}, {report['seconds']} s")
    for heading in ("figure", "second fifth", "last fifth"):
        table.add_column(heading)
    for name, values in report["growth"].items():
        table.add_row(name, *(f"{value:.0f}" for value in values.values()))
    console = Console()
    console.print(table)
    console.print(f"left behind: {report['left_behind'] or 'nothing'}")


if __name__ == "__main__":
    main()
