"""Private rounds: charge, draw, ask, check, clip, sum, add the noise, and only then the strategy.

    reserve -> sample -> push(window) -> [reply -> check -> clip -> add]* -> noise -> step -> commit

A cohort that is seen is drawn before it is reserved, with its names; nobody is asked before that.
`DPFedAvg` holds one of these. Whatever is overridden here is the mechanism that the plan charges
for; a subclass of a strategy comes to none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.codec import encode_text
from fl_dp.ledger import PrivacyLedger, Reservation
from fl_dp.mechanisms import BandedStream, NoiseStream, WhiteStream
from fl_dp.plan import Plan
from fl_dp.plan.noise_left import noise_left
from fl_dp.promise import Enforcement, weakest
from fl_dp.protocol.identity import Ability
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import INSTRUCTION_KEY, ROUNDS_KEY
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.secagg import SecureSumFailed
from fl_dp.updates import VectorLayout

from .checkpoint import Checkpoint
from .compatibility import (
    float64_error_of,
    require_memory,
    require_no_running_statistics,
    require_trainable,
)
from .exchange import asking, patience
from .modes import Mode, Released, RoundFailed
from .modes.ways import Opened, way_of
from .open_round import Answered, RoundDraft
from .rehearsal import RehearsalFailed
from .roster import Unit, nodes_of
from .round_loop import EvaluateFn, LoopOptions, RoundLoop, ShouldStop
from .server_optimizer import ServerOptimizer

logger = logging.getLogger("flwr.fl_dp")


class PrivateLoop(RoundLoop):
    """Rounds of which each is charged before it is opened, and private before it is released.

    Attributes:
        buffers: Whether releases are made of the next answers.
        plan: What is released and at what price.
        ledger: What was charged so far.
        owns_ledger: Whether the ledger is closed when training ends.
        noise_stream: Where the noise on sums of updates comes from, cut at every start. A stream
            with memory needs a plan that charges for it.
        Others: See `RoundLoop`.
    """

    buffers = False

    def __init__(
        self,
        optimizer: ServerOptimizer,
        options: LoopOptions,
        *,
        plan: Plan,
        ledger: PrivacyLedger,
        secure_roster: SecureRoster | None,
    ) -> None:
        """Prepare; options are told in `DPFedAvg`."""
        coefficients = plan.coefficients
        self.noise_stream: NoiseStream = (
            WhiteStream() if coefficients is None else BandedStream(coefficients)
        )
        super().__init__(optimizer, options)
        self.plan = plan
        self.ledger = ledger
        self.owns_ledger = False
        self._reservation: Reservation
        self._way = way_of(plan, secure_roster)
        self._enforcement = Enforcement.SITE  # the weakest so far
        self._clipping_norms = plan.release.clipping.first_norms

    def run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFn | None,
        should_stop: ShouldStop | None,
    ) -> Result:
        """Train, or as long as the budget lasts. See `RoundStrategy.start`."""
        plan = self.plan
        self.noise_stream.cut()
        try:
            require_no_running_statistics(initial_arrays)
            require_memory(initial_arrays)
            if num_rounds > plan.rounds:
                raise ValueError(
                    f"{num_rounds} rounds were asked for, but the plan's budget pays for "
                    f"{plan.rounds}: plan more rounds (each gets more noise) or train fewer"
                )
            result = super().run(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
                should_stop,
            )
            self._way.end(asking(grid, window=self._window))
            return result
        except PrivacyBudgetExhausted as exhausted:
            if self._progress.trained:
                raise
            raise PrivacyBudgetExhausted(
                f"the ledger {self.ledger.location} is spent ({exhausted}): use the model of the "
                "earlier run, go on from its checkpoint with resume(checkpoint), or name a new "
                "ledger, whose epsilon adds to what these clients have spent here"
            ) from None
        finally:
            self.noise_stream.cut()  # memory holds no noise for longer than it is needed
            if self.owns_ledger:
                self.ledger.close()

    def open(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the round on disk, draw its cohort and write the messages. See `RoundLoop.open`.

        Where the cohort is secret, it is drawn after the round is reserved; where it is seen, the
        ledger has to know who is charged.
        """
        plan = self.plan
        draft = self._draft(
            server_round,
            arrays,
            config,
            grid,
            num_units=plan.num_units,
            ledger=self.ledger,
        )
        require_trainable(plan, draft.layout, len(draft.roster))  # or a round is charged in vain
        if plan.sampling.visible and not plan.hosting.coins_at_nodes:
            self._participations.require_some_left(draft.roster, server_round=server_round)
            cohort = self.selection.select(draft.draw)
            self._reservation = self.ledger.reserve(
                round=server_round,
                participants=self._participations.names_of(cohort),
                index=draft.draw.index,
            )
        else:  # charged for any draw: an empty cohort costs as much as a full one
            self._reservation = self.ledger.reserve(round=server_round, index=draft.draw.index)
            # Where nodes flip the coins themselves, the server must not know how they came up.
            coins_at_server = not plan.hosting.coins_at_nodes
            cohort = self.selection.select(draft.draw) if coins_at_server else draft.roster
        mode = self.make_mode(self._reservation, draft.layout, draft.origin, draft.instruction)
        try:
            return self._ask_cohort(draft, mode, cohort)
        except RoundFailed:
            self._heard(draft, Answered())  # nobody has the model
            raise

    def make_mode(
        self,
        reservation: Reservation,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        instruction: RoundInstruction,
    ) -> Mode:
        """Return what becomes of a round: the place to put noise somewhere else.

        Args:
            reservation: What the ledger has on disk for the round.
            layout: Of the model that is sent.
            origin: That model, flattened.
            instruction: What every client is asked besides training, whatever the mode.
        """
        opened = Opened(
            reservation=reservation,
            layout=layout,
            origin=origin,
            instruction=instruction,
            clipping_norms=self._clipping_norms,
            stream=self.noise_stream,
            rng=self._rng,
            untried=self._untried,
            group_of=self._participations.group_of,
        )
        return self._way.mode(opened)

    @property
    def _metrics(self) -> Sequence[str]:
        """Names of the metrics that the plan releases. See `RoundLoop._metrics`."""
        return [metric.name for metric in self.plan.release.metrics]

    @property
    def clipping_norms(self) -> tuple[float, ...]:
        """Clipping norms of the next round."""
        return self._clipping_norms

    def checkpoint(self) -> Checkpoint:
        """Return what a new process can `resume` from. See `RoundLoop.checkpoint`."""
        return replace(
            super().checkpoint(),
            clipping_norms=self._clipping_norms,
            ledger=self.ledger.anchor,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the checkpoint's round when `start` is called.

        What was reserved after it stays spent: the budget may end a round earlier for each.

        Raises:
            ValueError: If the checkpoint is of another kind of training.
            LedgerCorrupted: If the ledger does not hold what it held at the checkpoint.
        """
        checkpoint.require_kind(ledger=True, clipping_norms=self._clipping_norms)
        assert checkpoint.ledger is not None and checkpoint.clipping_norms is not None  # its kind
        self.ledger.require_holds(checkpoint.ledger, of="the checkpoint")
        super().resume(checkpoint)
        self._clipping_norms = checkpoint.clipping_norms

    def _heard(self, draft: RoundDraft, answered: Answered) -> None:
        """Write down what kept apps to the policy, before anything is released.

        See `RoundLoop._heard`.
        """
        if self.plan.trusts_server:
            return
        told = self._answers.enforcement(nodes_of(draft.roster))
        for node, shown in answered.shown.items():
            if told is not Enforcement.APP and shown is Enforcement.APP:
                self._log.warn_once(
                    f"{self._answers.called(node)} answered without a gate: the statement no "
                    "longer says that sites enforce it"
                )
        # The weakest of all rounds so far: in which of them such a node takes part must not show.
        self._enforcement = weakest([self._enforcement, told, answered.enforcement])
        self.ledger.note_enforcement(self._reservation, self._enforcement)

    def _settle(self, released: Released) -> None:
        """Commit the round in the ledger, and keep the clipping norms of the next one."""
        self.ledger.commit(self._reservation)
        if released.clipping_norms is not None:
            self._clipping_norms = released.clipping_norms

    @property
    def _stays_spent(self) -> str:
        """See `RoundLoop._stays_spent`."""
        return "; what the rounds so far were charged stays spent"

    def _spent(self) -> str:
        return f", epsilon so far {self.ledger.running_epsilon():.3f}"

    def _rehearse(
        self, grid: Grid, nodes: Sequence[int], model: ArrayRecord, config: ConfigRecord
    ) -> None:
        """Let nodes say who they are, and make their keys. See `RoundLoop._rehearse`."""
        layout = VectorLayout.of(model)
        if said := float64_error_of(self.plan, layout):
            self._log.warn_once(said)
        left = noise_left(self.plan, layout.size)
        logger.info(left.in_words)
        if left.warning is not None:
            self._log.warn_once(left.warning)
        super()._rehearse(grid, nodes, model, config)
        enforcement = self._answers.enforcement(nodes)
        if not self.plan.trusts_server and enforcement is not Enforcement.APP:
            logger.info(
                "All %d nodes are behind gates, as they say: the promise is %s",
                len(nodes),
                enforcement,
            )
        ask = asking(grid, window=self._window, patient=True)
        timeout = patience(grid, min(self._timeout, self._roster.timeout))
        try:
            self._way.rehearse(nodes, ask, timeout=timeout)
        except SecureSumFailed as failed:
            raise RehearsalFailed(f"{failed}; nothing was charged") from failed

    def _eligible(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """Return the units that may take part in the next round. See `RoundLoop._eligible`."""
        return self._way.eligible(roster)

    def _needs(self) -> set[Ability]:
        """Return what every client's app has to be able to do. See `RoundLoop._needs`."""
        return super()._needs() | self._way.needs()

    def _told_at_rehearsal(self) -> dict[str, str]:
        """Return what nodes are to do, as far as an owner may not allow it."""
        told = {ROUNDS_KEY: str(self.plan.charged_rounds)}
        compression = None if self._compression.up == "none" else self._compression
        asked = self._way.told(compression)
        return told if asked is None else told | {INSTRUCTION_KEY: encode_text(asked)}

    def _require_a_round_left(self, grid: Grid) -> None:
        """Check, before the first model is evaluated or saved, that it can be trained at all.

        Raises:
            PrivacyBudgetExhausted: If not.
        """
        plan, ledger = self.plan, self.ledger
        if plan.sampling.cap is not None:
            roster = self._roster.units(grid, self._log)
            self._participations.require_some_left(roster, server_round=1)
        elif ledger.another_round_exceeds(plan.event_of(1)):
            raise PrivacyBudgetExhausted(
                f"epsilon {plan.budget.epsilon:.4g} at delta {plan.budget.delta:.3g} pays for no "
                f"round after the {ledger.rounds_spent} that are spent"
            )
        if ledger.rounds_spent:
            logger.warning(
                "The ledger has %d rounds of an earlier training, and this one begins with the "
                "initial arrays: to go on from what was trained, resume(checkpoint)",
                ledger.rounds_spent,
            )
