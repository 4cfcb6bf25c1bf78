"""Errors of options, combinations that are always wrong, and common checks of a value.

An error names an option by its Python argument, the last word of its Hydra key:

    >>> require_rate(sampling_rate=1.5)
    Traceback (most recent call last):
    OptionError: sampling_rate must lie in (0, 1], got 1.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Facts = TypeVar("Facts")

_SMALLEST = 1e-250  # below it float64 can't scale a vector down to a bound without losing digits


class OptionError(ValueError):
    """An option has an invalid value.

    Attributes:
        option: Name of the option that the error is about, its Python argument or its Hydra key;
            None if it is about none.
        others: Further options, where several exclude each other.
    """

    def __init__(
        self, text: str, *, option: str | None = None, options: Iterable[str] = ()
    ) -> None:
        """Take the text, which names the option, and by itself the option, or all of several."""
        super().__init__(text)
        first, *others = (option,) if option is not None else tuple(options) or (None,)
        self.option = first
        self.others = tuple(others)

    @property
    def options(self) -> tuple[str, ...]:
        """All options that the error is about."""
        return () if self.option is None else (self.option, *self.others)


class ArgumentError(OptionError, TypeError):
    """An argument's name is unknown, or its value has the wrong type.

    It is an `OptionError` too: the value may come from a file, whose reader expects one.
    """


class IncompatibleOptions(OptionError):
    """Options exclude each other; the text says why, and what to write instead.

    Attributes:
        rule: The `Exclusion`, if the combination is always wrong.
    """

    rule: Exclusion[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Exclusion(Generic[Facts]):
    """A combination that is always wrong, with its reason: one row of a table in the guide.

    Attributes:
        options: The options concerned.
        when: Whether facts have the combination.
        why: What would go wrong: one sentence without its full stop.
        instead: What to write instead.
    """

    options: tuple[str, ...]
    when: Callable[[Facts], bool]
    why: str
    instead: str


def require_compatible(rules: Iterable[Exclusion[Facts]], facts: Facts) -> None:
    """Refuse the first combination that the facts have.

    Raises:
        IncompatibleOptions: With what to write instead.
    """
    for rule in rules:
        if rule.when(facts):
            error = IncompatibleOptions(f"{rule.why}: {rule.instead}", options=rule.options)
            error.rule = rule
            raise error


def require_positive(**settings: float) -> None:
    """Refuse settings that are not positive and finite.

    Raises:
        OptionError: One is not, or is too close to zero for float64; the text names it.
    """
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            option = name.partition("[")[0]  # of a list's item, its list
            raise OptionError(f"{name} must be positive and finite, got {value}", option=option)
        if value < _SMALLEST:
            raise OptionError(f"{name} must be at least {_SMALLEST}, got {value}", option=name)


def require_count(**settings: int) -> None:
    """Refuse settings that are not integers from 1 on.

    Raises:
        OptionError: One is not; the text names it.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be an integer of at least 1, got {value}", option=name)


def require_rate(**settings: float) -> None:
    """Refuse settings outside (0, 1], where 1 means all units.

    Raises:
        OptionError: One is outside; the text names it.
    """
    for name, value in settings.items():
        if not 0.0 < value <= 1.0:
            raise OptionError(f"{name} must lie in (0, 1], got {value}", option=name)


def require_probability(**settings: float) -> None:
    """Refuse settings outside (0, 1), both ends excluded, such as a delta.

    Raises:
        OptionError: One is outside; the text names it.
    """
    for name, value in settings.items():
        if not 0.0 < value < 1.0:
            raise OptionError(f"{name} must lie in (0, 1), got {value}", option=name)
