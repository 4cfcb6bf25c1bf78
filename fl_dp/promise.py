"""What a number promises at all, for every screen, page and paper; some of them lack NumPy."""

from __future__ import annotations

NO_PRIVACY_FROM = 1000.0
"""Epsilon from which on nothing is promised: odds may change by a factor of e^1000."""


def is_promise(epsilon: float | None, *, insecure: bool = False) -> bool:
    """Tell whether an epsilon promises anything.

    Args:
        epsilon: A bound; None or infinite: none is known.
        insecure: Whether noise or coins came from a source that can be predicted.
    """
    return epsilon is not None and epsilon < NO_PRIVACY_FROM and not insecure
