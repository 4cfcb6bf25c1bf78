"""DP-SGD inside clients: the price of one client's records over the whole training.

    >>> plan = RecordPlan.calibrate(
    ...     PrivacyBudget(epsilon=2.0, delta=1e-5),
    ...     sampling_rate=0.1, steps=10, participations=20, clipping_norm=1.0,
    ... )
    >>> plan.noise_multiplier
    1.3...

Clients hold different records, so the federation's epsilon is the largest of any client, not the
sum.

References:
    Abadi et al. 2016, "Deep Learning with Differential Privacy", algorithm 1.

    McSherry 2009, "Privacy Integrated Queries", theorem 4 (parallel composition).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NotRequired, Self, TypedDict, Unpack

from fl_dp import accounting
from fl_dp.accounting import NeighboringRelation, PoissonGaussianEvent, PrivacyBudget
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.arguments import Arguments
from fl_dp.guarantee import Against
from fl_dp.option_errors import OptionError, require_count
from fl_dp.promise import OF_RECORDS

_SMALLEST_NORM = 1e-10


class RecordPlanArguments(TypedDict):
    """Keywords of both `RecordPlan` constructors: its attributes but budget and noise."""

    sampling_rate: float
    steps: int
    participations: int
    clipping_norm: float
    neighboring_relation: NotRequired[NeighboringRelation]
    unit: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class RecordPlan(Arguments):
    """DP-SGD at every client: Poisson samples of its records, clipped gradients, noise.

    Privacy: for one record of one client over the whole training (or as `unit` says), neighbours as
    `neighboring_relation` says, against an adversary who sees every model that the client sends,
    the server included, and knows all other records. The rounds that a client takes part in, and
    their number, reveal nothing of a record: neither is hidden, and neither amplifies.

    Attributes:
        budget: Never exceeded: a client whose ledger is spent contributes nothing.
        noise_multiplier: Noise standard deviation on one step's sum of clipped gradients, over
            `clipping_norm`.
        sampling_rate: Probability of each record in each step; one public constant for all
            clients, so that nothing depends on a client's number of records.
        steps: Number of steps of one participation.
        participations: Rounds of one client that the noise is planned for.
        clipping_norm: L2 bound on one record's gradient.
        neighboring_relation: `zero-out` (a client's number of records is public),
            `add-or-remove-one` (it is not; same numbers, but every client must divide by a public
            constant), or `replace-one`.
        unit: `record`, or `person`: all of somebody's records at one client, whose mean gradient is
            clipped. Where "record" stands above it is then a person.
        training: Name that outlives restarts, by which clients' ledgers know what the training has
            spent; empty: Flower's run.
    """

    against: ClassVar[Against] = Against.SERVER

    budget: PrivacyBudget
    noise_multiplier: float
    sampling_rate: float
    steps: int
    participations: int
    clipping_norm: float
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    training: str = ""
    unit: str = "record"

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A field is out of range.
        """
        super().__post_init__()
        _ = self.event  # checks noise and rate
        require_count(steps=self.steps, participations=self.participations)
        require_of_records(self.unit)
        if not self.training.isprintable():
            raise OptionError(
                f"training must be printable, got {self.training!r}", option="training"
            )
        if not _SMALLEST_NORM <= self.clipping_norm <= 1.0 / _SMALLEST_NORM:
            raise OptionError(
                f"clipping_norm must lie in [{_SMALLEST_NORM:g}, {1.0 / _SMALLEST_NORM:g}], "
                f"where gradients keep their precision, got {self.clipping_norm}",
                option="clipping_norm",
            )

    @classmethod
    def calibrate(cls, budget: PrivacyBudget, **options: Unpack[RecordPlanArguments]) -> Self:
        """Return the plan with the least noise at which all planned participations fit the budget.

        Raises:
            ValueError: An argument is out of range, or no noise is large enough.
        """
        draft = cls(budget=budget, noise_multiplier=1.0, **options)
        noise_multiplier = accounting.calibrate_noise_multiplier(
            budget.epsilon,
            DECLARED_SHARE * budget.delta,
            sampling_rate=draft.sampling_rate,
            rounds=draft.steps * draft.participations,
            neighboring_relation=draft.neighboring_relation,
        )
        return replace(draft, noise_multiplier=noise_multiplier)

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        *,
        delta: float,
        max_epsilon: float | None = None,
        **options: Unpack[RecordPlanArguments],
    ) -> Self:
        """Return the plan of a given noise; its budget is `max_epsilon`, or what the noise spends.

        Raises:
            ValueError: An argument is out of range.
        """
        placeholder = 1.0 if max_epsilon is None else max_epsilon
        budget = PrivacyBudget(epsilon=placeholder, delta=delta)
        plan = cls(budget=budget, noise_multiplier=noise_multiplier, **options)
        if max_epsilon is not None:
            return plan
        spent = accounting.epsilon(
            {plan.event: plan.steps * plan.participations},
            DECLARED_SHARE * delta,
            neighboring_relation=plan.neighboring_relation,
        )
        return replace(plan, budget=PrivacyBudget(epsilon=spent.best, delta=delta))

    def within(self, allowed: PrivacyBudget) -> Self:
        """Return the plan with enough noise for the same rounds to fit a smaller budget.

        So a client whose owner allows less than the run asks for takes part in all its rounds, not
        only until its budget is spent. What `allowed` has above the plan's own budget is unused.

        Returns:
            The plan itself if `allowed` covers its budget; never one with less noise.

        Raises:
            ValueError: No noise fits the budget.
        """
        own = self.budget
        budget = PrivacyBudget(
            epsilon=min(own.epsilon, allowed.epsilon), delta=min(own.delta, allowed.delta)
        )
        if budget == own:
            return self
        return replace(self, budget=budget, noise_multiplier=_noise_within(self, budget))

    @property
    def event(self) -> PoissonGaussianEvent:
        """The charge of one step."""
        return PoissonGaussianEvent(
            noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate
        )

    def epsilon(self, participations: int | None = None) -> accounting.EpsilonBounds:
        """Return a client's epsilon in `participations`, by default the planned ones."""
        count = self.participations if participations is None else participations
        return accounting.epsilon(
            {self.event: count * self.steps},
            self.budget.delta,
            neighboring_relation=self.neighboring_relation,
        )


def require_of_records(unit: str) -> None:
    """Check that a unit is a record, or a person's records.

    Raises:
        OptionError: It is neither.
    """
    if unit not in OF_RECORDS:
        raise OptionError(
            f"unit must be one of {', '.join(OF_RECORDS)}, got '{unit}'", option="unit"
        )


@lru_cache(maxsize=64)  # a node asks for the same in every round
def _noise_within(plan: RecordPlan, budget: PrivacyBudget) -> float:
    """Return the least noise, not below the plan's, by which its rounds fit a budget."""
    calibrated = RecordPlan.calibrate(
        budget,
        sampling_rate=plan.sampling_rate,
        steps=plan.steps,
        participations=plan.participations,
        clipping_norm=plan.clipping_norm,
        neighboring_relation=plan.neighboring_relation,
    )
    return max(plan.noise_multiplier, calibrated.noise_multiplier)
