"""Noise that each client adds to its own update, so that it trusts no other party."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from fl_dp.accounting import (
    NoiseSchedule,
    OwnRatesSampling,
    PoissonSampling,
    PrivacyEvent,
    VisibleSampling,
)
from fl_dp.mechanisms import ClientScheme, client_scheme
from fl_dp.option_errors import IncompatibleOptions

from .clipped import NormClippedPlan
from .hosting import Hosting
from .plan_base import (
    ANOTHER_APP,
    require_distant_records,
)

_CONSTANT = NoiseSchedule()
_EVERYBODY = PoissonSampling(sampling_rate=1.0)


@dataclass(frozen=True, kw_only=True)
class LocalPlan(NormClippedPlan):
    """Every client clips its update, adds noise and sends one message per round.

    Privacy: for one client's messages over all rounds (the unit, unless `unit` says otherwise),
    against the server itself, which sees each message and who sent it.

    Attributes:
        clipping: Bound on one client's update, of the scheme's norm.
        scheme: The clients' noise: `gaussian`, `laplace` or `exponential`; `noise_multiplier` is
            that of one client's own noise.
        sampling: All clients, a visible cohort, or public groups with their own budgets, whose
            clients add their own noise in every round; `budget` has the largest.
        unit: `client`, or `record` (one record; needs `replace-one`).
        Others: See `Plan`.
    """

    kind: ClassVar[str] = "local"
    noise_location: ClassVar[str] = "at each client"
    of_sums: ClassVar[bool] = False
    trusts_server: ClassVar[bool] = False

    scheme: str = "gaussian"
    sampling: PoissonSampling | VisibleSampling | OwnRatesSampling = _EVERYBODY
    schedule: NoiseSchedule = _CONSTANT
    unit: str = "client"

    @property
    def hosting(self) -> Hosting:
        """One client per node."""
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
        """No other party, and no app."""
        return "each site's own gate, to add the noise of this plan; nobody with an update"

    @property
    def mechanism(self) -> str:
        """The noise and the clipping of each client."""
        return f"noise of the {self.scheme} scheme at each client, on its clipped update"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """A server that sends another app."""
        return (ANOTHER_APP,)

    def check(self) -> None:
        """Refuse a cap or a cohort that these fields can't have."""
        require_distant_records(self)
        law, name = self.sampling, self.schedule.name
        if not law.visible or law.least_separation > 1:
            raise IncompatibleOptions(
                "with noise at the clients the server sees each message and who sent it, so "
                "nothing is amplified: write sampling_rate=1, or draw visible cohorts by a public "
                f"selection, got {law}",
                option="sampling_rate",
            )
        if self.schedule != _CONSTANT:
            law.require_uncapped(
                "clients differ in the rounds they take part in, and under a participation cap "
                f"each of their own messages needs the same noise, not a schedule={name}"
            )

    def scheme_of(self, noise_multiplier: float) -> ClientScheme:
        """Return the scheme that makes one client's message private."""
        return client_scheme(
            self.scheme, noise_multiplier=noise_multiplier, clipping_norm=self.clipping_norm
        )

    def event_at(self, noise_multiplier: float) -> PrivacyEvent:
        """Return the event of one message without amplification: the server sees who sent it."""
        return self.scheme_of(noise_multiplier).event()

    def noise_of_mean(self, noise_multiplier: float) -> float:
        """Return the noise of all messages, each weighted by its inverse variance."""
        return self.scheme_of(noise_multiplier).noise_std / math.sqrt(self.denominator)

    def calibrated(self) -> Self:
        """Return the plan with noise, and with each group's scale."""
        plan = super().calibrated()
        law = self.sampling
        if not isinstance(law, OwnRatesSampling):
            return plan
        return replace(plan, sampling=law.with_scales(plan.noise_multiplier, self.multiplier_for))
