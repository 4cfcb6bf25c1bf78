"""The table of one GPU, in one command that ends within its minutes.

    PYTHONPATH=. python benchmarks/gpu.py [--minutes 8] [--out results/gpu] [--device cuda]

Sections come in the order of their worth, each in a process of its own (`gpu_sections`), which a
limit of its own ends:

- words of ChaCha20 beside OpenSSL's, the law of noise, and its time;
- pfl-research's CIFAR-10 configuration with privacy, by fl-dp and by pfl-research in one process
  each, and by fl-dp through Ray;
- steps of DP-SGD by each way to clipped gradients, beside plain steps, of three models;
- pfl-research in several processes;
- a cohort beside its clients one by one, its convolutions as products and grouped; units on the GPU
  and on the CPU of the same machine;
- cohorts of 1,000 and of 100,000 users;
- tests/app/test_on_devices.py;
- pfl-research's configuration by `train_private`, whose clients are trained together before each
  answers, and without privacy.

`rows.jsonl` in the folder `--out` gets each row as soon as it is measured. A section without
enough time is skipped, and a row says so. `--device cpu` rehearses the script at small sizes; its
numbers say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_sections.sections import SECTIONS, Section

MOST_APART = 0.02
"""Largest share of units whose parameters may differ between GPU and CPU by more than rounding."""
LEAST_P = 1e-6
"""Of draws that follow their law: this many runs in one are alarmed without cause."""
START_S = 20.0  # imports and CUDA, of each section's process
LEAST_S = 30.0  # with fewer left, no section is begun
FOLDER = Path(__file__).parent


class Rows:
    """The file of rows."""

    def __init__(self, folder: Path) -> None:
        """Begin an empty one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "rows.jsonl"
        self.path.write_text("", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, and print it."""
        line = json.dumps(row)
        with self.path.open("a", encoding="utf-8") as rows:
            rows.write(line + "\n")
        print(line, flush=True)

    def all(self) -> list[dict[str, Any]]:
        """All rows, those of sections too, without a line that was cut off."""
        rows = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
        return rows


def measure(section: Section, rows: Rows, *, device: str, until: float) -> None:
    """Run a section, which writes its own rows; add a row if it does not end well.

    Its output goes to a log beside the rows. Everything ends at `until`, by `time.monotonic`.
    """
    left = until - time.monotonic()
    if left < LEAST_S:
        words = f"it may need {LEAST_S:g} s, and {max(left, 0.0):.0f} s are left"
        rows.add({"section": section.name, "skipped": words})
        return
    limit = min(section.most_s, left)
    log = rows.path.with_name(f"{section.name}.log")
    # Ray's own cluster, whose workers import these scripts.
    paths = [str(FOLDER), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "RAY_ADDRESS": "local"}
    if device != "cuda":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "gpu_sections", section.name, "--device", device]
    command += ["--seconds", str(max(limit - START_S, 0.0)), "--rows", str(rows.path)]
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stderr=errors, env=os.environ | variables, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            rows.add({"section": section.name, "ended": f"after its {limit:.0f} s"})
            return
        finally:
            with suppress(ProcessLookupError):  # its own processes end with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status:
        rows.add({"section": section.name, "failed": f"exit status {status}: see {log.name}"})
    rows.add({"section": section.name, "took_s": round(time.monotonic() - begun, 1)})


def description(device: str) -> dict[str, Any]:
    """Name what is measured on."""
    import torch

    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": "CPU alone, small sizes",
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        **{
            name: installed(name)
            for name in ("torch", "triton", "numpy", "flwr", "ray", "opacus", "pfl")
        },
    }
    if device == "cuda":
        about |= {
            "device": torch.cuda.get_device_name(),
            "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
            "cuda": torch.version.cuda,
            "tf32_convolutions": torch.backends.cudnn.allow_tf32,
        }
    return about


def installed(package: str) -> str | None:
    """A package's version, None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def objections(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the results, a sentence each."""
    wrong = []
    for row in rows:
        name = row.get("case", row["section"])
        if row.get("failed"):
            wrong.append(f"{name}: failed {row['failed']}")
        if row.get("p", 1.0) < LEAST_P:
            wrong.append(f"{name}: the draws do not follow their law, p = {row['p']:.2g}")
        if row.get("p_of_wrong", 0.0) > LEAST_P:
            wrong.append(f"{name}: a tenth more noise is not told apart, so the law says nothing")
        on_a_gpu = "ours_bytes" in row  # on a CPU units of a large model leave the cache
        if on_a_gpu and row.get("at_once") == 1:
            wrong.append(f"{name}: they were trained one by one")
        if "largest_difference" not in row:
            continue
        if not row["apart"] <= MOST_APART:
            wrong.append(
                f"{name}: {100 * row['apart']:.1f} % of the units differ from the CPU's, one by "
                f"{row['largest_difference']:.2g}, and TF32 was off"
            )
        if not row["largest_change"] > 1e-3:
            wrong.append(
                f"{name}: training moved no parameter by more than {row['largest_change']:.2g}, so "
                "that agreement says nothing"
            )
    return wrong


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what time suffices for; fail without a GPU, or if results are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0, help="it ends within (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="folder of the rows")
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "PyTorch sees no CUDA GPU here, so there is nothing to measure: run this where there "
            "is one, or write --device cpu to try the script at small sizes"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that its section ends, too
    rows = Rows(options.out)
    rows.add({"section": "machine", **description(options.device)})
    for section in SECTIONS:
        measure(section, rows, device=options.device, until=until)
    wrong = objections(rows.all())
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
