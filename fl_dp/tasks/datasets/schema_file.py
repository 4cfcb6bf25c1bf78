"""Schema of a table or of images: a YAML file of public facts, beside the data.

    # /srv/data/schema.yaml
    label_column: outcome
    classes: [well, ill]
    shares: [0.9, 0.1]        # of the classes, where that is publicly known
    columns:
      age: {kind: integer, range: [0, 110], missing: [-999]}
      sex: {kind: category, categories: [f, m], missing: []}

`columns: [age, pressure]`, perhaps with `types`, are numbers used as they are; facts encode them
into the unit ball (`columns`). The schema leaves with the model and decides nothing by a record.
A blank is no fact: nobody trains on it.

A node's owner pins one (`dp-data-schema`): the server's is then ignored, so a server that varies
its schema learns nothing uncharged, and the node trains on what its owner meant.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_dp.documents import plain_yaml, repeated_keys
from fl_dp.tasks.datasets.columns import Column, encoding_of
from fl_dp.tasks.datasets.forms import DataFormat

SCHEMA_FILE = "schema.yaml"
"""Its name in the folder of the user's own data."""

_LISTS = {
    "classes": str,
    "shares": float,
    "label_range": float,
    "columns": str,
    "types": str,
    "mean": float,
    "std": float,
    "image_shape": int,
}
_TEXTS = ("label_column", "client_column", "person_column")
SCHEMA_KEYS = (*_LISTS, *_TEXTS)
"""Keys of the file, which are fields of `DataFormat`."""

_BLANK = ("", "null", "~")
_FACTS = {"range": float, "categories": str, "missing": str}
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")
_DRAFT = """\
# A draft: names and kinds of the columns alone. Fill the blanks from what is publicly known, or buy
# it by charged statistics (fl-dp stats). Never read it off private rows: the schema leaves with the
# model. Delete the columns that are no features.
label_column:             # one of the columns below: move it here from there
classes:                  # all labels, in order; or label_range: [low, high] of a number
# shares: [0.9, 0.1]      # of the classes, where publicly known: of a rare class AUC is the measure
# client_column: clinic   # for task.partition=natural
# person_column: patient
columns:
  # Free text is {kind: words}, in place of a category: its words are counted.
  # missing: [-999, NA] of a column are cells without a value; [] are empty ones alone, ['*'] are
  # all that is no value. Without it each row needs one. A number outside its range counts as the
  # nearer end: so does -999, where missing does not list it.
"""


def read_schema(file: Path, *, without_blanks: bool = False) -> DataFormat:
    """Read a schema; `without_blanks` leaves out columns that have one.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: It is no valid schema, or has blanks; the text names the first.
    """
    text = file.read_bytes()
    schema = plain_yaml(text, str(file), as_texts=True)
    if not isinstance(schema, dict):
        raise ValueError(f"{file} must hold keys and values: {', '.join(SCHEMA_KEYS)}")
    if repeated := repeated_keys(text):
        raise ValueError(f"{file}: '{repeated[0]}' is given twice: keep one")
    try:
        values: dict[str, Any] = {key: _value(key, value) for key, value in schema.items()}
        if isinstance(values.get("columns"), dict):
            described = {
                name: _column(name, facts)
                for name, facts in values["columns"].items()
                if not (without_blanks and _has_blank(facts))
            }
            if not described:
                raise ValueError("columns have blanks alone: write public candidates for one")
            values["columns"] = tuple(described)
            values["types"] = tuple(column.text for column in described.values())
        data_format = DataFormat(**values)
        encoding_of(data_format)
        for role in _TEXTS:
            if getattr(data_format, role) in (data_format.columns or ()):
                raise ValueError(
                    f"'{getattr(data_format, role)}' is the {role}, and can't be a feature: "
                    "delete it from columns"
                )
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return data_format


def described(data_format: DataFormat) -> dict[str, Any]:
    """The keys that a schema gives, with their values."""
    values = {key: getattr(data_format, key) for key in SCHEMA_KEYS}
    return {key: value for key, value in values.items() if value != getattr(DataFormat, key)}


def draft(kinds: Mapping[str, str]) -> str:
    """A schema to be filled in: names and kinds of columns, and blanks."""
    lines = []
    for name, kind in kinds.items():
        shown = name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        blank = {"category": ", categories: ", "truth": ""}.get(kind, ", range: ")
        lines.append(f"  {shown}: {{kind: {kind}{blank}}}\n")
    return _DRAFT + "".join(lines)


def _has_blank(facts: Any) -> bool:
    return isinstance(facts, dict) and any(value in _BLANK for value in facts.values())


def _column(name: str, facts: Any) -> Column:
    if not isinstance(facts, dict) or not facts.get("kind"):
        raise ValueError(f"column '{name}' must have facts like {{kind: number, range: [0, 1]}}")
    values: dict[str, Any] = {}
    for key, value in facts.items():
        if key not in ("kind", "length", *_FACTS):
            raise ValueError(f"column '{name}': {_unknown(key, ('kind', *_FACTS, 'length'))}")
        if key == "kind":
            values[key] = value
        elif key == "length" and value not in _BLANK:
            [values[key]] = _list(f"column '{name}': {key}", [value], int)
        elif value not in _BLANK:  # a blank, of which the column speaks
            values[key] = _list(f"column '{name}': {key}", value, _FACTS[key])
    try:
        return Column(**values)
    except ValueError as error:
        raise ValueError(f"column '{name}': {error}") from error


def _value(key: str, value: Any) -> Any:
    if key not in SCHEMA_KEYS:
        raise ValueError(_unknown(key, SCHEMA_KEYS))
    if value in _BLANK or value == []:
        raise ValueError(f"{key} is blank: write what is publicly known, or delete the line")
    if key == "columns" and isinstance(value, dict):
        return value
    return str(value) if key in _TEXTS else _list(key, value, _LISTS[key])


def _list(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {value!r}")
    try:
        return tuple(kind(item) for item in value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a list of numbers, got {value!r}") from error


def _unknown(key: str, keys: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(keys)}"
    return f"there is no key '{key}': {hint}"
