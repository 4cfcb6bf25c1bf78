"""A mode of two exchanges a round, for tests alone: it proves that the contract of modes suffices.

Each node sends its vector under a mask and, asked again before the release, its mask. This hides
nothing from a server that sees both; a mode that ships would sum masks before it sees them, and
add noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from local_grid import FIRST_NODE, reply
from numpy.typing import NDArray

from fl_dp.mechanisms import SecureRandom
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.strategies import (
    Ask,
    Cohort,
    DPFedAvg,
    Mode,
    Observation,
    PrivateLoop,
    Released,
    RoundFailed,
    Unit,
)
from fl_dp.updates import RefusedUpdate, VectorLayout

STEPS = 2.0**16  # grid steps in 1: updates that are multiples of them are summed exactly
TOO_FEW = "too few nodes are left"
Words = NDArray[np.uint32]


class MaskedMode(Mode):
    """The exact sum of those whose masked vector and mask both arrived, over the denominator."""

    def __init__(
        self,
        layout: VectorLayout,
        instruction: RoundInstruction,
        *,
        denominator: float,
        least: int,
        timeout: float,
    ) -> None:
        super().__init__(layout, instruction)
        self.number = instruction.server_round
        self.denominator, self.least, self.timeout = denominator, least, timeout
        self.cohort: Cohort = {}
        self.masked: dict[int, Words] = {}

    def open(self, cohort: Cohort, ask: Ask) -> None:
        self.cohort = cohort
        if len(cohort) < self.least:
            raise RoundFailed(TOO_FEW)

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        terms = {"number": self.number, "place": sorted(self.cohort).index(node)}
        config = ConfigRecord(dict(content["config"]) | terms)  # type: ignore[arg-type]  # a record
        return RecordDict(dict(content) | {"config": config})

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        self.masked[units[0].node] = self.words_of(content)
        return []

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        if len(self.masked) < self.least:
            raise RoundFailed(TOO_FEW)  # before anybody opens anything
        content = RecordDict({"config": ConfigRecord({"number": self.number})})
        questions = [
            Message(content, dst_node_id=node, message_type="query.mask") for node in self.masked
        ]
        opened: dict[int, Words] = {}
        for answer in ask(questions, self.timeout):
            node = answer.metadata.src_node_id
            if answer.has_error() or node not in self.masked:
                continue
            try:
                opened[node] = self.words_of(answer.content)  # twice the same mask is still one
            except RefusedUpdate:
                continue
        if len(opened) < self.least:
            raise RoundFailed(TOO_FEW)
        return Released(mean=self.total(opened) / STEPS / self.denominator)

    def total(self, opened: Mapping[int, Words]) -> NDArray[np.float64]:
        """The sum of those who opened, modulo 2^32 around zero."""
        summed = np.zeros(self.layout.size, np.uint32)
        for node, mask in opened.items():
            summed += self.masked[node] - mask
        return summed.view(np.int32).astype(np.float64)

    def words_of(self, content: RecordDict) -> Words:
        arrays = content.array_records.get("arrays", ArrayRecord())
        words: Any = arrays["words"].numpy() if "words" in arrays else np.empty(0)
        if words.shape != (self.layout.size,) or words.dtype != np.uint32:
            raise RefusedUpdate("it is no vector of words")
        return np.asarray(words, np.uint32)


class MaskedLoop(PrivateLoop):
    """The loop with that mode: one hook."""

    least = 3
    kind = MaskedMode

    def make_mode(self, reservation: Any, layout: Any, origin: Any, instruction: Any) -> Mode:
        return self.kind(
            layout,
            instruction,
            denominator=self.plan.denominator,
            least=self.least,
            timeout=self._timeout,
        )


class Masked(DPFedAvg):
    """`DPFedAvg` with that loop."""

    loop_class = MaskedLoop


class MaskedNodes:
    """Nodes that mask; in each round some never send, some never open, some send rubbish.

    Attributes:
        updates: In grid steps, one row a node.
        silent: Nodes that never send, by round.
        closed: Nodes that send and never open, by round.
        rubbish: Nodes that send something else, by round.
        asked: Every question, answered or not: round, node and kind.
    """

    def __init__(
        self,
        updates: NDArray[np.int32],
        *,
        silent: Mapping[int, set[int]] | None = None,
        closed: Mapping[int, set[int]] | None = None,
        rubbish: Mapping[int, set[int]] | None = None,
    ) -> None:
        self.updates = updates
        self.silent, self.closed, self.rubbish = silent or {}, closed or {}, rubbish or {}
        self.asked: list[tuple[int, int, str]] = []
        self.masks: dict[tuple[int, int], Words] = {}
        self.rng = np.random.default_rng(5)

    def __call__(self, message: Message, node: int) -> Message | None:
        config: Any = message.content["config"]
        number, kind = int(config["number"]), message.metadata.message_type
        self.asked.append((number, node, kind))
        if kind == "train":
            assert config["place"] == node  # each got the content that was written for it
            if node in self.silent.get(number, ()):
                return None
            if node in self.rubbish.get(number, ()):
                return reply(message, {"words": np.zeros(2)})
            mask: Words = self.rng.integers(0, 2**32, (self.updates.shape[1],), dtype=np.uint32)
            self.masks[number, node] = mask
            return reply(message, {"words": self.updates[node].view(np.uint32) + mask})
        if node in self.closed.get(number, ()):
            return Message(Error(code=2, reason="gone"), reply_to=message) if node % 2 else None
        return reply(message, {"words": self.masks[number, node]})

    def mean(self, number: int, denominator: float) -> NDArray[np.float64]:
        """What a round must release: the exact mean of those who sent and opened."""
        gone = set().union(*(nodes.get(number, ()) for nodes in (self.silent, self.closed)))
        gone |= self.rubbish.get(number, set())
        present = [node for node in range(len(self.updates)) if node not in gone]
        total: NDArray[np.float64] = self.updates[present].sum(axis=0) / STEPS / denominator
        return total


def repeated(answer: Message, node: int) -> Message:
    """The same reply in the name of another node."""
    answer.metadata.__dict__["_src_node_id"] = FIRST_NODE + node
    return answer
