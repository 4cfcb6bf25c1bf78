"""Selection of the units that take part in a round.

A selection hands out the `Sampling` that the plan must have been made with, so that a cohort can't
be charged as something that it is not. Subclass `Selection` for a rule of your own; what it draws
must follow the law that its `sampling` names.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from fl_dp.accounting import (
    History,
    PrivacyEvent,
    Sampling,
    UtilityPoissonSampling,
    VisibleSampling,
)
from fl_dp.accounting.sampling import BufferedSampling, SeenSampling
from fl_dp.arguments import with_read_arguments
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import SecureRandom
from fl_dp.option_errors import OptionError, require_count
from fl_dp.protocol.identity import Ability

from .roster import Unit

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Everything that a selection may look at when it draws a cohort.

    Attributes:
        server_round: The round's number.
        index: The round's place among all that the ledger has reserved, where units take turns or
            rest by it; else None.
        roster: Every unit that can take part; under a participation cap, those with any left; where
            units take turns or rest, those who may take part at this index.
        num_units: Units that the plan declares.
        rng: Where coins and draws come from.
        model: The last released model.
        config: What is sent with every train message.
        ledger: Charge here what the selection itself releases, before it happens; None without
            privacy.
        ask: Sends messages and yields their replies.
        groups: The group of each unit of the roster, where there are any.
    """

    server_round: int
    roster: Sequence[Unit]
    num_units: int
    rng: SecureRandom
    model: ArrayRecord
    config: ConfigRecord
    ledger: PrivacyLedger | None
    ask: Callable[[Iterable[Message]], Iterator[Message]]
    index: int | None = None
    groups: Sequence[int] = ()

    @contextmanager
    def charged(self, what: str, event: PrivacyEvent) -> Iterator[None]:
        """Charge a release of the selection's own before it is made, and commit it afterwards.

        Args:
            what: A name for the records.
            event: What it is charged as; nothing without privacy.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing may be released.
        """
        reservation = None if self.ledger is None else self.ledger.reserve_release(what, event)
        yield
        if self.ledger is not None and reservation is not None:
            self.ledger.commit(reservation)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Facts that the server learnt of one unit that took part; as private as its update.

    Attributes:
        unit: Who.
        server_round: When.
        update_norm: L2 norm before clipping; infinite if the update was not finite, NaN if a node
            summed several units.
        utility: What the unit reported, as asked by `Selection.utility`; None if it did not.
    """

    unit: Unit
    server_round: int
    update_norm: float
    utility: float | None


class Selection(ABC):
    """A rule that draws cohorts.

    Attributes:
        sampling: What its cohorts may be charged as; the plan must say the same.
        utility: What participants report with their updates (`loss`, `records` or a metric of
            their own); None: nothing.
        looks_at_norms: Whether it needs each unit's own update norm, which a node that sums its
            units does not tell.
        unit: Whose utilities it is charged for: `client`, or `record` (one record).
    """

    sampling: Sampling
    utility: str | None = None
    looks_at_norms: bool = False
    unit: str = "client"

    def releases(self, rounds: int) -> History:
        """Return the events of the selection's own releases, for the plan's other_releases.

        Nothing by default.
        """
        return {}

    @abstractmethod
    def select(self, draw: Draw) -> Sequence[Unit]:
        """Return the units of one cohort, out of `draw.roster`."""

    @property
    def needs(self) -> frozenset[Ability]:
        """What every client's app has to be able to do for it."""
        return frozenset() if self.utility is None else frozenset({Ability.UTILITY})

    def observe(self, observation: Observation) -> None:
        """Take in what came of a unit that took part; nothing by default."""
        return


class LawSelection(Selection):
    """Cohorts that their law draws alone: by secret coins, or as a draw of one size.

    Privacy: as the law is charged. A cohort must stay secret from the adversary; its size is never
    made constant, topped up or reported. Where a cohort's size is counted, declared units that are
    not there take their place in the draw, so that nobody's chance rises when others leave. Where
    groups take turns, the ledger gives each unit a group, once and in the open, and each index is
    one group's turn, over restarts.
    """

    def __init__(self, sampling: Sampling) -> None:
        """Draw by a law.

        Args:
            sampling: How each cohort is drawn.
        """
        self.sampling: Sampling = sampling
        # A counted cohort is drawn from lasting places, and each group has its own.
        self._places: defaultdict[int | None, _DeclaredPlaces] = defaultdict(_DeclaredPlaces)

    def select(self, draw: Draw) -> list[Unit]:
        """Return the cohort; possibly nobody.

        Raises:
            ValueError: If nobody has said the units' groups, or whose turn it is.
        """
        law, group = self.sampling, None
        if law.takes_turns:
            group = law.group_at(_require_turns(draw))
        units: Sequence[Unit | None] = draw.roster
        if law.of_declared:
            units = self._places[group].of(draw, law.largest_group(draw.num_units))
        chosen = [units[place] for place in law.draw(draw.rng, len(units), draw.groups)]
        return [unit for unit in chosen if unit is not None]


class _DeclaredPlaces:
    """One lasting place for each declared unit.

    A unit keeps its place for the whole training. One that arrives when no place is left takes no
    part, and an absent unit's place stays empty: neither changes another unit's chance.
    """

    def __init__(self) -> None:
        self._taken: dict[Unit, None] = {}
        self._crowded = False

    def of(self, draw: Draw, declared: int) -> list[Unit | None]:
        """Return every one of the declared places with its unit, or None if that is not there."""
        there = set(draw.roster)
        for unit in draw.roster:
            if unit not in self._taken and len(self._taken) < declared:
                self._taken[unit] = None
        if not self._crowded and not there <= self._taken.keys():
            self._crowded = True
            logger.warning(
                "More clients are there than the plan declares (num_clients): those who came last "
                "take no part"
            )
        empty = declared - len(self._taken)
        return [*(unit if unit in there else None for unit in self._taken), *[None] * empty]


class PublicSelection(Selection):
    """The units with the highest public score, among those who have rested long enough.

    Privacy: choosing costs nothing, as no client's data enters. Who takes part is seen, so nothing
    is amplified; the law's cap bounds what one unit is charged for. Under a separation a unit takes
    part at indices of the ledger that are at least so far apart, over restarts, whether it answered
    or not. Without a score units take turns. Equal scores are told apart at random.
    """

    def __init__(
        self, sampling: SeenSampling, score: Callable[[Unit, int], float] | None = None
    ) -> None:
        """Choose by `score(unit, server_round)`.

        Args:
            sampling: Size of a cohort, and how often one unit may take part.
            score: Made from public metadata alone: device class, region, bandwidth. None: who has
                waited longest comes first.
        """
        self.sampling: SeenSampling = sampling
        self._score = score
        self._last_round: dict[Unit, int] = {}

    def select(self, draw: Draw) -> list[Unit]:
        """Return the cohort, best first; all of them if they are fewer."""
        if self.sampling.least_separation > 1:  # the draw shows those who have rested
            _require_turns(draw)
        return self.first(draw, self.sampling.cohort)

    def first(self, draw: Draw, count: int) -> list[Unit]:
        """Return at most `count` units, best first, which then have waited since this round."""
        score = self._score if self._score is not None else self._waited
        scores = np.array([score(unit, draw.server_round) for unit in draw.roster], dtype=float)
        order = np.lexsort((draw.rng.uniforms(len(draw.roster)), -scores))
        chosen = [draw.roster[place] for place in order[:count]]
        self._last_round.update(dict.fromkeys(chosen, draw.server_round))
        return chosen

    def _waited(self, unit: Unit, server_round: int) -> float:
        return float(server_round - self._last_round.get(unit, 0))


class BufferedSelection(PublicSelection):
    """Units that are asked one by one, and a release of those that answer next.

    Privacy: as `PublicSelection`, for the releases that answers are in. The order of answers must
    not depend on data. Without a score who has waited longest is asked first.

    Reference: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation".

    Attributes:
        concurrency: Units that are asked at any time.
        max_staleness: Most releases between the model that a unit was sent and the release that its
            answer enters; an older answer counts as zero.
    """

    @with_read_arguments()
    def __init__(
        self,
        sampling: BufferedSampling,
        *,
        concurrency: int | None = None,
        max_staleness: int = 10,
        staleness_power: float = 0.5,
        score: Callable[[Unit, int], float] | None = None,
    ) -> None:
        """Fill buffers of the law's size.

        Args:
            sampling: Answers of a release, malformed ones included, and how often a unit is asked.
            concurrency: Units that are asked at any time; None: twice the size of a buffer.
            max_staleness: As the attribute; 0 takes answers of the newest model alone.
            staleness_power: An answer `s` releases old weighs `(1 + s) ** -staleness_power`.
            score: As for `PublicSelection`.

        Raises:
            ValueError: If a number is out of range.
        """
        super().__init__(sampling, score)
        size = sampling.cohort
        self.concurrency = 2 * size if concurrency is None else concurrency
        require_count(concurrency=self.concurrency)
        if max_staleness < 0:
            raise OptionError(f"max_staleness must not be negative, got {max_staleness}")
        if not (math.isfinite(staleness_power) and staleness_power >= 0.0):
            raise OptionError(
                f"staleness_power must be finite and not negative, got {staleness_power}: "
                "an old answer must not weigh more than a new one"
            )
        if self.concurrency < size:
            raise OptionError(
                f"concurrency must be at least the buffer's {size}, or it never fills; got "
                f"{self.concurrency}"
            )
        self.max_staleness = max_staleness
        self._power = staleness_power

    def weight(self, staleness: int) -> float:
        """Return the public factor in [0, 1] on an answer, by the age of its model in releases."""
        if staleness > self.max_staleness:
            return 0.0
        # At most 1: a weight never lengthens a clipped update, so the sensitivity stays the norm.
        return float((1.0 + staleness) ** -self._power)


def selection_of(sampling: Sampling) -> Selection:
    """Return the plain selection that follows a sampling law.

    Raises:
        ValueError: If the law leaves open who is chosen by what.
    """
    match sampling:
        case BufferedSampling():
            return BufferedSelection(sampling)
        case VisibleSampling():
            return PublicSelection(sampling)
        case UtilityPoissonSampling():
            raise ValueError(f"a plan with {sampling} needs its selection: pass it as selection=")
        case _:
            return LawSelection(sampling)


def _require_turns(draw: Draw) -> int:
    """Return the index of a draw whose roster was chosen by it.

    Raises:
        ValueError: If nothing says whose turn it is.
    """
    if draw.index is None:
        raise ValueError("units take turns by a ledger's index: this selection needs a plan")
    return draw.index
