"""`fl-dp ledger`: show what was spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, exit_on_errors, print_shown


def ledger(
    location: Annotated[str, typer.Argument(metavar="PATH")],
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the entries here, one line each.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Compare with this privacy.json, wherever it lies."),
    ] = None,
    witness: Annotated[
        str | None,
        typer.Option("--witness", help="Compare with this witness, a file or a database."),
    ] = None,
    begin_witness: Annotated[
        str | None,
        typer.Option("--begin-witness", help="Write the ledger's state to an empty witness, once."),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="Show every entry; else equal ones are one row.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what was spent, after verifying the chain.

    PATH is a `ledger.db`, the folder of a run, a URL such as
    `postgresql://user@host/database`, or the ledger that a node keeps of its own data.

    Epsilon is computed from the entries alone. Each entry of a training is compared with what the
    plan in its first entry would have charged: rounds, noise, samples, other releases. The privacy
    statement and the checkpoint in the ledger's folder are compared with it: every number and
    sentence of the statement is computed anew. An auditor who has the two files names the statement
    with `--check privacy.json`.

    A witness is a second place that knows how far the ledger has come (`privacy.witness_dir`, and
    `dp-witness-path` of a node): it detects an older copy in the ledger's place.

    An entry that was altered, removed or reordered, that the plan would not have charged, an end
    that was cut off and a statement that was edited are errors with status 1.
    """
    from .shown_ledger import begin_witness_of, show_ledger

    with exit_on_errors():
        if begin_witness is not None:
            if witness is not None or csv is not None or check is not None:
                raise ValueError("--begin-witness is asked for alone: leave out the other options")
            begin_witness_of(location, begin_witness)
            witness = begin_witness
        shown = show_ledger(location, csv=csv, check=check, witness=witness, entries=entries)
    print_shown(shown.document, shown.lines, as_json)
