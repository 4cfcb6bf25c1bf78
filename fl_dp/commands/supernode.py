"""`fl-dp supernode`: Flower's SuperNode behind the owner's gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import failures_told, note

OTHER_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of the command: what it does not know is Flower's."""

_ISOLATION, _NODE_CONFIG = "--isolation", "--node-config"


def supernode(
    ctx: typer.Context,
    policy: Annotated[
        Path,
        typer.Option(
            "--policy", metavar="POLICY", help="File of the owner's policy.", show_default=False
        ),
    ],
    cooperative: Annotated[
        bool,
        typer.Option(
            "--cooperative",
            help="Let the SuperNode start apps itself, as its own user. Such an app can read the "
            "ledger and open sockets: what is enforced holds for apps that don't try.",
        ),
    ] = False,
) -> None:
    """Run Flower's SuperNode behind a gate, which clips and noises what leaves this site.

    The gate holds for any app that the server sends, and apps need not know of it. POLICY is the
    file of the owner's policy, with the keys `dp-gate-promise`, `dp-gate-clipping-norm`,
    `dp-gate-noise-multiplier` and `dp-gate-answer-after` besides those of a node. All other options
    are those of `flower-supernode`.

    Apps run as another user, who can't read POLICY or the ledger: add `--isolation process`, and
    start `flower-superexec` as that user. With `--cooperative` the SuperNode starts them itself.
    """
    options = list(ctx.args)
    with failures_told():
        _require_isolation(options, cooperative=cooperative)
        _require_no_policy(options)
        from fl_dp.gate.supernode import gated_supernode

        run = gated_supernode(policy.expanduser().absolute(), options)
    if cooperative:
        note(
            "cooperative: apps run as this user, so they can read the ledger and reach any network"
        )
    run()


def _values_of(option: str, words: list[str]) -> list[str]:
    """Return the values of an option, which argparse takes by any unambiguous start of its name."""
    values = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if len(name) > len("--") and option.startswith(name):
            values.append(value if equals else [*words, ""][place + 1])
    return values


def _require_isolation(options: list[str], *, cooperative: bool) -> None:
    """Refuse to start apps as the gate's own user, unless the owner says so.

    Raises:
        ValueError: If nobody says how apps run, or it is said in two ways.
    """
    isolation = _values_of(_ISOLATION, options)
    if cooperative and isolation:
        raise ValueError("--cooperative says how apps run: leave --isolation out")
    if not cooperative and isolation != ["process"]:
        raise ValueError(
            "apps would run as this gate's own user, and could read its ledger: add --isolation "
            "process and start flower-superexec as another user, or add --cooperative"
        )


def _require_no_policy(options: list[str]) -> None:
    """Refuse keys of a policy in `--node-config`, which each app gets to see.

    Raises:
        ValueError: If there is one, or the text can't be read.
    """
    from fl_dp.clients.node_config import PREFIX, means_ours

    from .shown_uses import parsed_node_config

    for text in _values_of(_NODE_CONFIG, options):
        wrong = sorted(key for key in parsed_node_config(text) if means_ours(key))
        if wrong:
            raise ValueError(
                f"{wrong[0]} stands in --node-config, which apps see: keys that begin with "
                f"{PREFIX} belong in the file of --policy"
            )
