"""DP-FedAvg around any Flower strategy: every released model is private, and paid for beforehand.

    reserve -> sample -> push(window) -> [reply -> check -> clip -> add]* -> noise -> step -> commit

    >>> plan = PrivacyPlan.calibrate(PrivacyBudget(epsilon=2, delta=1e-3), rounds=60, ...)
    >>> with PrivacyLedger.open("ledger.db", plan) as ledger:
    ...     strategy = DPFedAvg(FedAdam(), plan=plan, ledger=ledger)
    ...     result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=60)

or, in one line around a strategy that is there already:

    >>> strategy = DPFedAvg.with_budget(
    ...     FedAdam(), epsilon=2.0, rounds=60, num_clients=200, sampling_rate=0.25,
    ...     clipping_norm=0.5, ledger="ledger.db",
    ... )

Reference: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
algorithm 1.
"""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypedDict, cast, get_type_hints

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from numpy.typing import NDArray

from fl_dp.accounting import (
    PoissonSampling,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    default_delta,
    freeze,
)
from fl_dp.ledger import LedgerAnchor, PrivacyLedger, Reservation
from fl_dp.mechanisms import (
    DEFAULT_CLIPPING,
    Clipping,
    NoiseStream,
    SecureRandom,
    WhiteStream,
)
from fl_dp.plan import ClientNoise, Hosting, PlanOptions, PrivacyPlan, RecordPlan
from fl_dp.plan.arguments import keywords_of, require_known, require_types
from fl_dp.protocol.identity import forms_of, forms_to_json
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import INSTRUCTION_KEY, MODEL_KEY, RECORD_PLAN_KEY
from fl_dp.updates import (
    Compression,
    RefusedUpdate,
    VectorLayout,
    array_bytes,
    sum_bytes,
    widen,
    with_sound_variances,
)

from .contributions import ContributionCheck
from .exchange import declared_nodes, default_window, exchange, wait_for_roster
from .rehearsal import Answers, ask_identities, meaning_of, named, require_fit
from .roster import (
    DeclaredNodes,
    Unit,
    by_node,
    lasting_names,
    require_countable,
    unit_name,
    units_of,
)
from .round_sum import CentralSum, LocalSum, RoundSum, UnprotectedMean, client_noise_of
from .selection import Draw, Selection, participations_left, selection_of
from .server_optimizer import ServerOptimizer, refuse_unfit
from .together import check_together
from .unused import uncalled_of, unused_of

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a training continues from in a new process. Nothing in it is secret.

    Attributes:
        server_round: The last round that was released.
        model: Its model.
        optimizer: State of the server optimizer, by name.
        clipping_norms: Those of the next round.
        plateau: State of what decides the noise, if anything does.
        ledger: How far the ledger had come; None without privacy.
    """

    server_round: int
    model: ArrayRecord
    optimizer: dict[str, NDArray[Any]]
    clipping_norms: tuple[float, ...] | None
    plateau: dict[str, Any] | None
    ledger: LedgerAnchor | None


class StrategyOptions(TypedDict, total=False):
    """What `DPFedAvg` can be told beyond its plan; see there."""

    weight_cap: float | None
    window: int | None
    roster_timeout: float
    roster_may_grow: bool
    rng: SecureRandom | None
    plateau_metric: str
    after_round: Callable[[Checkpoint], None] | None
    record_plan: RecordPlan | None
    compression: Compression | None


class BudgetOptions(PlanOptions, StrategyOptions, total=False):
    """Options of the plan and of the strategy together, for `DPFedAvg.with_budget`."""


@dataclass(frozen=True, kw_only=True)
class _OpenRound:
    """A round that was reserved and not yet released."""

    number: int
    reservation: Reservation | None
    layout: VectorLayout
    model: ArrayRecord
    flat_model: NDArray[np.float64]
    instruction: RecordDict
    sum: RoundSum
    asked: dict[int, tuple[Unit, ...]]


class DPFedAvg(Strategy):
    """A Flower strategy whose every released model is differentially private.

    Privacy: for one client's whole contribution over the whole training (the unit), zero-out
    neighbours, the plan's (epsilon, delta), against anyone who sees every released model but not
    who took part. The server is trusted with updates, coins and noise. Train and evaluation
    metrics of clients are dropped, not averaged, unless the plan releases them: they would be a
    second, uncharged release.

    Attributes:
        rounds_completed: Rounds whose model was released by this object.
        budget_exhausted: Whether training ended early because the next round did not fit.
        released_metrics: The clients' metrics that the last round released, as the plan says.
        bytes_down: Bytes of the arrays that the last round sent to each node; 0 before the first.
        bytes_up: Bytes of the arrays that each node was to answer with. Both are public: they
            depend on the model's shapes and on settings alone.
        noise_stream: Where the noise on sums of updates comes from, cut at every start. A stream
            with memory needs a plan that charges for it.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        plan: PrivacyPlan | None,
        ledger: PrivacyLedger | None,
        selection: Selection | None = None,
        weight_cap: float | None = None,
        window: int | None = None,
        roster_timeout: float = 60.0,
        roster_may_grow: bool = False,
        rng: SecureRandom | None = None,
        plateau_metric: str = "accuracy",
        after_round: Callable[[Checkpoint], None] | None = None,
        record_plan: RecordPlan | None = None,
        compression: Compression | None = None,
    ) -> None:
        """Put a private path in front of `strategy`.

        Args:
            strategy: The server optimizer, `FedAvg()` by default. It sees one private reply a
                round; its sampling fractions and its weights are not used.
            plan: What is released and at what price. None, with `ledger=None`: nothing is private,
                for comparison only.
            ledger: Opened with the same plan.
            selection: Who takes part; by default what the plan's `sampling` says.
            weight_cap: Records that earn a client the full weight; it applies its weight of
                `min(records / weight_cap, 1)` before clipping. None: every client weighs 1.
            window: How many nodes are under way at once; chosen by the grid when None.
            roster_timeout: Seconds to wait for the plan's clients to connect.
            roster_may_grow: Let more clients take part than the plan declares. What each of them is
                charged stays the same, and so does what the sum is divided by: with twice the
                clients under Poisson sampling, the mean comes out twice as large. Samples of a
                counted cohort still draw from as many as were declared. Otherwise more at the
                start are an error, and who comes later takes no part.
            rng: Where noise and coins come from; a secure source by default. An insecure one, for
                tests and simulations, is refused unless the ledger was opened with it.
            plateau_metric: Which metric of `evaluate_fn` a plan with a plateau reacts to; must be
                computed from public data.
            after_round: Given a checkpoint after the start and after every round, to save it.
            record_plan: What clients promise to each of their records, which they get with every
                round (`OpacusClient`); with or without a plan, which promises something to clients.
            compression: How updates and models travel; None: as they are. A client that was sent a
                narrow model, or that is to encode its update, needs `compression_mod`; one that
                answers with its model all the same is read as ever. Without a plan, clients that
                are to encode their updates all weigh the same.

        Raises:
            ValueError: If plan, ledger and selection do not belong together, or an option does not
                go with the plan.
            TypeError: If the inner strategy can't work on a private mean.
        """
        self.noise_stream: NoiseStream = WhiteStream()
        self._rng = rng if rng is not None else SecureRandom()
        self.plan = plan
        self.ledger = ledger
        self.optimizer = ServerOptimizer(strategy if strategy is not None else FedAvg())
        self.selection = _selection_for(plan, selection)
        self.rounds_completed = 0
        self.released_metrics: dict[str, float] = {}
        self.budget_exhausted = False
        if (plan is None) != (ledger is None):
            raise ValueError("give a plan and its ledger, or neither for a run without privacy")
        if plan is not None and ledger is not None:
            if ledger.plan != plan:
                raise ValueError("the ledger was opened with another plan than the strategy's")
            ledger.require_known(self._rng)
            _require_declared(plan, self.selection)
        hosting = Hosting() if plan is None else plan.hosting
        self._units_per_node = hosting.units_per_node
        self._coins_at_nodes = hosting.coins_at_nodes
        self._sums_at_nodes = hosting.sums_at_nodes
        self._weight_cap = weight_cap
        self.record_plan = record_plan
        checked = plan is None or plan.release.contribution_check
        self._contribution_check = ContributionCheck(plan) if checked else None
        self._participations: Counter[int] = Counter()
        self._rounds_configured = 0
        self._compression = compression if compression is not None else Compression()
        self.bytes_down = self.bytes_up = 0
        check_together(
            plan,
            self.selection,
            weight_cap=weight_cap,
            record_plan=record_plan,
            compression=self._compression,
        )
        self._clipping_norms = None if plan is None else plan.release.clipping.first_norms
        self._plateau = None if plan is None else plan.noise.controller()
        self._plateau_metric = plateau_metric
        self._after_round = after_round
        self._window = window
        self._roster_timeout = roster_timeout
        self._timeout = 3600.0
        self._open: _OpenRound | None = None
        self._resumed: Checkpoint | None = None
        self._last: tuple[int, ArrayRecord] | None = None
        self._names: dict[int, str] | None = None
        self._declared: DeclaredNodes | None = None
        if plan is not None and not roster_may_grow:
            self._declared = DeclaredNodes(declared_nodes(plan.num_clients, self._units_per_node))
        self._owns_ledger = False
        self._warned: set[str] = set()
        for line in unused_of(self.optimizer.strategy, weights_are_used=plan is None):
            logger.warning(line)
        for line in uncalled_of(self, DPFedAvg):
            logger.warning(line)

    @classmethod
    def with_budget(
        cls,
        strategy: Strategy | None = None,
        *,
        epsilon: float,
        rounds: int,
        num_clients: int,
        ledger: str | Path,
        delta: float | None = None,
        sampling_rate: float | None = None,
        clipping_norm: float | None = None,
        clipping: Clipping | None = None,
        selection: Selection | None = None,
        **options: Any,
    ) -> Self:
        """Wrap a strategy in one line: plan to a budget and open the ledger.

        The ledger is closed when `start` returns.

        Args:
            strategy: The server optimizer; `FedAvg()` by default.
            epsilon: The budget over the whole training.
            rounds: Rounds to be trained.
            num_clients: Nodes of the roster; public.
            ledger: File or database URL of the ledger.
            delta: `num_clients ** -1.1` by default.
            sampling_rate: Probability of each client in each round; or give a `selection`.
            clipping_norm: L2 bound on one client's update; or give a `clipping`. Both left out: it
                is adapted to the median norm, see docs/choosing_a_clipping_norm.md.
            clipping: What bounds an update, for instance `AdaptiveClipping()`.
            selection: Who takes part; what it releases is planned for, too.
            **options: Other attributes of `PrivacyPlan` (`PlanOptions`), and arguments of this
                class: those of `DPFedAvg` (`StrategyOptions`) and a subclass's own.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type, or the strategy can't work
                on a private mean; no ledger was created.
            ValueError: If an argument is out of range or the budget can't be reached.
        """
        hints = get_type_hints(DPFedAvg.with_budget) | get_type_hints(BudgetOptions)
        of_plan, of_class = PlanOptions.__optional_keys__, keywords_of(cls) - {"plan"}
        known = (hints.keys() | of_plan | of_class) - {"return", "options"}
        require_known(options, known, of=f"{cls.__name__}.with_budget")
        if both := sorted(of_plan & of_class & options.keys()):
            raise TypeError(
                f"'{both[0]}' is an argument of the plan and of {cls.__name__}: rename yours"
            )
        require_types(
            {
                "epsilon": epsilon,
                "rounds": rounds,
                "num_clients": num_clients,
                "ledger": ledger,
                "delta": delta,
                "sampling_rate": sampling_rate,
                "clipping_norm": clipping_norm,
                **options,
            },
            hints,
        )
        if (sampling_rate is None) == (selection is None):
            raise ValueError(
                "give either sampling_rate or selection, got "
                f"{'neither' if selection is None else 'both'}"
            )
        if strategy is not None:
            refuse_unfit(strategy)
        for_plan = {name: each for name, each in options.items() if name in of_plan}
        for_strategy = {name: each for name, each in options.items() if name not in of_plan}
        if clipping_norm is None and clipping is None:
            logger.info(
                "clipping_norm was left out: it starts at %g and follows the updates' median norm "
                "(docs/choosing_a_clipping_norm.md)",
                DEFAULT_CLIPPING.initial_norm,
            )
        if selection is not None:
            others = freeze(options.get("other_releases", {}))
            for_plan["other_releases"] = freeze([*others, *freeze(selection.releases(rounds))])
        plan = PrivacyPlan.calibrate(
            PrivacyBudget(
                epsilon=epsilon, delta=default_delta(num_clients) if delta is None else delta
            ),
            rounds=rounds,
            num_clients=num_clients,
            sampling_rate=sampling_rate,
            sampling=None if selection is None else selection.sampling,
            clipping_norm=clipping_norm,
            clipping=clipping,
            **cast(PlanOptions, for_plan),
        )
        opened = PrivacyLedger.open(ledger, plan, rng=options.get("rng"))
        try:
            made = cls(
                strategy,
                plan=plan,
                ledger=opened,
                selection=selection,
                **for_strategy,
            )
        except BaseException:
            opened.close()
            raise
        made._owns_ledger = True
        return made

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
            initial_arrays: The starting model; public. Not used after `resume`.
            num_rounds: At most the plan's rounds; those before a resumption count.
            timeout: Seconds to wait for the replies of a round. Who has not replied by then
                contributes zero; noise, denominator and charge stay the same.
            train_config: Sent to the clients with every round.
            evaluate_config: Not used: evaluation on clients' data would be an uncharged release.
                That is said once if one is given.
            evaluate_fn: Evaluates each model on public data at the server.

        Returns:
            Flower's `Result`. When the budget ends early its arrays are the last private model.

        Raises:
            ValueError: If more rounds are asked for than the plan has, or its plateau has no
                `evaluate_fn` to look at.
            RosterIncomplete: If fewer clients connect than the plan declares.
            RosterTooLarge: If more do, and the roster may not grow; nothing was spent.
            PrivacyBudgetExhausted: If not even one round is left and there is no checkpoint to go
                on from: the model would come back untrained.
            NobodyContributes: If (almost) no client's update was ever added; see
                `PrivacyPlan.contribution_check`.
        """
        if evaluate_config:
            self._warn_once("evaluate_config is not used: clients are not asked to evaluate")
        self.noise_stream.cut()
        try:
            return self._train(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_fn)
        finally:
            self.noise_stream.cut()  # memory holds no noise for longer than it is needed
            if self._owns_ledger and self.ledger is not None:
                self.ledger.close()

    def _train(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Result:
        plan = self.plan
        if plan is not None and num_rounds > plan.rounds:
            raise ValueError(
                f"{num_rounds} rounds were asked for, but the plan's budget pays for "
                f"{plan.rounds}: plan more rounds (each gets more noise) or train fewer"
            )
        if self._plateau is not None and evaluate_fn is None:
            raise ValueError(
                "the plan's noise reacts to a plateau of a public metric: pass an evaluate_fn that "
                f"returns '{self._plateau_metric}'"
            )
        self._timeout = timeout
        if self._window is None:
            self._window = default_window(grid)
        self.summary()
        nodes = self._wait_for_roster(grid)
        done = 0 if self._resumed is None else self._resumed.server_round
        arrays = initial_arrays if self._resumed is None else self._resumed.model
        self._rehearse(grid, nodes, arrays, train_config or ConfigRecord())
        if done == 0 and num_rounds > 0:
            self._require_a_round_left(grid)
        result = Result(arrays=arrays)
        began = time.monotonic()
        if self._resumed is None:
            self._last = (0, arrays)
            self._finish_round(evaluate_fn, 0, result)
        for server_round in range(done + 1, num_rounds + 1):
            config = ConfigRecord(dict(train_config or {}))
            try:
                messages = self.configure_train(server_round, result.arrays, config, grid)
            except PrivacyBudgetExhausted as exhausted:
                self.budget_exhausted = True
                if self._last is None or self._last[0] == 0:
                    raise self._nothing_trained(str(exhausted)) from None
                logger.info("Training ends with the last private model: %s", exhausted)
                break
            replies = exchange(grid, messages, window=self._window, timeout=timeout)
            released, metrics = self.aggregate_train(server_round, replies)
            assert released is not None  # a round that was configured always releases a model
            result.arrays = released
            logger.info("[ROUND %d/%d] released%s", server_round, num_rounds, self._spent())
            if metrics is not None:
                logger.info("\t└──> Aggregated MetricRecord: %s", metrics)
                result.train_metrics_clientapp[server_round] = metrics
            self._finish_round(evaluate_fn, server_round, result)
        _log_result(result, time.monotonic() - began)
        return result

    def _require_a_round_left(self, grid: Grid) -> None:
        """Check, before the first model is evaluated or saved, that it can be trained at all.

        Raises:
            PrivacyBudgetExhausted: If not.
        """
        plan, ledger = self.plan, self.ledger
        if plan is None or ledger is None:
            return
        if plan.participation_cap is not None:
            roster = self._roster(grid)
            if roster and not self._with_rounds_left(roster):
                raise self._nothing_trained(self._everybody_at_the_cap())
        elif ledger.would_exceed(plan.event_of(1, noise_multiplier=self._next_multiplier())):
            spent = (
                f"epsilon {plan.budget.epsilon:.4g} at delta {plan.budget.delta:.3g} pays for no "
                f"round after the {ledger.rounds_spent} that are spent"
            )
            raise self._nothing_trained(spent)
        if ledger.rounds_spent:
            logger.warning(
                "The ledger has %d rounds of an earlier training, and this one begins with the "
                "initial arrays: to go on from what was trained, resume(checkpoint)",
                ledger.rounds_spent,
            )

    def _nothing_trained(self, why: str) -> PrivacyBudgetExhausted:
        location = "" if self.ledger is None else f" {self.ledger.location}"
        return PrivacyBudgetExhausted(
            f"the ledger{location} has nothing left for a first round ({why}), so the model would "
            "come back untrained: use the model that was released before, go on from its "
            "checkpoint with resume(checkpoint), or begin a new ledger, whose epsilon adds to what "
            "the same clients have spent here"
        )

    def _everybody_at_the_cap(self) -> str:
        cap = None if self.plan is None else self.plan.participation_cap
        return f"every client has taken part {cap} times, the plan's participation_cap"

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the round on disk, draw its cohort and write the messages.

        Where the cohort is secret, it is drawn after the round is reserved; where it is seen, the
        ledger has to know who is charged.

        Raises:
            PrivacyBudgetExhausted: If the round does not fit the budget; nobody was asked.
            ValueError: If the model can't be trained privately.
        """
        layout = VectorLayout.of(arrays)
        config = ConfigRecord(self._with_record_plan(config))
        roster = self._roster(grid)
        released = layout.only_released(arrays)
        nodes = sorted({unit.node for unit in roster})
        instruction = self.optimizer.instruct(server_round, released, config, nodes)
        key = next(iter(instruction.array_records))
        draw = self._draw(server_round, roster, arrays, config, grid)
        self._require_trainable(layout, len(roster))  # before a round is charged in vain

        plan, ledger = self.plan, self.ledger
        reservation = None
        if plan is None or ledger is None:
            cohort = list(self.selection.select(draw))
        elif plan.sampling.visible:
            cohort = list(self.selection.select(draw))
            if not cohort and roster and not draw.roster:
                raise PrivacyBudgetExhausted(self._everybody_at_the_cap())
            reservation = ledger.reserve(
                round=server_round,
                noise_multiplier=self._next_multiplier(),
                participants=None
                if plan.participation_cap is None
                else [self._name(unit) for unit in cohort],
            )
        else:
            reservation = ledger.reserve(
                round=server_round, noise_multiplier=self._next_multiplier()
            )
            cohort = roster if self._coins_at_nodes else list(self.selection.select(draw))
        asked = {
            node: tuple(Unit(node, number) for number in numbers)
            for node, numbers in by_node(cohort).items()
        }
        self._participations.update(list(asked))
        self._rounds_configured += 1
        sent = self._compression.narrow(arrays)
        flat_model = layout.flatten(released)
        # An update is relative to what clients got, and then added to the exact model.
        narrow = self._compression.down != "none"
        origin = layout.flatten(layout.only_released(widen(sent))) if narrow else flat_model
        self._open = _OpenRound(
            number=server_round,
            reservation=reservation,
            layout=layout,
            model=arrays,
            flat_model=flat_model,
            instruction=instruction,
            sum=self.open_sum(reservation, layout, origin),
            asked=asked,
        )
        self.bytes_down, self.bytes_up = array_bytes(sent), self._reply_bytes(self._open)
        return self._messages(self._open, RecordDict(dict(instruction) | {key: sent}))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into one sum as they come, add the noise once, and release the model.

        A reply that is missing, an error, malformed or not finite contributes zero.

        Returns:
            The next model, and the clients' metrics that the plan releases, if any.

        Raises:
            RuntimeError: If the round was not configured before: it would not be charged.
            NobodyContributes: If the counts so far say so; the round is released and committed.
        """
        current = self._open
        if current is None or current.number != server_round:
            raise RuntimeError(f"round {server_round} was not reserved: call configure_train first")
        self._open = None

        left = dict(current.asked)
        for reply in replies:
            self._fold(reply, current, left)
        released = current.sum.release(self._rng)

        private = current.layout.unflatten(current.flat_model + released.mean)
        updated = self.optimizer.step(server_round, private, current.instruction)
        model = with_sound_variances(current.layout.merge(updated, current.model))
        if self.ledger is not None and current.reservation is not None:
            self.ledger.commit(current.reservation)
        if released.clipping_norms is not None:
            self._clipping_norms = released.clipping_norms
        self.released_metrics = dict(released.metrics)
        self.rounds_completed += 1
        self._last = (server_round, model)
        if self._contribution_check is not None and released.contributions is not None:
            self._contribution_check.observe(
                released.contributions,
                noise_std=released.contributions_std,
                asked=sum(map(len, current.asked.values())),
            )
        return model, MetricRecord(dict(released.metrics)) if released.metrics else None

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

    @property
    def clipping_norms(self) -> tuple[float, ...] | None:
        """Clipping norms of the next round; None without privacy."""
        return self._clipping_norms

    @property
    def most_participations(self) -> int | None:
        """An upper bound on the rounds that any node was asked to take part in.

        Where cohorts are secret every round counts for everybody. None after a resumption: who was
        asked before, and how often in vain, was not kept.
        """
        if self._resumed is not None:
            return None
        if self.plan is not None and not self.plan.sampling.visible:
            return self._rounds_configured
        return max(self._participations.values(), default=0)

    @property
    def clipping_adapts(self) -> bool:
        """Whether the clipping norm changes from round to round."""
        return self.plan is not None and self.plan.release.adaptive_clipping is not None

    def checkpoint(self) -> Checkpoint:
        """Return what a new process can `resume` from: the state after the last released round.

        Raises:
            ValueError: If nothing was released yet, or the server optimizer has state that can't
                be saved.
        """
        if self._last is None:
            raise ValueError("there is nothing to continue from: no round was started")
        return Checkpoint(
            server_round=self._last[0],
            model=self._last[1],
            optimizer=self.optimizer.state(),
            clipping_norms=self._clipping_norms,
            plateau=None if self._plateau is None else self._plateau.state(),
            ledger=None if self.ledger is None else self.ledger.anchor,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the checkpoint's round when `start` is called.

        What was reserved after it stays spent: the budget may end a round earlier for each.

        Raises:
            ValueError: If the checkpoint is of another kind of training.
            LedgerCorrupted: If the ledger does not hold what it held at the checkpoint.
        """
        if (checkpoint.plateau is None) != (self._plateau is None):
            raise ValueError("the checkpoint is of a training with another schedule")
        if (checkpoint.ledger is None) != (self.ledger is None):
            raise ValueError(
                "a training with a ledger goes on from a checkpoint with one, and one without "
                "privacy from one without: start anew"
            )
        if self.ledger is not None and checkpoint.ledger is not None:
            self.ledger.require_holds(checkpoint.ledger, of="the checkpoint")
        before, now = checkpoint.clipping_norms, self._clipping_norms
        if (before is None) != (now is None) or len(before or ()) != len(now or ()):
            raise ValueError(
                f"the checkpoint is of a training with clipping norms {before}, and this one has "
                f"{now}"
            )
        if checkpoint.server_round:
            self.optimizer.restore(checkpoint.optimizer)
        self._clipping_norms = checkpoint.clipping_norms
        if self._plateau is not None and checkpoint.plateau is not None:
            self._plateau.restore(checkpoint.plateau)
        self._resumed = checkpoint
        self._last = (checkpoint.server_round, checkpoint.model)

    def summary(self) -> None:
        """Log what will be released and at what price."""
        plan, ledger = self.plan, self.ledger
        logger.info("DP-FedAvg over %s:", type(self.optimizer.strategy).__name__)
        if plan is None or ledger is None:
            if self.record_plan is None:
                logger.warning("\t└── NO PRIVACY: updates are averaged as they come")
            else:
                _log_record_plan(self.record_plan, last=True)
            return
        logger.info(
            "\t├── Budget: epsilon %.4g at delta %.3g, one %s's whole contribution (%s)",
            plan.budget.epsilon,
            plan.budget.delta,
            plan.unit,
            plan.neighboring_relation,
        )
        logger.info(
            "\t├── Rounds: %d, %.4g of %d clients expected in each",
            plan.rounds,
            plan.expected_cohort,
            plan.num_clients,
        )
        logger.info("\t├── Sampling: %s", plan.sampling.describe())
        logger.info(
            "\t├── Clipping norm %.4g (%s), noise multiplier %s %s, denominator %.4g",
            plan.clipping_norm,
            plan.release.clipping.kind,
            _describe_noise(plan),
            plan.noise.place,
            plan.denominator,
        )
        if self.record_plan is not None:
            _log_record_plan(self.record_plan)
        logger.info("\t├── Rule: %s", ledger.rule)
        logger.info("\t└── Ledger: %s", ledger.location)
        if ledger.insecure:
            logger.warning("The noise is INSECURE: whoever knows the seed can take it away again")

    def _wait_for_roster(self, grid: Grid) -> Sequence[int]:
        plan = self.plan
        if plan is None:
            return wait_for_roster(grid, 1, timeout=self._roster_timeout)
        return wait_for_roster(
            grid,
            plan.num_clients,
            timeout=self._roster_timeout,
            units_per_node=plan.hosting.units_per_node,
            roster_may_grow=self._declared is None,
        )

    def _rehearse(
        self, grid: Grid, nodes: Sequence[int], model: ArrayRecord, config: ConfigRecord
    ) -> None:
        """Let nodes say who they are and what they will answer with, while nothing is charged.

        Raises:
            RehearsalFailed: If a node can't contribute.
            RosterIncomplete: If participations are capped and a node does not tell its name.
            ValueError: If the cap of an earlier run can't go on.
        """
        capped = self.plan is not None and self.plan.participation_cap is not None
        spoken_for = self.ledger.participations if capped and self.ledger is not None else {}
        require_countable(spoken_for)
        layout = VectorLayout.of(model)

        def everyone(first: Answers) -> bool:
            return capped and bool(spoken_for or named(first))

        answers = ask_identities(
            grid,
            nodes,
            config=self._rehearsed(model, config),
            everyone=everyone,
            window=self._window,
            timeout=min(self._timeout, self._roster_timeout),
        )
        require_fit(answers, layout)
        if capped:
            self._names = lasting_names(answers, nodes, spoken_for=spoken_for)

    def _rehearsed(self, model: ArrayRecord, config: ConfigRecord) -> ConfigRecord:
        """Return the config of the identity query: a train message's, as far as nodes need it."""
        told = self._with_record_plan(config) | {MODEL_KEY: forms_to_json(forms_of(model))}
        if self.plan is not None and isinstance(self.plan.noise, ClientNoise):
            noise = client_noise_of(self.plan, self.plan.noise_multipliers[0], self._uplink)
            instruction = RoundInstruction(server_round=1, client_noise=noise)
            told[INSTRUCTION_KEY] = instruction.to_json()
        return ConfigRecord(told)

    def _with_record_plan(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if self.record_plan is None:
            return dict(config)
        return dict(config) | {RECORD_PLAN_KEY: json.dumps(self.record_plan.to_dict())}

    def _draw(
        self,
        server_round: int,
        roster: list[Unit],
        model: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Draw:
        def ask(messages: Iterable[Message]) -> Iterator[Message]:
            ready = list(messages)
            for message in ready:
                message.metadata.ttl = self._timeout
            return exchange(grid, ready, window=self._window, timeout=self._timeout)

        plan, ledger = self.plan, self.ledger
        return Draw(
            server_round=server_round,
            roster=self._with_rounds_left(roster),
            num_units=len(roster) if plan is None else plan.num_clients,
            rng=self._rng,
            model=model,
            config=config,
            ledger=ledger,
            ask=ask,
        )

    def _roster(self, grid: Grid) -> list[Unit]:
        """Return the units of the connected nodes that may take part."""
        nodes = list(grid.get_node_ids())
        if self._declared is not None:
            declared = self._declared.among(nodes)
            if len(declared) < len(nodes):
                self._warn_once(
                    "more nodes are connected than the plan declares (num_clients): those who came "
                    "last take no part"
                )
            nodes = declared
        return units_of(nodes, self._units_per_node)

    def _with_rounds_left(self, roster: list[Unit]) -> list[Unit]:
        """Return the units that a participation cap leaves."""
        plan, ledger = self.plan, self.ledger
        if plan is None or ledger is None or plan.participation_cap is None:
            return roster
        if self._names is not None:  # who came later, or can't be told apart, takes no part
            roster = [unit for unit in roster if unit.node in self._names]
        return participations_left(
            roster, ledger.participations, plan.participation_cap, self._name
        )

    def _require_trainable(self, layout: VectorLayout, units: int) -> None:
        plan = self.plan
        if plan is None:
            return
        norms, arrays = len(plan.release.clipping.first_norms), len(layout.released)
        if norms not in (1, arrays):
            raise ValueError(
                f"the plan clips {norms} layers and the model has {arrays} floating-point arrays: "
                "give one clipping norm for each, or one for the whole update"
            )
        most = plan.bundle(plan.noise.least_multiplier).max_units
        if units > most:
            raise ValueError(
                f"{units} units are connected and at most {most} can be summed exactly at noise "
                f"multiplier {plan.noise.least_multiplier:.4g}"
            )

    def open_sum(
        self, reservation: Reservation | None, layout: VectorLayout, origin: NDArray[np.float64]
    ) -> RoundSum:
        """Return what becomes of a round's replies: the place to put noise somewhere else.

        Args:
            reservation: What the ledger has on disk for the round; None without privacy.
            layout: Of the model that is sent.
            origin: That model, flattened.
        """
        plan = self.plan
        if plan is None or reservation is None:
            weighted_by = str(getattr(self.optimizer.strategy, "weighted_by_key", "num-examples"))
            return UnprotectedMean(
                layout, origin, weighted_by=weighted_by, compression=self._uplink
            )
        # What the ledger has on disk decides, not what was planned.
        multiplier = reservation.noise_multiplier
        assert multiplier is not None and reservation.index is not None  # of every round
        if isinstance(plan.noise, ClientNoise):
            return LocalSum(plan, multiplier, layout, origin, compression=self._uplink)
        assert self._clipping_norms is not None  # every plan clips
        return CentralSum(
            plan,
            multiplier,
            layout,
            origin,
            clipping_norms=self._clipping_norms,
            max_units_of_node=self._units_per_node if self._sums_at_nodes else None,
            compression=self._uplink,
            stream=self.noise_stream,
            index=reservation.index,
        )

    @property
    def _uplink(self) -> Compression | None:
        """What clients have to be told of the compression."""
        return None if self._compression.up == "none" else self._compression

    def _reply_bytes(self, current: _OpenRound) -> int:
        if self._sums_at_nodes:
            return sum_bytes(current.layout)
        compression = current.sum.compression or Compression()
        return compression.reply_bytes(current.model, current.layout)

    def _messages(self, current: _OpenRound, content: RecordDict) -> list[Message]:
        """Write one message a node; they share the model, and the config where they can."""
        shared: dict[tuple[int, ...] | None, RecordDict] = {}
        messages = []
        for node, units in current.asked.items():
            numbers = None
            if self._sums_at_nodes and not self._coins_at_nodes:
                numbers = tuple(unit.number for unit in units)
            if numbers not in shared:
                shared[numbers] = self._instructed(current, content, numbers)
            messages.append(
                Message(
                    content=shared[numbers],
                    message_type=MessageType.TRAIN,
                    dst_node_id=node,
                    ttl=self._timeout,
                    group_id=str(current.number),
                )
            )
        return messages

    def _instructed(
        self, current: _OpenRound, content: RecordDict, numbers: tuple[int, ...] | None
    ) -> RecordDict:
        """Return the content with the round's instruction in its config, if one is needed."""
        plan, sampling = self.plan, self.selection.sampling
        rate = None
        if self._coins_at_nodes and isinstance(sampling, PoissonSampling):
            # As charged: the expected cohort over the roster can be larger in its last digit.
            rate = sampling.sampling_rate
        instruction = RoundInstruction(
            server_round=current.number,
            units=numbers,
            sampling_rate=rate,
            max_units=self._units_per_node,
            bundle=current.sum.bundle,
            weight_cap=self._weight_cap,
            report_weight=plan is not None and plan.release.capped_denominator,
            utility=self.selection.utility,
            client_noise=current.sum.client_noise,
            compression=current.sum.compression,
        )
        if instruction == RoundInstruction(server_round=current.number):
            return content  # any Flower client will do
        configs = content.config_records
        key = next(iter(configs), "config")
        before: Mapping[str, Any] = configs.get(key, {})
        told = ConfigRecord(dict(before) | {INSTRUCTION_KEY: instruction.to_json()})
        return RecordDict(dict(content) | {key: told})

    def _fold(self, reply: Message, current: _OpenRound, left: dict[int, tuple[Unit, ...]]) -> None:
        """Add one reply to the round's sum, at most one a node."""
        if reply.has_error():
            meaning = meaning_of(reply.error)
            known = "" if meaning is None else f" ({meaning.text})"
            self._warn_once(f"a client failed{known}; a failed client contributes zero")
            return
        units = left.pop(reply.metadata.src_node_id, None)
        if units is None:
            self._warn_once("a reply came from a node that was not asked, or twice; it is ignored")
            return
        try:
            seen = current.sum.fold(reply.content, units, server_round=current.number)
        except RefusedUpdate as refused:
            self._warn_once(f"an update was refused and contributes zero: {refused}")
            return
        as_it_comes = not self._sums_at_nodes and current.sum.compression is None
        if as_it_comes and current.layout.converts(reply.content):
            self._warn_once(
                "an update has another floating-point dtype than the model; it is converted"
            )
        for observation in seen:
            if math.isinf(observation.update_norm):
                self._warn_once("an update was not finite and contributes zero")
            self.selection.observe(observation)

    def _next_multiplier(self) -> float | None:
        return None if self._plateau is None else self._plateau.multiplier

    def _name(self, unit: Unit) -> str:
        return unit_name(unit, self._names or {}, self._units_per_node)

    def _spent(self) -> str:
        if self.ledger is None:
            return " without privacy" if self.record_plan is None else ""
        return f", epsilon so far {self.ledger.running_epsilon():.3f}"

    def _finish_round(
        self,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        server_round: int,
        result: Result,
    ) -> None:
        self._evaluate(evaluate_fn, server_round, result)
        if self._after_round is not None:
            self._after_round(self.checkpoint())

    def _evaluate(
        self,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        server_round: int,
        result: Result,
    ) -> None:
        if evaluate_fn is None:
            return
        if server_round > 0:
            logger.info("Global evaluation")
        metrics = evaluate_fn(server_round, result.arrays)
        if server_round > 0:
            logger.info("\t└──> MetricRecord: %s", metrics)
        else:
            logger.info("Initial global evaluation results: %s", metrics)
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


def _log_result(result: Result, seconds: float) -> None:
    """Log how a training ended, as Flower's `Strategy.start` does."""
    logger.info("")
    logger.info("Strategy execution finished in %.2fs", seconds)
    logger.info("")
    logger.info("Final results:")
    logger.info("")
    for line in io.StringIO(str(result)):
        logger.info("\t%s", line.strip("\n"))
    logger.info("")


def _selection_for(plan: PrivacyPlan | None, selection: Selection | None) -> Selection:
    if plan is None:
        if selection is None:
            raise ValueError("without a plan nobody says who takes part: give a selection")
        return selection
    if selection is None:
        return selection_of(plan.sampling)
    if selection.sampling != plan.sampling:
        raise ValueError(
            f"the selection draws by {selection.sampling} and the plan charges for "
            f"{plan.sampling}: make the plan with sampling=selection.sampling"
        )
    return selection


def _require_declared(plan: PrivacyPlan, selection: Selection) -> None:
    """Check that what the selection releases has its part of the budget."""
    planned = dict(plan.other_releases)
    for event, count in freeze(selection.releases(plan.rounds)):
        if planned.get(event, 0) < count:
            raise ValueError(
                f"the selection releases {count} times {event}, which the plan does not declare: "
                "make the plan with other_releases=selection.releases(rounds)"
            )


def _log_record_plan(record_plan: RecordPlan, *, last: bool = False) -> None:
    logger.info(
        "\t%s Records: budget epsilon %.4g at delta %.3g at each client, DP-SGD with noise "
        "multiplier %.4g, sampling rate %.4g, %d steps a round, planned for %d rounds of a client",
        "└──" if last else "├──",
        record_plan.budget.epsilon,
        record_plan.budget.delta,
        record_plan.noise_multiplier,
        record_plan.sampling_rate,
        record_plan.steps,
        record_plan.participations,
    )


def _describe_noise(plan: PrivacyPlan) -> str:
    if plan.noise.adaptive:
        first = plan.noise_multipliers[0]
        return f"{first:.4g} at first, at least {plan.noise.least_multiplier:.4g}"
    low, high = min(plan.noise_multipliers), max(plan.noise_multipliers)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
