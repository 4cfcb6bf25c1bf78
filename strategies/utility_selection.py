"""Choosing clients by what their data says of them, and paying for it.

Utilities are as private as updates: the server looks at them and chooses by the exponential
mechanism. docs/selection.md tells when that is worth its price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from fl_dp.accounting import History, VisibleSampling
from fl_dp.arguments import with_read_arguments
from fl_dp.mechanisms import ExponentialMechanism
from fl_dp.option_errors import OptionError, require_positive

from .selection import Draw, Observation, Selection
from .unit_roster import Unit

UtilityFn = Callable[[Observation, int], float]
"""Returns a utility, given a unit's last observation and the number of the round to draw."""

_BY_SERVER: Mapping[str, UtilityFn] = {
    "update_norm": lambda observation, _: observation.update_norm,
    "staleness": lambda observation, now: float(now - observation.server_round),
}


class ExponentialSelection(Selection):
    """The exponential mechanism over clients' utilities: Gumbel top-k.

    Privacy: each round is `cohort` draws of bounded range `epsilon`, for one unit, zero-out
    neighbours on a public roster (a unit that is zeroed out has the null utility throughout), in
    sight of anyone: who was chosen is an output. So nothing is amplified, each unit is charged in
    full for its rounds, and the plan needs `VisibleSampling`, best with a participation cap. The
    server is trusted with the utilities.

    A unit moves its own utility alone, by at most half the range, as the null is its middle: hence
    `exp(epsilon * u / sensitivity)` without the usual factor of one half.

    With records as units (`records_per_client`), one record moves a mean over n records by an n-th
    of that, and selection is nearly free; the model's own protection then needs the same unit
    (`Plan(unit="record")`).
    """

    @with_read_arguments()
    def __init__(
        self,
        sampling: VisibleSampling,
        *,
        epsilon: float,
        utility: str | UtilityFn = "loss",
        utility_high: float = 5.0,
        records_per_client: int | None = None,
    ) -> None:
        """Choose the law's cohort in each round.

        Args:
            sampling: Size of a cohort, and how often one unit may take part.
            epsilon: Bounded range of one draw; each round makes `cohort` draws.
            utility: `loss`, `records` or another name that clients report; `update_norm` or
                `staleness`, which the server knows (staleness is public: `PublicSelection` has it
                for free); or a function of a unit's own last observation. A unit without one has
                the null utility.
            utility_high: Public bound: utilities are clipped to [0, utility_high].
            records_per_client: Public lower bound on a client's records, for records as units:
                utilities must then be means over a client's records within the range.

        Raises:
            ValueError: If a number is out of range, or `utility` is not a mean where that is
                needed.
        """
        self.sampling: VisibleSampling = sampling
        require_positive(utility_high=utility_high)
        null = utility_high / 2.0
        half = max(utility_high - null, null)  # the longer half: the middle is rounded
        if records_per_client is not None and records_per_client < 1:
            raise OptionError(
                f"records_per_client must be at least 1, got {records_per_client}",
                option="records_per_client",
            )
        if records_per_client is not None and utility in (*_BY_SERVER, "records"):
            raise OptionError(
                f"one record can move utility={utility} by any amount: with "
                "records_per_client choose by a mean over records, such as utility=loss or "
                "accuracy",
                option="utility",
            )
        if records_per_client is not None and utility == "accuracy" and utility_high < 1.0:
            raise OptionError(
                "one record moves an accuracy by one over the records: write utility_high=1, got "
                f"{utility_high}",
                option="utility_high",
            )
        utility_range = (0.0, utility_high) if records_per_client is None else None
        # One of n records moves a mean over them by at most half the range over n.
        # The null of a record is the middle of the range, as that of a client.
        self.mechanism = ExponentialMechanism(
            epsilon=epsilon,
            sensitivity=half / (records_per_client or 1),
            one_coordinate=True,
            null_utility=null,
            utility_range=utility_range,
        )
        self._high = utility_high
        if records_per_client is not None:
            self.unit = "record"
        if callable(utility):
            self._utility: UtilityFn = utility
        elif utility in _BY_SERVER:
            self._utility = _BY_SERVER[utility]
            self.looks_at_norms = utility == "update_norm"
        else:
            self.utility = utility
            self._utility = _reported
        self._observations: dict[Unit, Observation] = {}

    def releases(self, rounds: int) -> History:
        """The draws of `rounds` rounds."""
        return {self.mechanism.event(draws=self.sampling.cohort): rounds}

    def select(self, draw: Draw) -> list[Unit]:
        """Charge the draws; return the cohort: the whole roster if no larger."""
        if not draw.roster:
            return []
        utilities = np.array([self._utility_of(unit, draw.server_round) for unit in draw.roster])
        count = min(self.sampling.cohort, len(draw.roster))
        draws = self.mechanism.event(draws=self.sampling.cohort)
        with draw.charged(f"selection {draw.server_round}", draws):
            chosen = self.mechanism.select_top(utilities, count, draw.rng)
        return [draw.roster[index] for index in chosen]

    def observe(self, observation: Observation) -> None:
        """Remember the unit's last observation."""
        self._observations[observation.unit] = observation

    def _utility_of(self, unit: Unit, server_round: int) -> float:
        observation = self._observations.get(unit)
        utility = math.nan
        if observation is not None:
            utility = float(self._utility(observation, server_round))
        if math.isnan(utility):
            return self.mechanism.null_utility
        return min(max(utility, 0.0), self._high)


def _reported(observation: Observation, _: int) -> float:
    return math.nan if observation.utility is None else observation.utility
