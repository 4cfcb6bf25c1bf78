"""`fl-dp config`: list the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import AsJson, fail, out, print_json

if TYPE_CHECKING:
    from fl_dp.app.keys import Key


def config(
    group: Annotated[str | None, typer.Argument(show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the keys that `fl-dp run` and `fl-dp plan` take, with their defaults and their help.

    GROUP is `task`, `privacy`, `clipping` or another group, or a key such as `privacy.epsilon`;
    without one, all keys are listed.

    `fl-dp run --cfg` shows what a run's overrides come to, with what a task, a model and a promise
    bring (conf/recipes.yaml).
    """
    from fl_dp.app.keys import all_keys
    from fl_dp.app.overrides import group_options

    name = (group or "").replace("/", ".").rstrip(".")
    keys = [key for key in all_keys().values() if not name or f"{key.name}.".startswith(f"{name}.")]
    if not keys:
        fail(_unknown(name), status=2)
    options = {name: group_options()[name]} if name in group_options() else {}
    if as_json:
        print_json({"keys": [_as_json(key) for key in keys], "options": options})
        return
    for title in dict.fromkeys(key.group for key in keys):
        out.print(f"[bold]{title or 'The run'}[/bold]", soft_wrap=True)
        if title in group_options():
            out.print(f"  {title}=NAME loads one of {', '.join(group_options()[title])}")
        for key in keys:
            if key.group == title:
                _show(key)
    if not name:
        out.print(f"\nexperiment=NAME loads one of {', '.join(group_options()['experiment'])}")
        out.print(
            "task, model and privacy bring settings that fit them, where you write none: "
            "`fl-dp run --cfg OVERRIDES` shows what it comes to"
        )


def _show(key: Key) -> None:
    from rich.padding import Padding
    from rich.text import Text

    value = Text(f"  {key.name}={key.default_text}", style="cyan")
    options = f"; with {key.of_options}" if key.of_options else ""
    out.print(value, Text(f"  ({key.allowed}{options})", style="dim"), sep="")
    out.print(Padding(Text(key.help), (0, 0, 0, 6)))


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    from fl_dp.app.keys import either, nearest_keys
    from fl_dp.app.overrides import group_options
    from fl_dp.app.schema import groups

    if name == "experiment":
        return f"experiment=NAME is one of {', '.join(group_options()[name])}"
    near = get_close_matches(name, groups(), 1, 0.6) or nearest_keys(name)
    meant = f"did you mean {either(near)}?" if near else f"the groups are {', '.join(groups())}"
    return f"there is no group or key '{name}': {meant}"


def _as_json(key: Key) -> dict[str, Any]:
    return {
        "key": key.name,
        "default": key.default,
        "kind": key.kind,
        "nullable": key.nullable,
        "choices": list(key.choices),
        "options": list(key.options),
        "help": key.help,
    }
