"""Tables and lists of three pages, written from the code: settings, promises, an owner's keys.

    python docs/tables.py

Each stands between two comments of the page, and everything between them is written anew. The
docstrings are the one source: `fl-dp config` shows the same sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import exclusions

from fl_dp.app.keys import Key, all_keys, in_yaml
from fl_dp.app.schema import groups
from fl_dp.app.settings import OPTIONS
from fl_dp.app.settings.fitting import GROUPS
from fl_dp.app.settings.promises import PROMISES
from fl_dp.clients.owner.node_config import POLICY_KEYS
from fl_dp.gate.policy import GATE_KEYS

_HERE = Path(__file__).resolve().parent
PAGES = (_HERE / "configuration.md", _HERE / "node_policy.md", _HERE / "gate.md")
_TABLE = re.compile(
    r"<!-- (keys of ([\w.]+)|exclusions|policy of a (?:node|gate)|what goes with a promise) -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)
_THE_RUN = "run"  # the keys that stand in no group


def list_of(group: str) -> str:
    """Return the Markdown list of a group's keys.

    Args:
        group: For example `privacy`; `run` for the run's own keys.

    Raises:
        ValueError: If there is no such group.
    """
    inside = "" if group == _THE_RUN else group
    keys = [key for key in all_keys().values() if key.name.rpartition(".")[0] == inside]
    if not keys:
        raise ValueError(f"there is no group '{group}': the groups are {', '.join(groups())}")
    has_the_same_options = len({key.options for key in keys}) == 1
    lines = []
    for key in keys:
        defaults = _default(key)
        if key.of_options and not has_the_same_options:
            defaults += f"; with {_of(key)}"
        lines.append(f"- `{key.name}` ({defaults}): {_meaning(key)}")
    return "\n".join(lines)


def _of(key: Key) -> str:
    """Return the options that have a key, or `all but` those that lack it, if these are fewer."""
    missing = [name for name in OPTIONS[key.group] if name not in key.options]
    if len(missing) < len(key.options):
        return f"all but {_names(missing)}"
    return _names(key.options)


def _default(key: Key) -> str:
    """Return a key's default, and that of each option that brings another."""
    others = "".join(
        f", under `{name}` `{in_yaml(value)}`" for name, value in key.other_defaults.items()
    )
    return f"`{key.default_text}`{others}"


def _meaning(key: Key) -> str:
    """Return a key's sentence; where that leaves one of its names out, with all of them."""
    if all(f"`{name}`" in key.help for name in key.choices):
        return key.help
    return f"{key.help} One of {', '.join(f'`{name}`' for name in key.choices)}."


def policy_table() -> str:
    """Return the Markdown table of an owner's keys."""
    return _table_of_keys("node", POLICY_KEYS)


def gate_table() -> str:
    """Return the Markdown table of the keys that are a gate's own."""
    return _table_of_keys("gate", GATE_KEYS)


def _table_of_keys(who: str, keys: Mapping[str, str]) -> str:
    rows = [f"| `{key}` | {description} |" for key, description in keys.items()]
    return "\n".join([f"| Key | What the {who} does |", "|---|---|", *rows])


def promises_table() -> str:
    """Return the Markdown table of what each promise has of other groups."""
    lines = [
        f"| `privacy` | {' | '.join(f'`{group}`' for group in GROUPS)} | keys |",
        "|---|" + "---|" * (len(GROUPS) + 1),
    ]
    for promise in PROMISES.values():
        cells = [_options(group, getattr(promise.fitting, group)) for group in GROUPS]
        cells.append(_names(promise.fitting.keys))
        lines.append(f"| `{promise.option}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _options(group: str, names: Sequence[str]) -> str:
    """Return the names of a group's options, or `all` in place of more than two."""
    if len(names) > 2 and set(names) == set(OPTIONS[group]):
        return "all"
    return _names(names)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_tables(page: str) -> str:
    """Return a page in which each marked table or list is as the code is now."""
    return _TABLE.sub(_written, page)


def _written(found: re.Match[str]) -> str:
    tables = {
        "exclusions": exclusions.listed,
        "policy of a node": policy_table,
        "policy of a gate": gate_table,
        "what goes with a promise": promises_table,
    }
    table = tables[found[1]]() if found[2] is None else list_of(found[2])
    return f"<!-- {found[1]} -->\n{table}\n<!-- end -->"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
