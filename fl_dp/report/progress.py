"""One line that tells how a run is doing."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

# Takes one line of `metrics.jsonl`, and shows it.
OnRound: TypeAlias = Callable[[dict[str, Any]], None]

_QUIET_SHARE = 0.1  # without a terminal, a line for each tenth of the rounds
_RECENT = 10  # rounds that the time left is estimated from
_AT_ONCE = 0.1  # seconds: lines that were there already come together
_LINE, _BAR = 78, 16  # columns of what is said of a round, and of the bar


class TimeLeft:
    """Estimate from the last rounds alone: the first waits for Ray and its workers."""

    def __init__(self) -> None:
        """Begin without a round."""
        self._begun: float | None = None
        self._ends: deque[tuple[float, int]] = deque(maxlen=_RECENT + 1)

    def after(self, done: int, rounds: int, now: float) -> float | None:
        """Return the seconds left after a round, None while there is nothing to go by.

        Args:
            done: Rounds that are done.
            rounds: How many there are.
            now: The time at which it ended, in seconds.
        """
        if self._begun is None:
            self._begun = now
        if now - self._begun < _AT_ONCE:
            return None  # the first model, or rounds of before the run was resumed
        self._ends.append((now, done))
        if len(self._ends) < 2:
            return None
        since, first = self._ends[0]
        return (now - since) / max(done - first, 1) * (rounds - done)


@contextmanager
def progress_line(console: Console, title: str, *, rounds: int, budget: float) -> Iterator[OnRound]:
    """Show a run's rounds while it runs: a live line on a terminal, a few plain ones elsewhere.

    Args:
        console: Where to write.
        title: The run's name.
        rounds: How many rounds are planned.
        budget: The epsilon that they may spend.
    """
    time_left = TimeLeft()

    def describe(line: dict[str, Any]) -> str:
        left = time_left.after(line["round"], rounds, time.monotonic())
        return describe_round(line, rounds=rounds, budget=budget, seconds_left=left)

    starting = "starting Flower and its workers"
    if not console.is_terminal:
        step = max(1, round(rounds * _QUIET_SHARE))
        console.print(f"{title}: {starting}", soft_wrap=True, markup=False)

        def print_some(line: dict[str, Any]) -> None:
            text = describe(line)
            if line["round"] % step == 0 or line["round"] == rounds:
                console.print(f"{title}: {text}", soft_wrap=True, markup=False)

        yield print_some
        return

    wide = console.width >= len(title) + _BAR + _LINE
    if not wide:
        console.print(title, markup=False)
    columns: list[ProgressColumn] = [SpinnerColumn()]
    if wide:
        columns += [TextColumn("{task.fields[title]}", markup=False), BarColumn(bar_width=_BAR)]
    with Progress(*columns, _Whole(), console=console) as progress:
        bar = progress.add_task(starting, total=rounds, title=title)

        def update(line: dict[str, Any]) -> None:
            progress.update(bar, completed=line["round"], description=describe(line))

        yield update


class _Whole(ProgressColumn):
    """The description in one line: what matters least is last, and is cut first."""

    def render(self, task: Task) -> Text:
        """Return the text."""
        return Text(task.description, no_wrap=True, overflow="ellipsis")


def describe_round(
    line: dict[str, Any], *, rounds: int, budget: float, seconds_left: float | None
) -> str:
    """Return what matters of a round in at most 76 characters.

    Args:
        line: Of `metrics.jsonl`.
        rounds: How many rounds are planned.
        budget: The epsilon that they may spend; infinite for none.
        seconds_left: Until all are done; None while that is unknown.
    """
    parts = [f"round {line['round']}/{rounds}", f"accuracy {line['test_accuracy']:.3f}"]
    if "epsilon" in line:
        of = f"/{budget:.4g}" if math.isfinite(budget) else ""
        parts.append(f"epsilon {line['epsilon']:.3g}{of}")
    else:
        parts.append("no privacy")
    if line["round"] < rounds:
        parts.append("time left unknown" if seconds_left is None else f"{_time(seconds_left)} left")
    return ", ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d}"
