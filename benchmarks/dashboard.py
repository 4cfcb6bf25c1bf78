"""What the dashboard costs: listing many long runs, and following a live one.

    python benchmarks/dashboard.py [--runs 500] [--rounds 1000] [--seconds 20] [--json]

The list is beside reading every line of every run's metrics, which it leaves out. The live curve
is a run that releases a round each second; its cost is a share of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_dp.app.compose import compose_settings
from fl_dp.viewer.dashboard.languages import languages
from fl_dp.viewer.dashboard.live import LiveRuns
from fl_dp.viewer.found_runs import RunsFolder


def line_of(number: int, rounds: int) -> str:
    """One line of metrics as a training writes it."""
    share = number / rounds
    line = {
        "round": number,
        "test_accuracy": 0.1 + 0.8 * share,
        "test_loss": 2.3 - 2.0 * share,
        "epsilon": 8.0 * share,
        "noise_multiplier": 1.25,
        "clipping_norm": 0.5,
        "expected_cohort": 50.0,
        "bytes_down": 2856,
        "bytes_up": 2856,
    }
    return json.dumps(line) + "\n"


def write_run(folder: Path, rounds: int, done: int) -> None:
    """Write a run's settings and the metrics of its done rounds."""
    folder.mkdir(parents=True)
    settings = compose_settings([f"rounds={rounds}"])
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(asdict(settings)), encoding="utf-8")
    lines = "".join(line_of(number, rounds) for number in range(done + 1))
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")


def seconds_of(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of a clock, and of a processor, that something takes."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return {
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
    }


def read_everything(root: Path) -> None:
    """Read every line of every run."""
    for file in root.glob("*/metrics.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            json.loads(line)


def followed_share(root: Path, name: str, rounds: int, seconds: float) -> dict[str, float]:
    """Share of a core that following a run takes, at a round each second."""
    runs = RunsFolder(root)
    live = LiveRuns(runs=runs, is_mine=lambda _: True)
    over = threading.Event()

    def train() -> None:
        number = rounds // 2
        while not over.wait(1.0):
            number += 1
            with (root / name / "metrics.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(line_of(number, rounds))

    async def follow() -> int:
        events = 0
        end = time.monotonic() + seconds
        async for _ in live.events(name, "", languages()["en"]):
            events += 1
            if time.monotonic() > end:
                break
        return events

    thread = threading.Thread(target=train)
    thread.start()
    processor, clock = time.process_time(), time.perf_counter()
    try:
        events = asyncio.run(follow())
    finally:
        over.set()
        thread.join()
    spent = time.process_time() - processor
    return {"events": events, "share_of_a_core": spent / (time.perf_counter() - clock)}


def measure(runs: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Write the runs and time what a dashboard's reader waits for."""
    with tempfile.TemporaryDirectory(prefix="fl-dp-") as name:
        root = Path(name)
        for number in range(runs):
            write_run(root / f"run-{number:03}", rounds, rounds)
        write_run(root / "under-way", rounds, rounds // 2)
        folder = RunsFolder(root)
        return {
            "runs": runs,
            "rounds": rounds,
            "list, first time": seconds_of(folder.listing),
            "list, again": seconds_of(folder.listing),
            "read every line": seconds_of(lambda: read_everything(root)),
            "live curve": followed_share(root, "under-way", rounds, seconds),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500, help="runs in the folder")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of each")
    parser.add_argument("--seconds", type=float, default=20.0, help="of following a run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    report = measure(chosen.runs, chosen.rounds, chosen.seconds)
    if chosen.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{chosen.runs} runs of {chosen.rounds:,} rounds\n")
    print("| what | seconds | of a processor | over reading every line |")
    print("|---|---|---|---|")
    for what in ("list, first time", "list, again", "read every line"):
        took = report[what]
        ratio = took["seconds"] / report["read every line"]["seconds"]
        print(f"| {what} | {took['seconds']:.2f} | {took['processor_seconds']:.2f} | {ratio:.2f} |")
    share = report["live curve"]["share_of_a_core"]
    print(f"\nA live curve, a round each second: {100 * share:.2f} % of a core")


if __name__ == "__main__":
    main()
