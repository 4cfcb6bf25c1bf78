"""Accuracy at a budget: the tables of docs/accuracy.md, each row trained by `fl-dp run`.

    python benchmarks/accuracy.py                       # every table of accuracy.yaml
    python benchmarks/accuracy.py records --seeds 0     # one table, one seed

Accuracy, unit, epsilon and delta come from each run's folder, and are kept there in `result.json`.
So a stopped table goes on, and a row with changed overrides is trained again. `--list` only prints
what there is; `--picture FILE` draws it against epsilon. Images must be there: `fl-dp data
fashion_mnist`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fl_dp.app.pictures import COLOURS, new_picture, save_picture, score_axis

TABLES = Path(__file__).with_suffix(".yaml")
METRIC = "test_accuracy"
EARLY, LATE = 1.5, 5.0  # epsilons near the panel's edges, where a name stands inwards of its point


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        label: What is trained, in words.
        overrides: Of `fl-dp run`, without the seed.
        public: What no promise covers.
        public_alone: What that reaches without any private record.
        published: What others report of the same set, with public data of the same kind,
            `[epsilon, accuracy]` by name.
        chosen_on: Data on which the settings were chosen.
        line: Its name in the picture, where a panel has several.
        metric: What is reported, a key of `metrics.jsonl`.
        seeds: Of its runs; None: the command's.
    """

    label: str
    overrides: tuple[str, ...] = ()
    public: str = "-"
    public_alone: str = "-"
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    chosen_on: str = "-"
    line: str = ""
    metric: str = METRIC
    seeds: tuple[int, ...] | None = None

    def trained(self, seed: int, runs: Path) -> None:
        """Train one run, unless it is there; a stopped run in its folder goes on."""
        folder = runs / self.name_of_run(seed)
        asked = [f"resume={folder}"]
        if not folder.exists():
            asked = [*self.overrides, f"seed={seed}", f"output_dir={runs}"]
            asked += [f"run_name={folder.name}", "report=none"]
        command = [sys.executable, "-P", "-m", "fl_dp", "run", *asked]
        began = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{self.label}, seed {seed}: {done.stderr}\nIts folder: {folder}")
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        statement = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
        result = {
            "label": self.label,
            "metric": json.loads(lines[-1])[self.metric],
            "unit": statement.get("unit", "none").partition(",")[0],
            "epsilon": statement["epsilon"].get(statement["quoted"]),
            "delta": statement["delta"],
            "seconds": round(time.monotonic() - began),
        }
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
        print(json.dumps(result), file=sys.stderr)

    def result(self, seed: int, runs: Path) -> dict[str, Any] | None:
        """What a run came to; None if it has not ended."""
        kept = runs / self.name_of_run(seed) / "result.json"
        if not kept.is_file():
            return None
        read: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return read

    def name_of_run(self, seed: int) -> str:
        """A name for runs with the same overrides, metric and seed."""
        pinned = json.dumps([self.overrides, self.metric]).encode()
        return f"{hashlib.sha256(pinned).hexdigest()[:12]}-{seed}"


def read_tables(file: Path = TABLES) -> dict[str, tuple[str, list[Row]]]:
    """Title and rows of each table; what a table says holds for each row."""
    tables = {}
    for name, table in yaml.safe_load(file.read_text(encoding="utf-8")).items():
        title, rows = table.pop("title"), table.pop("rows")
        tables[name] = title, [Row(**_merged(table, row)) for row in rows]
    return tables


def _merged(table: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    merged = table | row
    merged["overrides"] = tuple(table.get("overrides", ())) + tuple(row.get("overrides", ()))
    if "seeds" in merged:
        merged["seeds"] = tuple(merged["seeds"])
    return merged


def printed(title: str, rows: Sequence[tuple[Row, Sequence[dict[str, Any]]]]) -> Iterator[str]:
    """Yield a table's lines in Markdown."""
    yield f"**{title}**\n"
    yield "| what | unit | epsilon | delta | mean | each seed | public | alone | chosen on |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row, results in rows:
        if not results:
            yield f"| {row.label} | not measured | | | | | | | |"
            continue
        numbers = [result["metric"] for result in results]
        first = results[0]
        promise = ["-", "-"]
        if first["epsilon"] is not None:
            promise = [f"{first['epsilon']:.2f}", f"{first['delta']:.2g}"]
        cells = [row.label, first["unit"], *promise, _short(statistics.fmean(numbers))]
        cells += [", ".join(map(_short, numbers)), row.public, row.public_alone, row.chosen_on]
        yield f"| {' | '.join(cells)} |"


def draw(rows: Sequence[tuple[Row, Sequence[dict[str, Any]]]], target: Path) -> None:
    """Draw accuracy against epsilon, a panel per label, with what others have published."""
    measured = [(row, results) for row, results in rows if results and results[0]["epsilon"]]
    labels = list(dict.fromkeys(row.label for row, _ in measured))
    made = new_picture([1.0] * len(labels))
    if made is None or not labels:
        raise SystemExit("no picture: nothing is measured, or matplotlib is missing")
    figure, panels = made
    for label, axes in zip(labels, panels, strict=True):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row, results in measured:
            if row.label == label:
                mean = statistics.fmean(result["metric"] for result in results)
                lines.setdefault(row.line, []).append((results[0]["epsilon"], mean))
        colours = dict(zip(lines, COLOURS, strict=False))
        for name, points in lines.items():
            points.sort()
            axes.plot(*zip(*points, strict=True), "o-", color=colours[name])
            axes.annotate(
                name,
                points[-1],
                (0, 6),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=colours[name],
            )
        for row in (row for row, _ in measured if row.label == label):
            for name, (epsilon, accuracy) in row.published.items():
                # As the line that it is fair to compare with.
                axes.plot(epsilon, accuracy, "x", color=colours[row.line])
                side, aside = "center", 0
                if epsilon < EARLY:
                    side, aside = "left", 5
                elif epsilon > LATE:
                    side, aside = "right", -5
                ours = np.array(lines[row.line])
                above = accuracy > np.interp(epsilon, ours[:, 0], ours[:, 1])
                axes.annotate(
                    name,
                    (epsilon, accuracy),
                    (aside, 6 if above else -12),
                    textcoords="offset points",
                    ha=side,
                    fontsize=7,
                    color=colours[row.line],
                )
        axes.set(title=label, xlabel="epsilon of each record", xscale="log")
        axes.set_xticks([1, 3, 8], ["1", "3", "8"])
        axes.minorticks_off()
        axes.margins(x=0.1, y=0.15)
        low, high = axes.get_ylim()
        shortest = score_axis(low, high)
        axes.set_ylim(min(low, shortest[0]), max(high, shortest[1]))
    panels[0].set_ylabel("accuracy: fl-dp (line), published (x)")
    save_picture(figure, target)


def _short(number: float) -> str:
    return f"{number:.4f}".removeprefix("0")


def main() -> None:
    """Train what is missing, and print the tables."""
    tables = read_tables()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(tables)}")
    parser.add_argument("--seeds", default="0,1,2", help="of rows that name none")
    parser.add_argument("--runs", type=Path, default=Path("runs/accuracy"), help="their folder")
    parser.add_argument("--list", action="store_true", help="print what is there, train nothing")
    parser.add_argument("--picture", type=Path, help="PNG of accuracy against epsilon")
    asked = parser.parse_args()
    if unknown := set(asked.tables) - set(tables):
        parser.error(f"no such table: {', '.join(unknown)}; there are {', '.join(tables)}")
    runs: Path = asked.runs.resolve()
    drawn: list[tuple[Row, list[dict[str, Any]]]] = []
    for name in asked.tables or tables:
        title, rows = tables[name]
        measured = []
        for row in rows:
            seeds = row.seeds or tuple(int(seed) for seed in asked.seeds.split(","))
            if not asked.list:
                for seed in seeds:
                    if row.result(seed, runs) is None:
                        row.trained(seed, runs)
            results = [row.result(seed, runs) for seed in seeds]
            measured.append((row, [result for result in results if result is not None]))
        drawn += measured
        print("\n".join(printed(title, measured)) + "\n")
    if asked.picture is not None:
        draw(drawn, asked.picture)


if __name__ == "__main__":
    main()
