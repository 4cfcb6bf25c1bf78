"""Which two populations count as neighbours."""

from __future__ import annotations

from enum import StrEnum

from dp_accounting import NeighboringRelation as _Library


class NeighboringRelation(StrEnum):
    """What may differ between two neighbouring populations: always one privacy unit.

    With sums, a constant denominator and Poisson sampling both have the same sensitivity and the
    same epsilon. Replacing one unit's data by any other data is not offered: it costs about twice.
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    """A unit is in the population or it is not."""

    ZERO_OUT = "zero-out"
    """A unit of a public roster contributes, or contributes zero throughout."""

    def to_dp_accounting(self) -> _Library:
        """Return the name that dp-accounting has for it."""
        if self is NeighboringRelation.ZERO_OUT:
            return _Library.REPLACE_SPECIAL
        return _Library.ADD_OR_REMOVE_ONE
