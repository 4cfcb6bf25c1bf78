"""What a loop is handed from above: no promise of its rounds needs it.

It meets released models and numbers alone, or acts before the first charge. Clients' evaluation is
charged by itself. A training without any of it keeps the same promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fl_dp.updates import VectorLayout

from .contributions import ContributionCheck
from .log import Log
from .message_exchange import Federation
from .node_answers import Answers

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Measures the model of a round on public data; None leaves a round out."""

ShouldStop = Callable[[int, Result], bool]
"""Returns whether training stops after a round, given its number and the result so far."""

Evaluate = Callable[
    [int, ArrayRecord, ConfigRecord, Federation, Sequence[int]], MetricRecord | None
]
"""Lets nodes evaluate a round's released arrays, for a charge of its own."""


class Optimizer(Protocol):
    """Makes the next model of what a round releases, as `ServerOptimizer` describes."""

    @property
    def weight_key(self) -> str:
        """Name of a client's number of records in its replies."""

    def instruct(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Sequence[int]
    ) -> RecordDict:
        """What a client is sent."""

    def step(
        self,
        server_round: int,
        arrays: ArrayRecord,
        instruction: RecordDict,
        metrics: Mapping[str, float],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, None to keep the last one, and metrics."""

    def state(self) -> dict[str, NDArray[Any]]:
        """What `restore` goes on from."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where `state` was called."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Arguments of `RoundStrategy.start`, where they are described."""

    grid: Grid
    initial_arrays: ArrayRecord
    num_rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    should_stop: ShouldStop | None


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """A training before its first charge.

    Attributes:
        federation: The nodes of a grid, and how long they are waited for.
        nodes: The connected ones.
        model: The model to begin with.
        layout: Positions of its trained arrays.
        rounds_done: Number of rounds before a resumption.
        lifetime: Seconds for which a node's answer to a training message is of use.
        needs_everyone: Whether every node must tell its name, given the first answers.
    """

    start: Start
    federation: Federation
    nodes: Sequence[int]
    model: ArrayRecord
    layout: VectorLayout
    rounds_done: int
    lifetime: float
    needs_everyone: Callable[[Answers], bool]


class Preparation:
    """What is tried before the first charge, so that no training fails that is paid for.

    This one tries nothing and asks nobody.
    """

    def of_model(self, model: ArrayRecord, layout: VectorLayout, *, is_first: bool) -> None:
        """Refuse a model that can't be trained; not `is_first`: training goes on from it.

        Raises:
            UnfitModel: If it can't; nobody was asked.
        """

    def of_nodes(self, beginning: Beginning) -> Answers:
        """Ask nodes who they are and what they will answer with.

        Raises:
            RehearsalFailed: If a node, or the server optimizer, can't contribute.
        """
        return Answers()


@dataclass(frozen=True, kw_only=True)
class Companions:
    """What stands around a loop.

    Attributes:
        log: Tells what happens.
        preparation: Tries everything before the first charge.
        evaluate: Clients' evaluation of each released model; None: nobody is asked.
        contribution_check: Ends a training to which nobody contributes; None: no check.
    """

    log: Log = field(default_factory=Log)
    preparation: Preparation = field(default_factory=Preparation)
    evaluate: Evaluate | None = None
    contribution_check: ContributionCheck | None = None
