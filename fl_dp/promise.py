"""Meaning of an epsilon, and how it is written on every screen, page and paper."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import StrEnum

UNITS = ("client", "person", "record")
"""Units of promises, each made of whole ones of the next."""
OF_RECORDS = ("record", "person")
"""Units whose gradients a node clips one by one: a record, or all of a person's records."""

NO_PRIVACY_ABOVE = 50.0
"""Epsilon above which there is no promise: odds may change by a factor of e^50, of 22 digits."""

NO_PRIVACY = "no privacy"
"""Text for a person where nothing is promised."""

LARGE_DELTA = 1e-3
"""Delta above which each screen warns: the promise may fail once in a thousand times."""


def is_promise(epsilon: float | None, *, insecure: bool = False) -> bool:
    """Whether an epsilon promises anything.

    Args:
        epsilon: A bound. None or infinite: no bound is known.
        insecure: Whether noise or coins came from a predictable source.
    """
    return epsilon is not None and epsilon <= NO_PRIVACY_ABOVE and not insecure


def is_large_delta(delta: float | None) -> bool:
    """Whether a delta is fit for trials only. None: no delta is known."""
    return delta is not None and delta > LARGE_DELTA


def brief_epsilon(epsilon: float) -> str:
    """Write an epsilon as `rounded_up`, without trailing zeros: for sentences."""
    return f"{float(rounded_up(epsilon)):.10g}"


def rounded_up(epsilon: float) -> str:
    """Write an epsilon rounded up to four decimals, so it stays a bound."""
    # By the shortest decimal of this float, as formatting would round to nearest.
    if epsilon >= 1e6:
        return ceiling(epsilon, 4)
    return str(Decimal(repr(float(epsilon))).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def delta_rounded_up(delta: float) -> str:
    """Write a delta rounded up to three significant digits."""
    return ceiling(delta, 3)


def ceiling(number: float, digits: int) -> str:
    """Write a number rounded up to `digits` significant digits."""
    return _significant(number, digits, ROUND_CEILING)


def floor(number: float, digits: int) -> str:
    """Write a number rounded down to `digits` significant digits: what is left of a budget."""
    return _significant(number, digits, ROUND_FLOOR)


def _significant(number: float, digits: int, rounding: str) -> str:
    rounded = Context(prec=digits, rounding=rounding).create_decimal(repr(float(number)))
    return f"{float(rounded):.{digits}g}"


class Enforcement(StrEnum):
    """Who enforces a promise's conditions at a node, against the server."""

    SITE = "enforced by the site"
    """A gate, whose site keeps every app apart from it and from the network."""
    COOPERATIVE = "cooperative"
    """A gate, which an app that tries could get around."""
    NAMED_APP = "by the app that the site names"
    """An app's own DP-SGD: a gate admits that app alone, as its owner has configured it."""
    APP = "by the app"
    """Code of the app, and a node runs whichever app the server sends."""


def enforcement_named(value: object) -> Enforcement:
    """The level of this name; else `APP`, the weakest."""
    for level in Enforcement:
        if level == value:
            return level
    return Enforcement.APP


def weakest(levels: Iterable[Enforcement]) -> Enforcement:
    """The weakest level; of none, `APP`."""
    return max(levels, key=list(Enforcement).index, default=Enforcement.APP)
