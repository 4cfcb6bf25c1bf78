"""`fl-dp ledger`: tell what was spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, failures_told, out, print_json


def ledger(
    location: Annotated[
        str,
        typer.Argument(metavar="PATH"),
    ],
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the entries here, one line each.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Compare with this privacy.json, wherever it lies."),
    ] = None,
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Only budget, spent, left and when; no name, no entry."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what was spent, entry by entry, after verifying the chain.

    PATH is a `ledger.db`, the folder of a run, a URL such as
    `postgresql://user@host/database`, or the ledger that a node keeps of its own data.

    Epsilon is computed from the entries alone. The privacy statement and the checkpoint in the
    ledger's folder are compared with it: every number and sentence of the statement is computed
    anew. An auditor who has the two files names the statement with `--check privacy.json`.

    `--summary` is for governance: it names no node, no participant and no place, and tells a number
    of clients below ten as such.

    An entry that was altered, removed or reordered, an end that was cut off and a statement that
    was edited are errors with status 1.
    """
    from .shown_ledger import show_ledger, summarise_ledger

    with failures_told():
        if summary and (csv is not None or check is not None):
            raise ValueError("--summary has no entries and no files: leave out --csv and --check")
        if summary:
            shown = summarise_ledger(location)
        else:
            shown = show_ledger(location, csv=csv, check=check)
    if as_json:
        print_json(shown.document)
        return
    for line in shown.lines:
        out.print(line, soft_wrap=isinstance(line, str))
