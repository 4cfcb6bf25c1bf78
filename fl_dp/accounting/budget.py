"""The promise that a federation agrees on before training: a budget, and for which neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fl_dp.arguments import Arguments, with_read_arguments
from fl_dp.option_errors import OptionError, require_count


class NeighboringRelation(StrEnum):
    """The difference between two neighbouring populations: always one privacy unit.

    With sums, a constant denominator and Poisson sampling the first two have the same sensitivity
    and epsilon. The third moves a sum by up to twice the clipping norm.
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    """A unit is in the population or it is not."""

    ZERO_OUT = "zero-out"
    """A unit of a public roster contributes, or contributes zero throughout."""

    REPLACE_ONE = "replace-one"
    """A unit's data is replaced by any other data."""

    @property
    def distance(self) -> int:
        """Largest distance of neighbours' sums, in clipping norms."""
        return 2 if self is NeighboringRelation.REPLACE_ONE else 1


DECLARED_SHARE = 0.9
"""Share of delta of a node's ledger for releases with the parameters of the first one; its other
rule has the rest."""


class Limit(StrEnum):
    """A limit that a node's charge has to keep."""

    CAP = "cap"
    """The owner's cap over all charges for the data."""

    RUN = "run"
    """The budget that a run asked for, over that run alone."""

    NEIGHBOURS = "neighbours"
    """The distance of neighbours in all charges so far."""


class PrivacyBudgetExhausted(RuntimeError):
    """The next release would exceed the budget; nothing was released or charged for it."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget(Arguments):
    """At most this much (epsilon, delta) over everything that one ledger records.

    Attributes:
        epsilon: Positive and finite. 1 is strong, 8 weak but usual for one unit's whole data.
        delta: Probability of a worse breach; below one over the number of units, for instance
            `num_clients ** -1.1`.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If epsilon is not positive and finite, or delta not in (0, 1).
        """
        super().__post_init__()
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise OptionError(
                f"epsilon must be positive and finite, got {self.epsilon}: "
                "write for example 1, 2 or 8",
                option="epsilon",
            )
        if not 0.0 < self.delta < 1.0:
            raise OptionError(
                f"delta must lie in (0, 1), got {self.delta}: write for example "
                "num_clients ** -1.1",
                option="delta",
            )


@with_read_arguments()
def default_delta(num_clients: int) -> float:
    """Return `num_clients ** -1.1`, the convention of McMahan et al. 2018, at most 0.1.

    Raises:
        ValueError: If there is no client.
    """
    require_count(num_clients=num_clients)
    return min(0.1, math.pow(num_clients, -1.1))
