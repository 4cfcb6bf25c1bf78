"""`fl-dp node`: an owner asks what the node will do and what it did, and ends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .console import AsJson, exit_on_errors, fail, note, print_json, print_shown, tell

node = typer.Typer(
    help="A node owner's side: what the node will and will not do, what it did, and how to end it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@node.command()
def check(
    configuration: Annotated[
        str, typer.Argument(metavar="NODE_CONFIG", help="The text of --node-config, or a policy.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say in plain words what a node will and will not do, before it is started.

    NODE_CONFIG is the text that `flower-supernode --node-config` gets, in quotes, or the file of a
    policy: of a node (`dp-policy-path`), or of a gate (`fl-dp supernode --policy`). Ledger,
    witness, roster and data are looked at, and nothing is changed. Keys that are not fl-dp's are
    named. Where there is a cap, sentences say what was spent of it and what still fits. What would
    keep the node from doing what its owner wants is an error with status 1.
    """
    with exit_on_errors():
        from fl_dp.clients.owner.policy_description import describe_policy

        from .shown_uses import gate_at, keys_of_others, owner_at
        from .words_of_budget import words_of_budget
        from .words_of_data import words_of_data

        owner = owner_at(configuration)
        others = keys_of_others(configuration)
        gate = gate_at(configuration)
        if gate is None:
            descriptions = [describe_policy(owner), words_of_data(owner)]
        else:
            from fl_dp.gate.description import describe_gate

            descriptions = [describe_gate(gate)]
        sentences = [sentence for text in descriptions for sentence in text.sentences]
        sentences += words_of_budget(owner)
        if others:
            sentences.append(f"It does not read {', '.join(others)}, which others may")
        wrong = [fault for text in descriptions for fault in text.wrong]
    if as_json:
        print_json({"sentences": sentences, "wrong": wrong})
    else:
        for sentence in sentences:
            tell(f"- {sentence}.")
    if wrong:
        fail("\n".join(wrong), status=1)


@node.command()
def ledger(
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The node's `dp-ledger-path`.")
    ] = None,
    node_config: Annotated[
        str | None,
        typer.Option("--node-config", help="Instead: the text of --node-config, or a policy."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show by whom, when and for what a node's data were used, and what is left.

    By whom: the run, and the app as far as the node knew it. When: the days of the first and the
    last answer, as a ledger holds no time of a round. With `--node-config` the ledger is compared
    with its witness, and what is left is counted from `dp-max-epsilon`.
    """
    from .shown_uses import owner_at, shown_uses

    with exit_on_errors():
        if (path is None) == (node_config is None):
            raise ValueError("name a node's ledger, or its --node-config, and not both")
        owner = None if node_config is None else owner_at(node_config)
        location = path if owner is None else owner.ledger_path
        if location is None:
            raise ValueError("this node keeps no ledger: it has no dp-ledger-path")
        shown = shown_uses(location, owner)
    print_shown(shown.document, shown.lines, as_json)


@node.command()
def revoke(
    path: Annotated[str, typer.Argument(metavar="LEDGER", help="The node's `dp-ledger-path`.")],
    witness: Annotated[
        str | None, typer.Option("--witness", help="The node's `dp-witness-path`, if it has one.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask: it can't be undone.")] = False,
) -> None:
    """Refuse every further use of a node's data, from now on and for good.

    It stands in the ledger, as spending does, so that no restart and no message undoes it. What was
    released stays released. An owner who agrees later begins another ledger, with a cap that is
    lower by what this one has spent.
    """
    with exit_on_errors():
        from fl_dp.ledger import NodeLedger, witness_at

        if "://" not in path and not Path(path).is_file():  # opening would make one
            raise FileNotFoundError(f"no ledger at {path}")
        if not yes:
            typer.confirm(
                f"Refuse every further use of the data that {path} counts? This can't be undone",
                abort=True,
                err=True,
            )
        known_witness = None if witness is None else witness_at(witness)
        if not NodeLedger.is_one(path):
            raise ValueError(f"{path} is no node's ledger: name the node's `dp-ledger-path`")
        with NodeLedger.open(path, witness=known_witness) as ledger:
            ledger.revoke()
            day = ledger.revoked
    note(f"revoked on {day}: a node with this ledger answers nothing any more")


@node.command()
def identity(
    path: Annotated[Path, typer.Argument(metavar="PATH", show_default=False)],
    name: Annotated[
        str, typer.Option("--name", help="The node's `dp-unit-name`, under which others know it.")
    ],
    committee: Annotated[
        bool, typer.Option("--committee", help="Say that people chose it for the committee.")
    ] = False,
) -> None:
    """Print a node's line of the roster; make its identity first if it has none.

    PATH is the node's `dp-ledger-path`, or its folder. The secret half stays there, in
    `secagg-identity.pem`: back it up, and give it to nobody. Collect the lines of all nodes in a
    file `{"federation": "...", "members": [LINE, ...]}`, compare it over another channel, and name
    it in each node's `dp-secagg-roster`.
    """
    from fl_dp.clients.secure_node import IDENTITY_FILE
    from fl_dp.secagg import Identity
    from fl_dp.secagg.roster import Member

    with exit_on_errors():
        file = _folder(path) / IDENTITY_FILE
        existed = file.exists()
        member = Member(
            name=name, identity=Identity.load_or_create(file).public, committee=committee
        )
    note(f"{'read' if existed else 'made'} {file}")
    line = {"name": member.name, "identity": member.identity.hex(), "committee": member.committee}
    typer.echo(json.dumps(line))


def _folder(path: Path) -> Path:
    """Return the folder of a node's keys."""
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: give the node's dp-ledger-path")
    return folder
