"""Documents and values from untrusted writers: what they make Python raise becomes one error."""

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
"""Levels of nesting that a document of ours never reaches."""

LONGEST = 16_000_000
"""Characters that no text of ours reaches."""


def real_number(value: object) -> float:
    """Return a number as a float, infinities included; NaN for anything else."""
    import numpy as np  # the only function here that needs it

    if isinstance(value, np.ndarray | np.generic):
        value = value.item() if value.size == 1 else None
    try:
        return float(value) if isinstance(value, int | float | np.floating) else math.nan
    except OverflowError:  # an int of hundreds of digits
        return math.nan


@contextmanager
def document(what: str) -> Iterator[None]:
    """Read a document inside; a ValueError of its own passes as it is.

    Args:
        what: What it should be, for the error, for instance `terms of a sum`.

    Raises:
        ValueError: If it is malformed. The text names no value: it may travel.
    """
    try:
        yield
    except MALFORMED as error:
        raise ValueError(f"this is no {what} ({type(error).__name__})") from error


def parsed_object(text: str, what: str, *, longest: int = LONGEST) -> dict[str, Any]:
    """Return the JSON object that a text is, of finite numbers alone.

    Args:
        text: Of more than `longest` characters nothing is parsed.
        what: It should be, for the error.
        longest: Characters that it can have if it is one.

    Raises:
        ValueError: If it is none, or holds a number that compares with nothing or is endless.
    """
    if len(text) > longest:
        raise ValueError(f"this is no {what}: {len(text)} characters are more than {longest}")
    with document(what):
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    if not isinstance(found, dict):
        raise ValueError(f"this is no {what}: it holds no JSON object")
    return found


def _finite(text: str) -> float:
    """Return a number of a document; `NaN`, `Infinity` and `1e999` are none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"numbers must be finite, got {text:.20}")
    return number


def plain_yaml(text: bytes, what: str) -> Any:
    """Return what YAML text says, without tags, aliases or deep nesting.

    Raises:
        ValueError: If it is none, or has one of those.
    """
    import yaml  # where a document is YAML alone

    # Not every build of PyYAML has libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth, wrong = 0, ""
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # A few aliases of aliases would stand for gigabytes.
            if isinstance(event, yaml.AliasEvent):
                wrong = "has aliases, which fl-dp never writes"
            elif depth > MOST_DEEP:
                wrong = "is nested too deeply"
            if wrong:
                break
        else:
            return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        wrong = "is no YAML"
    raise ValueError(f"{what} {wrong}")


def keys_given_twice(text: bytes) -> list[str]:
    """Return the keys that `plain_yaml` found twice in a mapping's text: YAML keeps the last value.

    Args:
        text: Of a mapping, once `plain_yaml` has read it.
    """
    import yaml  # where a document is YAML alone

    keys = [key.value for key, _ in yaml.compose(text, Loader=yaml.SafeLoader).value]
    return sorted({key for key in keys if keys.count(key) > 1})


def flattened(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Return nested settings by keys with dots between."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            found |= flattened(value, f"{group}{key}.")
        else:
            found[f"{group}{key}"] = value
    return found
