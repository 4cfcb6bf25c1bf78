"""An open round: one message and one reply per node, and the model they lead to."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from flwr.app import (
    ArrayRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray

from fl_dp.promise import Enforcement, weakest
from fl_dp.protocol.failures import Failure, take_failure
from fl_dp.protocol.gate_marks import enforcement_in
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.updates import RefusedUpdate, VectorLayout

from .companions import Optimizer
from .log import Log
from .message_exchange import one_of_each
from .modes import Ask, Cohort, Mode, Released
from .selection import Draw, Observation, Selection
from .unit_roster import Unit

_LARGE = 1 << 22  # parameters of a model whose replies must not pile up


@dataclass(frozen=True, kw_only=True)
class RoundDraft:
    """A round before anybody is charged or asked.

    Attributes:
        flat_model: The last released model, flattened.
        sent: The model as it is sent, perhaps narrower.
        origin: `sent`, flattened: clients' updates are relative to it.
        content: The message that the server optimizer would send to a client.
        instruction: What every client is asked besides training, in any mode.
        roster: Every unit that may take part; `draw.roster` holds those that may now.
        simulated: Whether no node is real, so that a failure may be logged whole.
    """

    layout: VectorLayout
    flat_model: NDArray[np.float64]
    sent: ArrayRecord
    origin: NDArray[np.float64]
    content: RecordDict
    instruction: RoundInstruction
    roster: Sequence[Unit]
    draw: Draw
    ask: Ask
    simulated: bool = False


@dataclass(kw_only=True)
class Answered:
    """Exact counts of a round's answers: of real nodes they must stay secret.

    Attributes:
        failed: Number of replies that contribute nothing.
        worked: Number of the others.
        failures: One failure of each kind, as far as nodes tell it; simulated ones do.
        shown: The weakest enforcement that answers of each node of the cohort show.
    """

    failed: int = 0
    worked: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    shown: dict[int, Enforcement] = field(default_factory=dict)

    @property
    def enforcement(self) -> Enforcement:
        """The weakest that a node shows; without answers, the strongest."""
        return weakest([Enforcement.SITE, *self.shown.values()])

    def note_enforcement(self, reply: Message) -> None:
        """Note the enforcement that a reply of the cohort shows."""
        node = reply.metadata.src_node_id
        before = self.shown.get(node, Enforcement.SITE)
        self.shown[node] = weakest([before, enforcement_in(reply)])

    def note(self, failure: Failure | None, *, worked: bool) -> None:
        """Count a reply."""
        self.worked += worked
        self.failed += not worked
        if failure is not None:
            self.failures.setdefault(failure.kind, failure)


@dataclass(frozen=True, kw_only=True)
class OpenRound:
    """A round whose cohort is drawn and whose model is not released yet."""

    draft: RoundDraft
    mode: Mode
    cohort: Cohort

    @property
    def expected(self) -> int:
        """Number of units that were to contribute; as public as the cohort."""
        return sum(map(len, self.cohort.values()))

    @cached_property
    def _content(self) -> RecordDict:
        model_key = next(iter(self.draft.content.array_records))
        return RecordDict(dict(self.draft.content) | {model_key: self.draft.sent})

    def messages(self, timeout: float) -> list[Message]:
        """One message per node of the cohort; equal content is shared."""
        return [self.message_for(node, timeout) for node in self.cohort]

    def message_for(self, node: int, lifetime: float) -> Message:
        """One node's message, which expires after `lifetime` seconds."""
        return Message(
            content=self.mode.content_for(node, self._content),
            message_type=MessageType.TRAIN,
            dst_node_id=node,
            ttl=lifetime,
            group_id=str(self.draft.draw.server_round),
        )

    def collect(self, replies: Iterable[Message], selection: Selection, log: Log) -> Answered:
        """Fold replies into the mode one by one, at most one per node of the cohort.

        A reply that is an error, unasked for, malformed or not finite contributes zero and never
        raises: one client must not be able to end a training.

        Returns:
            Counts and failures, for a simulation; of real nodes nothing may depend on them.
        """
        answered = Answered()
        for reply in self._admitted(replies, log):
            asked = reply.metadata.src_node_id in self.cohort  # else Flower answers for one
            if asked:
                answered.note_enforcement(reply)
            failure = take_failure(reply) if self.draft.simulated else None
            if reply.has_error():
                answered.note(failure, worked=False)
                log.failed(reply, asked=asked)
                self.mode.failed(reply.metadata.src_node_id, reply.error)
                continue
            try:
                observations = self._fold(reply)
            except RefusedUpdate as refused:
                log.warn_once(f"an update was refused and contributes zero: {refused}")
                answered.note(Failure(text=f"an update was refused: {refused}"), worked=False)
                continue
            if self.mode.reads_models and self.draft.layout.converts(reply.content):
                log.warn_once(
                    "an update has another floating-point dtype than the model; it is converted"
                )
            for name in self.mode.lists_in(reply.content):
                log.warn_once(
                    f"metric '{name}' of a reply is a list, and counts as the middle of its range: "
                    "let clients report one number"
                )
            finite = not any(math.isinf(observation.update_norm) for observation in observations)
            if not finite:
                log.warn_once("an update was not finite and contributes zero")
                failure = Failure(text="an update was not finite (a lower learning rate?)")
            answered.note(failure, worked=finite and (failure is None or not failure.whole_node))
            for observation in observations:
                selection.observe(observation)
            if self.draft.layout.size >= _LARGE:
                gc.collect(1)  # Flower's records are cycles: replies would pile up until it runs
        if answered.failed and not answered.worked and not self.draft.simulated:
            log.warn_once(
                "every client that replied in a round failed, and the round stays charged: look at "
                "the logs of the nodes; ctrl-C stops the training before another one is charged"
            )
        return answered

    def _admitted(self, replies: Iterable[Message], log: Log) -> Iterator[Message]:
        """Yield every error reply, and others that may contribute."""
        return one_of_each(replies, self.cohort, log)

    def _fold(self, reply: Message) -> list[Observation]:
        """Add one reply. See `Mode.fold`."""
        units = self.cohort[reply.metadata.src_node_id]
        return self.mode.fold(reply.content, units, server_round=self.draft.draw.server_round)

    def next_model(
        self, released: Released, optimizer: Optimizer
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """The server optimizer's next model, from the released mean, and its metrics."""
        draft = self.draft
        # The mean is added to the exact model, even if clients were sent a narrower one.
        private = draft.layout.unflatten(draft.flat_model, released.mean)
        updated, metrics = optimizer.step(
            draft.draw.server_round, private, draft.content, released.metrics
        )
        if updated is None:
            return draft.draw.model, metrics
        return draft.layout.merge(updated, draft.draw.model), metrics
