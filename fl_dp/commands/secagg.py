"""`fl-dp secagg`: a node owner's side of secure sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import AsJson, fail, failures_told, note, out, print_json

secagg = typer.Typer(
    help="A node owner's side of secure sums: the node's identity, and a check of its last run.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Folder = Annotated[Path, typer.Argument(metavar="PATH", show_default=False)]
RosterFile = Annotated[
    Path | None, typer.Option("--roster", help="The roster file, as in `secagg-roster`.")
]


@secagg.command()
def identity(
    path: Folder,
    name: Annotated[
        str, typer.Option("--name", help="The node's `unit-name`, under which others know it.")
    ],
    committee: Annotated[
        bool, typer.Option("--committee", help="Say that people chose it for the committee.")
    ] = False,
) -> None:
    """Print a node's line of the roster; make its identity first if it has none.

    PATH is the node's `ledger-path`, or its folder. The secret half stays there, in
    `secagg-identity.pem`: back it up, and give it to nobody. Collect the lines of all nodes in a
    file `{"federation": "...", "members": [LINE, ...]}`, compare it over another channel, and name
    it in each node's `secagg-roster`.
    """
    from fl_dp.clients.run_receipts import IDENTITY_FILE
    from fl_dp.secagg import Identity
    from fl_dp.secagg.roster import Member

    with failures_told():
        file = _folder(path) / IDENTITY_FILE
        known = file.exists()
        member = Member(
            name=name, identity=Identity.load_or_create(file).public, committee=committee
        )
    note(f"{'read' if known else 'made'} {file}")
    line = {"name": member.name, "identity": member.identity.hex(), "committee": member.committee}
    typer.echo(json.dumps(line))


@secagg.command()
def check(path: Folder, roster: RosterFile = None, as_json: AsJson = False) -> None:
    """Check a node's own view of its last run: keys, terms, and that its message was summed.

    PATH is the node's `ledger-path`, or its folder. Everything is verified anew: the signatures of
    the directory, that all nodes are in the roster (with `--roster`), and the last receipt: the
    node's message, unchanged and once, is in the only sum that a committee has opened. What does
    not hold is an error with status 1.
    """
    from fl_dp.clients.secure_node import STORE_FILE
    from fl_dp.secagg import Roster, SQLiteStore, last_run
    from fl_dp.secagg.evidence import summary_of

    with failures_told():
        file = _folder(path) / STORE_FILE
        if not file.exists():
            raise FileNotFoundError(f"{file} does not exist: this node took part in no secure sum")
        known = None if roster is None else Roster.read(roster)
        store = SQLiteStore(file)
        try:
            evidence, running = last_run(store), store.runs()
        finally:
            store.close()
        # A server that never says so would otherwise hide a run behind an older one.
        unended = f"{len(running)} runs have not ended by their server's word: none is checked here"
        if evidence is None:
            raise ValueError(
                f"{file} knows of no run that has ended{f'; {unended}' if running else ''}"
            )
        findings, summary = evidence.findings(known), summary_of(evidence)
    if running:
        note(unended)
    if as_json:
        print_json(summary | {"running": len(running), "findings": list(findings)})
    else:
        _show(summary)
    if findings:
        fail("; ".join(findings), status=1)
    if not as_json:
        out.print("It holds.", style="green")


def _show(summary: dict[str, Any]) -> None:
    out.print(f"run {summary['run']}: {summary['nodes']} nodes")
    pinned = "no roster: the server chose whom this node believes"
    out.print(f"roster      {summary['roster'] or pinned}", soft_wrap=True)
    out.print(f"directory   {summary['directory']}", soft_wrap=True)
    out.print(f"last sum    {summary['last_sum'] or 'none'}")
    if summary["receipted_sum"] is not None:
        out.print(
            f"receipt     sum {summary['receipted_sum']}, opened over {summary['repliers']} nodes "
            f"(terms: at least {summary['least']}; a server that lies: {summary['guaranteed']}, "
            f"of whom {summary['colluding']} may collude)",
            soft_wrap=True,
        )


def _folder(path: Path) -> Path:
    """Return the folder of a node's keys.

    Raises:
        FileNotFoundError: If there is none.
    """
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: give the node's ledger-path")
    return folder
