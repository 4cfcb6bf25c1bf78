"""A training's rounds, from roster to last model: what all strategies share.

    wait for the roster -> prepare -> [open -> exchange -> release -> evaluate]*

Subclasses define a round: `PrivateLoop` with privacy, `UnprotectedLoop` without. Replies stay
inside the loop until the noise is in their sum; a strategy that holds a loop can't reach them.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.codec import encode_text
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import SecureRandom
from fl_dp.option_errors import OptionError, require_count
from fl_dp.plan import Plan, RecordPlan
from fl_dp.promise import Enforcement
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import RECORD_PLAN_KEY
from fl_dp.protocol.own_grid import simulates_nodes
from fl_dp.updates import Compression, VectorLayout
from fl_dp.updates.arrays import array_bytes
from fl_dp.updates.narrow import widen

from .checkpoint import Checkpoint
from .companions import Beginning, Companions, EvaluateFn, Optimizer, Start
from .compatibility import check_together
from .contributions import NobodyContributes
from .message_exchange import Federation
from .modes import Mode, Released, RoundFailed
from .node_answers import Answers
from .open_round import Answered, OpenRound, RoundDraft
from .participations import Participations
from .selection import Draw, Selection
from .training_progress import Progress
from .unit_roster import Unit, UnitRoster, by_node, nodes_of

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Options of a strategy, with or without privacy, as `DPFedAvg` describes them."""

    selection: Selection
    weight_cap: float | None
    window: int | None
    roster_timeout: float
    rng: SecureRandom
    after_round: Callable[[Checkpoint], None] | None
    record_plan: RecordPlan | None
    compression: Compression

    def __post_init__(self) -> None:
        """Validate what no other part checks.

        Raises:
            ValueError: If the window is no positive integer.
        """
        if self.window is not None:
            require_count(window=self.window)

    @property
    def dp_sgd(self) -> bool:
        """Whether clients protect their records themselves."""
        return self.record_plan is not None

    def require_fit(self, plan: Plan | None, *, roster_may_grow: bool = False) -> None:
        """Check that a plan, or clients' DP-SGD, allows these options. See `check_together`."""
        check_together(
            plan,
            self.selection,
            weight_cap=self.weight_cap,
            dp_sgd=self.dp_sgd,
            compression=self.compression,
            roster_may_grow=roster_may_grow,
        )

    def instruction(
        self, server_round: int, trained: tuple[str, ...] | None = None
    ) -> RoundInstruction:
        """What every client is asked, whoever adds noise."""
        return RoundInstruction(
            server_round=server_round,
            weight_cap=self.weight_cap,
            utility=self.selection.utility,
            compression=self.compression if self.compression.encodes else None,
            trained=trained,
        )

    def with_record_plan(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A train config that also has the promise to records, if any."""
        if self.record_plan is None:
            return dict(config)
        return dict(config) | {RECORD_PLAN_KEY: encode_text(self.record_plan)}


class RoundLoop(ABC):
    """Rounds over a grid, with a roster and checkpoints.

    Public attributes are those of `RoundStrategy`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        options: LoopOptions,
        *,
        companions: Companions | None,
        roster: UnitRoster,
        participations: Participations,
        cohorts_are_visible: bool,
        trained: tuple[str, ...] | None,
    ) -> None:
        """Prepare a training.

        Args:
            optimizer: Makes the next model of what a round releases.
            options: Those of the strategy.
            companions: What stands around the rounds; by default nothing.
            roster: Units that may take part.
            participations: Counts which nodes of the roster may take part once more.
            cohorts_are_visible: Whether the participants are public.
            trained: Arrays that are trained; see `Plan`.
        """
        self.optimizer = optimizer
        self.options = options
        self.rounds_completed = 0
        self.budget_exhausted = False
        self.released_metrics: dict[str, float] = {}
        self.bytes_down = self.bytes_up = 0
        self._timeout = 3600.0
        self._roster = roster
        self._participations = participations
        self._trained = trained
        self._companions = companions if companions is not None else Companions()
        self._log = self._companions.log
        self._progress = Progress(cohorts_are_visible=cohorts_are_visible, log=self._log)
        self._open: OpenRound | None = None
        self._works = False  # whether any simulated client has contributed
        self._answers = Answers()  # before the first charge
        self._enforcements: set[Enforcement] = set()  # at any node, over all rounds
        self._untried = False  # whether the next round is the first trial of the nodes' app

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: a strategy's trial copy has no rounds of its own."""
        return self

    def run(self, start: Start, announce: Callable[[], None]) -> Result:
        """Train, once `announce` has logged what starts. See `RoundStrategy.start`."""
        num_rounds, grid = start.num_rounds, start.grid
        if num_rounds < 0:
            raise OptionError(
                f"num_rounds must not be negative, got {num_rounds}", option="num_rounds"
            )
        if not start.timeout > 0:
            raise OptionError(
                f"timeout must be positive, in seconds, got {start.timeout}", option="timeout"
            )
        done, model = self._progress.origin(start.initial_arrays)
        layout = self._layout_of(model)
        self._companions.preparation.of_model(model, layout, is_first=not done)
        announce()
        self._timeout = start.timeout
        federation = self._federation(grid)
        self._works = done > 0  # in a simulation no round was released in which all failed
        result = Result(arrays=model)
        self._meet(
            Beginning(
                start=start,
                federation=federation,
                nodes=self._roster.wait(grid),
                model=model,
                layout=layout,
                rounds_done=done,
                lifetime=self._lifetime,
                needs_everyone=self._participations.needs_everyone,
            )
        )
        self._progress.begin(done, model)
        if done == 0 and num_rounds > 0:
            self._require_a_round_left(grid)
        began = time.monotonic()
        if not self._progress.resumed:  # else this model was evaluated and saved before
            self._finish_round(start.evaluate_fn, 0, result)
        for server_round in range(done + 1, num_rounds + 1):
            config = ConfigRecord(dict(start.train_config))
            try:
                try:
                    messages = self.open(server_round, result.arrays, config, grid)
                except PrivacyBudgetExhausted as exhausted:
                    self.budget_exhausted = True
                    if not self._progress.trained:
                        raise
                    logger.info("Training ends with the last private model: %s", exhausted)
                    break
                replies = self._replies(federation, messages)
                result.arrays, metrics = self.release(server_round, replies)
            except RoundFailed as failed:
                if self._progress.gives_up(failed, last=server_round == num_rounds):
                    break
                continue  # there is no new model to evaluate or to save
            self._log.released(server_round, num_rounds, metrics)
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            if self._companions.evaluate is not None:
                measured = self._companions.evaluate(
                    server_round,
                    self._layout_of(result.arrays).only_released(result.arrays),
                    start.evaluate_config,
                    federation,
                    nodes_of(self._participations.members(self._roster.units(grid, self._log))),
                )
                if measured is not None:
                    result.evaluate_metrics_clientapp[server_round] = measured
            self._finish_round(start.evaluate_fn, server_round, result)
            if start.should_stop is not None and start.should_stop(server_round, result):
                logger.info(
                    "Training stops early after round %d: should_stop says so", server_round
                )
                break
        if self._companions.contribution_check is not None:
            self._companions.contribution_check.conclude(earlier_rounds=done)
        self._log.finished(result, time.monotonic() - began)
        return result

    @abstractmethod
    def open(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Charge a round, draw its cohort and write its messages.

        Raises:
            PrivacyBudgetExhausted: If the round exceeds the budget; nobody was asked.
            ValueError: If the model can't be trained.
            RoundFailed: If the round can't be done with its cohort; it stays charged.
        """

    def release(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """Fold replies into one sum as they arrive, and release the model made of it.

        A reply that is missing, an error, malformed or not finite contributes zero.

        Returns:
            The next model, and the round's metrics, if any.

        Raises:
            RuntimeError: If the round was not opened: it would not be charged.
            RoundFailed: If there is nothing to release; the round stays charged.
            NobodyContributes: If the counts so far say so; the round is released and committed. In
                a simulation, if every client failed; then nothing is released.
        """
        current = self._open
        if current is None or current.draft.draw.server_round != server_round:
            raise RuntimeError(f"round {server_round} was not reserved: open it first")
        self._open = None
        answered = current.collect(replies, self.options.selection, self._log)
        self._note_answers(current.draft, answered)
        if current.draft.simulated:
            self._report_failures(answered, asked=len(current.cohort))
        released = current.mode.release(self.options.rng, current.draft.ask)
        # From here on everything is made of what was released.
        model, metrics = current.next_model(released, self.optimizer)
        self._settle(released)
        untried = self._untried
        self._untried = False
        self.released_metrics = dict(released.metrics)
        self.rounds_completed += 1
        self._progress.released(server_round, model)
        check = self._companions.contribution_check
        if check is not None and released.contributions is not None:
            check.observe(
                released.contributions,
                noise_std=released.contributions_std,
                asked=current.expected,
                untried=untried,
            )
        return model, metrics

    def _report_failures(self, answered: Answered, *, asked: int) -> None:
        """Log one failure per kind whole; end a simulation of clients that never work.

        A simulation protects nobody from its user. Clients that have worked before may fail, or be
        silent, for their own reasons, as where a cohort is one client; two together end it.

        Raises:
            NobodyContributes: If every client of the round failed, or none answered.
        """
        failures = [failure.text for failure in answered.failures.values()]
        works = self._works
        self._works = works or answered.worked > 0
        ends = f"so the simulation ends here{self._stays_spent}"
        if asked > works and not answered.failed and not answered.worked:
            raise NobodyContributes(
                f"none of the {asked} nodes that were asked answered within {self._timeout:g} s, "
                f"{ends}; give them more time (timeout, or round_timeout of fl-dp run)"
            )
        if answered.failed > works and not answered.worked:
            raise NobodyContributes(
                f"every client of a round failed ({answered.failed} in all), {ends}. "
                f"One of them:\n{failures[0]}"
            )
        for text in failures:
            self._log.warn_once(f"a simulated client failed and contributes zero:\n{text}\n")

    @property
    def most_participations(self) -> int | None:
        """See `Progress.most_participations`."""
        return self._progress.most_participations

    @property
    def enforcement(self) -> Enforcement | None:
        """`NAMED_APP` if each node that could be asked has a gate for one app alone.

        Nodes report this themselves. None otherwise, and after a resumption, which keeps no
        earlier reports.
        """
        if self._progress.resumed or self._enforcements != {Enforcement.NAMED_APP}:
            return None
        return Enforcement.NAMED_APP

    def checkpoint(self) -> Checkpoint:
        """What a new process can `resume` from: the state after the last released round.

        Raises:
            ValueError: If nothing was released yet, or the server optimizer's state can't be
                saved.
        """
        return self._progress.checkpoint(self.optimizer)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the checkpoint's round at the next `start`.

        Raises:
            ValueError: If the checkpoint is of another kind of training.
        """
        self._progress.resume(checkpoint, self.optimizer)

    @property
    def _stays_spent(self) -> str:
        """Error clause: the charge stays spent. Empty without a charge."""
        return ""

    def _require_a_round_left(self, grid: Grid) -> None:
        """Check that a round is left, before the first model is evaluated or saved."""
        return

    def _federation(self, grid: Grid) -> Federation:
        """The nodes of a grid, for as long as this training waits for them."""
        return Federation(
            grid=grid,
            window=self.options.window,
            timeout=self._timeout,
            roster_timeout=self.options.roster_timeout,
        )

    def _replies(self, federation: Federation, messages: Iterable[Message]) -> Iterator[Message]:
        """Send a round's messages and yield its replies as they arrive."""
        return federation.exchange(messages)

    def _note_answers(self, draft: RoundDraft, answered: Answered) -> None:
        """Note a round's answers once all are in; nothing by default."""
        return

    def _settle(self, released: Released) -> None:
        """Note a release once its model is made; nothing by default."""
        return

    def _meet(self, beginning: Beginning) -> None:
        """Learn who the nodes are, before any charge.

        Raises:
            RehearsalFailed: If a node can't contribute.
            RosterIncomplete: If participations are capped and a node does not tell its name.
            ValueError: If an earlier run's participations can't be counted on.
        """
        self._participations.require_countable()
        self._answers = self._companions.preparation.of_nodes(beginning)
        self._untried = self._answers.untried
        self._participations.recognise(self._answers, beginning.nodes)

    def _layout_of(self, model: ArrayRecord) -> VectorLayout:
        """Positions of a model's trained arrays.

        Raises:
            ValueError: As `VectorLayout.of`.
        """
        return VectorLayout.of(model, self._trained)

    @property
    def _lifetime(self) -> float:
        """Seconds for which a node's answer to a training message is of use."""
        return self._timeout

    def _eligible(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """Units that may be drawn; by default the whole roster.

        Raises:
            RoundFailed: If they are too few; nothing was charged.
        """
        return roster

    def _draft(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *,
        num_units: int | None = None,
        ledger: PrivacyLedger | None = None,
    ) -> RoundDraft:
        """Prepare a round: all that can fail before anybody is charged or asked.

        Without `num_units` the roster counts; a selection charges its own releases to `ledger`.
        """
        options = self.options
        layout = self._layout_of(arrays)
        config = ConfigRecord(options.with_record_plan(config))
        roster = self._eligible(self._roster.units(grid, self._log))
        released = layout.only_released(arrays)
        nodes = nodes_of(roster)
        content = self.optimizer.instruct(server_round, released, config, nodes)
        sent = options.compression.narrow(arrays)
        flat_model = layout.flatten(released)
        # An update is relative to what clients got, and then added to the exact model.
        self._enforcements |= self._answers.enforcements(nodes_of(roster))
        origin = flat_model
        if options.compression.down != "none":
            origin = layout.flatten(layout.only_released(widen(sent)))
        ask = self._federation(grid).asking()
        index = self._participations.next_index()
        available = self._participations.available(roster, index, server_round=server_round)
        instruction = options.instruction(server_round, self._trained)
        if num_units is None:
            num_units = len(roster)
        draw = Draw(
            server_round=server_round,
            index=index,
            roster=available,
            groups=self._participations.groups_of(available),
            num_units=num_units,
            rng=options.rng,
            model=arrays,
            config=config,
            ledger=ledger,
            ask=lambda messages: ask(messages, self._timeout),
        )
        return RoundDraft(
            layout=layout,
            flat_model=flat_model,
            sent=sent,
            origin=origin,
            content=content,
            instruction=instruction,
            roster=roster,
            draw=draw,
            ask=ask,
            simulated=simulates_nodes(grid),
        )

    def _ask_cohort(self, draft: RoundDraft, mode: Mode, cohort: Iterable[Unit]) -> list[Message]:
        """Open the round with its cohort and return one message per node."""
        asked = by_node(cohort)
        self._progress.asked(asked)
        mode.open(asked, draft.ask)
        self._open = OpenRound(draft=draft, mode=mode, cohort=asked)
        self.bytes_down = array_bytes(draft.sent)
        self.bytes_up = mode.reply_bytes(draft.draw.model)
        return self._open.messages(self._timeout)

    def _finish_round(
        self, evaluate_fn: EvaluateFn | None, server_round: int, result: Result
    ) -> None:
        if evaluate_fn is not None:
            metrics = evaluate_fn(server_round, result.arrays)
            self._log.evaluated(server_round, metrics)
            if metrics is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
        if self.options.after_round is not None:
            self.options.after_round(self.checkpoint())
