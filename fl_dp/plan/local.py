"""Noise that each client adds to its own update, so that it trusts no other party."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from fl_dp.accounting import (
    EpsilonBounds,
    History,
    NoiseSchedule,
    OwnRatesSampling,
    PoissonSampling,
    PrivacyEvent,
    Sampling,
    VisibleSampling,
)
from fl_dp.accounting.filters import PrivacyFilter
from fl_dp.mechanisms import ClientScheme, client_scheme
from fl_dp.option_errors import IncompatibleOptions, OptionError

from .clipped import NormClippedPlan
from .hosting import Hosting
from .own_budgets import own_epsilons, own_filter, require_largest_budget
from .plan import ANOTHER_APP, require_capped, require_distant_records, require_public_roster

_CONSTANT = NoiseSchedule()
_BELOW = 1.0 - 1e-9  # of a norm: its group fits on another machine, too


@dataclass(frozen=True, kw_only=True)
class LocalPlan(NormClippedPlan):
    """Every client clips its update, adds noise and sends one message a round.

    Privacy: for one client's messages over all rounds (the unit, unless `unit` says otherwise),
    against the server itself, which sees each message and who sent it.

    Attributes:
        clipping: Bound on one client's update, of the scheme's norm.
        scheme: How a client makes its noise: a name of `fl_dp.mechanisms.schemes.SCHEMES`.
            `noise_multiplier` is that of one client's own noise.
        cohort: Clients of a round, seen by everybody; None: all.
        groups: Budgets of public groups of clients, each of which adds its own noise in every
            round; None: all clients have the plan's budget. `budget` has the largest of them.
        participation_cap: Largest number of rounds of a client; None: every round.
        schedule: How the noise changes over the rounds, declared beforehand.
        unit: `client`, or `record`; see `CentralPlan`.
        Others: See `Plan`.
    """

    kind: ClassVar[str] = "local"
    place: ClassVar[str] = "at each client"
    of_sums: ClassVar[bool] = False
    trusts_server: ClassVar[bool] = False

    scheme: str = "gaussian"
    cohort: int | None = None
    groups: OwnRatesSampling | None = None
    participation_cap: int | None = None
    schedule: NoiseSchedule = _CONSTANT
    unit: str = "client"

    @classmethod
    def law(cls, sampling: Sampling) -> dict[str, Any]:
        """Return the cohort or the groups. See `Plan.law`."""
        if isinstance(sampling, OwnRatesSampling):
            return {"groups": sampling}
        if type(sampling) is VisibleSampling and sampling.separation == 1:
            return {"cohort": sampling.cohort}
        if isinstance(sampling, PoissonSampling) and sampling.visible:
            return {}
        raise IncompatibleOptions(
            "with noise at the clients the server sees each message and who sent it, so nothing "
            "is amplified: write sampling_rate=1, or draw visible cohorts by a public selection, "
            f"got {sampling}"
        )

    @property
    def sampling(self) -> Sampling:
        """Everybody, or a cohort that is seen: nothing is amplified."""
        if self.groups is not None:
            return self.groups
        if self.cohort is not None:
            return VisibleSampling(cohort=self.cohort)
        return PoissonSampling(sampling_rate=1.0)

    @property
    def hosting(self) -> Hosting:
        """One client a node."""
        return Hosting()

    @property
    def adversary(self) -> str:
        """The server."""
        return "is the server itself: sees every message and who sent it, and knows all other data"

    @property
    def trusted(self) -> str:
        """No other party."""
        return "each client's own software, to add the noise of this plan; nobody with an update"

    def trusted_behind_gates(self) -> str:
        """No other party, and no app. See `Plan.trusted_behind_gates`."""
        return "each site's own gate, to add the noise of this plan; nobody with an update"

    @property
    def mechanism(self) -> str:
        """What each client does."""
        return f"noise of the {self.scheme} scheme at each client, on its clipped update"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """That the server could send another app."""
        return (ANOTHER_APP,)

    def check(self) -> None:
        """Refuse a cap or a cohort that these fields can't have."""
        require_distant_records(self)
        require_capped(self, self.participation_cap)
        if self.cohort is not None:
            require_public_roster(self, "a cohort that is seen")
        if self.participation_cap is not None and self.schedule != _CONSTANT:
            raise IncompatibleOptions(
                "clients differ in the rounds they take part in, and under a participation cap "
                "each of their own messages needs the same noise: leave participation_cap out, "
                "or use a constant schedule"
            )
        if self.groups is None:
            return
        if not self.groups.visible:
            raise OptionError(
                "groups whose clients add noise of their own take part in every round: write "
                f"sampling_rate=1, got {self.groups.rates[-1]:g}"
            )
        require_largest_budget(self, self.groups)
        if self.cohort is not None or self.participation_cap is not None:
            raise IncompatibleOptions(
                "groups with budgets of their own take part in every round: leave cohort and "
                "participation_cap out, and plan fewer rounds"
            )

    def scheme_of(self, noise_multiplier: float) -> ClientScheme:
        """Return what makes one client's message private."""
        return client_scheme(
            self.scheme, noise_multiplier=noise_multiplier, clipping_norm=self.clipping_norm
        )

    def event_at(self, noise_multiplier: float) -> PrivacyEvent:
        """Return the event of one message, in full: the server sees who sent it."""
        return self.scheme_of(noise_multiplier).event()

    def noise_of_mean(self, noise_multiplier: float) -> float:
        """Return that of all messages, each of which weighs the inverse of its variance."""
        return self.scheme_of(noise_multiplier).noise_std / math.sqrt(self.denominator)

    def calibrated(self) -> Self:
        """Return the plan with noise; with groups, also what the last one's is over each other's.

        See `Plan.calibrated`.
        """
        plan = super().calibrated()
        if plan.groups is None:
            return plan
        scales = [
            plan.noise_multiplier / self.multiplier_for(epsilon) * _BELOW
            for epsilon in plan.groups.budgets[:-1]
        ]
        return replace(plan, groups=replace(plan.groups, scales=(*scales, 1.0)))

    def filter(self, *, room: float = 1.0) -> PrivacyFilter:
        """Return the gate, of all groups where there are some; see `Plan.filter`."""
        if self.groups is None:
            return super().filter(room=room)
        return own_filter(self, self.groups, room=room)

    def own_epsilons(self, history: History | None = None) -> tuple[EpsilonBounds, ...]:
        """Return `epsilon` for each group; none where nobody has a budget of its own."""
        return () if self.groups is None else own_epsilons(self, self.groups, history)
