"""Settings that fit on one line, read from `config.yaml` twenty times as fast as YAML is."""

from __future__ import annotations

import re

from .untrusted import shown

# `key: value` at the margin, or two blanks in, under the group whose name stood alone on a line.
_LINE = re.compile(r"(  )?([A-Za-z_][A-Za-z0-9_]{0,63}):(?: (.{0,10000}))?$")
_LIST = "[...]"


def scalars(text: bytes) -> dict[str, str]:
    """Return the settings of a run's file by their keys, as text; lists are told as `[...]`.

    What does not look like a setting is left out: this is for lists and filters, and
    `FoundRun.settings` has everything.
    """
    found: dict[str, str] = {}
    group = ""
    for line in text.decode(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.lstrip().startswith("- ") and group in found:
                found[group] = _LIST
            continue
        inner, key, value = match.groups()
        if inner:
            key = f"{group.partition('.')[0]}.{key}"
        if value is None or inner is None:
            group = key
        if value is not None:
            found[key] = shown(_unquoted(value))
        elif inner:
            found[key] = _LIST
    return found


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value
