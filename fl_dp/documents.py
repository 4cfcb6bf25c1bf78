"""Documents and values from untrusted writers: all errors in them become one kind of error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# A missing field, a field of another type, a number that is too large, nesting without an end.
MALFORMED = (
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    AssertionError,
)

MOST_DEEP = 20
"""Limit on the levels of nesting; documents of fl-dp have fewer."""

LONGEST = 16_000_000
"""Limit on the characters of a text; texts of fl-dp have fewer."""


def real_number(value: object) -> float:
    """A number, infinities included, as a float; NaN for anything else."""
    import numpy as np  # the only function here that needs it

    if isinstance(value, np.ndarray | np.generic):
        value = value.item() if value.size == 1 else None
    if not isinstance(value, int | float | np.floating):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        return math.nan


@contextmanager
def document(name: str) -> Iterator[None]:
    """Read a document inside the block; its own ValueErrors pass unchanged.

    `name` is the document's name in the error, for instance `terms of a sum`.

    Raises:
        ValueError: The document is malformed. The text may travel: it names no value.
    """
    try:
        yield
    except MALFORMED as error:
        raise ValueError(f"this is no {name} ({type(error).__name__})") from error


def parsed_object(text: str, name: str, *, longest: int = LONGEST) -> dict[str, Any]:
    """The JSON object in a text of at most `longest` characters; its numbers are finite.

    A longer text is not parsed. `name` is the document's name in the error.

    Raises:
        ValueError: The text is longer, or holds no such object.
    """
    if len(text) > longest:
        raise ValueError(f"this is no {name}: {len(text)} characters are more than {longest}")
    with document(name):
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    if not isinstance(value, dict):
        raise ValueError(f"this is no {name}: it holds no JSON object")
    return value


def _finite(text: str) -> float:
    """A document's number; `NaN`, `Infinity` and `1e999` are none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"numbers must be finite, got {text:.20}")
    return number


def plain_yaml(text: bytes, name: str, *, as_texts: bool = False) -> Any:
    """Content of YAML without tags, aliases or deep nesting.

    With `as_texts` each value is the text as it stands, as `no` and `1.0`; empty without one.

    Raises:
        ValueError: It is no YAML, or has one of those.
    """
    import yaml  # where a document is YAML alone

    # Not every build of PyYAML has libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth, problem = 0, ""
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # A few aliases of aliases would stand for gigabytes.
            if isinstance(event, yaml.AliasEvent):
                problem = "has aliases, which fl-dp never writes"
            elif depth > MOST_DEEP:
                problem = "is nested too deeply"
            if problem:
                break
        else:
            return yaml.load(text, Loader=yaml.BaseLoader if as_texts else loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        problem = "is no YAML"
    raise ValueError(f"{name} {problem}")


def repeated_keys(text: bytes) -> list[str]:
    """A mapping's repeated keys, of which YAML uses the last value; first call `plain_yaml`."""
    import yaml  # where a document is YAML alone

    keys = [key.value for key, _ in yaml.compose(text, Loader=yaml.SafeLoader).value]
    return sorted({key for key in keys if keys.count(key) > 1})


def flattened(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{group}{key}.")
        else:
            flat[f"{group}{key}"] = value
    return flat
