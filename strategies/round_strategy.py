"""The part of a strategy that subclasses may replace: it meets released models alone.

Flower's `Strategy.start` hands clients' replies to `aggregate_train`. Here they stay in the
strategy's `RoundLoop`: a subclass's overrides act behind the noise, like a server optimizer.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fl_dp.arguments import with_read_arguments
from fl_dp.plan import RecordPlan
from fl_dp.promise import Enforcement

from .checkpoint import Checkpoint
from .companions import EvaluateFn, ShouldStop, Start
from .round_loop import RoundLoop
from .selection import Selection
from .server_optimizer import ServerOptimizer
from .unused import uncalled_of, unused_of

logger = logging.getLogger("flwr.fl_dp")


class RoundStrategy(Strategy):
    """A Flower strategy around another one, whose rounds a `RoundLoop` runs.

    Attributes:
        optimizer: The server optimizer.
        loop: Draws, asks, checks, sums and releases. No subclass of a strategy replaces it.
    """

    loop: RoundLoop
    _weights_are_used = False  # whether replies are weighted by the strategy's weighted_by_key

    def __init__(self, strategy: Strategy | None, *, evaluates: bool = False) -> None:
        """Stand before a server optimizer; `FedAvg()` by default.

        `evaluates` says whether clients are asked to evaluate.
        """
        if strategy is None:
            strategy = FedAvg()
        self.optimizer = ServerOptimizer(strategy, front=self)
        self._evaluates = evaluates
        weighted = self._weights_are_used
        for line in unused_of(
            self.optimizer.strategy, weights_are_used=weighted, evaluates=evaluates
        ):
            logger.warning(line)
        if not evaluates:
            for line in uncalled_of(self, RoundStrategy):
                logger.warning(line)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a subclass that would run the rounds or make their sums.

        Raises:
            TypeError: If it overrides `start`, or has a `make_mode`.
        """
        super().__init_subclass__(**options)
        if cls.start is not RoundStrategy.start:
            raise TypeError(
                f"{cls.__name__} overrides start, which charges and keeps raw replies from every "
                "other method: override aggregate_train, or use evaluate_fn and after_round"
            )
        if hasattr(cls, "make_mode"):
            raise TypeError(
                f"{cls.__name__}.make_mode would not be called: override it in a subclass of the "
                f"loop, and name that as {cls.__name__}.loop_class (docs/extending.md)"
            )

    @final
    @with_read_arguments()
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Result:
        """Train for the plan's rounds, or until the budget is spent.

        Args:
            grid: Flower's grid.
            initial_arrays: The starting model; public. Not used after `resume`.
            num_rounds: At most the plan's, which is the default; those before a resumption count.
                Without a plan the default is 3, as Flower's.
            timeout: Seconds to wait for a round's replies. A later reply contributes zero; noise,
                denominator and charge stay the same.
            train_config: Sent to clients with every round.
            evaluate_config: Sent to clients with every `evaluation`. Without one it is not used,
                with a warning: what clients measure would be an uncharged release.
            evaluate_fn: Evaluates each model on public data at the server.
            should_stop: Called after each round that released a model, with its number and the
                result so far, which it must not change. True ends the training with that model;
                the rest of the budget stays for a resumption.

        Returns:
            Flower's `Result`. If the budget ends early, its arrays are the last private model.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If the plan has fewer rounds than asked for, the model has a BatchNorm's
                running statistics, or the server has too little memory for it.
            RosterIncomplete: If fewer clients connect than the plan declares.
            RosterTooLarge: If more do, and the roster may not grow; nothing was spent.
            RehearsalFailed: If a node or the server optimizer will not work; nothing was spent.
            PrivacyBudgetExhausted: If no round is left and there is no checkpoint to go on from:
                the model would come back untrained.
            NobodyContributes: If (almost) no client's update was ever added, also when the last
                round is over; see `Plan.contribution_check`. In a simulation also if every client
                of a round failed.
            RoundFailed: If three rounds in a row, or all, failed and there is no earlier model.
        """
        start = Start(
            grid=grid,
            initial_arrays=initial_arrays,
            num_rounds=self.planned_rounds if num_rounds is None else num_rounds,
            timeout=timeout,
            train_config=ConfigRecord() if train_config is None else train_config,
            evaluate_config=ConfigRecord(dict(evaluate_config or {})),
            evaluate_fn=evaluate_fn,
            should_stop=should_stop,
        )
        return self.loop.run(start, self.summary)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message with what clients get; nothing is charged or sent here.

        `server_round` counts from 1; `arrays` is the last released model. An override may write
        into `config`, the train config. `grid` shows the roster and sends nothing.

        Raises:
            RuntimeError: If another grid is given: `start` runs the rounds.
        """
        return self.optimizer.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the next model of what a round released.

        `replies` is one reply, as if one client had answered. Its arrays are the last model plus
        the private mean; its metrics are those that the plan releases. `server_round` counts from
        1.

        Returns:
            The next model, with arrays of the same names and shapes, or None to keep the last one;
            and the released metrics with those of the server optimizer, if any.

        Raises:
            RuntimeError: If these are other replies: `start` runs the rounds.
        """
        return self.optimizer.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return what clients get to evaluate; nothing without an `evaluation` that is paid for.

        As `configure_train`. All clients are asked; an empty list leaves a round out, uncharged.
        """
        if not self._evaluates:
            return []
        return self.optimizer.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of an `evaluation`; nothing without one.

        `replies` is one reply, as if one client had answered: the private means by name. It is
        empty where the noise hides them.

        Raises:
            RuntimeError: If these are other replies: `start` runs the rounds.
        """
        if not self._evaluates:
            return None
        return self.optimizer.aggregate_evaluate(server_round, replies)

    @property
    def planned_rounds(self) -> int:
        """Default number of rounds of `start`."""
        return 3

    @abstractmethod
    def summary(self) -> None:
        """Log what will be released and at what price."""

    def checkpoint(self) -> Checkpoint:
        """See `RoundLoop.checkpoint`."""
        return self.loop.checkpoint()

    def resume(self, checkpoint: Checkpoint) -> None:
        """See `RoundLoop.resume`."""
        self.loop.resume(checkpoint)

    @property
    def selection(self) -> Selection:
        """Draws the cohorts."""
        return self.loop.options.selection

    @property
    def record_plan(self) -> RecordPlan | None:
        """Clients' promise to each of their records, if any."""
        return self.loop.options.record_plan

    @property
    def rounds_completed(self) -> int:
        """Rounds whose model this object released."""
        return self.loop.rounds_completed

    @property
    def budget_exhausted(self) -> bool:
        """Whether training ended early because the next round did not fit."""
        return self.loop.budget_exhausted

    @property
    def released_metrics(self) -> dict[str, float]:
        """Clients' metrics of the last round, as the plan releases them."""
        return self.loop.released_metrics

    @property
    def bytes_down(self) -> int:
        """Bytes of the arrays that the last round sent each node; 0 before the first; public."""
        return self.loop.bytes_down

    @property
    def bytes_up(self) -> int:
        """Bytes of the arrays in each node's answer; public, from shapes and settings alone."""
        return self.loop.bytes_up

    @property
    def most_participations(self) -> int | None:
        """See `Progress.most_participations`."""
        return self.loop.most_participations

    @property
    def enforcement(self) -> Enforcement | None:
        """See `RoundLoop.enforcement`."""
        return self.loop.enforcement
