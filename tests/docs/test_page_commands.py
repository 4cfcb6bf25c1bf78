"""Each `fl-dp` command of the pages exists, and its settings compose."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fl_dp.app.compose import compose_settings, expand_sweep
from fl_dp.commands.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path.relative_to(ROOT)
    for folder in ("", "docs", "docs/zh", "deploy", "examples/hub", "examples/extend")
    for path in sorted((ROOT / folder).glob("*.md"))
]
_STAND_FOR = {
    "NAME": "privacy_levels",
    "TASK": "digits",
    "$PWD": "/here",
    "$common": "rounds=30",
    "OVERRIDES": "rounds=3",
    "KEY=1,2": "privacy.epsilon=1,2",
}
"""What a page leaves to its reader."""


def commands_of(page: Path) -> Iterator[str]:
    """Yield the commands of a page's blocks and sentences, without their comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|bash|shell)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    yield from (line for line in lines if line.startswith("fl-dp "))
    yield from re.findall(r"`(fl-dp [^`]+)`", text)


def words_of(command: str) -> list[str]:
    for name, value in _STAND_FOR.items():
        command = command.replace(name, value)
    return shlex.split(command, comments=True)[1:]


TREE = typer.main.get_command(app)


def parsed(words: list[str]) -> tuple[click.Command, dict[str, Any]]:
    """Return the command that words call, and what it is given."""
    command: Any = TREE
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name}"
    return command, command.make_context(command.name, words, resilient_parsing=False).params


CASES = [(page, command) for page in PAGES for command in dict.fromkeys(commands_of(page))]
RUNS = [(page, command) for page, command in CASES if words_of(command)[:1] in (["run"], ["plan"])]


def is_a_mention(words: list[str]) -> bool:
    """Tell whether a sentence names a command only, without what it needs: `fl-dp node check`."""
    return all(re.fullmatch(r"[a-z-]+", word) for word in words)


@pytest.mark.parametrize(("page", "command"), CASES, ids=str)
def test_a_command_of_a_page_exists(page: Path, command: str) -> None:
    words = words_of(command)
    if words and not words[0].startswith("-") and not is_a_mention(words):
        parsed(words)


@pytest.mark.nightly  # each is composed, which takes minutes in all
@pytest.mark.parametrize(("page", "command"), RUNS, ids=str)
def test_the_settings_of_a_command_compose(
    page: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = re.search(r"```yaml\n(label_column.*?)```", (ROOT / page).read_text(), re.DOTALL)
    if schema is not None:  # which says the rest, beside the table
        (tmp_path / "data").mkdir()
        (tmp_path / "data/schema.yaml").write_text(schema[1])
    _, given = parsed(words_of(command))
    overrides = given.get("overrides") or []
    if any(override.startswith("resume=") for override in overrides):
        return  # of a run that a reader has
    cells = expand_sweep(overrides) if given.get("multirun") else [overrides]
    for cell in [cells[0], cells[-1]][: len(cells)]:
        compose_settings(cell)
