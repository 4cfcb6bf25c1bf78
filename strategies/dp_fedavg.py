"""DP-FedAvg with the noise at the server, around any Flower strategy.

    reserve -> sample -> push(window) -> [reply -> check -> clip -> add]* -> noise -> step -> commit

    >>> plan = PrivacyPlan.calibrate(PrivacyBudget(epsilon=2, delta=1e-3), rounds=60, ...)
    >>> with PrivacyLedger.open("ledger.db", plan) as ledger:
    ...     strategy = DPFedAvg(strategy=FedAvg(), plan=plan, ledger=ledger)
    ...     result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=60)

Reference: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
algorithm 1 with the fixed-denominator estimator and equal weights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from numpy.typing import NDArray

from fl_dp.accounting import PrivacyBudgetExhausted, PrivacyLedger, PrivacyPlan, Reservation
from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.updates import RefusedUpdate, VectorLayout, only_array_record

from .exchange import default_window, exchange, wait_for_roster
from .selection import PoissonSelection
from .server_optimizer import ServerOptimizer

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class _OpenRound:
    """A round that was reserved and not yet released."""

    number: int
    reservation: Reservation
    mechanism: GaussianMechanism
    layout: VectorLayout
    model: ArrayRecord
    origin: NDArray[np.float64]
    instruction: RecordDict


class DPFedAvg(Strategy):
    """A Flower strategy whose every released model is differentially private.

    Privacy: for one client's whole contribution over the whole training (the unit), zero-out
    neighbours, the plan's (epsilon, delta), against anyone who sees every released model but not
    who took part. The server is trusted with updates, coins and noise. Train and evaluation
    metrics of clients are dropped, not averaged: they would be a second, uncharged release.

    Attributes:
        rounds_completed: Rounds whose model was released by this object.
        budget_exhausted: Whether training ended early because the next round did not fit.
    """

    def __init__(
        self,
        *,
        strategy: Strategy | None = None,
        plan: PrivacyPlan,
        ledger: PrivacyLedger,
        window: int | None = None,
        roster_timeout: float = 60.0,
        rng: SecureRandom | None = None,
        plateau_metric: str = "accuracy",
    ) -> None:
        """Put a private path in front of `strategy`.

        Args:
            strategy: The server optimizer, `FedAvg()` by default. It sees one private reply a
                round; its sampling fractions and its weights are not used.
            plan: What is released and at what price.
            ledger: Opened with the same plan.
            window: How many clients are under way at once; chosen by the grid when None.
            roster_timeout: Seconds to wait for the plan's clients to connect.
            rng: Where noise and coins come from; a secure source by default. An insecure one, for
                tests and simulations, is refused unless the ledger was opened with it.
            plateau_metric: Which metric of `evaluate_fn` a plan with a plateau reacts to; must be
                computed from public data.

        Raises:
            ValueError: If the ledger belongs to another plan or does not know of insecure noise.
        """
        if ledger.plan != plan:
            raise ValueError("the ledger was opened with another plan than the strategy's")
        self._rng = rng if rng is not None else SecureRandom()
        ledger.require_known(self._rng)
        self.plan = plan
        self.ledger = ledger
        self.optimizer = ServerOptimizer(strategy if strategy is not None else FedAvg())
        self.selection = PoissonSelection(plan.sampling_rate)
        self.rounds_completed = 0
        self.budget_exhausted = False
        self._max_units = plan.bundle(plan.least_noise_multiplier).updates.max_units
        self._plateau = plan.plateau_controller()
        self._plateau_metric = plateau_metric
        self._window = window
        self._roster_timeout = roster_timeout
        self._timeout = 3600.0
        self._open: _OpenRound | None = None
        self._warned: set[str] = set()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train for `num_rounds` rounds, or until the budget is spent.

        Args:
            grid: Flower's grid.
            initial_arrays: The starting model; public.
            num_rounds: At most the plan's rounds.
            timeout: Seconds to wait for the replies of a round. Who has not replied by then
                contributes zero; noise, denominator and charge stay the same.
            train_config: Sent to the clients with every round.
            evaluate_config: Not used: evaluation on clients' data would be an uncharged release.
            evaluate_fn: Evaluates each model on public data at the server.

        Returns:
            Flower's `Result`. When the budget ends early its arrays are the last private model.

        Raises:
            ValueError: If more rounds are asked for than the plan has, or its plateau has no
                `evaluate_fn` to look at.
            RosterIncomplete: If fewer clients connect than the plan declares.
        """
        if num_rounds > self.plan.rounds:
            raise ValueError(
                f"{num_rounds} rounds were asked for, but the plan's budget pays for "
                f"{self.plan.rounds}: plan more rounds (each gets more noise) or train fewer"
            )
        if self._plateau is not None and evaluate_fn is None:
            raise ValueError(
                "the plan's noise reacts to a plateau of a public metric: pass an evaluate_fn that "
                f"returns '{self._plateau_metric}'"
            )
        if evaluate_config:
            self._warn_once("evaluate_config is not used: clients are not asked to evaluate")
        self._timeout = timeout
        self.summary()
        wait_for_roster(grid, self.plan.num_clients, timeout=self._roster_timeout)
        window = self._window if self._window is not None else default_window(grid)

        result = Result(arrays=initial_arrays)
        began = time.monotonic()
        self._evaluate(evaluate_fn, 0, result)
        for server_round in range(1, num_rounds + 1):
            try:
                messages = self.configure_train(
                    server_round, result.arrays, train_config or ConfigRecord(), grid
                )
            except PrivacyBudgetExhausted as exhausted:
                self.budget_exhausted = True
                logger.info("Training ends with the last private model: %s", exhausted)
                break
            replies = exchange(grid, messages, window=window, timeout=timeout)
            arrays, _ = self.aggregate_train(server_round, replies)
            assert arrays is not None  # a round that was configured always releases a model
            result.arrays = arrays
            logger.info(
                "[ROUND %d/%d] released, epsilon so far %.3f",
                server_round,
                num_rounds,
                self.ledger.running_epsilon(),
            )
            self._evaluate(evaluate_fn, server_round, result)
        logger.info("Training finished in %.1f s", time.monotonic() - began)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the round on disk, then draw its cohort and write the messages.

        Raises:
            PrivacyBudgetExhausted: If the round does not fit the budget; nobody was sampled.
            ValueError: If the model can't be trained privately.
        """
        layout = VectorLayout.of(arrays)
        roster = sorted(grid.get_node_ids())
        if len(roster) > self._max_units:
            raise ValueError(
                f"{len(roster)} nodes are connected and at most {self._max_units} can be summed "
                f"exactly at noise multiplier {self.plan.least_noise_multiplier:.4g}"
            )
        released = layout.only_released(arrays)
        instruction = self.optimizer.instruct(server_round, released, config, roster)
        key = next(iter(instruction.array_records))
        origin = layout.flatten(released)

        reservation = self.ledger.reserve(
            round=server_round,
            noise_multiplier=self._plateau.multiplier if self._plateau is not None else None,
            participants=roster if self.plan.participation_cap is not None else None,
        )
        assert reservation.noise_multiplier is not None  # every round of a plan has noise
        self._open = _OpenRound(
            number=server_round,
            reservation=reservation,
            mechanism=self.plan.bundle(reservation.noise_multiplier).updates,
            layout=layout,
            model=arrays,
            origin=origin,
            instruction=instruction,
        )
        content = RecordDict(dict(instruction) | {key: arrays})
        return [
            Message(
                content=content,
                message_type=MessageType.TRAIN,
                dst_node_id=node,
                ttl=self._timeout,
                group_id=str(server_round),
            )
            for node in self.selection.sample(roster, self._rng)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into one sum as they come, add the noise once, and release the model.

        A reply that is missing, an error, malformed or not finite contributes zero.

        Raises:
            RuntimeError: If the round was not configured before: it would not be charged.
        """
        current = self._open
        if current is None or current.number != server_round:
            raise RuntimeError(f"round {server_round} was not reserved: call configure_train first")
        self._open = None

        total = np.zeros(current.layout.size, dtype=np.float64)
        for reply in replies:
            total += self._contribution(reply, current)
        mean = current.mechanism.release(total, self._rng) / self.plan.denominator

        private = current.layout.unflatten(current.origin + mean)
        updated = self.optimizer.step(server_round, private, current.instruction)
        model = current.layout.merge(updated, current.model)
        self.ledger.commit(current.reservation)
        self.rounds_completed += 1
        return model, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: what clients measure on their data is not covered by the budget."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing, for the same reason."""
        return None

    def summary(self) -> None:
        """Log what will be released and at what price."""
        plan = self.plan
        logger.info("DP-FedAvg over %s:", type(self.optimizer.strategy).__name__)
        logger.info(
            "\t├── Budget: epsilon %.4g at delta %.3g, one client's whole contribution (%s)",
            plan.budget.epsilon,
            plan.budget.delta,
            plan.neighboring_relation,
        )
        logger.info(
            "\t├── Rounds: %d, each client drawn with probability %.4g out of %d",
            plan.rounds,
            plan.sampling_rate,
            plan.num_clients,
        )
        logger.info(
            "\t├── Clipping norm %.4g, noise multiplier %s, denominator %.4g",
            plan.clipping_norm,
            _describe_noise(plan),
            plan.denominator,
        )
        logger.info("\t├── Rule: %s", self.ledger.rule)
        logger.info("\t└── Ledger: %s", self.ledger.location)
        if self.ledger.insecure:
            logger.warning("The noise is INSECURE: whoever knows the seed can take it away again")

    def _contribution(self, reply: Message, current: _OpenRound) -> NDArray[np.float64] | float:
        """Return a reply's clipped update in grid steps, or zero."""
        if reply.has_error():
            self._warn_once("a client failed; a failed client contributes zero")
            return 0.0
        try:
            update = current.layout.flatten(only_array_record(reply.content)) - current.origin
        except RefusedUpdate as refused:
            self._warn_once(f"an update was refused and contributes zero: {refused}")
            return 0.0
        if not np.isfinite(update).all():
            self._warn_once("an update was not finite and contributes zero")
            return 0.0
        return current.mechanism.encode(update)

    def _evaluate(
        self,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        server_round: int,
        result: Result,
    ) -> None:
        if evaluate_fn is None:
            return
        metrics = evaluate_fn(server_round, result.arrays)
        if metrics is not None:
            result.evaluate_metrics_serverapp[server_round] = metrics
        if self._plateau is not None and server_round > 0:
            if metrics is None or self._plateau_metric not in metrics:
                raise ValueError(
                    f"the plan's noise reacts to '{self._plateau_metric}', which evaluate_fn did "
                    "not return"
                )
            self._plateau.observe(float(cast(float, metrics[self._plateau_metric])))

    def _warn_once(self, text: str) -> None:
        """Log each kind of mishap once: how often it happens is private."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s (said once)", text)


def _describe_noise(plan: PrivacyPlan) -> str:
    if plan.plateau is not None:
        first = plan.noise_multipliers[0]
        return f"{first:.4g} at first, at least {plan.least_noise_multiplier:.4g}"
    low, high = min(plan.noise_multipliers), max(plan.noise_multipliers)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
