"""Private rounds: charge, draw, ask, check, clip, sum, add noise; only then the strategy.

    reserve -> sample -> push(window) -> [reply -> check -> clip -> add]* -> noise -> step -> commit

A visible cohort is drawn before the charge, which names its members; nobody is asked before the
charge. An override in `PrivateLoop` changes the mechanism that the plan charges for; a subclass of
a strategy reaches none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import PrivacyLedger, Reservation
from fl_dp.mechanisms import BandedStream, NoiseStream, WhiteStream
from fl_dp.mechanisms.noise_stream import Sample
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan
from fl_dp.promise import Enforcement, weakest
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.secagg import SecureSumFailed
from fl_dp.updates import VectorLayout

from .checkpoint import Checkpoint
from .companions import Beginning, Companions, Optimizer, Start
from .compatibility import (
    require_ledger_of,
    require_loop_of,
    require_selection_of,
    require_trainable,
)
from .message_exchange import patience
from .modes import Mode, Released, RoundFailed
from .modes.by_plan import mode_class_of
from .modes.planned import ChargedRound
from .node_answers import RehearsalFailed
from .open_round import Answered, RoundDraft
from .participations import Participations
from .round_loop import LoopOptions, RoundLoop
from .secure import secure_sums_of
from .unit_roster import Unit, UnitRoster, nodes_of

logger = logging.getLogger("flwr.fl_dp")


class PrivateLoop(RoundLoop):
    """Rounds, each charged before it is opened and private before it is released.

    Attributes:
        buffers: Whether releases are made of the next answers.
        owns_ledger: Whether the ledger is closed when training ends.
        noise_stream: Source of the noise on sums of updates; every start resets it. A stream with
            memory needs a plan that charges for it.
        Others: See `DPFedAvg`.
    """

    buffers = False

    def __init__(
        self,
        optimizer: Optimizer,
        options: LoopOptions,
        *,
        plan: Plan,
        ledger: PrivacyLedger,
        roster_may_grow: bool = False,
        secure_roster: SecureRoster | None = None,
        owners: Mapping[str, float] | None = None,
        companions: Companions | None = None,
    ) -> None:
        """Prepare; `DPFedAvg` describes the options.

        Raises:
            ValueError: If plan, ledger and selection do not belong together, or an option does not
                go with the plan.
        """
        require_ledger_of(plan, ledger)
        require_loop_of(plan, buffers=self.buffers)
        ledger.require_known(options.rng)
        require_selection_of(plan, options.selection)
        options.require_fit(plan, roster_may_grow=roster_may_grow)
        self.noise_stream: NoiseStream = WhiteStream()
        if plan.coefficients is not None:
            self.noise_stream = BandedStream(plan.coefficients)
        super().__init__(
            optimizer,
            options,
            companions=companions,
            roster=UnitRoster(
                plan.num_clients,
                hosting=plan.hosting,
                may_grow=roster_may_grow,
                timeout=options.roster_timeout,
            ),
            participations=Participations(ledger, owners=owners),
            cohorts_are_visible=plan.sampling.visible,
            trained=plan.trained,
        )
        self.plan = plan
        self.ledger = ledger
        self.owns_ledger = False
        self._reservation: Reservation
        self._mode_class = mode_class_of(plan)
        self._sums = secure_sums_of(plan, secure_roster)
        self._enforcement = Enforcement.SITE  # the weakest so far
        self._clipping_norms = plan.release.clipping.first_norms

    def sample_by(self, sample: Sample) -> None:
        """Draw fresh noise by `sample`, such as `NoiseSource(device).for_host`.

        A stream with memory stays as it is: its noise is drawn on the host.
        """
        if type(self.noise_stream) is WhiteStream:
            self.noise_stream = WhiteStream(sample)

    def run(self, start: Start, announce: Callable[[], None]) -> Result:
        """Train while the budget lasts. See `RoundLoop.run`."""
        plan = self.plan
        self.noise_stream.cut()
        try:
            if start.num_rounds > plan.rounds:
                raise OptionError(
                    f"{start.num_rounds} rounds were asked for, but the plan's budget pays for "
                    f"{plan.rounds}: plan more rounds (each gets more noise) or train fewer",
                    option="num_rounds",
                )
            done, model = self._progress.origin(start.initial_arrays)
            if done == 0 and start.num_rounds > 0:
                self._progress.begin(done, model)
                self._require_budget_left()
            result = super().run(start, announce)
            if self._sums is not None:  # nodes forget their keys
                self._sums.forget(self._federation(start.grid).asking())
            return result
        except PrivacyBudgetExhausted as exhausted:
            if self._progress.trained:
                raise
            raise PrivacyBudgetExhausted(
                f"the ledger {self.ledger.location} is spent ({exhausted}): use the model of the "
                "earlier run, go on from its checkpoint with resume(checkpoint), or give a further "
                "training a name= of its own, whose budget adds to this one's"
            ) from None
        finally:
            self.noise_stream.cut()  # memory holds no noise for longer than it is needed
            if self.owns_ledger:
                self.ledger.close()

    def open(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the round on disk, draw its cohort and write the messages. See `RoundLoop.open`.

        A secret cohort is drawn after the reservation; a visible one before, as the ledger has to
        know its members.
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
            cohort = self.options.selection.select(draft.draw)
            self._reservation = self.ledger.reserve(
                round=server_round,
                participants=self._participations.names_of(cohort),
                index=draft.draw.index,
            )
        else:  # charged for any draw: an empty cohort costs as much as a full one
            self._reservation = self.ledger.reserve(round=server_round, index=draft.draw.index)
            cohort = draft.roster
            # Where nodes flip the coins themselves, the server must not know how they came up.
            if not plan.hosting.coins_at_nodes:
                cohort = self.options.selection.select(draft.draw)
        mode = self.make_mode(self._reservation, draft.layout, draft.origin, draft.instruction)
        try:
            return self._ask_cohort(draft, mode, cohort)
        except RoundFailed:
            self._note_answers(draft, Answered())  # nobody has the model
            raise

    def make_mode(
        self,
        reservation: Reservation,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        instruction: RoundInstruction,
    ) -> Mode:
        """The mode of a round; override it to add noise elsewhere."""
        charged = ChargedRound(
            reservation=reservation,
            layout=layout,
            origin=origin,
            instruction=instruction,
            clipping_norms=self._clipping_norms,
            stream=self.noise_stream,
            rng=self.options.rng,
            untried=self._untried,
            group_of=self._participations.group_of,
            sums=self._sums,
        )
        return self._mode_class(self.plan, charged)

    @property
    def clipping_norms(self) -> tuple[float, ...]:
        """Clipping norms of the next round."""
        return self._clipping_norms

    def checkpoint(self) -> Checkpoint:
        """See `RoundLoop.checkpoint`; with the ledger's anchor and clipping norms."""
        return replace(
            super().checkpoint(),
            clipping_norms=self._clipping_norms,
            ledger=self.ledger.anchor,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the checkpoint's round at the next `start`.

        Rounds reserved after it stay spent: the budget may end a round earlier for each.

        Raises:
            ValueError: If the checkpoint is of another kind of training.
            LedgerCorrupted: If the ledger does not hold what it held at the checkpoint.
        """
        checkpoint.require_kind(ledger=True, clipping_norms=self._clipping_norms)
        assert checkpoint.ledger is not None and checkpoint.clipping_norms is not None  # its kind
        self.ledger.require_holds(checkpoint.ledger, of="the checkpoint")
        super().resume(checkpoint)
        self._clipping_norms = checkpoint.clipping_norms

    def _note_answers(self, draft: RoundDraft, answered: Answered) -> None:
        """Record the enforcement that nodes showed, before any release."""
        if self.plan.trusts_server:
            return
        claimed = weakest(self._answers.enforcements(nodes_of(draft.roster)))
        for node, shown in answered.shown.items():
            if claimed is not Enforcement.APP and shown is Enforcement.APP:
                self._log.warn_once(
                    f"{self._answers.called(node)} answered without a gate: the statement no "
                    "longer says that sites enforce it"
                )
        # The weakest of all rounds so far: in which of them such a node takes part must not show.
        self._enforcement = weakest([self._enforcement, claimed, answered.enforcement])
        self.ledger.note_enforcement(self._reservation, self._enforcement)

    def _settle(self, released: Released) -> None:
        """Commit the round in the ledger, and keep the next clipping norms."""
        self.ledger.commit(self._reservation)
        if released.clipping_norms is not None:
            self._clipping_norms = released.clipping_norms

    @property
    def _stays_spent(self) -> str:
        """See `RoundLoop._stays_spent`."""
        return "; what the rounds so far were charged stays spent"

    def _meet(self, beginning: Beginning) -> None:
        """Let nodes make keys for secure sums, once they are known. See `RoundLoop._meet`."""
        super()._meet(beginning)
        if self._sums is None:
            return
        assert self.plan.noise is not None  # of a plan with secure sums
        federation = beginning.federation
        timeout = patience(federation.grid, federation.rehearsal_timeout)
        ask = federation.asking(patient=True)
        try:
            self._sums.prepare(beginning.nodes, self.plan.noise.shares, ask, timeout=timeout)
        except SecureSumFailed as failed:
            raise RehearsalFailed(f"{failed}; nothing was charged") from failed

    def _eligible(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """All units but those of nodes that lied or were late. See `RoundLoop._eligible`."""
        if self._sums is None:
            return roster
        assert self.plan.noise is not None  # of a plan with secure sums
        nodes, least = nodes_of(roster), self.plan.noise.shares.least
        try:
            self._sums.require_left(nodes, least)
        except SecureSumFailed as failed:
            raise RoundFailed(str(failed)) from failed
        allowed = set(self._sums.allowed(nodes, least))
        return [unit for unit in roster if unit.node in allowed]

    def _require_a_round_left(self, grid: Grid) -> None:
        """Check that some unit is below its cap.

        Raises:
            PrivacyBudgetExhausted: If all have.
        """
        if self.plan.sampling.cap is not None:
            roster = self._roster.units(grid, self._log)
            self._participations.require_some_left(roster, server_round=1)
        if self.ledger.rounds_spent:
            logger.warning(
                "The ledger has %d rounds of an earlier training, and this one begins with the "
                "initial arrays: to go on from what was trained, resume(checkpoint)",
                self.ledger.rounds_spent,
            )

    def _require_budget_left(self) -> None:
        """Check that the ledger pays for a round, if it can tell without the roster.

        Raises:
            PrivacyBudgetExhausted: If it does not.
        """
        plan, ledger = self.plan, self.ledger
        if plan.sampling.cap is None and ledger.another_round_exceeds(plan.event_of(1)):
            raise PrivacyBudgetExhausted(
                f"{Guarantee.of(plan)} pays for no round after the {ledger.rounds_spent} that are "
                "spent"
            )
