"""`fl-dp runs`: list what is in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .console import (
    AsJson,
    exit_on_errors,
    note,
    out,
    print_json,
    require_one_of,
    warn,
)

_WIDE = 10_000


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)] = Path("runs"),
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="Only finished, running, silent, stopped or broken; may be repeated."
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", help="when, name, state, round, accuracy or epsilon.")
    ] = "when",
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder: state, round, accuracy, epsilon and delta, and when.

    FOLDER holds runs and sweeps, or is one of them; without it, `runs/`. The cells of a sweep stand
    together. For example:

    - `fl-dp runs`

    - `fl-dp runs results --state running --state silent`

    - `fl-dp runs --sort epsilon --json`

    A run is silent if it neither ended nor wrote anything for ten minutes and five of its rounds.
    Nothing is verified here: `fl-dp ledger` does that.
    """
    with exit_on_errors():
        from fl_dp.viewer.found_runs import RunsFolder, RunState
        from fl_dp.viewer.runs_view import ORDERS, cards_in_order, runs_json, runs_tables

        choices = list(map(str, RunState))
        states = [require_one_of("--state", name, choices) for name in state or ()]
        order = require_one_of("--sort", sort, list(ORDERS))
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}: write `fl-dp runs FOLDER`")
        problems: tuple[str, ...] = ()
        if (folder / "config.yaml").exists():
            path = folder.resolve()
            cards = [RunsFolder(path.parent).card(path.name)]
        else:
            listing = RunsFolder(folder).listing()
            cards, problems = list(listing.cards), listing.problems
        matches = cards_in_order(
            [card for card in cards if not states or card.state in states], order
        )
    if as_json:
        print_json(runs_json(matches, problems))
        return
    for text in problems:
        warn(text)
    if not cards:
        note(f"there are no runs in {folder}: `fl-dp run` makes one")
    elif not matches:
        note(f"none of {len(cards)} runs in {folder} is {' or '.join(states)}")
    else:
        # In a pipe no row is broken.
        console = out if out.is_terminal else Console(width=_WIDE, highlight=False)
        for terms, table in runs_tables(matches).items():
            console.print(terms, style="italic", soft_wrap=True, markup=False)
            console.print(table)
