"""`fl-dp ledger`: tell what was spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, fail, out, print_json


def ledger(
    location: Annotated[
        str,
        typer.Argument(metavar="PATH"),
    ],
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the records here, one line each.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what was spent, record by record, after verifying the chain.

    PATH is a `ledger.db`, the folder of a run, a URL such as
    `postgresql://user@host/database`, or the ledger that a node keeps of its own data.

    Epsilon is computed from the records alone. A record that was altered, removed or reordered is
    an error with status 1.
    """
    from fl_dp.accounting import LedgerCorrupted, PrivacyLedger
    from fl_dp.report.ledger_view import ledger_json, ledger_summary, ledger_table, write_csv

    folder = Path(location)
    if _show_node_ledger(location, csv=csv, as_json=as_json):
        return
    try:
        opened = PrivacyLedger.read(folder / "ledger.db" if folder.is_dir() else location)
    except (OSError, ValueError) as error:
        fail(str(error), status=2)
    except LedgerCorrupted as error:
        fail(str(error), status=1)
    with opened:
        if csv is not None:
            try:
                write_csv(opened, csv)
            except (OSError, ValueError) as error:
                fail(str(error), status=2)
        if as_json:
            print_json(ledger_json(opened))
            return
        out.print(ledger_table(opened))
        out.print(ledger_summary(opened), soft_wrap=True)
        if csv is not None:
            out.print(f"Records: {csv}", soft_wrap=True)


def _show_node_ledger(location: str, *, csv: Path | None, as_json: bool) -> bool:
    """Show a ledger that a node keeps, and return whether it is one."""
    from fl_dp.accounting import LedgerCorrupted, NodeLedger
    from fl_dp.report.node_ledger_view import node_ledger_json, node_ledger_table

    places = _node_ledgers_in(Path(location)) if Path(location).is_dir() else [location]
    try:
        if not places or not NodeLedger.is_one(places[0]):
            return False
        opened = [NodeLedger.read(place) for place in places]
    except (OSError, ValueError):
        return False  # the other reader says what is wrong
    except LedgerCorrupted as error:
        fail(str(error), status=1)
    if csv is not None:
        fail("a node's ledger is shown by account: leave out --csv, or write --json", status=2)
    if as_json:
        shown = [node_ledger_json(each) for each in opened]
        print_json(shown[0] if len(shown) == 1 else {"ledgers": shown})
    else:
        out.print(node_ledger_table(opened, location))
        out.print("Chains verified" if len(opened) > 1 else "Chain verified")
    for each in opened:
        each.close()
    return True


def _node_ledgers_in(folder: Path) -> list[str]:
    """Return the ledgers of simulated nodes in a run's folder that has no ledger of the server."""
    if (folder / "ledger.db").exists():
        return []
    nodes = folder / "nodes" if (folder / "nodes").is_dir() else folder
    return [str(each) for each in sorted(nodes.glob("node-*.db"))]
