"""Requests that outlast a release; their answers fill one buffer after another."""

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

from .log import Log
from .message_exchange import BATCH, SHORTEST_PAUSE, batches, longer
from .modes import BufferedMode
from .open_round import OpenRound
from .participations import Participations
from .selection import BufferedSelection, Observation
from .training_progress import Progress
from .unit_roster import Unit


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """A unit asked for one contribution.

    Attributes:
        name: The unit's lasting name.
        index: Index of the release that was open.
        origin: The model it was sent, flattened; None once its answer would be too old.
        deadline: Monotonic time, in seconds, at which it is given up.
    """

    unit: Unit
    name: str
    index: int
    origin: NDArray[np.float64] | None
    deadline: float


@dataclass(frozen=True, kw_only=True)
class OpenBuffer(OpenRound):
    """A release that waits for its contributions.

    Attributes:
        index: Index in the ledger.
        arrived: The request that each message answers, as the buffer hands them over.
    """

    mode: BufferedMode
    index: int
    selection: BufferedSelection
    arrived: dict[str, AnswerRequest] = field(default_factory=dict)

    @property
    def expected(self) -> int:
        """Number of contributions that fill it."""
        return self.selection.sampling.cohort

    def weight_of(self, request: AnswerRequest) -> float:
        """An answer's public weight in this release."""
        return self.selection.weight(self.index - request.index)

    def _admitted(self, replies: Iterable[Message], log: Log) -> Iterator[Message]:
        for reply in replies:
            request = self.arrived.get(reply.metadata.reply_to_message_id)
            if request is None:
                log.warn_once("a reply came that was not waited for, or twice; it is ignored")
            elif reply.has_error():
                yield reply
            elif reply.metadata.src_node_id != request.unit.node:
                log.warn_once("a reply came from another node than the asked; it contributes zero")
            elif request.origin is None or self.weight_of(request) == 0.0:
                log.warn_once("an answer came more than max_staleness releases late; it is zero")
            else:
                yield reply

    def _fold(self, reply: Message) -> list[Observation]:
        # Popped: a second reply to one message would move the sum by more than was charged.
        request = self.arrived.pop(reply.metadata.reply_to_message_id)
        assert request.origin is not None  # it was admitted
        return self.mode.fold_answer(
            reply.content,
            request.unit,
            origin=request.origin,
            weight=self.weight_of(request),
            server_round=self.draft.draw.server_round,
        )


@dataclass(eq=False, kw_only=True)
class Buffer:
    """Requests of one training, over all its releases.

    Every request is in the ledger before it is sent, and every answer before it is added. Whatever
    it holds, an answer counts towards the buffer: no unit's data decide when a release is made.
    """

    selection: BufferedSelection
    ledger: PrivacyLedger
    participations: Participations
    progress: Progress
    log: Log
    _under_way: dict[str, AnswerRequest] = field(default_factory=dict, init=False)
    _waiting: deque[tuple[AnswerRequest, Message | None]] = field(default_factory=deque, init=False)

    @property
    def under_way(self) -> int:
        """Number of requests whose answers are in no release yet."""
        return len(self._under_way) + len(self._waiting)

    def fill(self, grid: Grid, current: OpenBuffer, *, timeout: float) -> Iterator[Message]:
        """Ask units, and yield answers until the buffer is full; later ones stay for the next.

        It ends with fewer after `timeout` seconds, or when no request is open. A node works on a
        request for at most `max_staleness + 1` timeouts: later, its answer would be too old.
        """
        deadline, pause = clock.now() + timeout, SHORTEST_PAUSE
        for message_id, request in self._under_way.items():
            if current.weight_of(request) == 0.0:  # too old: nobody needs its model any more
                self._under_way[message_id] = replace(request, origin=None)
        self._ask(grid, current, timeout)
        missing = current.expected
        while True:
            taken = self._take(grid, missing)
            if taken:
                self.ledger.fold([request.name for request, _ in taken])
                missing -= len(taken)
                if missing:  # else the next model is a better one to send
                    self._ask(grid, current, timeout)
                for request, reply in taken:
                    if reply is not None:
                        current.arrived[reply.metadata.reply_to_message_id] = request
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

    def lifetime(self, timeout: float) -> float:
        """Seconds for which a request stays open: its answer may miss as many buffers."""
        return timeout * (self.selection.max_staleness + 1)

    def _ask(self, grid: Grid, current: OpenBuffer, timeout: float) -> None:
        """Ask as many units as may be under way."""
        room = self.selection.concurrency - self.under_way
        if room <= 0:
            return
        busy = {request.unit for request in self._under_way.values()}
        busy |= {request.unit for request, _ in self._waiting}
        available = self.participations.available(current.draft.roster, current.index)
        idle = [unit for unit in available if unit not in busy]
        draw = replace(current.draft.draw, roster=idle)
        units = self.selection.first(draw, room)
        names = self.participations.names_of(units)
        if not units or names is None:
            return
        self.ledger.ask(names)  # on disk before anybody hears of it
        self.progress.asked([unit.node for unit in units])
        lifetime = self.lifetime(timeout)
        deadline = clock.now() + lifetime
        requests = [
            AnswerRequest(
                unit=unit,
                name=name,
                index=current.index,
                origin=current.draft.origin,
                deadline=deadline,
            )
            for unit, name in zip(units, names, strict=True)
        ]
        for start in range(0, len(requests), BATCH):
            batch = requests[start : start + BATCH]
            messages = [current.message_for(request.unit.node, lifetime) for request in batch]
            ids = list(grid.push_messages(messages))
            for index, request in enumerate(batch):
                if index < len(ids) and ids[index]:
                    self._under_way[ids[index]] = request
                else:  # it could not be stored: its unit will never answer
                    self._waiting.append((request, None))

    def _take(self, grid: Grid, room: int) -> list[tuple[AnswerRequest, Message | None]]:
        """At most `room` answers, in order of arrival."""
        for ids in batches(list(self._under_way)):
            if len(self._waiting) >= room:
                break
            for reply in grid.pull_messages(ids):
                request = self._under_way.pop(reply.metadata.reply_to_message_id, None)
                if request is None:
                    self.log.warn_once("a reply came that was not waited for; it is ignored")
                else:
                    self._waiting.append((request, reply))
        now = clock.now()
        expired = [sent for sent, request in self._under_way.items() if now >= request.deadline]
        for message_id in expired:
            self._waiting.append((self._under_way.pop(message_id), None))
        return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
