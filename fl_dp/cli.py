"""The command line: `fl-dp run`, `fl-dp plan`, `fl-dp ledger`, `fl-dp data`."""

from __future__ import annotations

from typing import Annotated

import typer

from fl_dp import __version__

from .commands.console import out
from .commands.data import data
from .commands.ledger import ledger
from .commands.plan import plan
from .commands.run import run

app = typer.Typer(
    name="fl-dp",
    help="Differentially private federated learning for Flower.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (run, plan, ledger, data):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the `fl-dp` command."""
    app()


if __name__ == "__main__":
    main()
