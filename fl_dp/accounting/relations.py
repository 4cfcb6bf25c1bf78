"""Neighbouring relations: pairs of populations that have to look alike."""

from __future__ import annotations

from enum import StrEnum


class NeighboringRelation(StrEnum):
    """The difference between two neighbouring populations: always one privacy unit.

    With sums, a constant denominator and Poisson sampling the first two have the same sensitivity
    and the same epsilon. The third moves a sum by up to twice the clipping norm.
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    """A unit is in the population or it is not."""

    ZERO_OUT = "zero-out"
    """A unit of a public roster contributes, or contributes zero throughout."""

    REPLACE_ONE = "replace-one"
    """A unit's data is replaced by any other data."""

    @property
    def distance(self) -> int:
        """The number of clipping norms that two neighbours' sums can be apart."""
        return 2 if self is NeighboringRelation.REPLACE_ONE else 1
