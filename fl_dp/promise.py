"""What a number promises at all, for every screen, page and paper; some of them lack NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

NO_PRIVACY_FROM = 1000.0
"""Epsilon from which on nothing is promised: odds may change by a factor of e^1000."""


LARGE_DELTA = 1e-3
"""Delta above which each screen warns: the promise may fail once in a thousand times."""


def is_promise(epsilon: float | None, *, insecure: bool = False) -> bool:
    """Tell whether an epsilon promises anything.

    Args:
        epsilon: A bound; None or infinite: none is known.
        insecure: Whether noise or coins came from a source that can be predicted.
    """
    return epsilon is not None and epsilon < NO_PRIVACY_FROM and not insecure


def is_large_delta(delta: float | None) -> bool:
    """Tell whether a delta is fine for trying out alone; None: no delta is known."""
    return delta is not None and delta > LARGE_DELTA


class Enforcement(StrEnum):
    """Who sees to it that a node does what a promise against the server supposes."""

    SITE = "enforced by the site"
    """A gate, and its site keeps every app apart from it and from the network."""
    COOPERATIVE = "cooperative"
    """A gate, which an app could get around that tries."""
    NAMED_APP = "by the app that the site names"
    """An app's own DP-SGD: a gate admits that app alone, as its owner has configured it."""
    APP = "by the app"
    """Code of the app, and a node runs whichever app the server sends."""


def enforcement_named(value: object) -> Enforcement:
    """Return that of this name, else the weakest."""
    return next((each for each in Enforcement if each == value), Enforcement.APP)


def weakest(several: Iterable[Enforcement]) -> Enforcement:
    """Return the one of several that all of them amount to; of none, `APP`."""
    return max(several, key=list(Enforcement).index, default=Enforcement.APP)
