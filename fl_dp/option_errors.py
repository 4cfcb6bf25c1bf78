"""Errors that carry the options they are about, in Python's words or in others, and usual checks.

An option stands in braces, alone or with a value: its name is data, and the sentence is rendered
from it. Python's words are the default; the app renders the same error in Hydra keys.

    >>> error = OptionError("{sampling_rate} must lie in (0, 1], got 1.5: write {sampling_rate=1}")
    >>> str(error), error.options
    ('sampling_rate must lie in (0, 1], got 1.5: write sampling_rate=1', ('sampling_rate',))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, TypeVar

Words = Callable[[str, str | None], str]
"""Names an option, with a value if there is one."""

Facts = TypeVar("Facts")

_SMALLEST = 1e-250  # below it float64 can't scale a vector down to a bound without losing digits
_OPTION = re.compile(r"\{([a-z_][a-z_0-9.]*)(?:=([^{}]*))?\}")
_PRESENT = re.compile(r"\{([a-z_][a-z_0-9.]*)=\?\}")
_OBJECTS = {"secure_sum": "SecureSum", "compression": "Compression"}


def in_python(option: str, value: str | None) -> str:
    """Return an option as an argument, or as that of the object which owns it."""
    owner, _, name = option.rpartition(".")
    if owner not in _OBJECTS:
        return option if value is None else f"{option}={value}"
    return name if value is None else f"{_OBJECTS[owner]}({name}={value})"


def rendered(template: str, words: Words = in_python) -> str:
    """Return a sentence with its options in those words."""
    return _OPTION.sub(lambda found: words(found[1], found[2]), template)


def options_in(template: str) -> tuple[str, ...]:
    """Return the options that a sentence names, each once, in its order."""
    return tuple(dict.fromkeys(found[1] for found in _OPTION.finditer(template)))


class NamesOptions(Exception):
    """An error whose sentence names options; to be mixed into another.

    Attributes:
        template: The sentence, with options in braces.
        options: What it is about, the most important first.
    """

    def __init__(self, template: str, *, options: tuple[str, ...] = ()) -> None:
        """Say it in Python's words.

        Args:
            template: What was wrong, its value, and what to write instead.
            options: Those that it is about, besides the ones that it names.
        """
        super().__init__(rendered(template))
        self.template = template
        self.options = tuple(dict.fromkeys([*options, *options_in(template)]))

    def say_in(self, words: Words) -> None:
        """Have the message say its options in other words; the first who asks knows most."""
        if str(self) == rendered(self.template):
            self.args = (rendered(self.template, words),)


class OptionError(NamesOptions, ValueError):
    """An option has a value that it can't have."""


class IncompatibleOptions(OptionError):
    """Options exclude each other; the text says why, and what to write instead.

    A combination that is always wrong is an `Exclusion`: a row of a table, which the guide shows.

    Attributes:
        rule: The row, if it is one.
    """

    rule: Exclusion[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Exclusion(Generic[Facts]):
    """A combination that is always wrong, with its reason: one row of a table.

    Attributes:
        options: Those concerned; `{option=...}` in a text says one as well.
        when: Whether it is there.
        why: What would go wrong, in one sentence without its full stop.
        instead: What to write instead. `{option=?}` stands for an option with its present value.
        got: Options whose present values the error ends with.
    """

    options: tuple[str, ...]
    when: Callable[[Facts], bool]
    why: str
    instead: str
    got: tuple[str, ...] = ()

    @property
    def for_any_value(self) -> tuple[str, str]:
        """The reason and the advice, with `...` for each present value."""
        return _PRESENT.sub(r"{\1=...}", self.why), _PRESENT.sub(r"{\1=...}", self.instead)

    def error(self, facts: Facts) -> IncompatibleOptions:
        """Return the error of these facts, with their values."""
        got = f", got {' with '.join(f'{{{each}=?}}' for each in self.got)}" if self.got else ""
        template = _PRESENT.sub(
            lambda found: f"{{{found[1]}={_value(facts, found[1])}}}",
            f"{self.why}: {self.instead}{got}",
        )
        error = IncompatibleOptions(template, options=self.options)
        error.rule = self
        return error


def require_compatible(rules: Iterable[Exclusion[Facts]], facts: Facts) -> None:
    """Refuse the first combination that is there.

    Raises:
        IncompatibleOptions: With what to write instead.
    """
    for rule in rules:
        if rule.when(facts):
            raise rule.error(facts)


def _value(facts: Any, option: str) -> Any:
    """Return the value of an option, whose name is a path of attributes."""
    return reduce(getattr, option.split("."), facts)


def require_positive(**settings: float) -> None:
    """Refuse settings that are not positive and finite.

    Raises:
        OptionError: If one is not, or is too close to zero for float64; the message has its name.
    """
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise OptionError(f"{{{name}}} must be positive and finite, got {value}")
        if value < _SMALLEST:
            raise OptionError(f"{{{name}}} must be at least {_SMALLEST}, got {value}")


def require_count(**settings: int) -> None:
    """Refuse settings that are not integers from 1 on.

    Raises:
        OptionError: If one is not; the message has its name.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{{{name}}} must be an integer of at least 1, got {value}")


def require_rate(**settings: float) -> None:
    """Refuse settings that are not in (0, 1], where 1 means all units.

    Raises:
        OptionError: If one is not; the message has its name.
    """
    for name, value in settings.items():
        if not 0.0 < value <= 1.0:
            raise OptionError(f"{{{name}}} must lie in (0, 1], got {value}")


def require_probability(**settings: float) -> None:
    """Refuse settings that are not in (0, 1), both ends excluded, such as a delta.

    Raises:
        OptionError: If one is not; the message has its name.
    """
    for name, value in settings.items():
        if not 0.0 < value < 1.0:
            raise OptionError(f"{{{name}}} must lie in (0, 1), got {value}")
