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

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast, get_type_hints

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fl_dp.accounting import (
    NeighboringRelation,
    OwnRatesSampling,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    default_delta,
)
from fl_dp.accounting.events import event_to_dict
from fl_dp.accounting.schedules import PlateauController
from fl_dp.ledger import PrivacyLedger, Reservation
from fl_dp.mechanisms import (
    BandedStream,
    Clipping,
    NoiseStream,
    ScalarMetric,
    SecureRandom,
    WhiteStream,
)
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.plan import DistributedNoise, PlanArguments, PrivacyPlan, RecordPlan, SecureSum
from fl_dp.plan.argument_checks import keywords_of, require_known, require_types
from fl_dp.plan.noise import ClientNoise
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import INSTRUCTION_KEY, OFFERS_KEY, PRICE_KEY
from fl_dp.protocol.own_price import TrainingPrice, offers_to_json
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.secagg import SecureSumFailed
from fl_dp.updates import Compression, VectorLayout

from .checkpoint import Checkpoint
from .compatibility import (
    float64_error_of,
    require_ledger_of,
    require_loop_of,
    require_memory,
    require_no_running_statistics,
    require_trainable,
    selection_for,
)
from .contributions import ContributionCheck
from .exchange import asking, patience
from .modes import (
    CentralMode,
    ClientNoiseMode,
    Cohort,
    Mode,
    Released,
    RoundFailed,
    SecureSumMode,
    client_noise_of,
)
from .participations import Participations
from .rehearsal import RehearsalFailed
from .roster import Roster, Unit, nodes_of
from .round_loop import EvaluateFn, RoundLoop
from .run_log import log_promise
from .secure import secure_sums_of
from .selection import Selection
from .server_optimizer import refuse_unfit
from .together import check_together

logger = logging.getLogger("flwr.fl_dp")


_OPENED = 2  # entries of a ledger after which its training has a name of its own


class DPFedAvg(RoundLoop):
    """A Flower strategy whose every released model is differentially private.

    Privacy: for one client's whole contribution over the whole training (the unit), zero-out
    neighbours, the plan's (epsilon, delta), against anyone who sees every released model but not
    who took part. The server is trusted with updates, coins and noise. Train and evaluation
    metrics of clients are dropped, not averaged, unless the plan releases them: they would be a
    second, uncharged release.

    Attributes:
        plan: What is released and at what price.
        ledger: What was charged so far.
        noise_stream: Where the noise on sums of updates comes from, cut at every start. A stream
            with memory needs a plan that charges for it.
        Others: See `RoundLoop`.
    """

    _buffers = False  # whether releases are made of the next answers

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        plan: PrivacyPlan,
        ledger: PrivacyLedger,
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
        secure_roster: SecureRoster | None = None,
        owners: Mapping[str, float] | None = None,
    ) -> None:
        """Put a private path in front of `strategy`.

        Args:
            strategy: The server optimizer, `FedAvg()` by default. It sees one private reply a
                round; its sampling fractions and its weights are not used.
            plan: What is released and at what price.
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
                round (`OpacusClient`), besides what the plan promises to clients.
            compression: How updates and models travel; None: as they are. A client that was sent a
                narrow model, or that is to encode its update, needs `compression_mod`; one that
                answers with its model all the same is read as ever.
            secure_roster: The nodes of secure sums and their identities, as owners have them in a
                file (`fl_dp.secagg.Roster.read`); given if and only if the plan supposes one.
            owners: Epsilon of each node by its lasting name, of a plan whose `OwnRatesSampling`
                has a group for each; who is not in it takes no part. None: units are dealt to the
                groups by their shares, in the order of their names.

        Raises:
            ValueError: If plan, ledger and selection do not belong together, or an option does not
                go with the plan.
            TypeError: If the inner strategy can't work on a private mean.
        """
        require_ledger_of(plan, ledger)
        require_loop_of(plan, buffers=self._buffers)
        coefficients = plan.noise.coefficients
        self.noise_stream: NoiseStream = (
            WhiteStream() if coefficients is None else BandedStream(coefficients)
        )
        rng = rng if rng is not None else SecureRandom()
        ledger.require_known(rng)
        selection = selection_for(plan, selection)
        check_together(
            plan,
            selection,
            weight_cap=weight_cap,
            dp_sgd=record_plan is not None,
            compression=compression if compression is not None else Compression(),
            roster_may_grow=roster_may_grow,
        )
        super().__init__(
            strategy,
            selection=selection,
            roster=Roster(
                plan.hosting.nodes or plan.num_clients,
                units_per_node=plan.hosting.told_apart,
                may_grow=roster_may_grow,
                timeout=roster_timeout,
            ),
            participations=Participations(ledger, owners=owners),
            contribution_check=ContributionCheck(plan) if plan.release.contribution_check else None,
            cohorts_are_seen=plan.sampling.visible,
            weight_cap=weight_cap,
            window=window,
            rng=rng,
            after_round=after_round,
            record_plan=record_plan,
            compression=compression,
        )
        self.plan = plan
        self._of_records = plan.hosting.of_records
        self.ledger = ledger
        self._owns_ledger = False
        self._reservation: Reservation
        self._secure_sums = secure_sums_of(plan, secure_roster)
        self._clipping_norms = plan.release.clipping.first_norms
        self._plateau = plan.noise.controller()
        self._plateau_metric = plateau_metric

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
        selection: Selection | None = None,
        clipping_norm: float | None = None,
        clipping: Clipping | None = None,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        unit: str = "client",
        participation_cap: int | None = None,
        units_per_node: int = 1,
        metrics: tuple[ScalarMetric, ...] = (),
        client_scheme: str | None = None,
        secure_sum: SecureSum | None = None,
        contribution_check: bool = True,
        **of_class: Any,
    ) -> Self:
        """Wrap a strategy in one line: plan to a budget and open the ledger.

        The ledger is closed when `start` returns. For what is not named here (a noise schedule,
        correlated noise, other releases), pass a plan of `PrivacyPlan.calibrate` and its ledger to
        the constructor.

        Args:
            strategy: The server optimizer; `FedAvg()` by default.
            epsilon: The budget over the whole training.
            rounds: Rounds to be trained.
            num_clients: Units of the roster; public.
            ledger: File or database URL of the ledger.
            delta: `num_clients ** -1.1` by default.
            sampling_rate: Probability of each client in each round; or give a `selection`.
            selection: Who takes part; what it releases is planned for, too.
            clipping_norm: L2 bound on one client's update; or give a `clipping`. Both left out: it
                is adapted to the median norm, see docs/choosing_a_clipping_norm.md.
            clipping: What bounds an update, for instance `AdaptiveClipping()`.
            neighboring_relation: Which populations are neighbours.
            unit: `client`, or `record`; see `PrivacyPlan`.
            participation_cap: Rounds of one client at most, enforced by the ledger; None: each
                round is charged to everybody.
            units_per_node: Units that a node hosts at most, whose clipped updates it adds up.
            metrics: Metrics of the clients that each round releases with the updates.
            client_scheme: Each client adds noise of this scheme itself; None: the server adds it.
            secure_sum: Each node adds a share of the noise under masks; None: the server adds it.
            contribution_check: Whether each round releases a noisy number of contributions.
            **of_class: Other arguments of this class: those of `DPFedAvg` and a subclass's own.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type, or the strategy can't work
                on a private mean; no ledger was created.
            ValueError: If an argument is out of range or the budget can't be reached.
        """
        _require_arguments(
            cls,
            of_class,
            epsilon=epsilon,
            rounds=rounds,
            num_clients=num_clients,
            ledger=ledger,
            delta=delta,
        )
        if (sampling_rate is None) == (selection is None):
            raise ValueError(
                "give either sampling_rate or selection, got "
                f"{'neither' if selection is None else 'both'}"
            )
        if strategy is not None:
            refuse_unfit(strategy)
        if clipping_norm is None and clipping is None:
            logger.info(
                "clipping_norm was left out: it starts at %g and follows the updates' median norm "
                "(docs/choosing_a_clipping_norm.md)",
                DEFAULT_CLIPPING.initial_norm,
            )
        delta = default_delta(num_clients) if delta is None else delta
        plan = PrivacyPlan.calibrate(
            PrivacyBudget(epsilon=epsilon, delta=delta),
            rounds=rounds,
            num_clients=num_clients,
            sampling_rate=sampling_rate,
            sampling=None if selection is None else selection.sampling,
            clipping_norm=clipping_norm,
            clipping=clipping,
            neighboring_relation=neighboring_relation,
            unit=unit,
            participation_cap=participation_cap,
            other_releases=() if selection is None else selection.releases(rounds),
            units_per_node=units_per_node,
            metrics=metrics,
            client_scheme=client_scheme,
            secure_sum=secure_sum,
            contribution_check=contribution_check,
        )
        opened = PrivacyLedger.open(ledger, plan, rng=of_class.get("rng"))
        try:
            made = cls(strategy, plan=plan, ledger=opened, selection=selection, **of_class)
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
        evaluate_fn: EvaluateFn | None = None,
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
            ValueError: If more rounds are asked for than the plan has, its plateau has no
                `evaluate_fn` to look at, the model has a BatchNorm's running statistics, or the
                server has too little memory for it.
            RosterIncomplete: If fewer clients connect than the plan declares.
            RosterTooLarge: If more do, and the roster may not grow; nothing was spent.
            RehearsalFailed: If a node will not be able to contribute; nothing was spent.
            PrivacyBudgetExhausted: If not even one round is left and there is no checkpoint to go
                on from: the model would come back untrained.
            NobodyContributes: If (almost) no client's update was ever added; see
                `PrivacyPlan.contribution_check`.
            RoundFailed: If three rounds in a row failed and there is no earlier model to return.
        """
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
            if self._plateau is not None:
                evaluate_fn = _watched(evaluate_fn, self._plateau, self._plateau_metric)
            result = super().start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
            if self._secure_sums is not None:
                self._secure_sums.forget(asking(grid, window=self._window))
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
            if self._owns_ledger:
                self.ledger.close()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the round on disk, draw its cohort and write the messages.

        Where the cohort is secret, it is drawn after the round is reserved; where it is seen, the
        ledger has to know who is charged.

        Raises:
            PrivacyBudgetExhausted: If the round does not fit the budget; nobody was asked.
            ValueError: If the model can't be trained privately.
            RoundFailed: If the round can't be done with its cohort; it stays charged.
        """
        plan = self.plan
        draft = self._draft(
            server_round,
            arrays,
            config,
            grid,
            num_units=plan.num_clients,
            ledger=self.ledger,
        )
        require_trainable(plan, draft.layout, len(draft.roster))  # or a round is charged in vain
        multiplier = self._multiplier
        if plan.sampling.visible and not plan.hosting.coins_at_nodes:
            self._participations.require_some_left(draft.roster, server_round=server_round)
            cohort = self.selection.select(draft.draw)
            self._reservation = self.ledger.reserve(
                round=server_round,
                noise_multiplier=multiplier,
                participants=self._participations.names_of(cohort),
                index=draft.draw.index,
            )
        else:  # charged for any draw: an empty cohort costs as much as a full one
            self._reservation = self.ledger.reserve(
                round=server_round, noise_multiplier=multiplier, index=draft.draw.index
            )
            # Where nodes flip the coins themselves, the server must not know how they came up.
            coins_at_server = not plan.hosting.coins_at_nodes
            cohort = self.selection.select(draft.draw) if coins_at_server else draft.roster
        mode = self.make_mode(self._reservation, draft.layout, draft.origin, draft.instruction)
        return self._ask_cohort(draft, mode, cohort)

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
        # What the ledger has on disk decides, not what was planned.
        multiplier = reservation.noise_multiplier
        assert multiplier is not None and reservation.index is not None  # of every round
        if self._secure_sums is not None:
            return SecureSumMode(
                self.plan,
                multiplier,
                layout,
                instruction,
                clipping_norms=self._clipping_norms,
                sums=self._secure_sums,
                reservation=reservation,
            )
        if isinstance(self.plan.noise, ClientNoise):
            return ClientNoiseMode(
                self.plan,
                multiplier,
                layout,
                origin,
                instruction,
                group_of=self._participations.group_of,
            )
        return CentralMode(
            self.plan,
            multiplier,
            layout,
            origin,
            instruction,
            clipping_norms=self._clipping_norms,
            stream=self.noise_stream,
            index=reservation.index,
            rng=self._rng,
            untried=self._untried,
            scale_of=self._scale_of(),
        )

    def _scale_of(self) -> Callable[[Unit], float] | None:
        """Return the factor on what each unit may move; None where it is 1 for everybody."""
        law = self.plan.sampling
        if not (isinstance(law, OwnRatesSampling) and law.method == "scale"):
            return None
        group_of, least = self._participations.group_of, min(law.scales or (1.0,))

        def of_unit(unit: Unit) -> float:
            group = group_of(unit)  # who has none takes no part: the least is for a mistake of ours
            return least if group is None else law.scale_of(group)

        return of_unit

    @property
    def _multiplier(self) -> float | None:
        """Noise multiplier of the next round, where a plateau decides about it."""
        return None if self._plateau is None else self._plateau.multiplier

    @property
    def clipping_norms(self) -> tuple[float, ...]:
        """Clipping norms of the next round."""
        return self._clipping_norms

    def checkpoint(self) -> Checkpoint:
        """Return what a new process can `resume` from. See `RoundLoop.checkpoint`."""
        return replace(
            super().checkpoint(),
            clipping_norms=self._clipping_norms,
            plateau=None if self._plateau is None else self._plateau.state(),
            ledger=self.ledger.anchor,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the checkpoint's round when `start` is called.

        What was reserved after it stays spent: the budget may end a round earlier for each.

        Raises:
            ValueError: If the checkpoint is of another kind of training.
            LedgerCorrupted: If the ledger does not hold what it held at the checkpoint.
        """
        checkpoint.require_kind(
            plateau=self._plateau is not None, ledger=True, clipping_norms=self._clipping_norms
        )
        assert checkpoint.ledger is not None and checkpoint.clipping_norms is not None  # its kind
        self.ledger.require_holds(checkpoint.ledger, of="the checkpoint")
        super().resume(checkpoint)
        self._clipping_norms = checkpoint.clipping_norms
        if self._plateau is not None and checkpoint.plateau is not None:
            self._plateau.restore(checkpoint.plateau)

    def summary(self) -> None:
        """Log what will be released and at what price."""
        logger.info("DP-FedAvg over %s:", type(self.optimizer.strategy).__name__)
        log_promise(self.plan, self.ledger, self.record_plan)

    def _settle(self, released: Released) -> None:
        """Commit the round in the ledger, and keep the clipping norms of the next one."""
        self.ledger.commit(self._reservation)
        if released.clipping_norms is not None:
            self._clipping_norms = released.clipping_norms

    def _spent(self) -> str:
        return f", epsilon so far {self.ledger.running_epsilon():.3f}"

    def _rehearse(
        self, grid: Grid, nodes: Sequence[int], model: ArrayRecord, config: ConfigRecord
    ) -> None:
        """Let nodes say who they are, and make their keys. See `RoundLoop._rehearse`."""
        if said := float64_error_of(self.plan, VectorLayout.of(model)):
            self._log.warn_once(said)
        super()._rehearse(grid, nodes, model, config)
        if self._secure_sums is not None and isinstance(self.plan.noise, DistributedNoise):
            ask = asking(grid, window=self._window, patient=True)
            timeout = patience(grid, min(self._timeout, self._roster.timeout))
            self._secure_sums.set_up(nodes, ask, timeout=timeout)
            self._secure_sums.require_enough(nodes, self.plan.noise.shares.least)
            try:
                self._secure_sums.require_committee(self.plan.noise.shares)
            except SecureSumFailed as failed:
                raise RehearsalFailed(f"{failed}; nothing was charged") from failed

    def _eligible(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """Return the units but for those whose nodes lied. See `RoundLoop._eligible`."""
        if self._secure_sums is None or not isinstance(self.plan.noise, DistributedNoise):
            return roster
        nodes, least = nodes_of(roster), self.plan.noise.shares.least
        try:
            self._secure_sums.require_left(nodes, least)
        except SecureSumFailed as failed:
            raise RoundFailed(str(failed)) from failed
        allowed = set(self._secure_sums.allowed(nodes, least))
        return [unit for unit in roster if unit.node in allowed]

    def _told_at_rehearsal(self) -> dict[str, str]:
        """Return the noise that nodes are to add, or the prices: an owner may not allow them."""
        if prices := self._prices():
            return {OFFERS_KEY: offers_to_json(prices)}
        if not isinstance(self.plan.noise, ClientNoise):
            return {}
        compression = None if self._compression.up == "none" else self._compression
        # Where groups have their own, the least that any is asked for: nobody knows its group yet.
        noise = client_noise_of(self.plan, self.plan.noise_multipliers[0], compression, group=0)
        if noise.epsilon is not None:
            noise = replace(noise, epsilon=self.plan.budget.epsilon)
        return {INSTRUCTION_KEY: RoundInstruction(server_round=1, client_noise=noise).to_json()}

    def _prices(self) -> tuple[TrainingPrice, ...]:
        """Return what the training costs a client of each group; none where nodes can't count it.

        A node's ledger takes one kind of release at its full budget, and one client a node.
        """
        plan, law = self.plan, self.plan.sampling
        if not isinstance(law, OwnRatesSampling) or plan.hosting.sums_at_nodes:
            return ()
        if isinstance(plan.noise, ClientNoise):  # nodes see it, and count each message
            return ()
        if len(plan.history) != 1:
            return ()
        ((event, rounds),) = plan.history
        return tuple(
            TrainingPrice(
                training=self.ledger.as_of(_OPENED).anchor.hash,
                epsilon=budget,
                event=event_to_dict(law.event_for(group, event)),
                rounds=rounds,
                neighboring_relation=str(plan.neighboring_relation),
            )
            for group, budget in enumerate(law.budgets)
        )

    def _told_to(self, cohort: Cohort) -> Mapping[int, Mapping[str, str]]:
        """Return the price of each node whose owner asks for it. See `RoundLoop._told_to`."""
        groups = {
            node: group
            for node, (unit, *_) in cohort.items()
            if (group := self._participations.priced_group(unit)) is not None
        }
        prices = self._prices() if groups else ()
        if not prices:  # a node that speaks of joining was offered nothing
            return {}
        return {node: {PRICE_KEY: prices[group].to_json()} for node, group in groups.items()}

    def _require_a_round_left(self, grid: Grid) -> None:
        """Check, before the first model is evaluated or saved, that it can be trained at all.

        Raises:
            PrivacyBudgetExhausted: If not.
        """
        plan, ledger = self.plan, self.ledger
        multiplier = self._multiplier
        if plan.participation_cap is not None:
            roster = self._roster.units(grid, self._log)
            self._participations.require_some_left(roster, server_round=1)
        elif ledger.another_round_exceeds(plan.event_of(1, noise_multiplier=multiplier)):
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


def _require_arguments(kind: type[DPFedAvg], of_class: Mapping[str, Any], **given: Any) -> None:
    """Check arguments of `kind.with_budget` before a ledger is made of them.

    Args:
        kind: The class that is to be made.
        of_class: Arguments that `with_budget` does not name, and passes on to the class.
        **given: Arguments that it names; those of the plan alone are checked by the plan.

    Raises:
        TypeError: If one is misspelt or of the wrong type, or the class and the plan both have it.
    """
    own, plans = keywords_of(kind), PlanArguments.__annotations__.keys()
    named = get_type_hints(DPFedAvg.with_budget)
    if both := sorted(own & plans & named.keys()):
        raise TypeError(
            f"'{both[0]}' is an argument of the plan and of {kind.__name__}: rename yours"
        )
    if unnamed := sorted(of_class.keys() & plans - own):
        raise TypeError(
            f"{kind.__name__}.with_budget has no argument '{unnamed[0]}': give it to "
            f"PrivacyPlan.calibrate, and the plan to {kind.__name__}(plan=..., ledger=...)"
        )
    known = (named.keys() | own) - {"return", "of_class", "plan"}
    require_known(of_class, known, of=f"{kind.__name__}.with_budget")
    require_types({**given, **of_class}, get_type_hints(DPFedAvg.__init__) | named)


def _watched(evaluate_fn: EvaluateFn | None, plateau: PlateauController, metric: str) -> EvaluateFn:
    """Return an `evaluate_fn` that also shows the noise its metric.

    Raises:
        ValueError: If there is none, or it does not return the metric.
    """
    if evaluate_fn is None:
        raise ValueError(
            "the plan's noise reacts to a plateau of a public metric: pass an evaluate_fn that "
            f"returns '{metric}'"
        )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = evaluate_fn(server_round, arrays)
        if metrics is None and server_round > 0:
            return None  # not every round has to be evaluated; the first model is
        if metrics is None or metric not in metrics:
            raise ValueError(
                f"the plan's noise reacts to '{metric}', which evaluate_fn did not return"
            )
        if server_round > 0:
            plateau.observe(float(cast(float, metrics[metric])))
        return metrics

    return evaluate
