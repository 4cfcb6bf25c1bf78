"""One line that tells how a run is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

_QUIET_SHARE = 0.1  # without a terminal, a line for each tenth of the rounds


class OnRound(Protocol):
    """Takes one line of `metrics.jsonl`."""

    def __call__(self, line: dict[str, Any]) -> None:
        """Show it."""
        ...


@contextmanager
def progress_line(console: Console, title: str, *, rounds: int, budget: float) -> Iterator[OnRound]:
    """Show a run's rounds as they come: a live line on a terminal, a few plain ones elsewhere.

    Args:
        console: Where to write.
        title: The run's name.
        rounds: How many rounds are planned.
        budget: The epsilon that they may spend.
    """
    began: list[tuple[float, int]] = []

    def describe(line: dict[str, Any]) -> str:
        if not began:
            began.append((time.monotonic(), line["round"]))
        done = line["round"]
        since, first = began[0]
        left = "estimating the time"
        if done > first:
            took = time.monotonic() - since
            left = f"{took / (done - first) * (rounds - done):.0f} s left"
        spent = "no privacy"
        if "epsilon" in line:
            spent = f"epsilon {line['epsilon']:.3f} of {budget:g}"
        return (
            f"round {done}/{rounds}, expected cohort {line['expected_cohort']:g}, public test "
            f"accuracy {line['test_accuracy']:.3f}, {spent}, {left}"
        )

    if not console.is_terminal:
        step = max(1, round(rounds * _QUIET_SHARE))
        console.print(f"{title}: starting Flower's simulation", soft_wrap=True)

        def print_some(line: dict[str, Any]) -> None:
            text = describe(line)
            if line["round"] % step == 0 or line["round"] == rounds:
                console.print(f"{title}: {text}", soft_wrap=True)

        yield print_some
        return

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[title]}"),
        BarColumn(bar_width=20),
        TextColumn("{task.description}"),
        console=console,
    ) as progress:
        bar = progress.add_task("starting Flower's simulation", total=rounds, title=title)

        def update(line: dict[str, Any]) -> None:
            progress.update(bar, completed=line["round"], description=describe(line))

        yield update
