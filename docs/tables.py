"""The tables of three pages, written from the code: settings, promises, and the owner's keys.

    python docs/tables.py

A table stands between two comments of the page, and everything between them is written anew. The
docstrings are the one source: `fl-dp config` shows the same sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import exclusions

from fl_dp.app.keys import Key, all_keys, in_yaml
from fl_dp.app.schema import groups
from fl_dp.app.settings.fitting import GROUPS
from fl_dp.app.settings.promises import PROMISES
from fl_dp.clients.node_config import POLICY_KEYS
from fl_dp.gate.policy import GATE_KEYS

_HERE = Path(__file__).resolve().parent
PAGES = (_HERE / "configuration.md", _HERE / "node_policy.md", _HERE / "gate.md")
_TABLE = re.compile(
    r"<!-- (keys of ([\w.]+)|exclusions|policy of a (?:node|gate)|what goes with a promise) -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)
_THE_RUN = "run"  # the keys that stand in no group


def table_of(group: str) -> str:
    """Return the Markdown table of a group's keys.

    Args:
        group: For example `privacy`; `run` for the run's own keys.

    Raises:
        ValueError: If there is no such group.
    """
    inside = "" if group == _THE_RUN else group
    keys = [key for key in all_keys().values() if key.name.rpartition(".")[0] == inside]
    if not keys:
        raise ValueError(f"there is no group '{group}': the groups are {', '.join(groups())}")
    if any(key.of_options for key in keys):
        rows = [
            f"| `{key.name}` | {_of(key)} | {_default(key)} | {_meaning(key)} |" for key in keys
        ]
        return "\n".join(["| key | of | default | meaning |", "|---|---|---|---|", *rows])
    rows = [f"| `{key.name}` | {_default(key)} | {_meaning(key)} |" for key in keys]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _of(key: Key) -> str:
    """Return the options of its group that have a key."""
    return ", ".join(f"`{name}`" for name in key.options) if key.of_options else "all"


def _default(key: Key) -> str:
    """Return a key's default, and that of each option that brings another."""
    others = "".join(
        f"; `{name}`: `{in_yaml(value)}`" for name, value in key.other_defaults.items()
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
    for promise in PROMISES:
        options = [getattr(promise.fitting, group) for group in GROUPS]
        cells = [_names(each) for each in (*options, promise.fitting.keys)]
        lines.append(f"| `{promise.mode}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_tables(page: str) -> str:
    """Return a page in which each marked table is as the code is now."""
    return _TABLE.sub(_written, page)


def _written(found: re.Match[str]) -> str:
    tables = {
        "exclusions": exclusions.table,
        "policy of a node": policy_table,
        "policy of a gate": gate_table,
        "what goes with a promise": promises_table,
    }
    table = tables[found[1]]() if found[2] is None else table_of(found[2])
    return f"<!-- {found[1]} -->\n{table}\n<!-- end -->"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
