"""DP-FedAvg around any Flower strategy: every released model is private, and paid for beforehand.

    >>> plan = CentralPlan(budget=PrivacyBudget(epsilon=2, delta=1e-3), rounds=60, ...).calibrated()
    >>> with PrivacyLedger.open("ledger.db", plan) as ledger:
    ...     strategy = DPFedAvg(FedAdam(), plan=plan, ledger=ledger)
    ...     result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=60)

or, in one line around a strategy that is there already:

    >>> strategy = DPFedAvg.with_budget(
    ...     FedAdam(), epsilon=2.0, rounds=60, num_clients=200, sampling_rate=0.25,
    ...     clipping_norm=0.5, ledger="ledger.db",
    ... )

Reference: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
algorithm 1. `private_loop.py` runs the rounds.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, Self

from flwr.serverapp.strategy import Strategy

from fl_dp.accounting import (
    NeighboringRelation,
    PoissonSampling,
    PrivacyBudget,
    default_delta,
    freeze,
)
from fl_dp.arguments import (
    hints_of,
    keywords_of,
    read_arguments,
    require_known,
    with_read_arguments,
)
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import Population, PrivacyLedger
from fl_dp.mechanisms import Clipping, FixedClipping, ScalarMetric, SecureRandom
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.option_errors import ArgumentError, OptionError, require_positive
from fl_dp.plan import CentralPlan, Plan, RecordPlan
from fl_dp.plan.as_json import KINDS
from fl_dp.plan.fields import plan_of
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.statistics import NoiseChoice
from fl_dp.updates import Compression

from .checkpoint import Checkpoint
from .companions import Companions
from .contributions import ContributionCheck
from .preparation import TrainingRehearsal
from .private_loop import PrivateLoop
from .round_evaluation import ChargedEvaluation, evaluation_of, releases_of
from .round_loop import LoopOptions
from .round_strategy import RoundStrategy
from .run_log import RunLog, log_promise
from .selection import LawSelection, Selection, selection_of
from .server_optimizer import refuse_unfit

_Arguments = ParamSpec("_Arguments")

logger = logging.getLogger("flwr.fl_dp")


def _sends_budgets_to_with_budget(
    constructor: Callable[_Arguments, None],
) -> Callable[_Arguments, None]:
    """Let a constructor refuse unknown names; point those of a budget to `with_budget`."""
    own = inspect.signature(constructor).parameters

    @wraps(constructor)
    def construct(*positional: _Arguments.args, **named: _Arguments.kwargs) -> None:
        kind = type(positional[0]).__name__
        if of_budget := [name for name in named if name in _OF_BUDGET - own.keys()]:
            raise ArgumentError(
                f"{kind} has no argument '{of_budget[0]}', as it takes a plan and its ledger: "
                f"write {kind}.with_budget(epsilon=4.0, rounds=60, num_clients=200, "
                'sampling_rate=0.25, ledger="ledger.db")',
                option=of_budget[0],
            )
        require_known(named, own, of=kind)
        constructor(*positional, **named)

    return construct


class DPFedAvg(RoundStrategy):
    """A Flower strategy whose every released model is differentially private.

    Privacy: for one client's whole contribution over the whole training (the unit), zero-out
    neighbours, the plan's (epsilon, delta), against anyone who sees every released model but not
    who took part. The server is trusted with updates, coins and noise. Clients' train and
    evaluation metrics are dropped unless the plan releases them: they would be a second, uncharged
    release. A subclass that overrides methods of Flower's strategies gets released models and
    metrics alone.

    Attributes:
        loop_class: Class of the loop: the mechanism that the plan charges for.
        plan_class: Kind of plan that `with_budget` makes.
        Others: See `RoundStrategy`.
    """

    loop_class: ClassVar[type[PrivateLoop]] = PrivateLoop
    plan_class: ClassVar[type[Plan]] = CentralPlan
    loop: PrivateLoop

    @_sends_budgets_to_with_budget
    @with_read_arguments("plan", "ledger")
    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        plan: Plan,
        ledger: PrivacyLedger,
        selection: Selection | None = None,
        weight_cap: float | None = None,
        window: int | None = None,
        roster_timeout: float = 60.0,
        roster_may_grow: bool = False,
        rng: SecureRandom | None = None,
        after_round: Callable[[Checkpoint], None] | None = None,
        record_plan: RecordPlan | None = None,
        compression: Compression | None = None,
        secure_roster: SecureRoster | None = None,
        owners: Mapping[str, float] | None = None,
        evaluation: NoiseChoice | None = None,
    ) -> None:
        """Put a private path in front of `strategy`.

        Args:
            strategy: The server optimizer, `FedAvg()` by default. It sees one private reply per
                round; its sampling fractions and weights are not used.
            plan: What is released and at what price.
            ledger: Opened with the same plan.
            selection: Chooses the participants; by default as the plan's `sampling` says.
            weight_cap: Number of records that earn a client the full weight. Each client applies
                its weight, `min(records / weight_cap, 1)`, before clipping. None: all weigh 1.
            window: Number of nodes that work at the same time; None leaves it to the grid.
            roster_timeout: Seconds to wait for the plan's clients to connect.
            roster_may_grow: Whether more clients than declared may take part. Each client's
                charge and the denominator stay the same: with twice the clients under Poisson
                sampling, the mean is twice as large. Counted cohorts are still drawn from the
                declared number. Without it, too many clients at the start are an error, and later
                ones take no part.
            rng: Source of noise and coins; by default secure. An insecure one, for tests and
                simulations, is refused unless the ledger was opened with it.
            after_round: Called with a checkpoint after the start and every round, to save it.
            record_plan: What clients promise to each of their records (`OpacusClient`), besides
                the plan's promise to clients. Sent with every round.
            compression: Encoding of updates and models; None sends them as they are. A client that
                gets a narrow model, or has to encode its update, needs `compression_mod`; an
                answer with the whole model is read all the same.
            secure_roster: The nodes of secure sums and their identities, as owners have them in a
                file (`fl_dp.secagg.Roster.read`). Required if and only if the plan supposes one.
            owners: Epsilon of each node by its lasting name, for a plan whose `OwnRatesSampling`
                has a group for each; unlisted nodes take no part. None: units are dealt to the
                groups by their shares, in the order of their names.
            evaluation: What every client's `evaluate` measures of each released model, and its
                noise: `choose_noise(Evaluation(...), epsilon, delta)`, of one round. The plan
                declares its events once per round. The strategy gets one private reply.

        Raises:
            ValueError: If plan, ledger and selection do not belong together, or an option does not
                go with the plan.
            TypeError: If the inner strategy can't work on a private mean.
        """
        self._evaluation = evaluation_of(evaluation, plan, strategy, dp_sgd=record_plan is not None)
        super().__init__(strategy, evaluates=self._evaluation is not None)
        options = LoopOptions(
            selection=selection if selection is not None else selection_of(plan.sampling),
            weight_cap=weight_cap,
            window=window,
            roster_timeout=roster_timeout,
            rng=rng if rng is not None else SecureRandom(),
            after_round=after_round,
            record_plan=record_plan,
            compression=compression if compression is not None else Compression(),
        )
        self.loop = self.loop_class(
            self.optimizer,
            options,
            plan=plan,
            ledger=ledger,
            roster_may_grow=roster_may_grow,
            secure_roster=secure_roster,
            owners=owners,
            companions=self._companions(plan, ledger, options),
        )

    def _companions(self, plan: Plan, ledger: PrivacyLedger, options: LoopOptions) -> Companions:
        """What stands around the rounds: log, rehearsal, evaluation, and a count of who answers."""
        # Delta, unit, neighbours and adversary stand above the rounds.
        log = RunLog(
            lambda: f", epsilon {Guarantee.of(plan, spent=ledger.running_epsilon()).numbers}"
        )
        evaluate: ChargedEvaluation | None = None
        if self._evaluation is not None:
            evaluate = ChargedEvaluation(
                evaluation=self._evaluation,
                optimizer=self.optimizer,
                ledger=ledger,
                rng=options.rng,
                log=log,
            )
        return Companions(
            log=log,
            preparation=TrainingRehearsal(
                plan=plan,
                optimizer=self.optimizer,
                options=options,
                log=log,
                evaluation=evaluate,
            ),
            evaluate=evaluate,
            contribution_check=(
                ContributionCheck(plan) if plan.release.contribution_check else None
            ),
        )

    @classmethod
    @with_read_arguments("strategy", "clipping")
    def with_budget(
        cls,
        strategy: Strategy | None = None,
        *,
        epsilon: float,
        rounds: int,
        num_clients: int,
        ledger: str | Path,
        name: str | None = None,
        cap: PrivacyBudget | None = None,
        population: Population | None = None,
        delta: float | None = None,
        sampling_rate: float | None = None,
        selection: Selection | None = None,
        clipping_norm: float | None = None,
        clipping: Clipping | None = None,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        unit: str = "client",
        units_per_node: int = 1,
        metrics: tuple[ScalarMetric, ...] = (),
        contribution_check: bool = True,
        trained: tuple[str, ...] | None = None,
        evaluation: NoiseChoice | None = None,
        **options: Any,
    ) -> Self:
        """Plan to a budget, open the ledger and wrap a strategy.

        The ledger is closed when `start` returns. For other settings (a noise schedule, other
        releases, another kind of plan), pass a plan and its ledger to the constructor.

        Args:
            strategy: The server optimizer; `FedAvg()` by default.
            epsilon: The budget over the whole training.
            rounds: Number of rounds.
            num_clients: Number of units in the roster; public.
            ledger: Its file or database URL.
            name: The training's name in the ledger; see `PrivacyLedger.open`.
            cap: Largest total of all trainings in a ledger that is made now.
            population: Whom the training is of; see `PrivacyLedger.open`.
            delta: By default half of what the ledger's account has left; `num_clients ** -1.1` in
                a new one without a cap.
            sampling_rate: Probability of each client in each round; or give a `selection`.
            selection: Chooses the participants; its own releases are planned for, too.
            clipping_norm: L2 bound on one client's update; or give a `clipping`. Without both, it
                is adapted to the median norm (docs/choosing.md).
            clipping: Rule that bounds an update, for instance `AdaptiveClipping()`.
            neighboring_relation: Defines which populations are neighbours.
            unit: `client`, or `record`; see `Plan`.
            units_per_node: Units that a node hosts at most; it adds up their clipped updates.
            metrics: Clients' metrics that each round releases with the updates.
            contribution_check: Whether each round releases a noisy number of contributions.
            trained: Arrays that are trained and released, by names or patterns; all others stay
                as they are (`fl_dp.clients.trained_names(module)`). None: all floating-point ones.
            evaluation: Clients' evaluation of each model, planned for, too; see `DPFedAvg`.
            **options: Other arguments of `DPFedAvg`, and a subclass's own.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type, or the strategy can't work
                on a private mean; no ledger was created.
            ValueError: If an argument is out of range or the budget can't be reached.
            PrivacyBudgetExhausted: If the ledger's account has less left; nothing was spent.
        """
        _require_known(cls, options)
        options = read_arguments(options, hints_of(DPFedAvg.__init__))
        if (sampling_rate is None) == (selection is None):
            got = "neither" if selection is None else "both"
            raise OptionError(
                f"give either sampling_rate or selection, got {got}", option="selection"
            )
        if strategy is not None:
            refuse_unfit(strategy)
        if delta is None:
            delta = PrivacyLedger.delta_for(ledger, name=name, cap=cap)
        if delta is None:
            delta = default_delta(num_clients)
        if selection is None:
            selection = LawSelection(PoissonSampling(sampling_rate=sampling_rate or 0.0))
        values: dict[str, Any] = {
            "budget": PrivacyBudget(epsilon=epsilon, delta=delta),
            "rounds": rounds,
            "num_clients": num_clients,
            "sampling": selection.sampling,
            "clipping": _clipping_of(clipping_norm, clipping),
            "neighboring_relation": neighboring_relation,
            "other_releases": freeze(
                [*freeze(selection.releases(rounds)), *releases_of(evaluation, rounds)]
            ),
            "metrics": metrics,
            "contribution_check": contribution_check,
            "trained": trained,
        }
        # Not every kind of plan has these fields: they are set only where they differ.
        defaults = {field.name: field.default for field in fields(CentralPlan)}
        for option, value in (("unit", unit), ("units_per_node", units_per_node)):
            if value != defaults[option]:
                values[option] = value
        plan = plan_of(cls.plan_class, values).calibrated()
        dp_sgd = options.get("record_plan") is not None
        if evaluation_of(evaluation, plan, strategy, dp_sgd=dp_sgd) is not None:
            options["evaluation"] = evaluation  # what is refused leaves no ledger
        opened = PrivacyLedger.open(
            ledger, plan, name=name, cap=cap, population=population, rng=options.get("rng")
        )
        try:
            wrapped = cls(strategy, plan=plan, ledger=opened, selection=selection, **options)
        except BaseException:
            opened.close()
            raise
        wrapped.loop.owns_ledger = True
        return wrapped

    @property
    def plan(self) -> Plan:
        """What is released and at what price."""
        return self.loop.plan

    @property
    def planned_rounds(self) -> int:
        """The plan's rounds."""
        return self.plan.rounds

    @property
    def ledger(self) -> PrivacyLedger:
        """The record of all charges."""
        return self.loop.ledger

    @property
    def clipping_norms(self) -> tuple[float, ...]:
        """Clipping norms of the next round."""
        return self.loop.clipping_norms

    def summary(self) -> None:
        """Log what will be released and at what price."""
        logger.info("DP-FedAvg over %s:", type(self.optimizer.strategy).__name__)
        price = None if self._evaluation is None else self._evaluation.price()
        log_promise(self.plan, self.ledger, self.record_plan, price)


_OF_BUDGET = hints_of(DPFedAvg.with_budget).keys() - {"options", "return"}


def _clipping_of(norm: float | None, clipping: Clipping | None) -> Clipping:
    """The rule that bounds an update.

    Raises:
        ValueError: If both a norm and a rule are given.
    """
    if norm is not None and clipping is not None:
        raise OptionError(
            f"give either clipping_norm or clipping, got clipping_norm={norm} and {clipping}",
            option="clipping",
        )
    if norm is not None:
        require_positive(clipping_norm=norm)
        return FixedClipping(norm=norm)
    if clipping is not None:
        return clipping
    logger.info(
        "clipping_norm was left out: it starts at %g and follows the updates' median norm "
        "(docs/choosing.md)",
        DEFAULT_CLIPPING.norm,
    )
    return DEFAULT_CLIPPING


def _require_known(kind: type[DPFedAvg], options: Mapping[str, Any]) -> None:
    """Check names of arguments of `kind.with_budget` before a ledger is made.

    Raises:
        TypeError: If one is misspelt, or both the class and the plan have it.
    """
    own, plans = keywords_of(kind), {field.name for field in fields(kind.plan_class)}
    named = hints_of(DPFedAvg.with_budget)
    if both := sorted(own & plans & named.keys()):
        raise ArgumentError(
            f"'{both[0]}' is an argument of the plan and of {kind.__name__}: rename yours",
            option=both[0],
        )
    plan_fields: set[str] = set()
    for plan_class in KINDS.values():
        plan_fields |= {field.name for field in fields(plan_class)}
    if unnamed := sorted(options.keys() & plan_fields - own):
        raise ArgumentError(
            f"{kind.__name__}.with_budget has no argument '{unnamed[0]}': give it to a plan, and "
            f"the plan to {kind.__name__}(plan=..., ledger=...)",
            option=unnamed[0],
        )
    names = (named.keys() - {"return", "options", "plan"}) | (own - {"return", "plan"})
    require_known(options, names, of=f"{kind.__name__}.with_budget")
