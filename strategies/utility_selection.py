"""Choosing clients by what their data says of them, and paying for it.

Utilities are as private as updates. With `ExponentialSelection` the server looks at them and
chooses by the exponential mechanism. With `DPUtilitySelection` clients release noisy ones now and
then, and Poisson cohorts follow those. docs/selection.md tells when either is worth its price.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fl_dp.accounting import (
    History,
    PrivacyBudgetExhausted,
    UtilityPoissonSampling,
    VisibleSampling,
)
from fl_dp.arguments import with_read_arguments
from fl_dp.codec import encode_text
from fl_dp.mechanisms import ExponentialMechanism, SecureRandom
from fl_dp.mechanisms.events import GaussianEvent
from fl_dp.option_errors import OptionError, require_positive
from fl_dp.protocol.identity import Ability
from fl_dp.protocol.keys import UTILITY_ACTION, UTILITY_METRIC
from fl_dp.protocol.utility import UtilityQuery

from .exchange import one_of_each
from .modes.base import numbers_of
from .roster import Unit, by_node
from .run_log import RunLog
from .selection import Draw, Observation, Selection

logger = logging.getLogger("flwr.fl_dp")

UtilityFn = Callable[[Observation, int], float]
"""Returns a utility, given a unit's last observation and the number of the round to draw."""

_NOBODY = 745.0  # e^-745 is the smallest float64

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
            raise OptionError(f"records_per_client must be at least 1, got {records_per_client}")
        if records_per_client is not None and utility in (*_BY_SERVER, "records"):
            raise OptionError(
                f"one record can move utility={utility} by any amount: with "
                "records_per_client choose by a mean over records, such as utility=loss or "
                "accuracy"
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


class DPUtilitySelection(Selection):
    """Poisson cohorts whose rates follow noisy utilities that clients release at times.

    In refresh rounds *every* unit of the roster is asked for its utility and adds Gaussian noise
    itself; for a unit that does not answer, the server draws the null with the same noise. In
    between, the rate of each unit's secret coin follows its noisy utility, up to `largest_rate`.

    Privacy: the noisy utilities are charged as one Gaussian of `utility_noise` per refresh, for
    one unit, zero-out neighbours on a public roster, even against the server; each round as a
    Poisson sample at `largest_rate`, against an adversary who sees all noisy utilities and models
    but not who took part. A coin depends on a unit's own noisy utility and nothing else that is
    not public by then. Asking participants only would reveal who they are and void the
    amplification.
    """

    @with_read_arguments()
    def __init__(
        self,
        cohort: float,
        *,
        largest_rate: float,
        utility_noise: float,
        refresh_every: int = 20,
        smallest_rate: float = 0.0,
        utility: str = "loss",
        utility_high: float = 5.0,
        sharpness: float = 1.0,
    ) -> None:
        """Aim at cohorts of `cohort` units.

        Args:
            cohort: Expected size; reached exactly unless every rate is at a bound.
            largest_rate: Upper bound on every rate, in (0, 1]; each round is charged at it.
            utility_noise: Standard deviation of the noise on each utility, divided by half of the
                utilities' range.
            refresh_every: Rounds from one refresh to the next; the first is in round 1.
            smallest_rate: Lower bound on every rate, so that no unit is excluded for good.
            utility: `loss`, `records`, or a metric that clients' `evaluate` returns.
            utility_high: Public bound: utilities are clipped to [0, utility_high].
            sharpness: Rates follow `exp(sharpness * utility)`; 0 is uniform.

        Raises:
            ValueError: If a number is out of range.
        """
        self.sampling: UtilityPoissonSampling = UtilityPoissonSampling(
            largest_rate=largest_rate, cohort=cohort
        )
        require_positive(utility_high=utility_high, utility_noise=utility_noise)
        if not 0.0 <= smallest_rate <= largest_rate:
            raise OptionError(
                f"smallest_rate must lie in [0, largest_rate = {largest_rate}], got {smallest_rate}"
            )
        if refresh_every < 1:
            raise OptionError(f"refresh_every must be at least 1, got {refresh_every}")
        if not (math.isfinite(sharpness * utility_high) and sharpness >= 0.0):
            raise OptionError(f"sharpness must be finite and not negative, got {sharpness}")
        self._query = UtilityQuery(
            utility=utility, high=utility_high, noise_multiplier=utility_noise
        )
        self._refresh_every = refresh_every
        self._smallest_rate = smallest_rate
        self._sharpness = sharpness
        self._noisy: dict[Unit, float] = {}

    @property
    def needs(self) -> frozenset[Ability]:
        """Apps that answer questions for utilities."""
        return frozenset({Ability.UTILITY})

    @property
    def noisy_utilities(self) -> dict[Unit, float]:
        """The last released utilities; already private."""
        return dict(self._noisy)

    def releases(self, rounds: int) -> History:
        """The refreshes of `rounds` rounds."""
        return {self._event: len(range(1, rounds + 1, self._refresh_every))}

    def select(self, draw: Draw) -> list[Unit]:
        """Refresh the utilities when due, then flip one coin per unit at its own rate."""
        if (draw.server_round - 1) % self._refresh_every == 0:
            try:
                with draw.charged(f"utilities {draw.server_round}", self._event):
                    self._refresh(draw)
            except PrivacyBudgetExhausted:
                # A crash has cost one refresh: what was released before will do.
                logger.info("No budget is left for fresh utilities: the last ones stay in use")
        rates = self.rates(draw.roster, draw.rng)
        largest = self.sampling.largest_rate
        # Coins at the charged rate, thinned: rounding can't lift a rate above it.
        coins = draw.rng.bernoulli(largest, len(draw.roster))
        coins &= draw.rng.uniforms(len(draw.roster)) < rates / largest
        return [unit for unit, heads in zip(draw.roster, coins, strict=True) if heads]

    def rates(self, roster: Sequence[Unit], rng: SecureRandom) -> NDArray[np.float64]:
        """Each unit's rate by its noisy utility, shape `(len(roster),)`.

        `rng` draws the null report of units that were never asked.
        """
        silent = [unit for unit in roster if unit not in self._noisy]
        nulls = self._query.privatize([math.nan] * len(silent), rng)
        self._noisy.update(zip(silent, nulls, strict=True))
        noisy = np.array([self._noisy[unit] for unit in roster], dtype=np.float64)
        # Beyond the range there is only noise, or a client that would starve all the others.
        logits = self._sharpness * np.clip(noisy, 0.0, self._query.high)
        return _scaled_between(
            logits, self.sampling.cohort, self._smallest_rate, self.sampling.largest_rate
        )

    @property
    def _event(self) -> GaussianEvent:
        return GaussianEvent(noise_multiplier=self._query.noise_multiplier)

    def _refresh(self, draw: Draw) -> None:
        asked = by_node(draw.roster)
        self._noisy = {}
        for reply in one_of_each(draw.ask(self._messages(draw, asked)), asked, RunLog()):
            if reply.has_error():
                continue
            units = asked[reply.metadata.src_node_id]
            noised = numbers_of(reply.content).get(UTILITY_METRIC, [])
            for unit, noisy in zip(units, noised, strict=False):
                if math.isfinite(noisy):
                    self._noisy[unit] = noisy

    def _messages(self, draw: Draw, asked: Mapping[int, tuple[Unit, ...]]) -> list[Message]:
        messages = []
        for node, units in asked.items():
            numbers: tuple[int, ...] | None = tuple(unit.number for unit in units)
            if numbers == (0,):
                numbers = None
            query = replace(self._query, units=numbers)
            config = ConfigRecord(dict(draw.config) | {UTILITY_METRIC: encode_text(query)})
            content = RecordDict({"arrays": draw.model, "config": config})
            kind = f"query.{UTILITY_ACTION}"
            messages.append(Message(content, dst_node_id=node, message_type=kind))
        return messages


def _reported(observation: Observation, _: int) -> float:
    return math.nan if observation.utility is None else observation.utility


def _scaled_between(
    logits: NDArray[np.float64], total: float, low: float, high: float
) -> NDArray[np.float64]:
    """Scale `e^logits` and cut it to [low, high]; the sum is `total`, as far as possible.

    `high` is at most 1.
    """
    below = logits - logits.max(initial=-math.inf)

    def scaled(shift: float) -> NDArray[np.float64]:
        rates: NDArray[np.float64] = np.clip(np.exp(np.minimum(below + shift, 0.0)), low, high)
        return rates

    # From nobody to everybody; in logarithms, as weights of a sharp choice leave float64.
    smallest, largest = -_NOBODY, -float(below.min(initial=0.0))
    for _ in range(80):
        middle = (smallest + largest) / 2.0
        if scaled(middle).sum() < total:
            smallest = middle
        else:
            largest = middle
    return scaled(largest)
