"""Spending of a plan, shown before anything is trained: numbers, tables, a picture."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fl_dp.accounting import EpsilonBounds, OwnRatesSampling
from fl_dp.accounting.gaussian_formulas import naive_split
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL
from fl_dp.app.pictures import COLOURS, PALE, in_lines, new_picture, save_picture
from fl_dp.codec import encode
from fl_dp.guarantee import Guarantee
from fl_dp.plan import Plan
from fl_dp.promise import brief_epsilon, ceiling, rounded_up
from fl_dp.statement.of_clients import promise_in_words

from .bounds_table import bound_rows, bounds_json
from .numbers import numbers_table, span
from .sheets import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 24  # of the curve; each is a composition of its own
_INK = COLOURS[0]


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """A plan with everything that is shown of it.

    Attributes:
        plan: The plan.
        bounds: What all its releases spend, by each accountant.
        curve: Rounds with epsilon after them, by PLD at the coarser discretisation.
        naive_multipliers: Noise of each round if the budget were split by basic composition.
        naive_epsilon: What those rounds would really spend; None without such a split.
    """

    plan: Plan
    bounds: EpsilonBounds
    curve: tuple[tuple[int, float], ...]
    naive_multipliers: tuple[float, ...]
    naive_epsilon: float | None

    @classmethod
    def of(cls, plan: Plan) -> PlanView:
        """Compute what is shown of `plan`."""
        naive: tuple[float, ...] = ()
        naive_epsilon: float | None = None
        if plan.of_sums:
            naive = naive_split(plan.budget, plan.schedule, plan.rounds)
            naive_epsilon = _spent(plan, naive)
        return cls(
            plan=plan,
            bounds=plan.epsilon(),
            curve=tuple(_curve(plan)),
            naive_multipliers=naive,
            naive_epsilon=naive_epsilon,
        )

    @property
    def noise_saved(self) -> float | None:
        """The naive split's noise over the plan's, in the first round."""
        if not self.naive_multipliers:
            return None
        return self.naive_multipliers[0] / self.plan.noise_multipliers[0]

    @property
    def own_budgets(self) -> list[dict[str, float]]:
        """Budget, share, rate, noise and epsilon of each group with its own budget."""
        plan, law = self.plan, self.plan.sampling
        if not isinstance(law, OwnRatesSampling):
            return []
        return [
            {
                "budget": group.budget,
                "share": group.share,
                "sampling_rate": group.sampling_rate,
                "noise_multiplier": plan.noise_multiplier / group.scale,
                "epsilon": spent.best,
            }
            for group, spent in zip(law.own_groups, plan.own_epsilons(), strict=True)
        ]

    @property
    def guarantee(self) -> Guarantee:
        """What all its releases promise."""
        return Guarantee.of(self.plan, self.bounds.best)

    @property
    def promise(self) -> dict[str, str]:
        """The promise in words: to whom, and against whom."""
        return promise_in_words(self.plan)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        plan = self.plan
        naive: dict[str, Any] | None = None
        if self.naive_epsilon is not None:
            naive = {
                "noise_multipliers": list(self.naive_multipliers),
                "epsilon": self.naive_epsilon,
                "times_our_noise": self.noise_saved,
            }
        return {
            **bounds_json(self.bounds, plan.budget.delta),
            "noise_multipliers": list(plan.noise_multipliers),
            "sampling_rate": plan.sampling_rate,
            "rounds": plan.rounds,
            "clipping_norm": plan.clipping_norm,
            "num_clients": plan.num_units,
            "expected_cohort": plan.expected_cohort,
            "neighboring_relation": str(plan.neighboring_relation),
            "schedule": encode(plan.schedule),
            "rule": plan.filter().rule,
            "promise": self.promise,
            "guarantee": self.guarantee.to_dict(),
            "shares": dict(_share_rows(plan)) or None,
            "own_budgets": self.own_budgets or None,
            "epsilon_over_rounds": [list(point) for point in self.curve],
            "naive_split": naive,
        }

    def table(self) -> Table:
        """Return the numbers as a table for the terminal."""
        plan = self.plan
        rate = f"{plan.sampling.kind} cohorts of {plan.expected_cohort:g} expected"
        mean_noise = [plan.noise_of_mean(z) for z in plan.noise_multipliers]
        noise = "noise multiplier of each client's own noise"
        if plan.of_sums:
            noise = "noise multiplier (noise std on the sum / clipping norm)"
        rows = [
            (noise, span(plan.noise_multipliers, ".5f")),
            ("noise std on each coordinate of the mean", span(mean_noise, ".3g")),
            ("denominator: what a cohort weighs", f"{plan.denominator:g}"),
            *bound_rows(self.bounds),
        ]
        rows += _share_rows(plan)
        for group in self.own_budgets:
            name = f"epsilon of the clients that allow {brief_epsilon(group['budget'])}"
            value = (
                f"{rounded_up(group['epsilon'])}, at rate {group['sampling_rate']:.4g} and noise "
                f"multiplier {group['noise_multiplier']:.4g}"
            )
            rows.append((name, value))
        if self.naive_epsilon is not None:
            split = "noise multiplier if epsilon were split over the rounds"
            truly = f"  {self.noise_saved:.1f} times the noise, for a true epsilon of"
            rows.append((split, span(self.naive_multipliers, ".3f")))
            rows.append((truly, rounded_up(self.naive_epsilon)))
        title = (
            f"{plan.rounds} rounds, {plan.num_units} {plan.hosting.sampled}s, {rate}; epsilon "
            f"{self.guarantee.terms}"
        )
        return numbers_table(title, rows)

    def rounds_table(self) -> Table | None:
        """Return noise and epsilon at some rounds, for the terminal; None without a bound."""
        if not self.curve:
            return None
        spent = dict(self.curve)
        rows = []
        for stop in _shown_rounds(self.plan.rounds):
            noise = self.plan.noise_multipliers[stop - 1]
            # A point that no accountant could bound is not on the curve.
            after = rounded_up(spent[stop]) if stop in spent else "-"
            rows.append((str(stop), f"{noise:.4f}", after))
        headings = ("round", "its noise multiplier", "epsilon spent after it")
        title = f"Over the rounds, epsilon {self.guarantee.terms}"
        return sheet(title, headings, rows, numbers=headings)

    def draw(self, target: Path) -> bool:
        """Draw epsilon and noise over the rounds as a PNG.

        Returns:
            Whether it was drawn: False when matplotlib is not installed.
        """
        plan = self.plan
        constant = len(set(plan.noise_multipliers)) == 1
        widths = (1.0,) if constant else (1.0, 1.0)
        picture = new_picture(widths)
        if picture is None:
            return False
        figure, panels = picture
        epsilon = panels[-1]
        title = in_lines(f"Privacy spent {self.guarantee.terms}")
        if constant:
            title += f"\nnoise multiplier {plan.noise_multipliers[0]:.4g} in each round"
        else:
            self._draw_noise(panels[0])
        if self.curve:
            epsilon.plot(*zip(*self.curve, strict=True), color=_INK, label="spent, by PLD")
        epsilon.axhline(plan.budget.epsilon, color=PALE, linewidth=1, label="budget")
        epsilon.set(xlabel="round", ylabel="epsilon")
        epsilon.set_title(title, fontsize=9)
        for axes in panels:
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
        save_picture(figure, target)
        return True

    def _draw_noise(self, panel: Axes) -> None:
        plan = self.plan
        rounds = range(1, plan.rounds + 1)
        panel.step(rounds, plan.noise_multipliers, where="mid", color=_INK, label="this plan")
        if self.naive_multipliers:
            # As words: a curve ten times as high would flatten the plan's own.
            panel.plot(
                [], [], " ", label=f"epsilon split over rounds: {self.noise_saved:.1f} x as much"
            )
        panel.set(
            xlabel="round",
            ylabel="noise std / clipping norm",
            title="Noise multiplier of each round",
        )


def _shown_rounds(rounds: int) -> list[int]:
    """Return the first round and the end of each quarter, for the terminal's table."""
    return sorted({1, *(max(1, rounds * quarter // 4) for quarter in range(1, 5))})


def _share_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return what noise in shares depends on; nothing for other noise."""
    noise = plan.noise
    if noise is None:
        return []
    bundle = noise.shared_bundle(plan.bundle(plan.noise_multiplier), 1)
    opened = f"{noise.shares.least} of {noise.shares.cohort}"
    if noise.secure_sum.roster:
        opened += f"; {noise.shares.guaranteed} if the server lies"
    bits = str(bundle.bits)
    if bundle.share.rotated:
        bits += ", rotated"
    return [
        ("fewest nodes of an opened sum", opened),
        ("shares of noise that are counted", str(noise.honest_shares)),
        ("bits of a coordinate", bits),
        ("noise of one node, in grid steps", f"{bundle.noise_scale:.4g}"),
        ("epsilon kept for the distance from Gaussians", ceiling(2.0 * noise.slack, 2)),
    ]


def _curve(plan: Plan) -> list[tuple[int, float]]:
    """Return epsilon after some of the rounds, the last one included."""
    step = max(1, plan.rounds // _POINTS)
    stops = sorted({*range(step, plan.rounds, step), *_shown_rounds(plan.rounds)})
    points = [(stop, _spent(plan, plan.noise_multipliers[:stop])) for stop in stops]
    return [point for point in points if math.isfinite(point[1])]


def _spent(plan: Plan, multipliers: tuple[float, ...]) -> float:
    charged = multipliers[: plan.charged_rounds]
    rounds = [
        (plan.charged_event(plan.event_at(z)), count) for z, count in Counter(charged).items()
    ]
    return plan.tight_epsilon([*rounds, *plan.other_releases], interval=SEARCH_INTERVAL)
