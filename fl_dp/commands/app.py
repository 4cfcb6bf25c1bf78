"""The `fl-dp` command: its subcommands, and its answers to misspelt and stopped ones."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any

import typer
from click.exceptions import NoSuchOption
from typer.core import TyperGroup

from fl_dp import __version__

from .attack import attack
from .audit import audit
from .budgets import budgets
from .config import config
from .console import fail, out
from .dashboard import dashboard
from .data import data
from .extras import has_wing
from .ledger import ledger
from .new import new
from .node import node
from .plan import plan
from .report import report
from .run import run
from .runs import runs
from .stats import stats
from .status import status
from .supernode import OTHER_OPTIONS, supernode
from .tune import tune

_COMMANDS = (run, status, stats, plan, config, ledger, budgets, data, new, supernode, tune)
_OF_WINGS = (("lab", audit), ("viewer", runs), ("viewer", report), ("viewer", dashboard))


_FLAGS_OF_HYDRA = ("--config-dir", "--config-name", "--config-path")


class _Commands(TyperGroup):
    """Names the likely command for a misspelt one, and ends a stopped one in one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is asked for."""
        ctx.meta["words"] = args
        name = args[0]
        unknown = not name.startswith("-") and self.get_command(ctx, name) is None
        if unknown and not ctx.resilient_parsing:  # completion in a shell gets no error
            names = self.list_commands(ctx)
            near = get_close_matches(name, names, 1, 0.4)
            meant = f"did you mean `fl-dp {near[0]}`? " if near else ""
            fail(f"there is no command '{name}': {meant}({', '.join(names)})", status=2)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            if error.option_name in _FLAGS_OF_HYDRA:
                fail(_where_files_go(error.option_name), status=2)
            if meant := _override_meant(error, ctx.meta["words"]):
                fail(
                    f"there is no option {error.option_name}: settings are written without dashes, "
                    f"as {meant}",
                    status=2,
                )
            raise
        except KeyboardInterrupt:
            fail("stopped", status=130)


def _where_files_go(option: str) -> str:
    from fl_dp.app.overrides import config_folder

    folder = config_folder() / "experiment"
    return (
        f"there is no option {option}: an experiment file of your own is {folder}/NAME.yaml, and "
        "experiment=NAME takes it"
    )


def _override_meant(error: NoSuchOption, words: list[str]) -> str | None:
    """Return the override that somebody wrote as an option; None if no setting resembles it."""
    from fl_dp.app.keys import all_keys, nearest_keys

    option = error.option_name
    if error.ctx is None:
        return None
    if "overrides" not in [parameter.name for parameter in error.ctx.command.params]:
        return None
    keys = [key for key in nearest_keys(option.lstrip("-").replace("-", "_")) if key in all_keys()]
    if not keys:
        return None
    # The value follows the option, in the same word or in the next.
    values = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    for word, following in pairwise(words):
        if word == option and not following.startswith("-"):
            values.append(following)
    value = values[0] if values else all_keys()[keys[0]].default_text
    return f"{keys[0]}={value}"


app = typer.Typer(
    name="fl-dp",
    cls=_Commands,
    help="Differentially private federated learning for Flower.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (*_COMMANDS, *(command for wing, command in _OF_WINGS if has_wing(wing))):
    app.command(context_settings=OTHER_OPTIONS if command is supernode else None)(command)
app.add_typer(node, name="node")
if has_wing("lab"):
    app.add_typer(attack, name="attack")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit
