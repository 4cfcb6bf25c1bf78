"""Experiments on public data, for the commands of the lab, and their progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fl_dp.terminal.live_console import shows_live

if TYPE_CHECKING:
    from fl_dp.app.settings import Settings


DataIsPublic = Annotated[
    bool,
    typer.Option(
        "--data-is-public",
        help="Confirm that your own data are public: the results here are not private.",
    ),
]


def require_public(settings: Settings, *, stated: bool, because: str) -> None:
    """Refuse an experiment without privacy on data that may belong to people.

    Args:
        settings: Settings of the experiment.
        stated: Whether the caller gave `--data-is-public`.
        because: Beginning of the refusal, for example `an attack trains without privacy`.

    Raises:
        ValueError: If the task reads own data and `stated` is false, or its label is a number.
    """
    from fl_dp.tasks.datasets import OWN_DATA

    if settings.task.label_range is not None:
        raise ValueError(
            "attacks and audits are of classes, and task.label_range makes the label a "
            "number: leave it out, or write task.classes"
        )
    if settings.task.name in OWN_DATA and not stated:
        raise ValueError(
            f"{because}: task={settings.task.name} reads data of your own, add --data-is-public if "
            "everybody may see them, or take a public task such as task=digits"
        )


_LINE_EVERY = 0.1  # without a terminal, a line for each tenth


@contextmanager
def counted(console: Console, title: str, total: int, parts: str) -> Iterator[Callable[[], None]]:
    """Show the progress of an experiment, and the time left.

    Args:
        console: Console to write to.
        title: Title of the experiment.
        total: Number of parts.
        parts: Their name, for example `models`.

    Yields:
        A function to call after each part.
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
    step = max(1, round(total * _LINE_EVERY))

    def on_part() -> None:
        nonlocal done
        done += 1
        if done % step == 0 or done == total:
            remaining = (time.monotonic() - begun) / done * (total - done)
            text = f"{title}: {done}/{total} {parts}, {remaining:.0f} s left"
            console.print(text, soft_wrap=True, markup=False)

    yield on_part
