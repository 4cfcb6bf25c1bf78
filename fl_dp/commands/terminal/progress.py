"""Lines that tell how runs are doing: live on a terminal, a few plain ones elsewhere."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from fl_dp.commands.console import shows_live
from fl_dp.promise import brief_epsilon, ceiling, is_promise
from fl_dp.tasks.metrics import Score

from .numbers import NO_PRIVACY

# Takes one line of `metrics.jsonl`, and shows it.
OnRound: TypeAlias = Callable[[dict[str, Any]], None]

_QUIET_SHARE = 0.1  # without a terminal, a line for each tenth of the rounds
_RECENT = 10  # rounds that the time left is estimated from
_AT_ONCE = 0.1  # seconds: lines that were there already come together
_STARTING = "starting the nodes"
_LINE, _BAR = 78, 16  # columns of what is said of a round, and of the bar


@dataclass(eq=False)
class TimeLeft:
    """Estimate from the last rounds alone: the first waits for Ray and its workers."""

    _begun: float | None = None
    _ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT + 1))

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


class CellsLeft:
    """Estimate of the time that the trainings of a sweep still take, from those that ended.

    Trainings of one curve take about as long as each other; others may not.
    """

    def __init__(self, curves: Sequence[str], *, at_once: int = 1) -> None:
        """Begin with what there is to do.

        Args:
            curves: The curve of each training that is not finished.
            at_once: Trainings at a time.
        """
        self._left = Counter(curves)
        self._at_once = at_once
        self._took: dict[str, list[float]] = {}

    def took(self, curve: str, seconds: float) -> None:
        """Note that a training of a curve has ended."""
        self._left[curve] -= 1
        self._took.setdefault(curve, []).append(seconds)

    def seconds(self) -> float | None:
        """Return how long the rest takes; None before any training has ended."""
        if not self._took:
            return None
        overall = fmean(seconds for each in self._took.values() for seconds in each)
        of_each = {curve: fmean(each) for curve, each in self._took.items()}
        rest = sum(count * of_each.get(curve, overall) for curve, count in self._left.items())
        return rest / self._at_once

    def in_words(self) -> str:
        """Return the time left as a part of a title; empty while it is not known.

        The last training says its own.
        """
        seconds = self.seconds()
        return "" if seconds is None or self._left.total() < 2 else f"about {_time(seconds)} left, "


@contextmanager
def progress_line(
    console: Console, title: str, *, rounds: int, budget: float, done: int = 0
) -> Iterator[OnRound]:
    """Show a run's rounds while it runs: a live line on a terminal, a few plain ones elsewhere.

    Args:
        console: Where to write.
        title: The run's name.
        rounds: How many rounds are planned.
        budget: The epsilon that they may spend.
        done: Rounds of before, where the run continues.
    """
    time_left = TimeLeft()
    starting = _starting(done)
    last: dict[str, Any] = {}

    def describe(line: dict[str, Any]) -> str:
        last.update(_known(line))
        left = time_left.after(line["round"], rounds, time.monotonic())
        return describe_round(last, rounds=rounds, budget=budget, seconds_left=left)

    if not shows_live(console):
        step = max(1, round(rounds * _QUIET_SHARE))
        console.print(f"{title}: {starting}", soft_wrap=True, markup=False)

        def print_some(line: dict[str, Any]) -> None:
            text = describe(line)
            if line["round"] <= done > 0:
                return
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
        bar = progress.add_task(starting, total=rounds, completed=done, title=title)

        def update(line: dict[str, Any]) -> None:
            text = describe(line)
            if line["round"] > done or not done:
                progress.update(bar, completed=line["round"], description=text)

        yield update


class ProgressLines:
    """Lines of trainings that go on side by side, for as long as its `with` block lasts.

    On a terminal each training has a live line; what is printed meanwhile stands above them.
    Elsewhere each says when it began and what it came to.
    """

    def __init__(self, console: Console) -> None:
        """Say where they are shown; nothing is yet."""
        self._console = console
        columns = [SpinnerColumn(), BarColumn(bar_width=_BAR), _Whole()]
        self._live = Progress(*columns, console=console) if shows_live(console) else None

    def __enter__(self) -> Self:
        """Begin to show them."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the live ones away."""
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def line(self, title: str, *, rounds: int, budget: float, done: int = 0) -> Iterator[OnRound]:
        """Show one training's rounds while it runs; may be called from several threads.

        Args:
            title: Its name.
            rounds: How many rounds are planned.
            budget: The epsilon that they may spend.
            done: Rounds of before, where the training continues.
        """
        last: dict[str, Any] = {}
        time_left = TimeLeft()
        if self._live is None:
            begun = _starting(done) if done else "started"
            self._console.print(f"{title}: {begun}", soft_wrap=True, markup=False)
            yield lambda line: last.update(_known(line))
        else:
            live, row = (
                self._live,
                self._live.add_task(f"{_starting(done)}: {title}", total=rounds, completed=done),
            )

            def update(line: dict[str, Any]) -> None:
                last.update(_known(line))
                left = time_left.after(line["round"], rounds, time.monotonic())
                said = describe_round(last, rounds=rounds, budget=budget, seconds_left=left)
                if (at := line["round"]) > done or not done:
                    # Else ten times a second; the last round is seen in any case.
                    live.update(
                        row, completed=at, description=f"{said}: {title}", refresh=at == rounds
                    )

            try:
                yield update
            finally:
                live.remove_task(row)
        if last:
            said = describe_round(last, rounds=rounds, budget=budget, seconds_left=None)
            self._console.print(f"{title}: {said}", soft_wrap=True, markup=False)


def _starting(done: int) -> str:
    return f"{_STARTING}, continues after round {done}" if done else _STARTING


def _known(line: dict[str, Any]) -> dict[str, Any]:
    """Return what a line says: the score of the last evaluation stands until the next."""
    return {name: value for name, value in line.items() if value is not None}


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
    score = Score.in_line(line)
    parts = [f"round {line['round']}/{rounds}", f"{score.title} {score}"]
    if is_promise(line.get("epsilon"), insecure=line.get("insecure", False)):
        of = f"/{brief_epsilon(budget)}" if math.isfinite(budget) else ""
        parts.append(f"epsilon {ceiling(line['epsilon'], 3)}{of}")  # the line is narrow
    else:
        parts.append(NO_PRIVACY)
    if line["round"] < rounds:
        parts.append("time left unknown" if seconds_left is None else f"{_time(seconds_left)} left")
    return ", ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d}"
