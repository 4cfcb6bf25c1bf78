"""Public groups of clients with their own budgets, each at the rate that spends its own.

Reference: Boenisch et al. 2023, "Have it your way: Individualized Privacy Assignment for DP-SGD".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from fl_dp.accounting import OwnRatesSampling
from fl_dp.accounting.events import FrozenHistory
from fl_dp.option_errors import OptionError

from .server_noise import ServerNoisePlan


@dataclass(frozen=True, kw_only=True)
class GroupedPlan(ServerNoisePlan):
    """Fresh noise at the server for all groups; clients with smaller budgets take part less often.

    Privacy: as of `CentralPlan`, for one client, by the budget of its group. Groups are public.

    Attributes:
        sampling: The groups' budgets, shares and rates; `calibrated` finds the rates, and keeps
            their mean. `budget` has their largest epsilon.
        Others: See `ServerNoisePlan`.
    """

    kind: ClassVar[str] = "grouped"

    sampling: OwnRatesSampling

    def check(self) -> None:
        """Refuse rates that are no coins."""
        if self.sampling.visible:
            raise OptionError(
                "groups with budgets of their own take part at different rates, below 1: write a "
                f"sampling_rate in (0, 1), or have each client add its own noise, got "
                f"{self.sampling.rates[-1]:g}",
                option="sampling_rate",
            )

    def calibrated(self) -> Self:
        """Return the plan with noise, and rates at which each group spends its own budget."""
        from fl_dp.accounting.own_rates import calibrate_own_rates

        law = self.sampling

        def rounds(noise_multiplier: float, rate: float) -> FrozenHistory:
            everybody = replace(law, rates=(rate,) * law.num_groups)
            return replace(self, sampling=everybody).rounds_at(noise_multiplier)

        noise_multiplier, rates = calibrate_own_rates(
            rounds,
            budgets=law.budgets,
            shares=law.shares,
            sampling_rate=self.sampling_rate,
            delta=self.budget.delta,
            others=self.other_releases,
            neighboring_relation=self.neighboring_relation,
        )
        return replace(self, noise_multiplier=noise_multiplier, sampling=replace(law, rates=rates))
