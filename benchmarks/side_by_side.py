"""Timing of two ways to do the same thing, turn by turn in one process."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison.

    Attributes:
        name: What is timed, with its size; the key in the results.
        peer: Whom we compare with, in words.
        ours: Does it our way.
        theirs: Does it the peer's way, at the same size.
        before: Prepares our side, not timed.
    """

    name: str
    peer: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    before: Callable[[], object] = lambda: None


def compare(
    cases: Sequence[Case], repeats: int = 9, *, of_processor: bool = False
) -> dict[str, dict[str, float]]:
    """Time each case's two sides alternately, `repeats` times each, and return the medians.

    Each side runs once before the clock starts. They take turns in going first: a machine that
    slows down or speeds up does so for both. `of_processor` returns the least processor times of
    all threads instead, which hardly depend on who else uses the machine.

    Returns:
        `{name: {"ours_s": seconds, "peer_s": seconds, "ratio": ours over peer}}`.

    Raises:
        ValueError: If `repeats` is below 1 or two cases share a name.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    if len({case.name for case in cases}) < len(cases):
        raise ValueError(f"the names of cases must differ, got {[case.name for case in cases]}")
    clock = time.process_time if of_processor else time.perf_counter
    results = {}
    for case in cases:
        sides = {"ours_s": case.ours, "peer_s": case.theirs}
        timings: dict[str, list[float]] = {side: [] for side in sides}
        case.before()
        for run in sides.values():
            run()
        for turn in range(repeats):
            for side in sorted(sides, reverse=turn % 2 == 1):
                if side == "ours_s":
                    case.before()
                start = clock()
                sides[side]()
                timings[side].append(clock() - start)
        seconds = {
            side: min(times) if of_processor else statistics.median(times)
            for side, times in timings.items()
        }
        results[case.name] = seconds | {"ratio": seconds["ours_s"] / seconds["peer_s"]}
    return results


def main(
    title: str,
    cases: Sequence[Case],
    arguments: Sequence[str] | None = None,
    *,
    repeats: int = 9,
) -> None:
    """Compare the cases and print a table, or JSON with `--json`.

    None for `arguments` takes the process's own. The command line can say other `repeats`.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"timings a side (default: {repeats})"
    )
    parser.add_argument(
        "--of-processor",
        action="store_true",
        help="the least processor times of all threads, for a machine that others use, too",
    )
    options = parser.parse_args(arguments)
    results = compare(cases, options.repeats, of_processor=options.of_processor)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    kind = "least processor time" if options.of_processor else "median"
    table = Table(title=f"{title} ({kind} of {options.repeats}, alternating)")
    for column in ("case", "peer"):
        table.add_column(column)
    for column in ("ours", "theirs", "ours / theirs"):
        table.add_column(column, justify="right")
    for case in cases:
        row = results[case.name]
        table.add_row(
            case.name,
            case.peer,
            f"{1e3 * row['ours_s']:.3g} ms",
            f"{1e3 * row['peer_s']:.3g} ms",
            f"{row['ratio']:.3g}",
        )
    Console().print(table)
