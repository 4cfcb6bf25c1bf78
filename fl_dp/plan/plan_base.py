"""The questions that every kind of plan answers, and the common part of all kinds.

A kind is one frozen dataclass in one file, with only fields that mean something for it. One object
returns both a round's noise mechanism and the event that charges for it: the accounting can't
differ from what runs.

    >>> plan = CentralPlan(
    ...     budget=PrivacyBudget(epsilon=2.0, delta=200**-1.1),
    ...     rounds=60, num_clients=200,
    ...     sampling=PoissonSampling(sampling_rate=0.25), clipping=FixedClipping(norm=1.0),
    ... ).calibrated()
    >>> plan.noise_multiplier
    2.66...
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from fl_dp import accounting  # its SciPy and dp-accounting on first use: kinds are options, too
from fl_dp.accounting import (
    History,
    NeighboringRelation,
    NoiseSchedule,
    OwnRatesSampling,
    PrivacyBudget,
    PrivacyEvent,
    Sampling,
    freeze,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.arguments import Arguments, hints_of, read_fields
from fl_dp.codec import encode
from fl_dp.guarantee import Against, Guarantee
from fl_dp.mechanisms import Clipping, GaussianBundle
from fl_dp.mechanisms.grid import least_noise_multiplier
from fl_dp.option_errors import IncompatibleOptions, OptionError, require_positive
from fl_dp.promise import delta_rounded_up

from .distributed_noise import DistributedNoise
from .hosting import Hosting
from .release import Release

if TYPE_CHECKING:
    from fl_dp.accounting import EpsilonBounds
    from fl_dp.accounting.filters import PrivacyFilter

_MOST_ROUNDS = 10_000_000  # a foreign plan must not fill the reader's memory
_CONSTANT = NoiseSchedule()
_MARGIN = 1e-9  # above rounding: the same plan must fit on another machine, too
_LEAST_BUDGET = 1e-9
_OF_RELEASES = {
    "clipping",
    "metrics",
    "scalar_noise_std",
    "total_weight",
    "contribution_check",
    "trained",
}

ANOTHER_APP = (
    "a server that sends another app than the one agreed on: a node runs it, unless its SuperNode "
    "verifies apps (`--trusted-entities`)"
)
"""Not covered by any promise against the server: Flower's nodes get their code from it."""
AROUND_A_GATE = (
    "an app that gets around its site's gate: no gate has seen that its site keeps apps apart"
)
"""Not covered instead, where all nodes are behind gates."""
ITEMS_OF_SEVERAL_RECORDS = (
    "an app whose data set makes an item of several records (mix-up, overlapping windows, "
    "statistics of the whole set) or several items of one record (oversampling), or that carries "
    "something from one record to the next outside of its model"
)
"""Not covered by any promise to single records: no check sees how an item is made."""
ROWS_THAT_ARE_NO_RECORDS = (
    "records of a model whose layers have other rows than records, where a client's app computes "
    "gradients by `hooks` or `ghost`: that rows are records is its author's declaration, checked "
    "on made-up records alone. A ledger that the app itself keeps names the mode"
)
"""Not covered by any promise to single records, as no server sees which mode an app has."""


@dataclass(frozen=True, kw_only=True)
class Plan(Arguments, ABC):
    """The releases of a training, their number, and their price.

    A plan without noise multiplier is a draft: errors show at once, `calibrated` finds the noise,
    and nothing can be released.

    Attributes:
        budget: Never exceeded, whatever happens to the rounds.
        rounds: Number of planned models; 0 for a plan of `other_releases` alone.
        num_clients: Number of clients of the declared roster; public.
        neighboring_relation: Populations that are neighbours: `zero-out`, `add-or-remove-one` (the
            same numbers) or `replace-one` (about twice the noise).
        other_releases: Other releases under this budget, such as private statistics.
        contribution_check: End a run to which no client contributes, by a noisy count in each
            round, for at most 1 % more noise (5 % with few clients or rounds).
        trained: Names of the model's arrays that are trained and released, or patterns, with `*`
            and `?` as in file names (`fl_dp.clients.trained_names(module)`). All others stay as
            they are in the first model. None: all floating-point arrays.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise. NaN: what spends the budget.
    """

    kind: ClassVar[str]
    """The kind's name in JSON and settings."""
    noise_location: ClassVar[str]
    """The place where noise is added, in one phrase."""
    of_sums: ClassVar[bool] = True
    """Whether a cohort's sums get noise; else each message has noise of its own."""
    trusts_server: ClassVar[bool] = True
    """Whether the server is trusted with clear messages of clients."""
    masked: ClassVar[bool] = False
    """Whether updates are sent under masks, as integers that have to add up."""

    budget: PrivacyBudget
    rounds: int
    num_clients: int
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    other_releases: FrozenHistory = ()
    contribution_check: bool = True
    trained: tuple[str, ...] | None = None
    noise_multiplier: float = math.nan

    if TYPE_CHECKING:  # a field of some kinds; those without have a property

        @property
        def sampling(self) -> Sampling:
            """Law of each cohort."""

        @property
        def clipping(self) -> Clipping:
            """Rule that bounds one unit's update."""

    # Optional properties of a kind, with their defaults.

    @property
    def num_units(self) -> int:
        """Number of units of the declared roster."""
        return self.num_clients

    @property
    def unit(self) -> str:
        """Unit of the promise: `client` or `record`."""
        return "client"

    @property
    def schedule(self) -> NoiseSchedule:
        """Change of the noise over the rounds, declared beforehand."""
        return _CONSTANT

    @property
    def coefficients(self) -> tuple[int, ...] | None:
        """Coefficients of noise correlated over rounds; None: independent noise."""
        return None

    @property
    def noise(self) -> DistributedNoise | None:
        """Noise in shares under secure sums; None: one party adds all of a release's noise."""
        return None

    @property
    def roster_can_grow(self) -> bool:
        """Whether more clients may take part than are declared."""
        return True

    @property
    def slack(self) -> float:
        """Lambda: a bound on the difference of all releases' log-ratios from their events'.

        A promise is larger than its events' by `2 lambda` in epsilon and `e^lambda` in delta.
        """
        return 0.0

    @property
    def event_budget(self) -> PrivacyBudget:
        """The part of the budget that events may spend."""
        return self.budget

    # The questions that each kind answers itself.

    @property
    @abstractmethod
    def release(self) -> Release:
        """A round's release."""

    @property
    @abstractmethod
    def hosting(self) -> Hosting:
        """Hosting of units on nodes."""

    @property
    @abstractmethod
    def adversary(self) -> str:
        """The promise's adversary, in words."""

    @property
    def against(self) -> Against:
        """The promise's adversary, in a few words."""
        return Against.MODELS if self.trusts_server else Against.SERVER

    @property
    @abstractmethod
    def trusted(self) -> str:
        """The trusted parties, and what they are trusted with, in words."""

    def trusted_behind_gates(self) -> str:
        """Return `trusted` where each node is behind its owner's gate."""
        return self.trusted

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """A round's mechanism, in words."""

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the promise does not cover because of its kind, in sentences."""
        return ()

    @abstractmethod
    def check(self) -> None:
        """Refuse fields that do not fit each other; each part has checked itself.

        Raises:
            ValueError: With what to write instead.
        """

    # Consequences of the answers.

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            TypeError: A value has the wrong type.
            ValueError: A field is out of range, or does not fit another.
        """
        self._check_law()
        read_fields(self, but=["clipping", "sampling"])  # the rules and laws of the kind
        least = 0 if self.other_releases else 1
        if self.rounds < least:
            raise OptionError(
                f"rounds must be at least 1, or 0 where other_releases are planned, got "
                f"{self.rounds}",
                option="rounds",
            )
        if self.rounds > _MOST_ROUNDS:
            raise OptionError(
                f"rounds must be at most {_MOST_ROUNDS:,}, got {self.rounds:,}", option="rounds"
            )
        if self.trained == ():
            raise OptionError(
                "trained names no array, so nothing would be released: name some", option="trained"
            )
        if self.num_clients < 1:
            raise OptionError(
                f"num_clients must be at least 1, got {self.num_clients}", option="num_clients"
            )
        self.sampling.check(self.num_units)
        self.release.check(self.num_units)
        self.hosting.check(self.num_units)
        self.check()
        self._check_relation()
        self.sampling.check_budget(self.budget.epsilon, self.other_releases)
        if not self.is_draft:
            require_positive(noise_multiplier=self.noise_multiplier)
            self.check_noise()

    @property
    def is_draft(self) -> bool:
        """Whether the noise is still to be calibrated."""
        return math.isnan(self.noise_multiplier)

    def require_noise(self) -> None:
        """Refuse a draft.

        Raises:
            OptionError: With what to write instead.
        """
        if self.is_draft:
            raise OptionError(
                "this plan is a draft without its noise_multiplier: write plan.calibrated(), "
                "which returns it with the noise that its budget asks for",
                option="noise_multiplier",
            )

    def calibrated(self) -> Self:
        """Return the plan with the least noise at which everything planned fits the budget.

        Above epsilon 100, fast bounds in closed form ask for a little more noise than necessary.

        Raises:
            ValueError: The budget can't be reached, or another field needs more noise.
        """
        return replace(self, noise_multiplier=self.multiplier_for(self.event_budget.epsilon))

    def multiplier_for(self, target_epsilon: float) -> float:
        """Return the least noise multiplier whose planned events spend an epsilon.

        Raises:
            ValueError: No noise does.
        """
        from fl_dp.accounting.calibration import calibrate_noise

        return calibrate_noise(
            self.rounds_at,
            target_epsilon,
            self.event_budget.delta,
            already_spent=self.other_releases,
            neighboring_relation=self.neighboring_relation,
            context=f"in {self.charged_rounds} rounds",
        )

    def with_spent_budget(self) -> Self:
        """Return the plan with the budget that its noise spends."""
        spends = max(self.tight_epsilon(self.history) * (1.0 + _MARGIN), _LEAST_BUDGET)
        return replace(self, budget=replace(self.budget, epsilon=spends))

    def require_fits(self) -> Self:
        """Return the plan itself, if everything planned fits its budget.

        Raises:
            ValueError: It does not; the text names the rounds that would.
        """
        spends, most = self.tight_epsilon(self.history), self.budget.epsilon
        if spends <= most:
            return self
        fits = self._fitting_rounds()
        fewer = "" if fits is None else f"plan at most {fits} rounds, or "
        raise OptionError(
            f"{self.rounds} rounds at noise_multiplier={self.noise_multiplier:.4g} "
            f"spend {Guarantee.of(self, spends)}, more than the budget of {most:g}: {fewer}leave "
            "noise_multiplier out and it is calibrated",
            option="noise_multiplier",
        )

    def with_clipping(self, clipping: Clipping) -> Self:
        """Return the plan with another bound on updates, which no charge depends on.

        Raises:
            ValueError: This kind has no such rule.
        """
        changed: dict[str, Any] = {"clipping": clipping}
        return replace(self, **changed)

    @property
    def clipping_norm(self) -> float:
        """L2 bound on one unit's whole update, in the first round."""
        return self.release.clipping_norm

    @property
    def sampling_rate(self) -> float:
        """Expected share of the roster in a round."""
        return self.expected_cohort / self.num_units

    @property
    def expected_cohort(self) -> float:
        """Public constant that stands for a cohort's size."""
        return self.sampling.expected_cohort(self.num_units)

    @property
    def expected_weight(self) -> float:
        """Expected sum of a cohort's weights; see `Sampling.expected_weight`."""
        return self.sampling.expected_weight(self.num_units)

    @property
    def denominator(self) -> float:
        """Public divisor of a round's sum; see `Release.denominator`."""
        return self.release.denominator(self.expected_weight, self.num_units)

    def noise_of_mean(self, noise_multiplier: float) -> float:
        """Return the noise standard deviation on each coordinate of a round's mean.

        It counts all parties' noise, even where the charge does not. Correlated noise is that of
        one participation (`noise_left` knows its sum).
        """
        return noise_multiplier * self.clipping_norm / self.denominator

    @cached_property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Planned noise multiplier of each round."""
        self.require_noise()
        if not self.rounds:
            return ()
        return self.schedule.multipliers(self.noise_multiplier, self.rounds)

    @property
    def charged_rounds(self) -> int:
        """Most rounds that one client is charged for."""
        return self.charged_of(self.rounds)

    def charged_of(self, reserved: int) -> int:
        """Return the most of `reserved` rounds that one client is charged for.

        A participation cap limits them, and so do turns, where clients take them.
        """
        return self.sampling.turns(reserved)

    def charged_event(self, event: PrivacyEvent) -> PrivacyEvent:
        """Return the most that a round adds to one client's charge.

        Under a participation cap it is a round of the least noise, whatever its own: it is unknown
        beforehand which rounds fill a client's cap.
        """
        if self.sampling.cap is None:
            return event
        return self.event_at(self.noise_multiplier)

    def cap_share(self, noise_multiplier: float) -> float:
        """Return a round's part of a client's participation cap, in rounds of the least noise.

        Gaussians without sampling add up by their squared inverse multipliers, in any order and
        for any adaptive choice, as each is a composition of smaller equal ones.
        """
        if len(set(self.noise_multipliers)) <= 1:
            return 1.0
        return (self.noise_multiplier / noise_multiplier) ** 2

    def event_of(self, round: int) -> PrivacyEvent:
        """Return the event that a round is charged as.

        Raises:
            ValueError: No such round.
        """
        if not 1 <= round <= self.rounds:
            raise ValueError(f"round {round} is not in the plan, which has {self.rounds}")
        return self.event_at(self.noise_multipliers[round - 1])

    def event_at(self, noise_multiplier: float) -> PrivacyEvent:
        """Return the event that a round of that noise multiplier is charged as."""
        return self.sampling.event(noise_multiplier, self.num_units)

    def rounds_at(self, noise_multiplier: float) -> FrozenHistory:
        """Return the charged rounds if the least noise is `noise_multiplier`."""
        if not self.charged_rounds:
            return ()
        multipliers = self.schedule.multipliers(noise_multiplier, self.charged_rounds)
        if self.sampling.cap is not None:
            multipliers = (noise_multiplier,) * self.charged_rounds  # see `charged_event`
        counts = Counter(multipliers)
        return freeze([(self.event_at(multiplier), count) for multiplier, count in counts.items()])

    @cached_property
    def history(self) -> FrozenHistory:
        """Every planned release that one client is charged for."""
        events = [
            (self.charged_event(self.event_of(round)), 1)
            for round in range(1, self.charged_rounds + 1)
        ]
        return freeze([*events, *self.other_releases])

    def bundle(
        self,
        noise_multiplier: float,
        *,
        clipping_norms: tuple[float, ...] | None = None,
        size: int = 1,
    ) -> GaussianBundle:
        """Return a round's sums, with their noise.

        Args:
            noise_multiplier: That of the round as a whole.
            clipping_norms: This round's; by default the first round's.
            size: Number of coordinates of the model, for the scale of correlated noise.
        """
        return self.release.bundle(
            noise_multiplier,
            expected_cohort=self.expected_weight,
            rounds=self.rounds,
            counted=self.of_sums,  # else the server sees each message, and counts them
            clipping_norms=clipping_norms,
            coefficients=self.coefficients,
            size=size,
        )

    def filter(self, *, room: float = 1.0) -> PrivacyFilter:
        """Return the gate that every release must pass, with nothing spent.

        Where groups have their own budgets, it must pass each one's gate. `room` is a factor on
        the budget's epsilon.
        """
        from fl_dp.accounting.filters import OwnBudgetsFilter

        law = self.sampling
        if not isinstance(law, OwnRatesSampling):
            budget = replace(self.budget, epsilon=room * self.budget.epsilon)
            return self.gate(budget, self.history)
        gates = []
        for number, group in enumerate(law.own_groups):
            budget = replace(self.budget, epsilon=room * group.budget)
            gate = self.gate(budget, law.history_for(number, self.history))
            gates.append((gate, partial(law.event_for, number)))
        return OwnBudgetsFilter(gates)

    def gate(self, budget: PrivacyBudget, history: FrozenHistory) -> PrivacyFilter:
        """Return the gate of one budget, for all releases planned under it."""
        from fl_dp.accounting.filters import DeclaredFilter

        return DeclaredFilter(budget, history, neighboring_relation=self.neighboring_relation)

    def epsilon(self, history: History | None = None) -> EpsilonBounds:
        """Return the epsilon of releases together, by default of all planned ones."""
        releases = self.history if history is None else freeze(history)
        if not releases:
            return accounting.epsilon((), self.budget.delta)
        relation = self.neighboring_relation
        bounds = accounting.epsilon(
            releases, self.event_budget.delta, neighboring_relation=relation
        )
        return bounds.plus(2.0 * self.slack)

    def own_epsilons(self, history: History | None = None) -> tuple[EpsilonBounds, ...]:
        """Return `epsilon` for each group with its own budget, at most that budget; else none."""
        releases = self.history if history is None else freeze(history)
        law = self.sampling
        if not isinstance(law, OwnRatesSampling):
            return ()
        bounds: list[EpsilonBounds] = []
        for number, group in enumerate(law.own_groups):
            bound = self.epsilon(law.history_for(number, releases))
            bounds.append(bound.within(group.budget))
        return tuple(bounds)

    def tight_epsilon(self, history: History, *, interval: float | None = None) -> float:
        """Return the smallest of `epsilon`'s bounds that every kind of event has."""
        releases = freeze(history)
        if not releases:
            return 0.0
        bound = accounting.tight_epsilon(
            releases,
            self.event_budget.delta,
            neighboring_relation=self.neighboring_relation,
            interval=interval,
        )
        return bound + 2.0 * self.slack

    def charges_like(self, other: Plan) -> bool:
        """Return whether another plan differs only in what a round releases."""
        if type(self) is not type(other):
            return False
        charged = [field.name for field in fields(self) if field.name not in _OF_RELEASES]
        return all(getattr(self, name) == getattr(other, name) for name in charged)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values.

        Raises:
            OptionError: It is a draft.
        """
        self.require_noise()
        document: dict[str, Any] = encode(self)
        return document

    def _fitting_rounds(self) -> int | None:
        """Return how many rounds fit the budget; None where their noise differs."""
        from fl_dp.accounting.calibration import affordable_rounds

        rounds = self.rounds_at(self.noise_multiplier)
        if len(rounds) != 1:
            return None  # fewer rounds would be other rounds
        return affordable_rounds(
            self.other_releases,
            rounds[0][0],
            self.budget.epsilon - 2.0 * self.slack,
            self.event_budget.delta,
            at_most=self.charged_rounds,
            neighboring_relation=self.neighboring_relation,
        )

    def _check_relation(self) -> None:
        """Refuse neighbours for which the law is not charged."""
        if self.neighboring_relation not in self.sampling.relations:
            raise IncompatibleOptions(
                f"{self.sampling} is charged on a public roster, and nothing is promised under "
                f"{self.neighboring_relation}: write neighboring_relation=zero-out",
                option="neighboring_relation",
            )

    def _check_law(self) -> None:
        """Refuse other laws than the kind's; a subclass is another law."""
        if "sampling" not in vars(self):
            return
        law, hint = self.sampling, hints_of(type(self))["sampling"]
        laws = get_args(hint) or (hint,)
        if type(law) not in laws:
            names = " or ".join(allowed.kind for allowed in laws)
            raise IncompatibleOptions(
                f"a {self.kind} plan has cohorts by {names}, got {law}", option="sampling"
            )

    def check_noise(self) -> None:
        """Refuse a noise multiplier that does not fit the other fields.

        Raises:
            ValueError: With what to write instead.
        """
        # For their own checks, before anything of the plan is released.
        _ = self.rounds_at(self.noise_multiplier), self.filter()
        # Scalars have to fit every round before the first one starts.
        _ = self.bundle(max(self.noise_multipliers, default=self.noise_multiplier))
        self._check_exactness()
        if self.budget.delta >= 1.0 / self.num_units:
            warnings.warn(
                f"delta {delta_rounded_up(self.budget.delta)} is not below "
                f"1/num_{self.hosting.sampled}s = {1.0 / self.num_units:.3g}: a mechanism that "
                f"publishes one client in full would pass; use {self.num_units**-1.1:.3g} or less",
                stacklevel=4,
            )

    def _check_exactness(self) -> None:
        """Refuse more units than sums hold without rounding, of the roster or of one node."""
        # The finer the noise, the finer the grid, and the fewer units it sums without rounding.
        units, name, lower = self.num_units, "clients", ""
        if (hosted := self.hosting.max_units) > units:
            units, name = hosted, "units of one node"
            lower = f", or write less than {self.hosting.limit}={hosted}"
        if self.bundle(self.noise_multiplier).max_units < units:
            raise OptionError(
                f"noise_multiplier {self.noise_multiplier:.4g} is too small to sum "
                f"{units} {name} exactly: use at least "
                f"{least_noise_multiplier(units, self.clipping_norm)}, or a smaller epsilon"
                f"{lower}",
                option="noise_multiplier",
            )


def require_distant_records(plan: Plan) -> None:
    """Refuse units of one record under relations that charge less than twice the clipping norm.

    Raises:
        OptionError: The unit is neither a client nor a record.
        IncompatibleOptions: The unit is a record, and the relation is not replace-one.
    """
    if plan.unit not in ("client", "record"):
        raise OptionError(f"unit must be one of client, record, got '{plan.unit}'", option="unit")
    if plan.unit == "record" and plan.neighboring_relation.distance != 2:
        raise IncompatibleOptions(
            "one record changes its client's whole update, by up to twice the clipping norm, so "
            "unit=record needs replace-one neighbours: write "
            f"neighboring_relation=replace-one, got {plan.neighboring_relation}",
            option="neighboring_relation",
        )
