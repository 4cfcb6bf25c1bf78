"""Progress of an experiment: a live bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fl_dp.commands.console import shows_live

_SAID_EVERY = 0.1  # without a terminal, a line for each tenth


@contextmanager
def counted(console: Console, title: str, total: int, what: str) -> Iterator[Callable[[], None]]:
    """Show how many parts of an experiment are done, and the time left.

    Args:
        console: Where to write.
        title: Of the experiment.
        total: Number of parts.
        what: Their name, for example `models`.

    Yields:
        To be called after each part.
    """
    if shows_live(console):
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(title, total=total)
            yield lambda: progress.advance(bar)
        return
    begun, done = time.monotonic(), 0
    step = max(1, round(total * _SAID_EVERY))

    def on_part() -> None:
        nonlocal done
        done += 1
        if done % step == 0 or done == total:
            left = (time.monotonic() - begun) / done * (total - done)
            text = f"{title}: {done}/{total} {what}, {left:.0f} s left"
            console.print(text, soft_wrap=True, markup=False)

    yield on_part
