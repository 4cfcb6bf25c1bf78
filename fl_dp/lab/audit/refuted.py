"""Largest value that a test refutes, by bisection."""

from __future__ import annotations

from collections.abc import Callable


def largest_refuted(refutes: Callable[[float], bool], *, most: float, within: float) -> float:
    """Return the largest value up to `most` that is refuted, from below; 0 if not even 0 is.

    Args:
        refutes: Holds for all values below some value, and for none above.
        most: Nobody looks beyond it.
        within: How far below the true value the result may lie.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > within:
        middle = (low + high) / 2.0
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low
