"""Check that the SuperNode runs only apps signed by a publisher that its owner trusts.

Without `--trusted-entities` Flower's SuperNode runs whatever app the server sends, with its user's
rights. It does not tell an app whether it has the option, so this file reads its command line.
That protects an owner who forgot the option, and nobody from a malicious app, which never asks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

# Last word of Flower's own command `flower-supernode`, and of a module that runs it behind a guard.
_SUPERNODE = re.compile(r"(^|.*[._-])supernode")
ENTITIES_OPTION = "--trusted-entities"
"""Flower's option for a SuperNode that runs signed apps alone."""

_KEY_TYPE = "ssh-ed25519"  # of all keys that Flower takes
_PROCESSES = Path("/proc")
_BEFORE_OPTIONS = 4  # at most: `python -P -m MODULE`


def apps_are_verified() -> bool | None:
    """Tell whether the SuperNode above this process verifies apps; None: that can't be seen.

    It can be seen on Linux if the SuperNode started this process: by default, but not under
    `--isolation process`.
    """
    for process in _ancestors():
        words = _command_line(process)
        if is_supernode(words):
            trusted = _trusted_entities(words)
            return trusted is not None and _names_a_key(process, trusted)
    return None


def is_supernode(words: Sequence[str]) -> bool:
    """Tell whether a command line starts a SuperNode."""
    return any(_SUPERNODE.fullmatch(Path(word).name) for word in words[:_BEFORE_OPTIONS])


def _ancestors() -> Iterator[Path]:
    process = os.getppid()
    while process > 0:
        folder = _PROCESSES / str(process)
        try:
            # The name in brackets may hold anything, also brackets.
            parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            return
        yield folder
        process = int(parent)


def _command_line(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _trusted_entities(words: list[str]) -> str | None:
    """The file that the option names; argparse takes any unambiguous start of its name."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--t") and ENTITIES_OPTION.startswith(name):
            if equals:
                return value
            return [*words, ""][index + 1]
    return None


def _names_a_key(process: Path, trusted: str) -> bool:
    """Whether the file has a key: with an empty one Flower ignores the option."""
    with suppress(OSError):
        file = Path(trusted).expanduser()
        return _KEY_TYPE in (process / "cwd" / file).read_text(errors="replace")
    return True  # the SuperNode has read it
