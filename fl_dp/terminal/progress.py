"""Lines that show the progress of runs: live on a terminal, a few plain ones elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from fl_dp.guarantee import Guarantee
from fl_dp.promise import NO_PRIVACY, brief_epsilon, ceiling
from fl_dp.tasks.public_scores import Score

from .live_console import shows_live

# Shows one line of `metrics.jsonl`.
OnRound: TypeAlias = Callable[[dict[str, Any]], None]

_QUIET_SHARE = 0.1  # without a terminal, a line for each tenth of the rounds
_RECENT = 10  # rounds from which the remaining time is estimated
_AT_ONCE = 0.1  # seconds: earlier lines come together, within this time
_STARTING = "starting the nodes"
_LINE, _BAR = 88, 16  # columns of a round's text, and of the bar


@dataclass(eq=False)
class TimeLeft:
    """Estimate from the last rounds alone, as the first one waits for Ray and its workers."""

    _begun: float | None = None
    _ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT + 1))

    def after(self, done: int, rounds: int, now: float) -> float | None:
        """Return the seconds left after `done` rounds, at the time `now`; None while unknown."""
        if self._begun is None:
            self._begun = now
        if now - self._begun < _AT_ONCE:
            return None  # the first model, or rounds from before the run was resumed
        self._ends.append((now, done))
        if len(self._ends) < 2:
            return None
        since, first = self._ends[0]
        return (now - since) / max(done - first, 1) * (rounds - done)

    def in_words(self, done: int, rounds: int, now: float) -> str:
        """Return the time left as words, as `after`; empty after the last round."""
        seconds = self.after(done, rounds, now)
        if done >= rounds:
            return ""
        if seconds is None:
            return "time left unknown"
        return f"{_time(seconds)} left"


class CellsLeft:
    """Estimate of a sweep's remaining time, from the trainings that ended.

    Trainings of one curve take about the same time; others may not.
    """

    def __init__(self, curves: Sequence[str], *, at_once: int = 1) -> None:
        """Set the trainings."""
        self._pending = Counter(curves)
        self._at_once = at_once
        self._durations: dict[str, list[float]] = {}

    def took(self, curve: str, seconds: float) -> None:
        """Record that a training of a curve has ended after some seconds."""
        self._pending[curve] -= 1
        self._durations.setdefault(curve, []).append(seconds)

    def seconds(self) -> float | None:
        """Return the seconds that the rest takes; None before any training has ended."""
        if not self._durations:
            return None
        overall = fmean(one for durations in self._durations.values() for one in durations)
        means = {curve: fmean(durations) for curve, durations in self._durations.items()}
        rest = sum(count * means.get(curve, overall) for curve, count in self._pending.items())
        return rest / self._at_once

    def in_words(self) -> str:
        """Return the remaining time as part of a title; empty while it is unknown.

        Empty also for the last training, which shows its own.
        """
        seconds = self.seconds()
        if seconds is None or self._pending.total() < 2:
            return ""
        return f"about {_time(seconds)} left, "


@contextmanager
def progress_line(console: Console, title: str, *, rounds: int, done: int = 0) -> Iterator[OnRound]:
    """Show a run's rounds while it runs: a live line on a terminal, a few plain ones elsewhere.

    Args:
        console: Console to write on.
        title: The run's name.
        rounds: Number of planned rounds.
        done: Rounds that were done before, if the run continues.
    """
    time_left, heading = TimeLeft(), _Heading()
    starting = _starting(done)
    last: dict[str, Any] = {}

    def describe(line: dict[str, Any]) -> str:
        last.update(_present(line))
        left = time_left.in_words(line["round"], rounds, time.monotonic())
        return describe_round(last, rounds=rounds, time_left=left)

    if not shows_live(console):
        step = max(1, round(rounds * _QUIET_SHARE))
        console.print(f"{title}: {starting}", soft_wrap=True, markup=False)

        def print_some(line: dict[str, Any]) -> None:
            text = describe(line)
            heading.show(console, title, line)
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
            heading.show(progress.console, title, line)
            if line["round"] > done or not done:
                progress.update(bar, completed=line["round"], description=text)

        yield update
        if last:
            # The line stays, and a run may end before its last round.
            progress.update(bar, description=describe_round(last, rounds=rounds))


class ProgressLines:
    """Lines of trainings that run side by side, for as long as its `with` block lasts.

    On a terminal each training has a live line, below everything else that is printed. Elsewhere a
    line is printed when a training begins and when it ends.
    """

    def __init__(self, console: Console) -> None:
        """Set the console; nothing is shown yet."""
        self._console, self._heading = console, _Heading()
        columns = [SpinnerColumn(), BarColumn(bar_width=_BAR), _Whole()]
        self._live: Progress | None = None
        if shows_live(console):
            self._live = Progress(*columns, console=console)

    def __enter__(self) -> Self:
        """Start the live lines."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the live lines."""
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def line(self, title: str, *, rounds: int, done: int = 0) -> Iterator[OnRound]:
        """Show one training's rounds, as `progress_line`; may be called from several threads."""
        last: dict[str, Any] = {}
        time_left = TimeLeft()
        if self._live is None:
            begun = _starting(done) if done else "started"
            self._console.print(f"{title}: {begun}", soft_wrap=True, markup=False)

            def note(line: dict[str, Any]) -> None:
                self._heading.show(self._console, title, line)
                last.update(_present(line))

            yield note
        else:
            live = self._live
            row = live.add_task(f"{_starting(done)}: {title}", total=rounds, completed=done)

            def update(line: dict[str, Any]) -> None:
                self._heading.show(self._console, title, line)
                last.update(_present(line))
                left = time_left.in_words(line["round"], rounds, time.monotonic())
                text = describe_round(last, rounds=rounds, time_left=left)
                number = line["round"]
                if number > done or not done:
                    # Rich refreshes ten times a second; the last round must be shown.
                    live.update(
                        row,
                        completed=number,
                        description=f"{text}: {title}",
                        refresh=number == rounds,
                    )

            try:
                yield update
            finally:
                live.remove_task(row)
        if last:
            text = describe_round(last, rounds=rounds)
            self._console.print(f"{title}: {text}", soft_wrap=True, markup=False)


def _starting(done: int) -> str:
    if done:
        return f"{_STARTING}, continues after round {done}"
    return _STARTING


def _present(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line's values without null: the last evaluation stays shown until the next."""
    return {name: value for name, value in line.items() if value is not None}


def guarantee_of(line: Mapping[str, Any]) -> Guarantee | None:
    """Return the promise of a line of `metrics.jsonl`, with what was spent; None without one."""
    promise = line.get("promise")
    if not isinstance(promise, Mapping):
        return None
    return Guarantee.read({**promise, "spent": line.get("epsilon")})


class _Heading:
    """Promises of lines, each shown once, above the numbers of the rounds."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, console: Console, title: str, line: Mapping[str, Any]) -> None:
        """Print a line's promise, unless it is shown already."""
        guarantee = guarantee_of(line)
        if guarantee is None or guarantee.terms in self._shown:
            return
        self._shown.add(guarantee.terms)
        console.print(f"{title}: {guarantee.planned}", soft_wrap=True, markup=False)


class _Whole(ProgressColumn):
    """The description in one line; its end, which matters least, is cut first."""

    def render(self, task: Task) -> Text:
        """Return the text."""
        return Text(task.description, no_wrap=True, overflow="ellipsis")


def describe_round(line: dict[str, Any], *, rounds: int, time_left: str = "") -> str:
    """Return what matters of a round in at most 80 characters.

    Delta, unit, neighbours and adversary stand above the rounds.

    Args:
        line: A line of `metrics.jsonl`.
        rounds: Number of planned rounds.
        time_left: Words for the time until all are done; empty once the run has ended.
    """
    score = Score.in_line(line)
    parts = [f"round {line['round']}/{rounds}", f"{score.title} {score.with_auc}"]
    guarantee = guarantee_of(line)
    if guarantee is None or guarantee.spent is None or not guarantee.promises:
        parts.append(NO_PRIVACY)
    else:
        epsilon = ceiling(guarantee.spent, 3)  # the line is narrow
        if guarantee.budget is not None:
            epsilon = f"{epsilon}/{brief_epsilon(guarantee.budget)}"
        parts.append(f"epsilon {epsilon}")
    if time_left:
        parts.append(time_left)
    return ", ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d}"
