"""The plan of a training: what will be released, how often, and at what price.

A plan hands out both the mechanism that makes a round's noise and the event that charges for it,
from the same objects, so that the accounting can't drift from what runs.

    >>> plan = PrivacyPlan.calibrate(
    ...     PrivacyBudget(epsilon=2.0, delta=200**-1.1),
    ...     rounds=60, sampling_rate=0.25, clipping_norm=1.0, num_clients=200,
    ... )
    >>> plan.noise_multiplier
    2.66...
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, Self, Unpack

from fl_dp.accounting import (
    EpsilonBounds,
    History,
    NeighboringRelation,
    OwnRatesSampling,
    PrivacyBudget,
    PrivacyEvent,
    Sampling,
    epsilon,
    freeze,
)
from fl_dp.accounting.bounds import tight_epsilon
from fl_dp.accounting.events import FrozenHistory, history_from_list, history_to_list
from fl_dp.accounting.filters import OwnBudgetsFilter, PrivacyFilter
from fl_dp.accounting.own_rates import calibrate_own_rates
from fl_dp.accounting.sampling import sampling_from_dict
from fl_dp.mechanisms import GaussianBundle
from fl_dp.mechanisms.grid import least_noise_multiplier
from fl_dp.mechanisms.noise_share import MOST_UNITS
from fl_dp.option_errors import OptionError, require_compatible

from .arguments import (
    PlanArguments,
    hosting_of,
    noise_from_dict,
    noise_of,
    release_of,
    require_plan_arguments,
    sampling_of,
)
from .calibrated import PlannedReleases, calibrated_noise, fitting_rounds
from .distributed_noise import DistributedNoise
from .exclusions import EXCLUSIONS, Asked
from .hosting import Hosting
from .noise import Noise
from .release import Release
from .shared_bundle import SharedBundle

_UNITS = ("client", "record")
_ONE_A_NODE = Hosting()
_BELOW = 1.0 - 1e-9  # of a scale: its group fits on another machine, too
_UNITS_AT_ONE = 2.0**22  # that a sum holds exactly at noise multiplier 1, whatever the norm
_MOST_ROUNDS = 10_000_000  # a plan that somebody else wrote must not fill the reader's memory


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """DP-FedAvg: rounds of a cohort, a clipped sum and noise.

    Privacy: for one client's whole contribution over all rounds (the unit, unless `unit` says
    otherwise), neighbours as `neighboring_relation` says, against an adversary who sees every
    released model but, where the cohort is sampled, not who took part. The server is trusted with
    the updates and with the noise; under `ClientNoise` it is not.

    Build one with `calibrate` (from a target epsilon) or `from_noise_multiplier`, which take the
    fields of `noise`, `release` and `hosting` as plain keywords.

    Attributes:
        budget: Never exceeded, whatever happens to the rounds.
        rounds: Number of models that are planned to be released; 0 for a plan of `other_releases`
            alone.
        num_clients: Units of the declared roster; public. Where units are records
            (`Hosting.nodes`), about as many as all nodes have: it divides, and the contribution
            check compares it with a noisy count.
        sampling: How each cohort is sampled.
        noise: Who adds the noise, and how much in each round.
        release: What a round publishes: clipping, metrics, weights.
        hosting: How units lie on nodes.
        neighboring_relation: Which populations are neighbours.
        participation_cap: Largest number of rounds of a client, which the ledger enforces; a round
            with more noise than the least counts as the part of one that it costs. It has to see
            who takes part: nothing is amplified. None charges each round to all clients.
        other_releases: What else is released under this budget, such as private statistics, or
            the utilities that a selection looks at.
        unit: `client`, or `record`. One record of a client moves its update by up to twice the
            clipping norm, hence under replace-one neighbours. Where units are records
            (`Hosting.nodes`) it moves a sum by its own clipped gradient, under any neighbours.
    """

    budget: PrivacyBudget
    rounds: int
    num_clients: int
    sampling: Sampling
    noise: Noise
    release: Release
    hosting: Hosting = _ONE_A_NODE
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    participation_cap: int | None = None
    other_releases: FrozenHistory = ()
    unit: str = "client"

    def __post_init__(self) -> None:
        """Validate what lies between the parts; each part checks itself.

        Raises:
            ValueError: If a field is out of range or fields exclude each other.
        """
        if self.rounds < (0 if self.other_releases else 1):
            raise OptionError(
                f"{{rounds}} must be at least 1, or 0 where other_releases are planned, got "
                f"{self.rounds}"
            )
        if self.rounds > _MOST_ROUNDS:
            raise OptionError(f"{{rounds}} must be at most {_MOST_ROUNDS:,}, got {self.rounds:,}")
        if self.num_clients < 1:
            raise OptionError(f"{{num_clients}} must be at least 1, got {self.num_clients}")
        require_compatible((*EXCLUSIONS, *self.noise.exclusions), self.asked())
        self._check_parts()
        # Made for their own checks: charged and gated, before anything of the plan is released.
        _ = self.rounds_at(self.noise_multiplier), self.filter()
        # Scalars fit every round, or no round starts.
        _ = self.bundle(max(self.noise_multipliers, default=self.noise_multiplier))
        if isinstance(self.noise, DistributedNoise):
            self.noise.check(
                self.bundle(self.noise_multiplier),
                units_in_sum=self.hosting.most_drawn(self.sampling),
                sums=self.rounds + sum(count for _, count in self.other_releases),
                num_clients=self.num_clients,
            )
        self._check_exactness()
        if self.budget.delta >= 1.0 / self.num_clients:
            warnings.warn(
                f"delta {self.budget.delta:.3g} is not below 1/num_clients = "
                f"{1.0 / self.num_clients:.3g}: a mechanism that publishes one client in full "
                f"would pass; use {self.num_clients**-1.1:.3g} or less",
                stacklevel=3,
            )

    def asked(self, **others: Any) -> Asked:
        """Return what rules look at.

        Args:
            **others: Fields of `Asked` that the plan does not know: the strategy's.
        """
        return Asked(
            sampling=self.sampling,
            noise=self.noise,
            release=self.release,
            hosting=self.hosting,
            neighboring_relation=self.neighboring_relation,
            num_clients=self.num_clients,
            participation_cap=self.participation_cap,
            unit=self.unit,
            **others,
        )

    def _check_parts(self) -> None:
        """Refuse numbers that do not fit each other."""
        if self.unit not in _UNITS:
            raise OptionError(f"{{unit}} must be one of {', '.join(_UNITS)}, got '{self.unit}'")
        self.sampling.check(self.num_clients)
        self.release.check(self.num_clients)
        self.hosting.check(self.num_clients)
        if (correlation := self.asked().correlation) is not None:
            correlation.check(self.sampling)
        if isinstance(self.sampling, OwnRatesSampling):
            self._check_own_budgets(self.sampling)
        cap = self.participation_cap
        if cap is None:
            return
        if cap < 1:
            raise OptionError(f"{{participation_cap}} must be at least 1, got {cap}")
        needed = self.rounds * self.expected_cohort
        if self.sampling.buffered and cap * self.num_clients < needed:
            raise OptionError(
                f"{self.num_clients} clients that are asked at most {{participation_cap={cap}}} "
                f"times each can't fill {self.rounds} buffers of {self.expected_cohort:g}: allow "
                f"at least {-(-needed // self.num_clients):.0f}, and some more for answers that "
                "never come"
            )

    def _check_exactness(self) -> None:
        """Refuse more units than sums hold without a rounding, all of them or those of one node."""
        hosted = self.hosting.units_per_node
        if isinstance(self.noise, DistributedNoise) and hosted > MOST_UNITS:
            raise OptionError(
                f"a node of a secure sum adds up at most {MOST_UNITS} units as exactly as they are "
                f"charged, and may have {{units_per_node={hosted}}}: spread them over more nodes, "
                f"and write {{units_per_node={MOST_UNITS}}} or less"
            )
        # The finer the noise, the finer the grid, and the fewer units it sums without a rounding.
        units, whose, lower = self.num_clients, "clients", ""
        if hosted > units:
            units, whose = hosted, "units of one node"
            lower = f", or write less than {{units_per_node={hosted}}}"
        if self.bundle(self.noise_multiplier).max_units < units:
            raise OptionError(
                f"{{noise_multiplier}} {self.noise_multiplier:.4g} is too small to sum "
                f"{units} {whose} exactly: use at least "
                f"{least_noise_multiplier(units, self.clipping_norm)}, or a smaller {{epsilon}}"
                f"{lower}"
            )

    def _check_own_budgets(self, law: OwnRatesSampling) -> None:
        """Refuse a budget that is none of the groups', and what would be charged at their rates."""
        if self.budget.epsilon != law.budgets[-1]:
            raise OptionError(
                f"{{epsilon={self.budget.epsilon:g}}} must be the largest of the {{budgets}}: "
                f"write {{epsilon={law.budgets[-1]:g}}}, and no {{noise_multiplier}}, as noise for "
                "groups with budgets of their own is calibrated"
            )
        if any(law.event_for(0, event) != event for event, _ in self.other_releases):
            raise OptionError(
                "another release is sampled at the rate of the last group, or noised like a "
                "client's message, and would be charged at each group's own: change its rate a "
                "little, or leave it out"
            )

    @classmethod
    def calibrate(cls, budget: PrivacyBudget, **given: Unpack[PlanArguments]) -> Self:
        """Plan the least noise with which all rounds and all other releases fit the budget.

        Beyond epsilon 100 it goes by bounds in closed form, at once, and asks for a little more
        noise than necessary.

        Args:
            budget: What may be spent.
            **given: `rounds`, `num_clients`, either `sampling_rate` or `sampling`, and
                `clipping_norm` or `clipping` or neither, for `DEFAULT_CLIPPING`; then any other of
                `PlanArguments`.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type.
            ValueError: If an argument is out of range or the budget can't be reached.
        """
        draft = cls.draft(budget, **given)
        if isinstance(draft.sampling, OwnRatesSampling):
            return draft._finished(given, **draft._own_rates(draft.sampling))
        return draft._finished(given, noise=calibrated_noise(draft.noise, draft.planned_releases))

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        *,
        delta: float,
        max_epsilon: float | None = None,
        **given: Unpack[PlanArguments],
    ) -> Self:
        """Plan with a noise multiplier of your own; the budget is what it spends, or `max_epsilon`.

        The other arguments are those of `calibrate`.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type.
            ValueError: If an argument is out of range, or the rounds spend more than `max_epsilon`.
        """
        budget = PrivacyBudget(epsilon=max_epsilon or 1.0, delta=delta)
        draft = cls.draft(budget, noise_multiplier, **given)
        return draft._finished(given, budget=draft._needed_budget(max_epsilon))

    @classmethod
    def of(
        cls, *, budget: PrivacyBudget, noise_multiplier: float, **given: Unpack[PlanArguments]
    ) -> Self:
        """Plan with noise and a budget as they are: the ledger ends the training where it is spent.

        The other arguments are those of `calibrate`.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type.
            ValueError: If an argument is out of range.
        """
        require_plan_arguments(given, of=cls.__name__)
        return cls._made(budget, noise_of(given, noise_multiplier), given)

    @classmethod
    def draft(
        cls,
        budget: PrivacyBudget,
        noise_multiplier: float | None = None,
        **given: Unpack[PlanArguments],
    ) -> Self:
        """Return the plan before its numbers are found, at once: what is refused shows here.

        Args:
            budget: May still change.
            noise_multiplier: May still change; None: one at which all units are summed exactly.
            **given: As for `calibrate`.

        Raises:
            TypeError: If an argument is misspelt or of the wrong type.
            ValueError: If an argument is out of range, or arguments exclude each other.
        """
        require_plan_arguments(given, of=cls.__name__)
        if noise_multiplier is None:
            units = max(given["num_clients"], given.get("units_per_node", 1))
            noise_multiplier = max(1.0, units / _UNITS_AT_ONE)
        # Whether the scalars' noise or a word's bits are enough depends on the multiplier found.
        given = given | {"scalar_noise_std": None}
        if (secure_sum := given.get("secure_sum")) is not None:
            given = given | {"secure_sum": secure_sum.with_most_bits()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the finished plan warns
            return cls._made(budget, noise_of(given, noise_multiplier), given)

    @classmethod
    def _made(cls, budget: PrivacyBudget, noise: Noise, given: PlanArguments) -> Self:
        return cls(
            budget=budget,
            rounds=given["rounds"],
            num_clients=given["num_clients"],
            sampling=sampling_of(given),
            noise=noise,
            release=release_of(given),
            hosting=hosting_of(given),
            neighboring_relation=given.get("neighboring_relation", cls.neighboring_relation),
            participation_cap=given.get("participation_cap"),
            other_releases=freeze(given.get("other_releases", ())),
            unit=given.get("unit", cls.unit),
        )

    def _finished(self, given: PlanArguments, **found: Any) -> Self:
        """Return the draft with what was found for it."""
        noise, noise_std = found.pop("noise", self.noise), given.get("scalar_noise_std")
        secure_sum = given.get("secure_sum")
        if isinstance(noise, DistributedNoise) and secure_sum is not None:
            noise = replace(noise, secure_sum=replace(noise.secure_sum, bits=secure_sum.bits))
        release = replace(self.release, scalar_noise_std=noise_std)
        return replace(self, noise=noise, release=release, **found)

    def _own_rates(self, law: OwnRatesSampling) -> dict[str, Any]:
        """Return noise, and rates or scales, with which each group spends its own budget."""
        if law.visible:
            return self._own_scales(law)

        def rounds(noise_multiplier: float, rate: float) -> FrozenHistory:
            everybody = replace(law, rates=(rate,) * law.num_groups)
            return self.rounds_at(noise_multiplier, sampling=everybody)

        noise_multiplier, rates = calibrate_own_rates(
            rounds,
            budgets=law.budgets,
            shares=law.shares,
            sampling_rate=self.sampling_rate,
            delta=self.event_budget.delta,
            others=self.other_releases,
            neighboring_relation=self.neighboring_relation,
        )
        return {
            "noise": replace(self.noise, multiplier=noise_multiplier),
            "sampling": replace(law, rates=rates),
        }

    def _own_scales(self, law: OwnRatesSampling) -> dict[str, Any]:
        """Return the last group's noise, and what it is over the noise that each other needs."""
        noise, planned = calibrated_noise(self.noise, self.planned_releases), self.planned_releases
        scales = []
        for budget in law.budgets[:-1]:
            alone = replace(planned, budget=replace(planned.budget, epsilon=budget))
            needed = calibrated_noise(self.noise, alone).multiplier
            scales.append(noise.multiplier / needed * _BELOW)
        return {"noise": noise, "sampling": replace(law, scales=(*scales, 1.0))}

    def _needed_budget(self, max_epsilon: float | None) -> PrivacyBudget:
        """Return the budget that the plan's own noise needs, or `max_epsilon` if that is enough.

        Raises:
            ValueError: If it spends more than `max_epsilon`.
        """
        spends = self.tight_epsilon(self.history)
        if max_epsilon is not None and spends > max_epsilon:
            fits = fitting_rounds(self.noise, self.planned_releases, max_epsilon)
            fewer = "" if fits is None else f"plan at most {fits} rounds, or "
            raise OptionError(
                f"{self.rounds} {{rounds}} at {{noise_multiplier={self.noise_multiplier:.4g}}} "
                f"spend epsilon {spends:.4g}, more than the budget of {max_epsilon:.4g}: {fewer}"
                "leave {noise_multiplier} out and it is calibrated"
            )
        # A margin above rounding: the same plan must fit on another machine too.
        needed = max_epsilon or max(spends * (1.0 + 1e-9), 1e-9)
        return PrivacyBudget(epsilon=needed, delta=self.budget.delta)

    @property
    def planned_releases(self) -> PlannedReleases:
        """The releases that noise is calibrated for."""
        return PlannedReleases(
            rounds_at=self.rounds_at,
            charged_rounds=self.charged_rounds,
            others=self.other_releases,
            budget=self.event_budget,
            relation=self.neighboring_relation,
        )

    @property
    def sampling_rate(self) -> float:
        """The expected share of the roster in a round."""
        return self.expected_cohort / self.num_clients

    @property
    def expected_cohort(self) -> float:
        """The public constant that stands for the size of a cohort."""
        return self.sampling.expected_cohort(self.num_clients)

    @property
    def expected_weight(self) -> float:
        """What such a cohort adds to a count; see `Sampling.expected_weight`."""
        return self.sampling.expected_weight(self.num_clients)

    @property
    def denominator(self) -> float:
        """The public constant that a round's sum is divided by; see `Release.denominator`."""
        return self.release.denominator(self.expected_weight, self.num_clients)

    @property
    def clipping_norm(self) -> float:
        """L2 bound on one client's whole update, in the first round."""
        return self.release.clipping_norm

    @property
    def noise_multiplier(self) -> float:
        """That of the rounds with the least noise; see `Noise.multiplier`."""
        return self.noise.multiplier

    @cached_property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multiplier of each round."""
        return self.noise.multipliers(self.rounds)

    @property
    def charged_rounds(self) -> int:
        """The number of rounds that one client is charged for at most."""
        return self.charged_of(self.rounds)

    def charged_of(self, reserved: int) -> int:
        """Return the most rounds, of `reserved` ones, that one client is charged for.

        Under a participation cap the cap's worth of them; where clients take turns, as many as one
        client can have.
        """
        turns = self.sampling.turns(reserved)
        return min(turns, self.participation_cap or turns)

    def charged_event(self, event: PrivacyEvent) -> PrivacyEvent:
        """Return what a round adds to what one client is charged for at most.

        Under a participation cap a round of the least noise, whatever its own: of which rounds a
        client's cap consists, nobody knows beforehand.
        """
        if self.participation_cap is None:
            return event
        return self.event_at(self.noise_multiplier)

    def cap_share(self, noise_multiplier: float) -> float:
        """Return what a round takes of a client's participation cap, in rounds of the least noise.

        Gaussians without sampling add up by their squared inverse multipliers, in any order and
        however they are chosen, as each is a composition of smaller ones that are all alike.
        """
        if len(set(self.noise_multipliers)) <= 1:
            return 1.0
        return (self.noise_multiplier / noise_multiplier) ** 2

    def event_of(self, round: int) -> PrivacyEvent:
        """Return what a round is charged as.

        Args:
            round: Its number, from 1.

        Raises:
            ValueError: If there is no such round.
        """
        if not 1 <= round <= self.rounds:
            raise ValueError(f"round {round} is not in the plan, which has {self.rounds}")
        return self.event_at(self.noise_multipliers[round - 1])

    def event_at(
        self, noise_multiplier: float, *, sampling: Sampling | None = None
    ) -> PrivacyEvent:
        """Return what a round of that noise multiplier is charged as.

        Args:
            noise_multiplier: Of the round.
            sampling: How its cohort is sampled; None: as planned.
        """
        return self.noise.event(
            noise_multiplier,
            sampling=self.sampling if sampling is None else sampling,
            num_clients=self.num_clients,
            release=self.release,
        )

    def rounds_at(
        self, noise_multiplier: float, *, sampling: Sampling | None = None
    ) -> FrozenHistory:
        """Return what the charged rounds are when the least noise is `noise_multiplier`.

        Args:
            noise_multiplier: Of the rounds with the least noise.
            sampling: How cohorts are sampled; None: as planned.
        """
        if not self.charged_rounds:
            return ()
        multipliers = self.noise.schedule.multipliers(noise_multiplier, self.charged_rounds)
        if self.participation_cap is not None:
            multipliers = (noise_multiplier,) * self.charged_rounds  # see `charged_event`
        return freeze(
            [
                (self.event_at(each, sampling=sampling), count)
                for each, count in Counter(multipliers).items()
            ]
        )

    def bundle(
        self,
        noise_multiplier: float,
        *,
        clipping_norms: tuple[float, ...] | None = None,
        size: int = 1,
    ) -> GaussianBundle:
        """Return what makes a round of that noise multiplier private at the server.

        Args:
            noise_multiplier: Of the round as a whole.
            clipping_norms: Those of this round, where they change; the first round's by default.
            size: Coordinates of the model, which widen correlated noise by a hair.
        """
        return self.release.bundle(
            noise_multiplier,
            expected_cohort=self.expected_weight,
            rounds=self.rounds,
            counted=self.noise.of_sums,  # else the server sees each message, and counts them
            clipping_norms=clipping_norms,
            coefficients=self.noise.coefficients,
            size=size,
        )

    def shared_bundle(
        self,
        noise_multiplier: float,
        *,
        size: int,
        clipping_norms: tuple[float, ...] | None = None,
    ) -> SharedBundle:
        """Return what makes a round private under a secure sum.

        Args:
            noise_multiplier: Of the round as a whole.
            size: Coordinates of the model.
            clipping_norms: Those of this round, where they change; the first round's by default.

        Raises:
            TypeError: If the plan's noise is not in shares.
            ValueError: If the model is larger than was accounted.
        """
        if not isinstance(self.noise, DistributedNoise):
            raise TypeError(
                f"noise {self.noise.place} has no shares: give the plan secure_sum=SecureSum()"
            )
        bundle = self.bundle(noise_multiplier, clipping_norms=clipping_norms)
        return self.noise.shared_bundle(bundle, size)

    @property
    def event_budget(self) -> PrivacyBudget:
        """The part of the budget that events may spend; see `Noise.slack`."""
        return self.noise.event_budget(self.budget)

    def filter(self, *, room: float = 1.0) -> PrivacyFilter:
        """Return the gate that every release of the plan has to pass, with nothing spent.

        Args:
            room: What each epsilon of the budget is multiplied by.
        """
        law, relation = self.sampling, self.neighboring_relation
        if not isinstance(law, OwnRatesSampling):
            budget = replace(self.budget, epsilon=room * self.budget.epsilon)
            return self.noise.filter(budget, self.history, relation)
        return OwnBudgetsFilter(
            [
                (
                    self.noise.filter(
                        replace(self.budget, epsilon=room * budget),
                        law.history_for(group, self.history),
                        relation,
                    ),
                    partial(law.event_for, group),
                )
                for group, budget in enumerate(law.budgets)
            ]
        )

    @cached_property
    def history(self) -> FrozenHistory:
        """Every planned release that one client is charged for."""
        events = [
            (self.charged_event(self.event_of(round)), 1)
            for round in range(1, self.charged_rounds + 1)
        ]
        return freeze([*events, *self.other_releases])

    def epsilon(self, history: History | None = None) -> EpsilonBounds:
        """Return what the releases of `history` spend together, by default all that are planned."""
        releases = self.history if history is None else freeze(history)
        if not releases:
            return epsilon((), self.budget.delta)
        relation = self.neighboring_relation
        bounds = epsilon(releases, self.event_budget.delta, neighboring_relation=relation)
        return bounds.plus(2.0 * self.noise.slack)

    def own_epsilons(self, history: History | None = None) -> tuple[EpsilonBounds, ...]:
        """Return `epsilon` for each group with a budget of its own; none where nobody has one."""
        law, releases = self.sampling, self.history if history is None else freeze(history)
        if not isinstance(law, OwnRatesSampling):
            return ()
        return tuple(
            self.epsilon(law.history_for(group, releases)).within(budget)
            for group, budget in enumerate(law.budgets)
        )

    def tight_epsilon(self, history: History, *, interval: float | None = None) -> float:
        """Return the smallest of the bounds of `epsilon` that every kind of event has.

        Args:
            history: Releases.
            interval: Discretisation of the privacy loss, that of reports by default.
        """
        releases = freeze(history)
        bound = tight_epsilon(
            releases,
            self.event_budget.delta,
            neighboring_relation=self.neighboring_relation,
            interval=interval,
        )
        return bound + 2.0 * self.noise.slack if releases else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {
            "sampling": self.sampling.to_dict(),
            "noise": self.noise.to_dict(),
            "release": self.release.to_dict(),
            "neighboring_relation": str(self.neighboring_relation),
            "other_releases": history_to_list(self.other_releases),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the plan that `to_dict` described."""
        return cls(
            **dict(fields)
            | {
                "budget": PrivacyBudget(**fields["budget"]),
                "sampling": sampling_from_dict(fields["sampling"]),
                "noise": noise_from_dict(fields["noise"]),
                "release": Release.from_dict(fields["release"]),
                "hosting": Hosting(**fields["hosting"]),
                "neighboring_relation": NeighboringRelation(fields["neighboring_relation"]),
                "other_releases": freeze(history_from_list(fields["other_releases"])),
            }
        )
