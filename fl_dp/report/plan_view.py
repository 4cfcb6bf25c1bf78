"""What a plan spends, shown before anything is trained: numbers, a table, a chart, a picture."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fl_dp.accounting import (
    EpsilonBounds,
    PrivacyPlan,
    naive_split,
    promise_in_words,
    tight_epsilon,
)
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL

from .names import ACCOUNTANT_NAMES

_POINTS = 24  # of the curve: each is a composition of its own
_INK, _PALE = "#1b6ca8", "#c98b2b"


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """A plan with everything that is shown of it.

    Attributes:
        plan: The plan.
        bounds: What all its releases spend, by each accountant.
        curve: Rounds, and epsilon by PLD after them at the coarser discretisation; empty when the
            noise is decided on the way.
        naive_multipliers: Noise of each round if the budget were split by basic composition.
        naive_epsilon: What those rounds would really spend; None when there is no such split.
    """

    plan: PrivacyPlan
    bounds: EpsilonBounds
    curve: tuple[tuple[int, float], ...]
    naive_multipliers: tuple[float, ...]
    naive_epsilon: float | None

    @classmethod
    def of(cls, plan: PrivacyPlan) -> PlanView:
        """Compute what is shown of `plan`."""
        declared = plan.plateau is None
        split = declared and plan.client_scheme is None
        naive = naive_split(plan.budget, plan.schedule, plan.rounds) if split else ()
        return cls(
            plan=plan,
            bounds=plan.epsilon(),
            curve=tuple(_curve(plan)) if declared else (),
            naive_multipliers=naive,
            naive_epsilon=_spent(plan, naive) if split else None,
        )

    @property
    def noise_saved(self) -> float | None:
        """How many times the naive split's noise the plan's is, in the first round."""
        if not self.naive_multipliers:
            return None
        return self.naive_multipliers[0] / self.plan.noise_multipliers[0]

    @property
    def promise(self) -> dict[str, str]:
        """What is promised, to whom and against whom, in words."""
        return promise_in_words(self.plan)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        plan = self.plan
        return {
            "delta": plan.budget.delta,
            "epsilon": self.bounds.by_name,
            "quoted": self.bounds.best_name,
            "noise_multipliers": list(plan.noise_multipliers),
            "sampling_rate": plan.sampling_rate,
            "rounds": plan.rounds,
            "clipping_norm": plan.clipping_norm,
            "num_clients": plan.num_clients,
            "expected_cohort": plan.expected_cohort,
            "neighboring_relation": str(plan.neighboring_relation),
            "schedule": plan.schedule.to_dict() if plan.plateau is None else "plateau",
            "rule": plan.filter().rule,
            "promise": self.promise,
            "epsilon_over_rounds": [list(point) for point in self.curve],
            "naive_split": None
            if self.naive_epsilon is None
            else {
                "noise_multipliers": list(self.naive_multipliers),
                "epsilon": self.naive_epsilon,
                "times_our_noise": self.noise_saved,
            },
        }

    def table(self) -> Table:
        """Return the numbers as a table for the terminal."""
        plan = self.plan
        rate = f"{plan.sampling.kind} cohorts of {plan.expected_cohort:g} expected"
        table = Table(title=f"{plan.rounds} rounds, {plan.num_clients} clients, {rate}")
        table.add_column("what")
        table.add_column("value", justify="right")
        mean_noise = [z * plan.clipping_norm / plan.denominator for z in plan.noise_multipliers]
        rows = [
            (
                "noise multiplier (noise std on the sum / clipping norm)"
                if plan.client_scheme is None
                else "noise multiplier of each client's own noise",
                _span(plan.noise_multipliers, "{:.5f}"),
            ),
            ("noise std on each coordinate of the mean", _span(mean_noise, "{:.3g}")),
            ("denominator: what a cohort weighs", f"{plan.denominator:g}"),
            ("delta", f"{plan.budget.delta:.4g}"),
        ]
        for name, bound in self.bounds.by_name.items():
            quote = ": the number to quote" if name == self.bounds.best_name else ""
            digits = "{:.4g}" if name == "naive" else "{:.4f}"
            rows.append((ACCOUNTANT_NAMES[name] + quote, digits.format(bound)))
        if plan.plateau is not None:
            rows.append(("least noise multiplier on the way", f"{plan.least_noise_multiplier:.5f}"))
        if self.naive_epsilon is not None:
            rows.append(
                (
                    "noise multiplier if epsilon were split over the rounds",
                    _span(self.naive_multipliers, "{:.3f}"),
                )
            )
            rows.append(
                (
                    f"  {self.noise_saved:.1f} times the noise, for a true epsilon of",
                    f"{self.naive_epsilon:.4f}",
                )
            )
        for what, value in rows:
            table.add_row(what, value)
        return table

    def chart(self, width: int) -> str | None:
        """Return epsilon and noise over the rounds as characters, None without `plotext`.

        Args:
            width: Columns of the terminal.
        """
        try:
            import plotext
        except ImportError:
            return None
        rounds = list(range(1, self.plan.rounds + 1))
        parts = []
        for title, x, y in (
            ("epsilon spent after each round", *_columns(self.curve)),
            ("noise multiplier of each round", rounds, list(self.plan.noise_multipliers)),
        ):
            if not x:
                continue
            plotext.clear_figure()
            plotext.theme("clear")
            plotext.plot_size(min(width, 100), 11)
            plotext.plot(x, y, marker="braille")
            plotext.ylim(0, max(y) * 1.1)
            plotext.title(title)
            parts.append(plotext.uncolorize(plotext.build()))
        return "\n".join(parts)

    def draw(self, target: Path) -> bool:
        """Draw epsilon and noise over the rounds as a PNG.

        Returns:
            Whether it was drawn: False when matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return False
        plan = self.plan
        figure = Figure(figsize=(9.0, 3.4), layout="constrained")
        noise, epsilon = figure.subplots(1, 2)
        rounds = range(1, plan.rounds + 1)
        noise.step(rounds, plan.noise_multipliers, where="mid", color=_INK, label="this plan")
        if self.naive_multipliers:
            noise.step(
                rounds,
                self.naive_multipliers,
                where="mid",
                color=_PALE,
                linestyle="--",
                label=f"epsilon split over rounds: {self.noise_saved:.1f} x",
            )
            noise.set_yscale("log")
        noise.set(xlabel="round", ylabel="noise multiplier", title="Noise of each round")
        if self.curve:
            epsilon.plot(*_columns(self.curve), color=_INK, label="by PLD")
        epsilon.axhline(plan.budget.epsilon, color="#5b6770", linewidth=1, label="budget")
        epsilon.set(
            xlabel="round",
            ylabel="epsilon",
            title=f"Spent after each round, delta {plan.budget.delta:.2g}",
        )
        epsilon.set_ylim(bottom=0)
        for axes in (noise, epsilon):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.set_xlim(left=0)
            axes.legend(frameon=False)
        figure.savefig(target, dpi=150)
        return True


def _curve(plan: PrivacyPlan) -> list[tuple[int, float]]:
    """Return epsilon after some of the rounds, the last among them."""
    step = max(1, plan.rounds // _POINTS)
    stops = sorted({*range(step, plan.rounds, step), 1, plan.rounds})
    points = [(stop, _spent(plan, plan.noise_multipliers[:stop])) for stop in stops]
    return [point for point in points if math.isfinite(point[1])]


def _spent(plan: PrivacyPlan, multipliers: tuple[float, ...]) -> float:
    charged = multipliers[: plan.charged_rounds]
    rounds = [(plan.event_at(z), count) for z, count in Counter(charged).items()]
    return tight_epsilon(
        [*rounds, *plan.other_releases],
        plan.budget.delta,
        neighboring_relation=plan.neighboring_relation,
        interval=SEARCH_INTERVAL,
    )


def _columns(points: tuple[tuple[int, float], ...]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _span(values: tuple[float, ...] | list[float], form: str) -> str:
    low, high = min(values), max(values)
    return form.format(low) if low == high else f"{form.format(low)} to {form.format(high)}"
