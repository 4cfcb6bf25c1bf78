"""A training over a thousand to ten million clients, at the same expected cohort.

    python benchmarks/scale.py --results scale.json --picture docs/images/scale.png

Each case has its own processes, is told when a round is done, and is stopped after the last one,
after two minutes, or at 8 GiB. All train logistic regression on digits: 10 records a client, dealt
out again and again. fl-dp runs in one process and on Flower's engine. Beside it run Flower's
`FedAvg`, without privacy, one virtual node a client; and pfl-research in an environment of its
own.

Cases already in the results are not measured again: a stopped benchmark goes on and a picture can
be redrawn. Begin with another file to measure all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from peers import CACHE, environment

from fl_dp.app.local.processes import descendants, kill_all
from fl_dp.app.pictures import COLOURS, PALE, new_picture, save_picture
from fl_dp.tasks.datasets import load_dataset

HERE = Path(__file__).resolve().parent
PFL = "pfl[pytorch]==0.6.0"
SIZES = tuple(10**power for power in range(3, 8))
ROUNDS, RECORDS, EPOCHS, LEARNING_RATE = 5, 10, 5, 2.0
NOISE_MULTIPLIER = 2.5  # sums of ten million clients are exact from 2.01 on
LONGEST, MOST_BYTES = 120.0, 8 << 30
PAUSE, LOOK_AT_MEMORY_EVERY = 0.02, 10

SYSTEMS = {
    "fl-dp": "fl-dp, in one process",
    "fl-dp-flower": "fl-dp, Flower's engine",
    "flower": "Flower's FedAvg, no privacy",
    "pfl": "pfl-research 0.6.0",
}
MEASURES = {
    "first_s": "seconds to the first round",
    "round_s": "seconds a further round",
    "peak_gb": "memory of all processes, GB",
}


def command(system: str, clients: int, cohort: int, folder: Path) -> tuple[list[str], Path, int]:
    """What to start, a file that grows by a line a round, and its lines before the first."""
    if system in ("flower", "pfl"):
        python = Path(sys.executable)
        if system == "pfl":
            torch = version("torch").partition("+")[0]
            python = environment("pfl-research", [PFL, f"torch=={torch}"], CACHE)
        return [str(python), str(HERE / "scale_peers.py"), system], folder / "progress", 0
    engine = "in_process" if system == "fl-dp" else "flower"
    asked = [
        f"simulation.engine={engine}",
        f"task.num_clients={clients}",
        f"task.records_per_client={RECORDS}",
        f"selection.sampling_rate={cohort / clients}",
        f"rounds={ROUNDS}",
        "privacy.epsilon=null",
        f"privacy.noise_multiplier={NOISE_MULTIPLIER}",
        f"client.epochs={EPOCHS}",
        f"client.learning_rate={LEARNING_RATE}",
        f"output_dir={folder}",
        "run_name=run",
    ]
    return (
        [sys.executable, "-P", "-m", "fl_dp", "run", *asked],
        folder / "run" / "metrics.jsonl",
        1,  # the model before training
    )


def measure(system: str, clients: int, cohort: int) -> dict[str, float | str]:
    """Seconds and memory of one training, or why it was stopped."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked, file, before = command(system, clients, cohort, folder)
        digits = load_dataset("digits")
        x = np.asarray(digits.features(slice(None))).reshape(-1, 64).astype(np.float32)
        np.savez(folder / "digits.npz", x=x, y=digits.labels(slice(None)))
        task = {
            "data": str(folder / "digits.npz"),
            "progress": str(file),
            "processors": os.cpu_count(),
            "clients": clients,
            "cohort": cohort,
            "rounds": ROUNDS,
            "records": RECORDS,
            "epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "noise_multiplier": NOISE_MULTIPLIER,
        }
        with (folder / "log").open("wb") as log:
            start = time.perf_counter()
            process = subprocess.Popen(
                asked,
                cwd=folder,
                env=os.environ
                | {"PYTHONPATH": str(HERE.parent)}
                | {"SCALE_TASK": json.dumps(task), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            return _watched(process, start, file, before)
        except RuntimeError:
            print((folder / "log").read_text(encoding="utf-8")[-2000:], file=sys.stderr)
            raise
        finally:
            kill_all([process.pid, *descendants(process.pid)])
            process.wait()


def _watched(
    process: subprocess.Popen[bytes], start: float, file: Path, before: int
) -> dict[str, float | str]:
    ends: list[float] = []
    peak = looks = 0
    while len(ends) < ROUNDS:
        ended = process.poll() is not None
        now = time.perf_counter() - start
        if looks % LOOK_AT_MEMORY_EVERY == 0:
            peak = max(peak, _memory(process.pid))
        looks += 1
        done = (file.read_bytes().count(b"\n") if file.is_file() else 0) - before
        ends.extend([now] * (done - len(ends)))
        if len(ends) == ROUNDS:
            break
        if ended:
            raise RuntimeError(f"the process ended with status {process.returncode}")
        if now > LONGEST or peak > MOST_BYTES:
            reason = f"{LONGEST:.0f} s" if now > LONGEST else f"{MOST_BYTES >> 30} GiB"
            where = f"in round {len(ends) + 1}" if ends else "before the first round"
            return {"stopped": f"more than {reason}, {where}"}
        time.sleep(PAUSE)
    peak = max(peak, _memory(process.pid))
    return {
        "first_s": ends[0],
        "round_s": (ends[-1] - ends[0]) / (ROUNDS - 1),
        "peak_gb": peak / 1e9,
    }


def _memory(pid: int) -> int:
    """Bytes of a process and all that it started; shared memory counts once."""
    total = 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total


def fill(results: dict[str, Any], systems: Sequence[str], sizes: Sequence[int], path: Path) -> None:
    """Measure what the results lack, and write them after each case."""
    for system in systems:
        rows = results["rows"].setdefault(system, {})
        for clients in sizes:
            if str(clients) in rows:
                continue
            if any("stopped" in row for row in rows.values()):
                rows[str(clients)] = {"stopped": "not tried"}
            else:
                print(f"{SYSTEMS[system]}: {clients:,} clients", file=sys.stderr)
                rows[str(clients)] = measure(system, clients, results["cohort"])
            path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def table(results: dict[str, Any], sizes: Sequence[int]) -> str:
    """The results as a table of Markdown: first round / a further round / memory."""
    lines = ["| system | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
    lines.append("|---" * (1 + len(sizes)) + "|")
    for system, rows in results["rows"].items():
        cells = [_cell(rows.get(str(size), {})) for size in sizes]
        lines.append(f"| {SYSTEMS[system]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    if "first_s" not in row:
        return str(row.get("stopped", ""))
    return f"{row['first_s']:.1f} s / {row['round_s']:.2g} s / {row['peak_gb']:.2g} GB"


def draw(results: dict[str, Any], target: Path) -> None:
    """Draw each measure over the number of clients."""
    made = new_picture((1.0,) * len(MEASURES), size=(10.5, 3.4))
    if made is None:
        raise SystemExit("no picture without matplotlib: pip install 'fl-dp[viewer]' brings it")
    figure, panels = made
    colours = dict(zip(SYSTEMS, (COLOURS[0], COLOURS[2], COLOURS[1], COLOURS[4]), strict=True))
    for axes, (measured, label) in zip(panels, MEASURES.items(), strict=True):
        for system, rows in results["rows"].items():
            done = {int(size): row for size, row in rows.items() if measured in row}
            values = [row[measured] for row in done.values()]
            axes.plot(list(done), values, marker="o", color=colours[system], label=SYSTEMS[system])
            if done and len(done) < len(rows):  # it went no further
                last = max(done)
                axes.plot(last, done[last][measured], marker="x", markersize=11, color=PALE)
        axes.set(xlabel="clients", title=label, xscale="log", yscale="log")
    save_picture(figure, target)


def main() -> None:
    """Measure what is missing; print and draw the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("scale.json"), help="JSON, kept")
    parser.add_argument("--cohort", type=int, default=100, help="expected; of new results")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of clients")
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--picture", type=Path, help="draw the measures here, PNG")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "cohort": options.cohort,
        "date": datetime.now(UTC).date().isoformat(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rows": {},
    }
    if options.results.exists():
        results = json.loads(options.results.read_text(encoding="utf-8"))
    fill(results, options.systems, options.sizes, options.results)
    if options.picture is not None:
        draw(results, options.picture)
    print(json.dumps(results, indent=2) if options.json else table(results, options.sizes))


if __name__ == "__main__":
    main()
