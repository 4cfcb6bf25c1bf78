"""One section, which `gpu.py` starts as `python -m gpu_sections NAME`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from .bench import FULL, SMALL, Bench, Row
from .sections import SECTIONS


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one section."""
    sections = {section.name: section for section in SECTIONS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=sections)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--seconds", type=float, required=True, help="no turn begins after them")
    parser.add_argument("--rows", type=Path, required=True, help="rows are appended, JSON each")
    options = parser.parse_args(arguments)

    def write(row: Row) -> None:
        line = json.dumps({"section": options.section, **row})
        with options.rows.open("a", encoding="utf-8") as rows:
            rows.write(line + "\n")
        print(line, flush=True)

    if options.device == "cpu":
        torch.set_num_threads(1)  # models this small only wait for each other's threads
    bench = Bench(
        device=torch.device(options.device),
        sizes=FULL if options.device == "cuda" else SMALL,
        until=time.monotonic() + options.seconds,
        write=write,
    )
    sections[options.section].run(bench)


if __name__ == "__main__":
    main()
