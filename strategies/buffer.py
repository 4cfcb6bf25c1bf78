"""Requests that outlast a release, and the answers that fill one buffer after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_dp import clock
from fl_dp.ledger import PrivacyLedger

from .exchange import BATCH, SHORTEST_PAUSE, batches, longer
from .modes import BufferedMode
from .open_round import OpenRound
from .participations import Participations
from .progress import Progress
from .roster import Unit
from .run_log import RunLog
from .selection import BufferedSelection, Observation


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A unit that was asked for one contribution.

    Attributes:
        unit: Who.
        name: Its lasting name.
        index: The index that was open.
        origin: The model that it was sent, flattened; None once its answer would be too old.
        until: When it is given up, by the monotonic clock.
    """

    unit: Unit
    name: str
    index: int
    origin: NDArray[np.float64] | None
    until: float


@dataclass(frozen=True, kw_only=True)
class OpenBuffer(OpenRound):
    """A release that waits for its contributions.

    Attributes:
        mode: The sum that they are added to.
        index: Of the release, from the ledger.
        selection: Whose weights they have.
        arrived: Whose answer each message has, as the buffer hands them over.
    """

    mode: BufferedMode
    index: int
    selection: BufferedSelection
    arrived: dict[str, Asked] = field(default_factory=dict)

    @property
    def expected(self) -> int:
        """How many contributions fill it."""
        return self.selection.sampling.cohort

    def weight_of(self, asked: Asked) -> float:
        """Return the public weight of an answer in this release."""
        return self.selection.weight(self.index - asked.index)

    def _admitted(self, replies: Iterable[Message], log: RunLog) -> Iterator[Message]:
        for reply in replies:
            asked = self.arrived.get(reply.metadata.reply_to_message_id)
            if asked is None:
                log.warn_once("a reply came that was not waited for, or twice; it is ignored")
            elif reply.has_error():
                yield reply
            elif reply.metadata.src_node_id != asked.unit.node:
                log.warn_once("a reply came from another node than the asked; it contributes zero")
            elif asked.origin is None or self.weight_of(asked) == 0.0:
                log.warn_once("an answer came more than max_staleness releases late; it is zero")
            else:
                yield reply

    def _fold(self, reply: Message) -> list[Observation]:
        # Popped: a second reply to one message would move the sum by more than was charged.
        asked = self.arrived.pop(reply.metadata.reply_to_message_id)
        assert asked.origin is not None  # it was admitted
        return self.mode.fold_answer(
            reply.content,
            asked.unit,
            origin=asked.origin,
            weight=self.weight_of(asked),
            server_round=self.draft.draw.server_round,
        )


@dataclass(eq=False, kw_only=True)
class Buffer:
    """Asks under way, over all releases of one training.

    Every ask is in the ledger before it is sent, and every answer before it is added. An answer
    fills a place whatever it holds, so that no unit's data decide when a release is made.

    Attributes:
        selection: Who is asked next, and how many at a time.
        ledger: Where asks and answers are written down.
        participations: Who may be asked.
        progress: Counts who was asked.
        log: Where mishaps are told of.
    """

    selection: BufferedSelection
    ledger: PrivacyLedger
    participations: Participations
    progress: Progress
    log: RunLog
    _under_way: dict[str, Asked] = field(default_factory=dict, init=False)
    _waiting: deque[tuple[Asked, Message | None]] = field(default_factory=deque, init=False)

    @property
    def under_way(self) -> int:
        """How many were asked whose answers are in no release yet."""
        return len(self._under_way) + len(self._waiting)

    def fill(self, grid: Grid, current: OpenBuffer, *, timeout: float) -> Iterator[Message]:
        """Ask units and yield answers until the buffer is full; who answers later is kept.

        It ends with fewer after `timeout` seconds, or when nobody is left to wait for.

        Args:
            grid: Flower's grid.
            current: The release.
            timeout: Seconds. Nobody works on an ask for longer than `max_staleness + 1` of these,
                after which its answer would be too old.
        """
        deadline, pause = clock.now() + timeout, SHORTEST_PAUSE
        for sent, each in self._under_way.items():
            if current.weight_of(each) == 0.0:  # too old: nobody needs its model any more
                self._under_way[sent] = replace(each, origin=None)
        self._ask(grid, current, timeout)
        missing = current.expected
        while True:
            taken = self._take(grid, missing)
            if taken:
                self.ledger.fold([asked.name for asked, _ in taken])
                missing -= len(taken)
                if missing:  # else the next model is a better one to send
                    self._ask(grid, current, timeout)
                for asked, reply in taken:
                    if reply is not None:
                        current.arrived[reply.metadata.reply_to_message_id] = asked
                        yield reply
                pause = SHORTEST_PAUSE
            if not missing:
                return
            if not self.under_way:
                self.log.warn_once(
                    "nobody is left who may be asked: a buffer is released before it is full"
                )
                return
            if clock.now() >= deadline:
                self.log.warn_once("a buffer was not full in time, and is released as it is")
                return
            if not taken:
                clock.sleep(min(pause, deadline - clock.now()))
                pause = longer(pause)

    def _ask(self, grid: Grid, current: OpenBuffer, timeout: float) -> None:
        """Ask as many units as may be under way."""
        room = self.selection.concurrency - self.under_way
        if room <= 0:
            return
        busy = {each.unit for each in self._under_way.values()}
        busy |= {each.unit for each, _ in self._waiting}
        left = self.participations.left(current.draft.roster, current.index)
        draw = replace(current.draft.draw, roster=[unit for unit in left if unit not in busy])
        units = self.selection.first(draw, room)
        names = self.participations.names_of(units)
        if not units or names is None:
            return
        self.ledger.ask(names)  # on disk before anybody hears of it
        self.progress.asked([unit.node for unit in units])
        lifetime = timeout * (self.selection.max_staleness + 1)
        until = clock.now() + lifetime
        asked = [
            Asked(
                unit=unit, name=name, index=current.index, origin=current.draft.origin, until=until
            )
            for unit, name in zip(units, names, strict=True)
        ]
        for start in range(0, len(asked), BATCH):
            batch = asked[start : start + BATCH]
            ids = list(
                grid.push_messages(
                    [current.message_for(each.unit.node, lifetime) for each in batch]
                )
            )
            for place, each in enumerate(batch):
                if place < len(ids) and ids[place]:
                    self._under_way[ids[place]] = each
                else:  # it could not be stored: its unit will never answer
                    self._waiting.append((each, None))

    def _take(self, grid: Grid, room: int) -> list[tuple[Asked, Message | None]]:
        """Return up to that number of answers, in the order of their arrival."""
        for ids in batches(list(self._under_way)):
            if len(self._waiting) >= room:
                break
            for reply in grid.pull_messages(ids):
                asked = self._under_way.pop(reply.metadata.reply_to_message_id, None)
                if asked is None:
                    self.log.warn_once("a reply came that was not waited for; it is ignored")
                else:
                    self._waiting.append((asked, reply))
        now = clock.now()
        for sent in [sent for sent, each in self._under_way.items() if now >= each.until]:
            self._waiting.append((self._under_way.pop(sent), None))
        return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
