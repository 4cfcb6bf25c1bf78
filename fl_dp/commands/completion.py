"""`fl-dp completion`: a script with which a shell completes commands, groups, keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from .console import fail


def completion(
    ctx: typer.Context, shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")]
) -> None:
    """Print a script that completes commands, options, groups, keys and their values.

    The script holds all words itself, so a press of TAB starts no Python. Print it again after an
    upgrade. For example:

    - bash: `fl-dp completion bash > ~/.local/share/bash-completion/completions/fl-dp`

    - zsh: `fl-dp completion zsh > ~/.zfunc/_fl-dp`, with `~/.zfunc` in `fpath` before `compinit`

    - fish: `fl-dp completion fish > ~/.config/fish/completions/fl-dp.fish`
    """
    from .completion_scripts import SCRIPTS

    if shell not in SCRIPTS:
        near = "".join(f": did you mean {name}?" for name in get_close_matches(shell, SCRIPTS, 1))
        fail(f"the shell must be one of {', '.join(SCRIPTS)}, got '{shell}'{near}", status=2)
    typer.echo(SCRIPTS[shell](_words(ctx.find_root().command), _values()), nl=False)


def _words(root: Any) -> dict[str, list[str]]:
    """Return the words that may follow each command, by the command's words; "" is `fl-dp`."""
    from fl_dp.app.schema import groups
    from fl_dp.app.settings import CHOICES
    from fl_dp.tasks.datasets import DATASETS

    values = _values()
    more: dict[str, Sequence[str]] = {
        "stats": CHOICES["statistic.query"],
        "config": [*groups(), *(key for key in values if "." in key)],
        "data": list(DATASETS),
        "completion": ["bash", "zsh", "fish"],
    }
    found: dict[str, list[str]] = {}
    for path, command in _commands(root):
        inner = getattr(command, "commands", {})
        options = [
            name
            for each in command.params
            for name in each.opts
            if name.startswith("--") and not getattr(each, "hidden", False)
        ]
        overridden = any(each.name in ("overrides", "words") for each in command.params)
        keys = [f"{key}=" for key in values] if overridden else []
        found[path] = [*inner, *more.get(path, ()), *keys, *options, "--help"]
    return found


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its words, those inside of others too."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}".strip())


def _values() -> dict[str, tuple[str, ...]]:
    """Return what each key and each group may be, by its name; none where it is a free value."""
    from fl_dp.app.keys import all_keys
    from fl_dp.app.overrides import group_options

    of_keys = {
        name: ("true", "false") if key.kind == "true or false" else key.choices
        for name, key in all_keys().items()
    }
    return dict(group_options()) | of_keys
