"""Selection of the units that take part in a round.

A selection names the plan's `Sampling`, so each cohort is charged by the law that draws it. For
your own rule, subclass `Selection`; its draws must follow its `sampling`.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from fl_dp.accounting import (
    CyclicSampling,
    History,
    PrivacyEvent,
    Sampling,
    VisibleSampling,
)
from fl_dp.accounting.sampling import BufferedSampling, SeenSampling
from fl_dp.arguments import with_read_arguments
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import SecureRandom
from fl_dp.option_errors import OptionError, require_count
from fl_dp.protocol.introduction import Ability

from .unit_roster import Unit

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a selection may look at when it draws a cohort.

    Attributes:
        index: The round's index among all that the ledger has reserved, if units take turns or
            rest by it; else None.
        roster: Units that may take part now: without those at their participation cap, or whose
            turn it is not.
        num_units: Units that the plan declares.
        model: The last released model.
        config: Sent with every train message.
        ledger: Charge the selection's own releases here, before they happen; None without privacy.
        ask: Sends messages and yields their replies.
        groups: Group of each unit of the roster; empty without groups.
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
    def charged(self, name: str, event: PrivacyEvent) -> Iterator[None]:
        """Charge the selection's own release before it is made; commit it afterwards.

        Without a ledger nothing is charged.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing may be released.
        """
        if self.ledger is None:
            yield
            return
        reservation = self.ledger.reserve_release(name, event)
        yield
        self.ledger.commit(reservation)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the server learnt of one unit that took part; as private as its update.

    Attributes:
        update_norm: L2 norm before clipping; infinite if the update was not finite, NaN if a node
            summed several units.
        utility: The unit's report, as asked by `Selection.utility`; None without one.
    """

    unit: Unit
    server_round: int
    update_norm: float
    utility: float | None

    @classmethod
    def of(cls, unit: Unit, server_round: int, norm: float, report: float) -> Self:
        """A unit's observation; a report of NaN counts as none."""
        return cls(
            unit=unit,
            server_round=server_round,
            update_norm=norm,
            utility=None if math.isnan(report) else report,
        )


class Selection(ABC):
    """A rule that draws cohorts.

    Attributes:
        sampling: Law by which its cohorts are charged; the plan must have the same.
        utility: Name of the number that participants report with their updates (`loss`, `records`
            or a metric of their own); None for none.
        looks_at_norms: Whether it needs each unit's own update norm, which nodes that sum their
            units do not tell.
        unit: Unit of the charge for utilities: `client`, or `record` (one record).
    """

    sampling: Sampling
    utility: str | None = None
    looks_at_norms: bool = False
    unit: str = "client"

    def releases(self, rounds: int) -> History:
        """Events of its own releases, for the plan's other_releases; none by default."""
        return {}

    @abstractmethod
    def select(self, draw: Draw) -> Sequence[Unit]:
        """One cohort, out of `draw.roster`."""

    @property
    def needs(self) -> frozenset[Ability]:
        """Abilities that every client's app needs."""
        return frozenset() if self.utility is None else frozenset({Ability.UTILITY})

    def observe(self, observation: Observation) -> None:
        """Note an observation; nothing by default."""
        return


class LawSelection(Selection):
    """Cohorts drawn by their law alone: by secret coins, or as a draw of one size.

    Privacy: as the law is charged. A cohort must stay secret from the adversary; its size is never
    made constant, topped up or reported. Where a cohort has a fixed size, declared units that are
    absent take part in the draw: no unit's chance rises when others leave. Where groups take
    turns, the ledger gives each unit a public group, once, and each index is one group's turn,
    over restarts.
    """

    def __init__(self, sampling: Sampling) -> None:
        """Draw each cohort by this law."""
        self.sampling: Sampling = sampling
        # A counted cohort is drawn from lasting slots, and each group has its own.
        self._slots: defaultdict[int | None, _DeclaredSlots] = defaultdict(_DeclaredSlots)

    def select(self, draw: Draw) -> list[Unit]:
        """The cohort, possibly empty.

        Raises:
            ValueError: If the units' groups, or whose turn it is, are unknown.
        """
        law, group, declared = self.sampling, None, draw.num_units
        if isinstance(law, CyclicSampling):
            group, declared = law.group_at(_require_turns(draw)), law.largest_group(declared)
        units: Sequence[Unit | None] = draw.roster
        if law.of_declared:
            units = self._slots[group].of(draw, declared)
        chosen = [units[index] for index in law.draw(draw.rng, len(units), draw.groups)]
        return [unit for unit in chosen if unit is not None]


class _DeclaredSlots:
    """One lasting slot per declared unit, for the whole training.

    A unit that arrives when no slot is left takes no part, and an absent unit's slot stays empty:
    neither changes another unit's chance.
    """

    def __init__(self) -> None:
        self._taken: dict[Unit, None] = {}
        self._crowded = False

    def of(self, draw: Draw, declared: int) -> list[Unit | None]:
        """The unit of each declared slot, None where it is absent."""
        connected = set(draw.roster)
        for unit in draw.roster:
            if unit not in self._taken and len(self._taken) < declared:
                self._taken[unit] = None
        if not self._crowded and not connected <= self._taken.keys():
            self._crowded = True
            logger.warning(
                "More clients are there than the plan declares (num_clients): those who came last "
                "take no part"
            )
        empty = declared - len(self._taken)
        slots = [unit if unit in connected else None for unit in self._taken]
        return slots + [None] * empty


class PublicSelection(Selection):
    """The units with the highest public score, among those that have rested long enough.

    Privacy: choosing costs nothing, as no client's data enters. Participants are visible, so
    nothing is amplified; the law's cap bounds the charge of one unit. Under a separation a unit
    takes part at indices of the ledger that are at least so far apart, over restarts, whether it
    answered or not. Without a score units take turns. Ties are broken at random.
    """

    def __init__(
        self, sampling: SeenSampling, score: Callable[[Unit, int], float] | None = None
    ) -> None:
        """Choose by `score(unit, server_round)`.

        Args:
            sampling: Size of a cohort, and how often one unit may take part.
            score: Function of public metadata alone: device class, region, bandwidth. None prefers
                the unit that has waited longest.
        """
        self.sampling: SeenSampling = sampling
        self._score = score
        self._last_round: dict[Unit, int] = {}

    def select(self, draw: Draw) -> list[Unit]:
        """The cohort, best first; the whole roster if it is smaller."""
        if self.sampling.least_separation > 1:  # the roster holds the units that have rested
            _require_turns(draw)
        return self.first(draw, self.sampling.cohort)

    def first(self, draw: Draw, count: int) -> list[Unit]:
        """At most `count` units, best first; they wait from this round on."""
        score = self._score if self._score is not None else self._waited
        scores = np.array([score(unit, draw.server_round) for unit in draw.roster], dtype=float)
        order = np.lexsort((draw.rng.uniforms(len(draw.roster)), -scores))
        chosen = [draw.roster[index] for index in order[:count]]
        self._last_round.update(dict.fromkeys(chosen, draw.server_round))
        return chosen

    def _waited(self, unit: Unit, server_round: int) -> float:
        return float(server_round - self._last_round.get(unit, 0))


class BufferedSelection(PublicSelection):
    """Units asked one by one, for releases of the next answers.

    Privacy: as `PublicSelection`, for the releases that contain a unit's answers. The order of
    answers must not depend on data.

    Reference: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation".

    Attributes:
        concurrency: Units that work at any time.
        max_staleness: Most releases between a unit's model and the release of its answer; an older
            answer counts as zero.
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
            sampling: Answers per release, malformed ones included, and how often a unit is asked.
            concurrency: By default twice the size of a buffer.
            max_staleness: As the attribute; 0 takes answers to the newest model alone.
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
            raise OptionError(
                f"max_staleness must not be negative, got {max_staleness}", option="max_staleness"
            )
        if not (math.isfinite(staleness_power) and staleness_power >= 0.0):
            raise OptionError(
                f"staleness_power must be finite and not negative, got {staleness_power}: "
                "an old answer must not weigh more than a new one",
                option="staleness_power",
            )
        if self.concurrency < size:
            raise OptionError(
                f"concurrency must be at least the buffer's {size}, or it never fills; got "
                f"{self.concurrency}",
                option="concurrency",
            )
        self.max_staleness = max_staleness
        self._power = staleness_power

    def weight(self, staleness: int) -> float:
        """An answer's public factor in [0, 1], by its model's age in releases."""
        if staleness > self.max_staleness:
            return 0.0
        # At most 1: a weight never lengthens a clipped update, so the sensitivity stays the norm.
        return float((1.0 + staleness) ** -self._power)


def selection_of(sampling: Sampling) -> Selection:
    """The plain selection that follows a sampling law.

    Raises:
        ValueError: If the law does not determine the selection.
    """
    match sampling:
        case BufferedSampling():
            return BufferedSelection(sampling)
        case VisibleSampling():
            return PublicSelection(sampling)
        case _:
            return LawSelection(sampling)


def _require_turns(draw: Draw) -> int:
    """The index by which a draw's roster was chosen.

    Raises:
        ValueError: If there is none.
    """
    if draw.index is None:
        raise ValueError("units take turns by a ledger's index: this selection needs a plan")
    return draw.index
