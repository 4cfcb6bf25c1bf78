"""The contract of a mode: who clips, who adds noise, and what a round asks of each node.

    mode = loop.make_mode(...)                one object per round
    mode.open(cohort, ask)                    may exchange messages with the cohort first
    mode.content_for(node, content)           the message of this node
    mode.fold(content, units, ...)            each reply, as it comes
    mode.release(rng, ask)                    may exchange messages again, then releases the mean

`PrivateLoop` reserves the round before `open` and commits it after `release`. A mode never meets
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

from fl_dp.accounting import PoissonSampling
from fl_dp.codec import encode_text
from fl_dp.documents import real_number
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.updates import VectorLayout

from ..message_exchange import Ask
from ..selection import Observation
from ..unit_roster import Unit

Cohort: TypeAlias = Mapping[int, tuple[Unit, ...]]
"""The units that take part in a round, by the id of their node."""


class RoundFailed(RuntimeError):
    """A round that can't release anything.

    The model stays as it is and training continues with the next round. The charge stays spent:
    somebody may have seen a part of the round. The text says why, with nothing of the updates.

    Attributes:
        excused: Rounds in a row, this one included, that don't count as failures, because each
            excluded a node that spoilt it; 0 if this one counts.
    """

    def __init__(self, reason: str, *, excused: int = 0) -> None:
        """State the reason."""
        super().__init__(reason)
        self.excused = excused


@dataclass(frozen=True, kw_only=True)
class Released:
    """Everything that a round releases, all private.

    Attributes:
        mean: The mean update, float64, shape `(d,)`.
        metrics: Means of the clients' metrics.
        clipping_norms: Those of the next round, where they change.
        contributions: Number of units that contributed: noisy where the bundle counts them, exact
            where replies are visible anyway, None where not counted.
        contributions_std: Standard deviation of the noise on that number; 0 where it is exact.
    """

    mean: NDArray[np.float64]
    metrics: dict[str, float] = field(default_factory=dict)
    clipping_norms: tuple[float, ...] | None = None
    contributions: float | None = None
    contributions_std: float = 0.0


class Mode(ABC):
    """One round, from its cohort to its release.

    Attributes:
        layout: Position of each array of the model in a flat vector.
        instruction: What every node is asked besides the train config.
    """

    def __init__(self, layout: VectorLayout, instruction: RoundInstruction) -> None:
        """Prepare a round with the layout of the model that is sent.

        `instruction` is what the strategy asks of every client in any mode. A mode adds its own
        needs.
        """
        self.layout = layout
        self.instruction = instruction
        self._instructed: dict[tuple[int, RoundInstruction], tuple[RecordDict, RecordDict]] = {}

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """Take note of the cohort; the round is charged, nothing was sent yet.

        Nothing by default.

        Raises:
            RoundFailed: If the round can't be done with this cohort.
        """
        return

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """One node's message; by default it contains `instruction`.

        All nodes share `content`: an override returns another object instead of changing it.
        """
        return self.with_instruction(content, self.instruction)

    def with_instruction(self, content: RecordDict, instruction: RoundInstruction) -> RecordDict:
        """The content with an instruction in its config; equal results are shared."""
        if instruction.says_nothing:
            return content
        cache_key = id(content), instruction
        if cache_key not in self._instructed:
            configs = content.config_records
            name = next(iter(configs), "config")
            before = dict(configs.get(name, {}))
            config = ConfigRecord(before | {INSTRUCTION_KEY: encode_text(instruction)})
            # The content is kept with its copy: its id must not become another's.
            self._instructed[cache_key] = content, RecordDict(dict(content) | {name: config})
        return self._instructed[cache_key][1]

    @abstractmethod
    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply of a node of the cohort: no error, at most one per node.

        `units` are those of the node that take part; `units[0].node` is the node's id.

        Returns:
            What the server learnt of each unit.

        Raises:
            RefusedUpdate: If it is no update of this model; then nothing was added.
        """

    def failed(self, node: int, error: Error) -> None:
        """Take note of a node that answered with an error; nothing by default."""
        return

    @abstractmethod
    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Make the sum private and divide it, once.

        Raises:
            RoundFailed: If the replies can't be released.
        """

    def lists_in(self, content: RecordDict) -> list[str]:
        """Names of the round's metrics of which a reply has a list, which counts as missing."""
        bundle = self.instruction.bundle
        if bundle is None:
            return []
        measured = numbers_of(content)
        return [m.name for m in bundle.metrics if len(measured.get(m.name, (0.0,))) != 1]

    def update_in(self, content: RecordDict) -> ArrayRecord | NDArray[np.float64]:
        """One unit's update in a reply. See `Compression.update_in`."""
        return self.instruction.encoding.update_in(content, self.layout.size)

    @property
    def reads_models(self) -> bool:
        """Whether replies are models in the model's own dtypes, neither encoded nor summed."""
        return not self.instruction.encoding.encodes

    def reply_bytes(self, model: ArrayRecord) -> int:
        """Bytes of a reply's arrays: public, from shapes and settings."""
        return self.instruction.encoding.reply_bytes(model, self.layout)


def coin_rate(plan: Plan) -> float | None:
    """Rate of the coins that nodes flip for their units; None if they flip none.

    It is the charged rate: the expected cohort over the roster can be larger in its last digit.
    """
    law = plan.sampling
    if plan.hosting.coins_at_nodes and isinstance(law, PoissonSampling):
        return law.sampling_rate
    return None


# Numbers that clients report: no content of a reply may raise an exception.


def numbers_of(content: RecordDict) -> dict[str, list[float]]:
    """Every metric of a reply, as a list of numbers."""
    records: Sequence[MetricRecord] = list(content.metric_records.values())
    metrics: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            numbers = value if isinstance(value, list) else [value]
            metrics[str(name)] = [real_number(number) for number in numbers]
    return metrics


def single_number(
    measured: Mapping[str, Sequence[float]], name: str, *, missing: float = math.nan
) -> float:
    """A client's metric if it reported one number under that name, else `missing`."""
    values = measured.get(name, ())
    return values[0] if len(values) == 1 else missing
