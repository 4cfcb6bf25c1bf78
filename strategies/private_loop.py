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
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.codec import encode_text
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import PrivacyLedger, Reservation
from fl_dp.mechanisms import BandedStream, NoiseStream, WhiteStream
from fl_dp.mechanisms.noise_stream import Sample
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan
from fl_dp.plan.noise_left import noise_left
from fl_dp.promise import Enforcement, weakest
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, ROUNDS_KEY
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
from .contributions import ContributionCheck
from .federation_statistics import charged_answer
from .message_exchange import Federation, patience
from .modes import Mode, Released, RoundFailed
from .modes.by_plan import mode_class_of
from .modes.planned import ChargedRound
from .open_round import Answered, RoundDraft
from .participations import Participations
from .question import Question
from .rehearsal import RehearsalFailed, require_gates_at_all_or_none
from .round_evaluation import RoundEvaluation, answer_in_words
from .round_loop import LoopOptions, RoundLoop, Start
from .secure import SecureSums, secure_sums_of
from .server_optimizer import ServerOptimizer
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
        optimizer: ServerOptimizer,
        options: LoopOptions,
        *,
        plan: Plan,
        ledger: PrivacyLedger,
        roster_may_grow: bool,
        secure_roster: SecureRoster | None,
        owners: Mapping[str, float] | None,
        evaluation: RoundEvaluation | None,
    ) -> None:
        """Prepare; `DPFedAvg` describes the options."""
        self.noise_stream: NoiseStream = WhiteStream()
        if plan.coefficients is not None:
            self.noise_stream = BandedStream(plan.coefficients)
        super().__init__(
            optimizer,
            options,
            roster=UnitRoster(
                plan.num_clients,
                hosting=plan.hosting,
                may_grow=roster_may_grow,
                timeout=options.roster_timeout,
            ),
            participations=Participations(ledger, owners=owners),
            contribution_check=(
                ContributionCheck(plan) if plan.release.contribution_check else None
            ),
            cohorts_are_visible=plan.sampling.visible,
            trained=plan.trained,
        )
        self.plan = plan
        self.ledger = ledger
        self.evaluation = evaluation
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
            trained = self._layout_of(start.initial_arrays).only_released(start.initial_arrays)
            require_no_running_statistics(trained)
            require_memory(trained)
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
    def _metrics(self) -> Sequence[str]:
        """Names of metrics that the plan releases."""
        return [metric.name for metric in self.plan.release.metrics]

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
        claimed = self._answers.enforcement(nodes_of(draft.roster))
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

    def _question(
        self, evaluation: RoundEvaluation, content: RecordDict, arrays: ArrayRecord
    ) -> Question:
        return evaluation.question(content, arrays, weighted_by=self.optimizer.weight_key)

    def _evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        federation: Federation,
    ) -> MetricRecord | None:
        """Charge and release what every client measures. See `RoundLoop._evaluate`."""
        if self.evaluation is None:
            return None
        roster = self._roster.units(federation.grid, self._log)
        nodes = nodes_of(self._participations.members(roster))
        model = self._layout_of(arrays).only_released(arrays)
        content = self.optimizer.instruct_evaluation(server_round, model, config, nodes)
        if content is None:
            return None
        try:
            answer = charged_answer(
                federation,
                self.ledger,
                f"evaluation of round {server_round}",
                self._question(self.evaluation, content, arrays),
                nodes=nodes,
                rng=self.options.rng,
                log=self._log,
            )
        except PrivacyBudgetExhausted as exhausted:
            self._log.warn_once(f"a model is not evaluated by clients: {exhausted}")
            return None
        metrics = self.evaluation.metrics_of(answer)
        if metrics is None:
            self._log.warn_once(
                "an evaluation is hidden by its noise and left out: it needs more clients that "
                "reply with every metric and their num-examples, or a larger epsilon"
            )
        else:
            logger.info("\t└──> Evaluation by clients: %s", answer_in_words(answer))
        return self.optimizer.step_evaluation(server_round, metrics)

    @property
    def _stays_spent(self) -> str:
        """See `RoundLoop._stays_spent`."""
        return "; what the rounds so far were charged stays spent"

    def _spent(self) -> str:
        # Delta, unit, neighbours and adversary stand above the rounds.
        so_far = Guarantee.of(self.plan, spent=self.ledger.running_epsilon())
        return f", epsilon {so_far.numbers}"

    def _rehearse(
        self,
        federation: Federation,
        nodes: Sequence[int],
        model: ArrayRecord,
        config: ConfigRecord,
    ) -> None:
        """Ask for identities, and let nodes make keys. See `RoundLoop._rehearse`."""
        layout = self._layout_of(model)
        if warning := float64_error_of(self.plan, layout):
            self._log.warn_once(warning)
        noise = noise_left(self.plan, layout.size)
        logger.info(noise.in_words)
        if noise.warning is not None:
            self._log.warn_once(noise.warning)
        super()._rehearse(federation, nodes, model, config)
        if self._sums is not None:
            require_gates_at_all_or_none(self._answers)
        enforcement = self._answers.enforcement(nodes)
        if not self.plan.trusts_server and enforcement is not Enforcement.APP:
            logger.info(
                "All %d nodes are behind gates, as they say: the promise is %s",
                len(nodes),
                enforcement,
            )
        if self.evaluation is not None and not self._answers.untried:  # else nobody can tell more
            question = self._question(self.evaluation, RecordDict({"arrays": model}), model)
            question.rehearse(federation, nodes, trusts_server=self.plan.trusts_server)
        if self._sums is not None:
            self._make_keys(self._sums, federation, nodes)

    def _make_keys(self, sums: SecureSums, federation: Federation, nodes: Sequence[int]) -> None:
        """Let nodes make their keys for secure sums.

        Raises:
            RehearsalFailed: If they can't work together; nothing was charged.
        """
        assert self.plan.noise is not None  # of a plan with secure sums
        timeout = patience(federation.grid, federation.rehearsal_timeout)
        ask = federation.asking(patient=True)
        try:
            sums.prepare(nodes, self.plan.noise.shares, ask, timeout=timeout)
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

    def _needs(self) -> set[Ability]:
        """Abilities that every client's app needs."""
        return super()._needs() | self._mode_class.needs(self.plan)

    def _rehearsal_config(self) -> dict[str, str]:
        """Instructions that an owner may not allow."""
        config = {ROUNDS_KEY: str(self.plan.charged_rounds)}
        instruction = self._mode_class.rehearsal_instruction(self.plan, self.options.instruction(1))
        if instruction is not None:
            config[INSTRUCTION_KEY] = encode_text(instruction)
        return config

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
