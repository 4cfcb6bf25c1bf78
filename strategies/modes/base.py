"""The contract of a mode: who clips, who adds the noise, and what a round asks of each node.

    mode = loop.make_mode(...)                one object a round
    mode.open(cohort, ask)                    may exchange messages with the cohort first
    mode.content_for(node, content)           what this node is sent
    mode.fold(content, units, ...)            each reply, as it comes
    mode.release(rng, ask)                    may exchange messages again, then lets the mean out

`PrivateLoop` reserves the round before `open` and commits it after `release`; a mode never meets
the ledger, and a new one needs no line in the loop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_dp.codec import encode_text
from fl_dp.documents import real_number
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import INSTRUCTION_KEY
from fl_dp.updates import Compression, VectorLayout

from ..exchange import Ask
from ..roster import Unit
from ..selection import Observation

Cohort: TypeAlias = Mapping[int, tuple[Unit, ...]]
"""The units that take part in a round, by the id of the node that hosts them."""


class RoundFailed(RuntimeError):
    """A round that can't release anything.

    The model stays as it is and the training continues with the next round. What was charged stays
    spent: somebody may have seen a part of it. The text says why, without anything of the updates.

    Attributes:
        excused: Rounds in a row, this one included, that don't count as failures: each has excluded
            a node that spoilt it. 0: this one counts.
    """

    def __init__(self, why: str, *, excused: int = 0) -> None:
        """Say why."""
        super().__init__(why)
        self.excused = excused


@dataclass(frozen=True, kw_only=True)
class Released:
    """Everything that a round lets out, all of it private.

    Attributes:
        mean: The mean update, float64, shape `(d,)`.
        metrics: Means of the clients' metrics by name.
        clipping_norms: Those of the next round, where they change.
        contributions: How many units contributed, as far as that may be known: noisy where the
            bundle counts them, exact where every reply is seen anyway; None: not counted.
        contributions_std: Standard deviation of the noise on that number; 0 where it is exact.
    """

    mean: NDArray[np.float64]
    metrics: dict[str, float] = field(default_factory=dict)
    clipping_norms: tuple[float, ...] | None = None
    contributions: float | None = None
    contributions_std: float = 0.0


class Mode(ABC):
    """One round, from its cohort to its release; each round has an object of its own.

    Attributes:
        layout: Where each array of the model lies in a flat vector.
        instruction: What every node is told besides the train config.
    """

    def __init__(self, layout: VectorLayout, instruction: RoundInstruction) -> None:
        """Prepare a round.

        Args:
            layout: Of the model that is sent.
            instruction: What the strategy asks of every client, whatever the mode: its weight, its
                utility, its compression. A mode adds what it needs itself.
        """
        self.layout = layout
        self.instruction = instruction
        self._told: dict[tuple[int, RoundInstruction], tuple[RecordDict, RecordDict]] = {}

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """Take note of who takes part; the round is charged and nobody was sent anything yet.

        Nothing by default.

        Raises:
            RoundFailed: If the round can't be done with this cohort.
        """
        return

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """Return what one node of the cohort is sent; `instruction` in its config by default.

        Args:
            node: Flower's id.
            content: Model and train config, shared by all nodes: return another object instead of
                changing it.
        """
        return self.told(content, self.instruction)

    def told(self, content: RecordDict, instruction: RoundInstruction) -> RecordDict:
        """Return the content with an instruction in its config; nodes told the same share it."""
        if instruction == RoundInstruction(server_round=instruction.server_round):
            return content  # it says nothing: any Flower client will do
        known = id(content), instruction
        if known not in self._told:
            configs = content.config_records
            key = next(iter(configs), "config")
            before = dict(configs.get(key, {}))
            config = ConfigRecord(before | {INSTRUCTION_KEY: encode_text(instruction)})
            # The content is kept with what was made of it: its id must not become another's.
            self._told[known] = content, RecordDict(dict(content) | {key: config})
        return self._told[known][1]

    @abstractmethod
    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply: of a node of the cohort, no error, and at most one of each.

        Args:
            content: The reply's.
            units: Those of the node that take part; `units[0].node` says whose reply it is.
            server_round: The round's number.

        Returns:
            What the server learnt of each unit.

        Raises:
            RefusedUpdate: If it is no update of this model; then nothing was added.
        """

    def failed(self, node: int, error: Error) -> None:
        """Take note of a node that answered with an error. Nothing by default."""
        return

    @abstractmethod
    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Make the sum private and divide it, once.

        Args:
            rng: Of the noise.
            ask: For another exchange first.

        Raises:
            RoundFailed: If what came back can't be released.
        """

    @property
    def reads_models(self) -> bool:
        """Tell whether replies are models in the model's own dtypes, neither encoded nor summed."""
        return self.instruction.compression is None

    def reply_bytes(self, model: ArrayRecord) -> int:
        """Return how many bytes the arrays of a reply have: public, from shapes and settings."""
        compression = self.instruction.compression or Compression()
        return compression.reply_bytes(model, self.layout)


def coin_rate(plan: Plan) -> float | None:
    """Return the rate at which nodes flip their units' coins themselves; None: they flip none.

    As charged: the expected cohort over the roster can be larger in its last digit.
    """
    return plan.sampling.coin_rate if plan.hosting.coins_at_nodes else None


# Numbers that clients report: nothing a client writes can raise.


def numbers_of(content: RecordDict) -> dict[str, list[float]]:
    """Return every metric of a reply as a list of numbers."""
    records: Sequence[MetricRecord] = list(content.metric_records.values())
    return {
        str(name): [real_number(each) for each in (value if isinstance(value, list) else [value])]
        for record in records
        for name, value in record.items()
    }


def one_of(
    measured: Mapping[str, Sequence[float]], name: str, *, missing: float = math.nan
) -> float:
    """Return the metric of that name if the client reported one number under it."""
    values = measured.get(name, ())
    return values[0] if len(values) == 1 else missing


def observed(unit: Unit, server_round: int, norm: float, report: float) -> Observation:
    """Return what a reply said of a unit; a utility that is NaN was not reported."""
    return Observation(
        unit=unit,
        server_round=server_round,
        update_norm=norm,
        utility=None if math.isnan(report) else report,
    )
