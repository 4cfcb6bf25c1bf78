"""Schema of a node's own data, written by its owner: the server's is then ignored.

    flower-supernode ... --node-config 'dp-data-path="/srv" dp-data-schema="/srv/schema.yaml" ...'

    # /srv/schema.yaml, or the same as JSON
    label_column: outcome
    classes: [well, ill]
    columns: [age, pressure]
    types: [integer, number]

Under DP-SGD a server that varies the schema learns nothing uncharged. With its own schema a node
also trains on what its owner meant.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from fl_dp.documents import plain_yaml, repeated_keys
from fl_dp.tasks.datasets import DataFormat
from fl_dp.tasks.datasets.own_tables import require_types

_LISTS = {
    "classes": str,
    "label_range": float,
    "columns": str,
    "types": str,
    "mean": float,
    "std": float,
    "image_shape": int,
}
_TEXTS = ("label_column", "person_column")
_KEYS = (*_LISTS, *_TEXTS)


def pinned_format(file: Path) -> DataFormat:
    """The node's data format, as its owner wrote it.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: It is no valid schema.
    """
    text = file.read_bytes()
    schema = plain_yaml(text, str(file))
    if not isinstance(schema, dict):
        raise ValueError(f"{file} must hold keys and values: {', '.join(_KEYS)}")
    if repeated := repeated_keys(text):
        raise ValueError(f"{file}: '{repeated[0]}' is given twice: keep one")
    values = {str(key): _value(file, str(key), value) for key, value in schema.items()}
    try:
        pinned = DataFormat(**values)
        require_types(pinned)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return pinned


def _value(file: Path, key: str, value: Any) -> Any:
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(_KEYS)}"
        raise ValueError(f"{file}: there is no key '{key}': {hint}")
    if key in _TEXTS:
        return str(value)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{file}: {key} must be a list, got {value!r}")
    try:
        return tuple(_LISTS[key](item) for item in value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {key} must be a list of numbers, got {value!r}") from error
