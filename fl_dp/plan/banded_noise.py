"""Noise that later rounds partly subtract: its coefficients, conditions and description.

    >>> CorrelatedPlan(
    ...     budget=PrivacyBudget(epsilon=8.0, delta=1e-4),
    ...     rounds=200, num_clients=1000, clipping=FixedClipping(norm=0.5),
    ...     sampling=CyclicSampling(groups=8, inside=PoissonSampling(sampling_rate=0.16)),
    ...     correlation=Banded.optimal(rounds=200, bands=8),
    ... ).calibrated()

`CorrelatedPlan` says how participations are charged.

Reference: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fl_dp import accounting
from fl_dp.accounting import Sampling
from fl_dp.arguments import Arguments
from fl_dp.mechanisms import BandedStream
from fl_dp.option_errors import IncompatibleOptions, OptionError


@dataclass(frozen=True, kw_only=True)
class Banded(Arguments):
    """The first column of a banded lower triangular matrix C: the noise of all rounds is C^-1 z.

    Attributes:
        coefficients: c_0, c_1, ... in units of 2^-12, c_0 = 4096. They are part of the plan and
            never computed again: another library might differ in the last digit.
    """

    coefficients: tuple[int, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: They are no such column, or float64 can't hold the sums.
        """
        super().__post_init__()
        _ = BandedStream(self.coefficients)  # checks itself

    @classmethod
    def optimal(cls, *, rounds: int, bands: int, momentum: float = 0.0) -> Self:
        """Return the coefficients with the least error of all models.

        `bands` is at most the least distance between two rounds of one client.
        """
        return cls(coefficients=accounting.optimal_coefficients(rounds, bands, momentum))

    @property
    def bands(self) -> int:
        """Number of rounds that one draw of noise affects, its own included."""
        return len(self.coefficients)

    @property
    def in_words(self) -> str:
        """Description of the noise, for the statement."""
        return (
            f"noise of neighbouring rounds is correlated: each round takes part of the noise of "
            f"{self._earlier} before it away"
        )

    @property
    def _earlier(self) -> str:
        count = self.bands - 1
        return "the round" if count == 1 else f"the {count} rounds"

    @property
    def memory_in_words(self) -> str:
        """Description of the server's memory, for the statement."""
        return f"the noise of {self._earlier} before stays in its memory while it trains"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the promise does not cover."""
        return (
            "an intruder in the server's memory while it trains: the noise of "
            f"{self._earlier} before lies there, and opens as many sums that were released",
        )

    def check(self, sampling: Sampling) -> None:
        """Refuse more bands than rounds from one participation of a client to the next.

        Raises:
            OptionError: With what to write instead.
        """
        apart = sampling.least_separation
        if apart == 1:
            raise IncompatibleOptions(
                "where a client may take part in every round, correlated noise gains nothing: what "
                "its low frequencies gain in error, a client that always sends the same gains in "
                "sensitivity; take noise without memory, or let clients rest: by a smaller "
                "sampling_rate, by groups that take turns, or by a separation in a public "
                f"selection; got {sampling}",
                option="bands",
            )
        if self.bands > apart:
            raise OptionError(
                f"bands={self.bands} is more than the {apart} rounds that lie between two "
                "of a client: its participations would meet in one release, which no event "
                f"charges for; use at most {apart}",
                option="bands",
            )
