"""The plan of a training: what will be released, how often, and at what price.

A plan hands out both the mechanism that makes a round's noise and the event that charges for it,
from the same fields, so that the accounting can't drift from what runs.

    >>> plan = PrivacyPlan.calibrate(
    ...     PrivacyBudget(epsilon=2.0, delta=200**-1.1),
    ...     rounds=60, sampling_rate=0.25, clipping_norm=1.0, num_clients=200,
    ... )
    >>> plan.noise_multiplier
    2.66...
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack, get_type_hints

from fl_dp.accounting import (
    DeclaredFilter,
    EpsilonBounds,
    FixedSizeSampling,
    GaussianEvent,
    GaussianFilter,
    History,
    NeighboringRelation,
    NoiseSchedule,
    PlateauController,
    PlateauSchedule,
    PoissonSampling,
    PrivacyBudget,
    PrivacyEvent,
    PrivacyFilter,
    RenyiFilter,
    Sampling,
    TruncatedPoissonSampling,
    affordable_rounds,
    best_filter_order,
    calibrate_noise,
    epsilon,
    event_from_dict,
    event_of,
    event_to_dict,
    freeze,
    gaussian_noise_multiplier,
    tight_epsilon,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.accounting.sampling import sampling_from_dict
from fl_dp.mechanisms import (
    DEFAULT_CLIPPING,
    AdaptiveClipping,
    ClientScheme,
    Clipping,
    FixedClipping,
    GaussianBundle,
    GaussianMechanism,
    ScalarMetric,
    capped_denominator_sensitivity,
    client_scheme,
    clipping_from_dict,
    clipping_to_dict,
    default_bit_noise_std,
    joint_clipping_norm,
    least_noise_multiplier,
    require_clipping,
)

from .arguments import require_known, require_types

_CONSTANT = NoiseSchedule()
_UNITS = ("client", "record")
# Noise on scalars that costs the updates at most 5 % more noise of their own.
_CHEAP_SCALARS = 0.5 / math.sqrt(1.0 - 1.05**-2)
# The same of the number of contributions, at 1 % and at most; below a tenth of the cohort it gains
# nothing. A round whose count has noise std s tells nobody from three quarters of a cohort of m by
# a logarithm of (0.75 m / s)^2 / 2: at this times m sqrt(rounds), by 20 in a quarter of the rounds.
_CHEAP_COUNT = 1.0 / math.sqrt(1.0 - 1.01**-2)
_DEAREST_COUNT = 1.0 / math.sqrt(1.0 - 1.05**-2)
_CLEAR_COUNT = 0.1
_TIMELY_COUNT = 0.75 / math.sqrt(4.0 * 2.0 * 20.0)


class PlanOptions(TypedDict, total=False):
    """What a plan may say beyond budget, rounds, roster, sampling and clipping; see there."""

    neighboring_relation: NeighboringRelation
    schedule: NoiseSchedule
    plateau: PlateauSchedule | None
    participation_cap: int | None
    other_releases: History
    metrics: tuple[ScalarMetric, ...]
    scalar_noise_std: float | None
    total_weight: float | None
    capped_denominator: bool
    client_scheme: str | None
    unit: str
    units_per_node: int
    coins_at_nodes: bool
    contribution_check: bool


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """DP-FedAvg: rounds of a cohort, a clipped sum and noise.

    Privacy: for one client's whole contribution over all rounds (the unit, unless `unit` says
    otherwise), neighbours as `neighboring_relation` says, against an adversary who sees every
    released model but, where the cohort is sampled, not who took part. The server is trusted with
    the updates and with the noise; under `client_scheme` it is not.

    Build one with `calibrate` (from a target epsilon) or `from_noise_multiplier`.

    Attributes:
        budget: Never exceeded, whatever happens to the rounds.
        rounds: Number of releases that are planned.
        sampling: How cohorts come about.
        noise_multiplier: Noise standard deviation on the sum over the clipping norm, in the rounds
            with the least noise; with `plateau`, the multiplier that its own are relative to; with
            `client_scheme`, that of one client's own noise.
        clipping: What bounds one client's update.
        num_clients: Units of the declared roster; public.
        neighboring_relation: Which populations are neighbours.
        schedule: How the noise changes over the rounds, declared beforehand.
        plateau: How the noise reacts to a public metric instead; gated by a privacy filter.
        filter_order: The filter's Renyi order, fixed beforehand; None: Gaussian.
        participation_cap: At most so many rounds for each client, which the ledger enforces. It
            has to see who takes part: nothing is amplified. None charges each round to everybody.
        other_releases: What else is released under this budget, such as private statistics, or
            the utilities that a selection looks at.
        metrics: Metrics of the clients that each round releases with the updates, at no charge of
            their own: the updates get a little more noise instead.
        scalar_noise_std: Noise on the sum of each metric and of the bits of adaptive clipping,
            both scaled to [-1/2, 1/2]. None: a twentieth of the expected cohort, or more where that
            would cost the updates above 5 %.
        total_weight: Public sum of all clients' weights in [0, 1], which the fixed denominator is
            made of (the estimator `f~f` of McMahan et al. 2018); None: every client weighs 1.
        capped_denominator: Divide by what the cohort weighs, but at least by its expected part of
            `total_weight`, which is then a public lower bound (`f~c`): twice the sensitivity.
        client_scheme: Each client adds noise of this scheme itself: `gaussian`, `laplace` or
            `exponential`; None: the server adds Gaussian noise to the sum.
        unit: `client`, or `example`: one record of a client, which moves its update by up to
            twice the clipping norm, hence under replace-one neighbours.
        units_per_node: Privacy units that a node hosts at most. Above 1, a node answers with the
            sum of its units' clipped updates, and is trusted to clip them.
        coins_at_nodes: Each node flips the coins of its own units and does not say how many came
            up; it is trusted with them.
        contribution_check: Each round also releases a noisy number of the units that contribute,
            at no charge of its own: the updates get at most 1 % more noise, or up to 5 % where few
            clients or rounds would tell too late. A training to which nobody contributes then
            ends early. Not with `client_scheme`, where the server sees
            each message anyway.
    """

    budget: PrivacyBudget
    rounds: int
    sampling: Sampling
    noise_multiplier: float
    clipping: Clipping
    num_clients: int
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    schedule: NoiseSchedule = _CONSTANT
    plateau: PlateauSchedule | None = None
    filter_order: float | None = None
    participation_cap: int | None = None
    other_releases: FrozenHistory = ()
    metrics: tuple[ScalarMetric, ...] = ()
    scalar_noise_std: float | None = None
    total_weight: float | None = None
    capped_denominator: bool = False
    client_scheme: str | None = None
    unit: str = "client"
    units_per_node: int = 1
    coins_at_nodes: bool = False
    contribution_check: bool = True

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range or fields exclude each other.
        """
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if self.num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {self.num_clients}")
        if self.plateau is not None and self.schedule != _CONSTANT:
            raise ValueError(
                f"the noise can follow the plateau or the schedule '{self.schedule.name}', not both"
            )
        require_clipping(self.clipping)
        self.sampling.check(self.num_clients, self.neighboring_relation)
        self._check_cap()
        self._check_weights()
        self._check_unit()
        self._check_nodes()
        if self.client_scheme is not None:
            self._check_client_noise()
        # Both check their own fields; the mechanism also bounds what it can sum exactly.
        _ = self.event_of(1), self.filter()
        _ = self.bundle(max(self.noise_multipliers))  # scalars fit every round, or no round starts
        if self.bundle(self.least_noise_multiplier).max_units < self.num_clients:
            raise ValueError(
                f"noise_multiplier {self.least_noise_multiplier:.4g} is too small to sum "
                f"{self.num_clients} clients exactly: use at least "
                f"{least_noise_multiplier(self.num_clients, self.clipping_norm)}, or a smaller "
                "epsilon"
            )
        if self.budget.delta >= 1.0 / self.num_clients:
            warnings.warn(
                f"delta {self.budget.delta:.3g} is not below 1/num_clients = "
                f"{1.0 / self.num_clients:.3g}: a mechanism that publishes one client in full "
                f"would pass; use {self.num_clients**-1.1:.3g} or less",
                stacklevel=3,
            )

    def _check_cap(self) -> None:
        if self.participation_cap is None:
            return
        if self.participation_cap < 1:
            raise ValueError(f"participation_cap must be at least 1, got {self.participation_cap}")
        if not self.sampling.visible:
            raise ValueError(
                "a participation cap needs to see who takes part, and sampling is only worth its "
                "amplification when nobody does: write sampling_rate=1 or "
                f"sampling=VisibleSampling(cohort=...), got {self.sampling}"
            )
        if self.schedule.name != "constant" or self.plateau is not None:
            raise ValueError(
                "a participation cap needs the same noise in each round, as clients differ in the "
                "rounds they take part in: use the constant schedule, not "
                f"'{'plateau' if self.plateau is not None else self.schedule.name}'"
            )

    def _check_weights(self) -> None:
        weight = self.total_weight
        if weight is not None and not 0.0 < weight <= self.num_clients:
            raise ValueError(
                f"total_weight must lie in (0, num_clients = {self.num_clients}], as no client "
                f"weighs more than 1, got {weight}"
            )
        if self.capped_denominator and weight is None:
            raise ValueError(
                "a capped denominator needs its public lower bound: give total_weight, the least "
                "that all clients can weigh together"
            )
        if self.capped_denominator and self.client_scheme is not None:
            raise ValueError(
                "a capped denominator is made from weights that the server sees, which "
                "client_scheme hides: use the fixed denominator"
            )

    def _check_unit(self) -> None:
        if self.unit not in _UNITS:
            raise ValueError(f"unit must be one of {', '.join(_UNITS)}, got '{self.unit}'")
        if self.unit == "record" and self.neighboring_relation.distance != 2:
            raise ValueError(
                "one example changes its client's whole update, by up to twice the clipping norm: "
                "unit='record' needs replace-one neighbours"
            )

    def _check_nodes(self) -> None:
        if self.units_per_node < 1:
            raise ValueError(f"units_per_node must be at least 1, got {self.units_per_node}")
        if self.sums_at_nodes and self.client_scheme is not None:
            raise ValueError(
                "a node that sums its units clips them for noise at the server: with several units "
                "a node, or coins at the nodes, leave client_scheme out"
            )
        if self.sums_at_nodes and self.capped_denominator:
            raise ValueError(
                "a capped denominator needs each unit's weight, which a node that sums its units "
                "does not tell: use the fixed denominator"
            )
        counted = isinstance(self.sampling, FixedSizeSampling | TruncatedPoissonSampling)
        if counted and self.num_clients % self.units_per_node:
            raise ValueError(
                f"{self.sampling.kind} cohorts are drawn from the declared units, and the server "
                f"can't tell which node hosts fewer: units_per_node = {self.units_per_node} has to "
                f"divide num_clients = {self.num_clients}"
            )
        if not self.coins_at_nodes:
            return
        if not isinstance(self.sampling, PoissonSampling):
            raise ValueError(
                "nodes that flip the coins themselves draw Poisson samples: use PoissonSampling, "
                f"not {type(self.sampling).__name__}"
            )
        if self.participation_cap is not None:
            raise ValueError(
                "a participation cap leaves units out, which nodes that flip the coins themselves "
                "do not know of: use coins at the server"
            )

    @property
    def sums_at_nodes(self) -> bool:
        """Whether nodes answer with sums of their units' clipped updates."""
        return self.units_per_node > 1 or self.coins_at_nodes

    def _check_client_noise(self) -> None:
        for name, given in (
            ("metrics", bool(self.metrics)),
            ("adaptive clipping", isinstance(self.clipping, AdaptiveClipping)),
            ("per-layer clipping", len(self.clipping.first_norms) > 1),
            ("plateau", self.plateau is not None),
        ):
            if given:
                raise ValueError(f"{name} needs noise at the server: leave client_scheme out")
        if not self.sampling.visible:
            raise ValueError(
                "with noise at the clients the server sees each message and who sent it, so "
                "nothing is amplified: write sampling_rate=1 or "
                f"sampling=VisibleSampling(cohort=...), got {self.sampling}"
            )

    @classmethod
    def calibrate(
        cls,
        budget: PrivacyBudget,
        *,
        rounds: int,
        num_clients: int,
        sampling_rate: float | None = None,
        sampling: Sampling | None = None,
        clipping_norm: float | None = None,
        clipping: Clipping | None = None,
        **options: Unpack[PlanOptions],
    ) -> Self:
        """Plan the least noise with which all rounds and all other releases fit the budget.

        With `plateau`, the noise with which as many rounds at the base multiplier would fit its
        filter: less noise later ends the training earlier.

        Beyond epsilon 100 it goes by bounds in closed form, at once, and asks for a little more
        noise than necessary.

        Args:
            budget: What may be spent.
            rounds: Number of releases.
            num_clients: Units of the roster.
            sampling_rate: Short for `sampling=PoissonSampling(sampling_rate=...)`.
            sampling: How cohorts come about.
            clipping_norm: Short for `clipping=FixedClipping(norm=...)`.
            clipping: What bounds an update; `DEFAULT_CLIPPING` if both are left out.
            **options: The plan's other attributes.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type.
            ValueError: If an argument is out of range or the budget can't be reached.
        """
        draft = cls._draft(
            budget,
            rounds=rounds,
            num_clients=num_clients,
            sampling_rate=sampling_rate,
            sampling=sampling,
            clipping_norm=clipping_norm,
            clipping=clipping,
            options=options,
        )
        before, relation = draft.other_releases, draft.neighboring_relation
        noise_std = options.get("scalar_noise_std")
        if draft.plateau is None:
            noise_multiplier = calibrate_noise(
                draft._rounds_at,
                budget.epsilon,
                budget.delta,
                already_spent=before,
                neighboring_relation=relation,
                what=f"in {draft.charged_rounds} rounds",
            )
            return replace(draft, noise_multiplier=noise_multiplier, scalar_noise_std=noise_std)
        if _all_gaussian([*draft._rounds_at(1.0), *before]):
            noise_multiplier = _gaussian_noise(budget, draft.charged_rounds, before, relation)
            return replace(draft, noise_multiplier=noise_multiplier, scalar_noise_std=noise_std)
        noise_multiplier = _renyi_noise(budget, draft._rounds_at, before, relation)
        filter_order = best_filter_order(
            [*draft._rounds_at(noise_multiplier), *before],
            budget.delta,
            neighboring_relation=relation,
        )
        return replace(
            draft,
            noise_multiplier=noise_multiplier,
            filter_order=filter_order,
            scalar_noise_std=noise_std,
        )

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        *,
        delta: float,
        rounds: int,
        num_clients: int,
        sampling_rate: float | None = None,
        sampling: Sampling | None = None,
        clipping_norm: float | None = None,
        clipping: Clipping | None = None,
        max_epsilon: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Self:
        """Plan with a noise multiplier of your own; the budget is what it spends, or `max_epsilon`.

        The other arguments are those of `calibrate`.

        Raises:
            ValueError: If an argument is out of range, or the rounds spend more than `max_epsilon`.
        """
        draft = replace(
            cls._draft(
                PrivacyBudget(epsilon=max_epsilon or 1.0, delta=delta),
                rounds=rounds,
                num_clients=num_clients,
                sampling_rate=sampling_rate,
                sampling=sampling,
                clipping_norm=clipping_norm,
                clipping=clipping,
                options=options,
            ),
            noise_multiplier=noise_multiplier,
        )
        if draft.plateau is not None:
            raise ValueError("a plateau decides the noise itself: calibrate the plan to a budget")
        spends = tight_epsilon(
            draft.history, delta, neighboring_relation=draft.neighboring_relation
        )
        if max_epsilon is not None and spends > max_epsilon:
            raise ValueError(draft._too_much(spends, max_epsilon))
        # A margin above rounding: the same plan must fit on another machine too.
        affordable = max_epsilon or max(spends * (1.0 + 1e-9), 1e-9)
        return replace(
            draft,
            budget=PrivacyBudget(epsilon=affordable, delta=delta),
            scalar_noise_std=options.get("scalar_noise_std"),
        )

    @classmethod
    def _draft(
        cls,
        budget: PrivacyBudget,
        *,
        rounds: int,
        num_clients: int,
        sampling_rate: float | None,
        sampling: Sampling | None,
        clipping_norm: float | None,
        clipping: Clipping | None,
        options: PlanOptions,
    ) -> Self:
        """Return the plan with a noise multiplier of 1, for everything else to be checked."""
        hints = get_type_hints(cls.calibrate) | get_type_hints(PlanOptions)
        require_known(options, hints.keys() - {"return", "options"}, of=cls.__name__)
        require_types(
            {
                "rounds": rounds,
                "num_clients": num_clients,
                "sampling_rate": sampling_rate,
                "clipping_norm": clipping_norm,
                **options,
            },
            hints,
        )
        # Whether the scalars' noise is enough depends on the multiplier that is found.
        rest: dict[str, Any] = {**options, "scalar_noise_std": None}
        rest["other_releases"] = freeze(options.get("other_releases", ()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the finished plan warns
            return cls(
                budget=budget,
                rounds=rounds,
                sampling=_one_sampling(sampling_rate, sampling),
                noise_multiplier=1.0,
                clipping=_one_clipping(clipping_norm, clipping, options.get("client_scheme")),
                num_clients=num_clients,
                **rest,
            )

    def _too_much(self, spends: float, allowed: float) -> str:
        advice = "leave the noise multiplier out and it is calibrated"
        rounds = self._rounds_at(self.noise_multiplier)
        if len(rounds) == 1:
            fits = affordable_rounds(
                self.other_releases,
                rounds[0][0],
                allowed,
                self.budget.delta,
                at_most=self.charged_rounds,
                neighboring_relation=self.neighboring_relation,
            )
            advice = f"plan at most {fits} rounds, or {advice}"
        return (
            f"{self.rounds} rounds at noise multiplier {self.noise_multiplier:.4g} spend epsilon "
            f"{spends:.4g}, more than the budget of {allowed:.4g}: {advice}"
        )

    @property
    def sampling_rate(self) -> float:
        """The expected share of the roster in a round."""
        return self.sampling.expected_cohort(self.num_clients) / self.num_clients

    @property
    def clipping_norm(self) -> float:
        """L2 bound on one client's whole update, in the first round."""
        return joint_clipping_norm(self.clipping.first_norms)

    @property
    def charged_rounds(self) -> int:
        """How many rounds one client is charged for at most."""
        return min(self.rounds, self.participation_cap or self.rounds)

    @cached_property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Planned noise multiplier of each round; with `plateau`, the first one throughout."""
        if self.plateau is not None:
            return (self.plateau.first * self.noise_multiplier,) * self.rounds
        return self.schedule.multipliers(self.noise_multiplier, self.rounds)

    @property
    def least_noise_multiplier(self) -> float:
        """The smallest noise multiplier that any round may have."""
        if self.plateau is not None:
            return min(self.plateau.first, self.plateau.smallest) * self.noise_multiplier
        return self.noise_multiplier

    def event_of(self, round: int, *, noise_multiplier: float | None = None) -> PrivacyEvent:
        """Return what a round is charged as.

        Args:
            round: Its number, from 1.
            noise_multiplier: Only with `plateau`: what its controller decided.

        Raises:
            ValueError: If there is no such round, or a declared round is given other noise.
        """
        if not 1 <= round <= self.rounds:
            raise ValueError(f"round {round} is not in the plan, which has {self.rounds}")
        planned = self.noise_multipliers[round - 1]
        if noise_multiplier is None:
            noise_multiplier = planned
        if self.plateau is None and noise_multiplier != planned:
            raise ValueError(
                f"round {round} was declared with noise multiplier {planned}, got "
                f"{noise_multiplier}: noise that is chosen on the way needs a plateau plan"
            )
        return self.event_at(noise_multiplier)

    def event_at(self, noise_multiplier: float) -> PrivacyEvent:
        """Return what a round of that noise multiplier is charged as."""
        if self.client_scheme is not None:
            return event_of(self.client_mechanism(noise_multiplier))
        return self.sampling.event(noise_multiplier, self.num_clients)

    def _rounds_at(self, noise_multiplier: float) -> FrozenHistory:
        """Return what the charged rounds are when the least noise is `noise_multiplier`."""
        multipliers = self.schedule.multipliers(noise_multiplier, self.charged_rounds)
        return freeze(
            [(self.event_at(each), count) for each, count in Counter(multipliers).items()]
        )

    def declares(self, event: PrivacyEvent) -> bool:
        """Tell whether `event` is among the other releases, in any number."""
        return any(event == declared for declared, _ in self.other_releases)

    def bundle(
        self, noise_multiplier: float, *, clipping_norms: tuple[float, ...] | None = None
    ) -> GaussianBundle:
        """Return what makes a round of that noise multiplier private at the server.

        Args:
            noise_multiplier: Of the round as a whole.
            clipping_norms: Those of this round, where they change; the first round's by default.
        """
        adaptive = isinstance(self.clipping, AdaptiveClipping)
        scalars = int(adaptive) + len(self.metrics)
        noise_std = self.scalar_noise_std
        if scalars and noise_std is None:
            noise_std = max(
                default_bit_noise_std(self.expected_cohort),
                _CHEAP_SCALARS * noise_multiplier * math.sqrt(scalars),
            )
        return GaussianBundle(
            noise_multiplier=noise_multiplier,
            clipping_norms=clipping_norms or self.clipping.first_norms,
            unclipped_bit=adaptive,
            metrics=self.metrics,
            scalar_noise_std=noise_std,
            count_noise_std=self._count_noise_std(noise_multiplier),
        )

    def _count_noise_std(self, noise_multiplier: float) -> float | None:
        """Return the noise on a round's number of contributions, if they are counted."""
        if not self.contribution_check or self.client_scheme is not None:
            return None
        timely = _TIMELY_COUNT * self.expected_cohort * math.sqrt(self.rounds)
        cheap, dearest = _CHEAP_COUNT * noise_multiplier, _DEAREST_COUNT * noise_multiplier
        return max(_CLEAR_COUNT * self.expected_cohort, min(cheap, max(timely, dearest)))

    def mean_mechanism(
        self, noise_multiplier: float, size: int, *, clipping_norm: float
    ) -> GaussianMechanism:
        """Return the mechanism of a mean with a capped denominator.

        A client moves numerator and denominator: twice the sensitivity of a fixed one. The mean is
        put on the grid once, as a whole, which can lengthen what one client moves by the root of
        `size` grid steps on either side: a share that the sensitivity carries.

        Args:
            noise_multiplier: Of the updates.
            size: Length of the vector.
            clipping_norm: L2 bound on one client's update in this round.
        """
        sensitivity = capped_denominator_sensitivity(clipping_norm, self.denominator)
        rounding = 2.0**-28 * noise_multiplier * math.sqrt(size)
        return GaussianMechanism(
            noise_multiplier=noise_multiplier, clipping_norm=sensitivity * (1.0 + rounding)
        )

    def client_mechanism(self, noise_multiplier: float) -> ClientScheme:
        """Return what makes one client's message private, under `client_scheme`.

        Raises:
            ValueError: If the server adds the noise.
        """
        if self.client_scheme is None:
            raise ValueError("the server adds the noise of this plan: it has no client_scheme")
        return client_scheme(
            self.client_scheme,
            noise_multiplier=noise_multiplier,
            clipping_norm=self.clipping_norm,
        )

    def plateau_controller(self) -> PlateauController | None:
        """Return what decides the noise on the way, if the plan has a plateau."""
        if self.plateau is None:
            return None
        return PlateauController(self.plateau, self.noise_multiplier)

    def filter(self) -> PrivacyFilter:
        """Return the gate that every release of the plan has to pass, with nothing spent."""
        relation = self.neighboring_relation
        if self.plateau is None:
            return DeclaredFilter(self.budget, self.history, neighboring_relation=relation)
        if self.filter_order is None:
            return GaussianFilter(self.budget, neighboring_relation=relation)
        return RenyiFilter(self.budget, self.filter_order, neighboring_relation=relation)

    @property
    def expected_cohort(self) -> float:
        """The public constant that stands for the size of a cohort."""
        return self.sampling.expected_cohort(self.num_clients)

    @property
    def denominator(self) -> float:
        """The public constant that a round's sum is divided by: what a cohort weighs on average.

        With `capped_denominator`, the least that the sum is divided by.
        """
        if self.total_weight is None:
            return self.expected_cohort
        return self.expected_cohort * self.total_weight / self.num_clients

    @cached_property
    def history(self) -> FrozenHistory:
        """Every planned release that one client is charged for."""
        events = [(self.event_of(round), 1) for round in range(1, self.charged_rounds + 1)]
        return freeze([*events, *self.other_releases])

    def epsilon(self) -> EpsilonBounds:
        """Return what all planned releases spend together; with `plateau`, what its filter allows.

        Noise that is chosen on the way is bounded by its filter alone.
        """
        if self.plateau is not None:
            return EpsilonBounds(filter=self.budget.epsilon)
        return epsilon(
            self.history,
            self.budget.delta,
            neighboring_relation=self.neighboring_relation,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {
            "budget": asdict(self.budget),
            "rounds": self.rounds,
            "sampling": self.sampling.to_dict(),
            "noise_multiplier": self.noise_multiplier,
            "clipping": clipping_to_dict(self.clipping),
            "num_clients": self.num_clients,
            "neighboring_relation": str(self.neighboring_relation),
            "schedule": self.schedule.to_dict(),
            "plateau": None if self.plateau is None else asdict(self.plateau),
            "filter_order": self.filter_order,
            "participation_cap": self.participation_cap,
            "other_releases": [
                {**event_to_dict(event), "count": count} for event, count in self.other_releases
            ],
            "metrics": [asdict(metric) for metric in self.metrics],
            "scalar_noise_std": self.scalar_noise_std,
            "total_weight": self.total_weight,
            "capped_denominator": self.capped_denominator,
            "client_scheme": self.client_scheme,
            "unit": self.unit,
            "units_per_node": self.units_per_node,
            "coins_at_nodes": self.coins_at_nodes,
            "contribution_check": self.contribution_check,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the plan that `to_dict` described."""
        plateau = fields["plateau"]
        return cls(
            **dict(fields)
            | {
                "budget": PrivacyBudget(**fields["budget"]),
                "neighboring_relation": NeighboringRelation(fields["neighboring_relation"]),
                "schedule": NoiseSchedule.from_dict(fields["schedule"]),
                "plateau": None if plateau is None else PlateauSchedule(**plateau),
                "sampling": sampling_from_dict(fields["sampling"]),
                "clipping": clipping_from_dict(fields["clipping"]),
                "metrics": tuple(ScalarMetric(**metric) for metric in fields["metrics"]),
                "other_releases": freeze(
                    [(event_from_dict(each), each["count"]) for each in fields["other_releases"]]
                ),
            }
        )


def _one_sampling(rate: float | None, sampling: Sampling | None) -> Sampling:
    if (rate is None) == (sampling is None):
        raise ValueError("give either sampling_rate or sampling")
    return sampling if sampling is not None else PoissonSampling(sampling_rate=rate or 0.0)


def _one_clipping(
    norm: float | None, clipping: Clipping | None, client_scheme: str | None
) -> Clipping:
    if norm is not None and clipping is not None:
        raise ValueError(
            f"give either clipping_norm or clipping, got clipping_norm={norm} and {clipping}"
        )
    if clipping is not None:
        return clipping
    if norm is not None:
        return FixedClipping(norm=norm)
    if client_scheme is not None:
        raise ValueError(
            "clipping_norm can't be left out with noise at the clients (client_scheme): nobody "
            "sees how many updates a norm clips, so none can be found on the way; write "
            "clipping_norm=..., docs/choosing_a_clipping_norm.md tells which"
        )
    return DEFAULT_CLIPPING


def _all_gaussian(history: History) -> bool:
    return all(isinstance(event, GaussianEvent) for event, _ in freeze(history))


def _gaussian_noise(
    budget: PrivacyBudget, rounds: int, before: FrozenHistory, relation: NeighboringRelation
) -> float:
    """Return the noise of `rounds` Gaussians that fill a Gaussian DP filter."""
    left = gaussian_noise_multiplier(budget.epsilon, budget.delta) ** -2
    for event, count in before:
        assert isinstance(event, GaussianEvent)  # the caller has checked
        left -= count * (relation.distance / event.noise_multiplier) ** 2
    if left <= 0.0:
        raise ValueError(f"the other releases spend all of epsilon {budget.epsilon}")
    return relation.distance * math.sqrt(rounds / left)


def _renyi_noise(
    budget: PrivacyBudget,
    releases: Callable[[float], FrozenHistory],
    before: FrozenHistory,
    relation: NeighboringRelation,
) -> float:
    """Return the least noise whose releases fit by Renyi DP, at its best order."""
    low, high = 1e-2, 1.0
    if math.isinf(renyi_epsilon(releases(1.0), budget.delta, relation)):
        raise ValueError(
            f"these rounds have no Renyi bound under {relation} neighbours, and noise that reacts "
            "to a plateau needs one: use zero-out neighbours, no sampling, or a declared schedule"
        )

    def fits(noise: float) -> bool:
        total = freeze([*releases(noise), *before])
        return renyi_epsilon(total, budget.delta, relation) <= budget.epsilon

    while not fits(high):
        low, high = high, 2.0 * high
        if high > 1e6:
            raise ValueError(f"no noise reaches epsilon {budget.epsilon} by Renyi DP")
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
