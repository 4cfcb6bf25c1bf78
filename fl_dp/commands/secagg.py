"""`fl-dp secagg`: a node owner's side of secure sums."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import AsJson, fail, failures_told, note, out, print_json

secagg = typer.Typer(
    help="A node owner's side of secure sums: the node's identity, and a check of its runs.",
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
    from fl_dp.clients.secure_node import IDENTITY_FILE
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
    """Check a node's own view of its runs: keys, terms, and that its messages were summed.

    PATH is the node's `ledger-path`, or its folder. Everything is verified again: the signatures of
    each run's directory, that all nodes are in the roster (with `--roster`), and its last receipt:
    the node's message, unchanged and once, is in the only sum that a committee has opened. Earlier
    receipts were verified when they came. It says which sums have one, and which have none: what
    became of those is not known. What does not hold in any run is an error with status 1. Keys of
    runs that their server has not ended within 30 days are deleted.
    """
    from fl_dp.clients.secure_node import IDENTITY_FILE, STORE_FILE
    from fl_dp.secagg import Identity, Refused, Roster, SecureNode, SQLiteStore
    from fl_dp.secagg.evidence import summary_of

    with failures_told():
        folder = _folder(path)
        for file in (folder / STORE_FILE, folder / IDENTITY_FILE):
            if not file.exists():
                raise FileNotFoundError(
                    f"{file} does not exist: this node took part in no secure sum"
                )
        known = None if roster is None else Roster.read(roster)
        store = SQLiteStore(folder / STORE_FILE)
        try:
            node = SecureNode(Identity.load_or_create(folder / IDENTITY_FILE), store, name="owner")
            runs = node.ended()
            running = store.runs()
            for run in running:
                with suppress(Refused):  # it has no directory: it took part in no sum
                    runs.append(node.evidence(run))
        finally:
            store.close()
        if not runs:
            raise ValueError(f"{folder / STORE_FILE} knows of no run")
        shown = [
            summary_of(each) | {"ended": each.ended, "findings": list(each.findings(known))}
            for each in runs
        ]
    if as_json:
        print_json({"runs": shown})
    else:
        for each in shown:
            _show(each)
    found = [f"run {each['run']}: {finding}" for each in shown for finding in each["findings"]]
    if found:
        fail("\n".join(found), status=1)
    if not as_json:
        unknown = any(each["missing"] for each in shown)
        out.print("It holds, but for what is not known." if unknown else "It holds.", style="green")


def _show(summary: dict[str, Any]) -> None:
    from fl_dp.secagg.evidence import in_words

    going = "" if summary["ended"] else ", not ended by its server's word"
    out.print(f"run {summary['run']}: {summary['nodes']} nodes{going}")
    pinned = "no roster: the server chose whom this node believes"
    out.print(f"roster      {summary['roster'] or pinned}", soft_wrap=True)
    out.print(f"directory   {summary['directory']}", soft_wrap=True)
    if summary["promised"]:
        out.print(f"promised    no sum of fewer than {summary['promised']} honest nodes")
    for title, numbers in (
        ("in the sum", summary["summed"]),
        ("left out", summary["left_out"]),
        ("not known", summary["missing"]),
    ):
        out.print(f"{title:<12}{in_words(numbers) or 'none'}", soft_wrap=True)
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
