"""The price of privacy in accuracy, taken apart: the smaller cohort, the clipping, the noise.

The same task is trained with the same seeds in steps that each add one thing, from everybody's
unclipped updates to the training that was asked for. A step's price is what accuracy falls by,
seed for seed, so that prices add up to the whole.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import with_choices
from fl_dp.app.recipes import with_recipe
from fl_dp.app.settings import Settings
from fl_dp.mechanisms.grid import least_noise_multiplier

_HARDLY_ANY = 1e-4  # noise multiplier: ten thousandth of what one client adds
_PAID_SELECTIONS = ("exponential", "dp_utility")  # a training without a promise has none of them
_OWN_BUDGETS = "own_budgets"  # rates that only a promise gives: before it, all have their mean
_OF_A_PROMISE = ("selection.participation_cap=null", "selection.coins=server")

_ONE_COURSE = ("schedule=constant", "noise=independent")
_UNPROTECTED = (
    "privacy=none",
    "clipping=fixed",
    "simulation.units_per_node=1",
    "metrics.loss=null",
    "metrics.private_epsilon=null",
    "metrics.accuracy=null",
    "weights.total=null",
    "weights.capped_denominator=false",
    *_ONE_COURSE,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One of the trainings that are compared.

    Attributes:
        name: What it adds to the step before; the first adds nothing.
        changes: Overrides after those that were asked for.
        is_asked: Whether it is the training that was asked for; else it is not private.
    """

    name: str
    changes: tuple[str, ...] = ()
    is_asked: bool = False

    def overrides(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return the overrides of this step.

        Args:
            asked: Those of the training that was asked for.
        """
        if self.is_asked:
            return tuple(asked)
        # What goes with the promise that was asked for stays, as it is the same training.
        return tuple(with_choices(with_recipe(asked), self.changes))


def steps_to(settings: Settings) -> tuple[Step, ...]:
    """Return the steps from no privacy to `settings`, in their order.

    Raises:
        ValueError: If its price can't be taken apart, with what to write instead.
    """
    _require_price(settings)
    num_clients, norm = settings.task.num_clients, settings.clipping.norm
    rate = settings.selection.sampling_rate
    cohort = f"cohorts of {rate * num_clients:.4g} of {num_clients} clients"
    noise = max(_HARDLY_ANY, 2.0 * least_noise_multiplier(num_clients, norm))
    if settings.clipping.name == "fixed":
        clipping = f"clipping to norm {norm:g}"
    else:
        clipping = f"clipping={settings.clipping.name}"
    return (
        Step(
            name="everybody, unclipped, without noise",
            changes=(
                *_UNPROTECTED,
                "selection=poisson",
                "selection.sampling_rate=1",
                *_OF_A_PROMISE,
            ),
        ),
        Step(
            name=f"+ {cohort}",
            changes=(*_UNPROTECTED, *_without_promise(settings)),
        ),
        Step(
            name=f"+ {clipping}, public denominator",
            changes=(
                "privacy=central",
                "privacy.epsilon=null",
                f"privacy.noise_multiplier={noise:.3g}",
                "privacy.witness_dir=null",
                *(["selection=poisson"] if settings.selection.name == _OWN_BUDGETS else []),
                *_ONE_COURSE,
            ),
        ),
        Step(name=f"+ {_noise_of(settings)}", is_asked=True),
    )


def _without_promise(settings: Settings) -> tuple[str, ...]:
    """Return how the same cohorts are drawn where nothing is promised."""
    chosen = settings.selection.name
    if chosen in (*_PAID_SELECTIONS, _OWN_BUDGETS):
        return ("selection=poisson",)
    keys = all_keys()
    return tuple(each for each in _OF_A_PROMISE if chosen in keys[each.partition("=")[0]].options)


def _noise_of(settings: Settings) -> str:
    """Name what the last step adds; who rests or takes turns comes with noise that remembers."""
    kind, text = settings.noise.name, f"noise of privacy={settings.privacy.mode}"
    if settings.selection.name == _OWN_BUDGETS:
        return f"{text}, at each group's own budget"
    return text if kind == "independent" else f"{text}, noise={kind} and its cohorts"


def _require_price(settings: Settings) -> None:
    """Check that there is something to take apart.

    Raises:
        ValueError: If not.
    """
    privacy = settings.privacy
    if settings.protects_records:
        raise ValueError(
            "the price of DP-SGD inside clients is not taken apart: leave dp_sgd=on or "
            "privacy=dp_sgd out, and compare whole trainings with `fl-dp run -m "
            "dp_sgd.epsilon=2,4,8`"
        )
    if privacy.noised_by == "nobody":
        raise ValueError(
            "privacy=none costs nothing: write what is to be priced, for example privacy.epsilon=4"
        )
    if privacy.unit == "record":
        raise ValueError("prices are those of a promise to clients: leave privacy.unit=record out")
    if privacy.noised_by == "clients" and privacy.scheme != "gaussian":
        raise ValueError(
            f"privacy.scheme={privacy.scheme} bounds another norm than the step before its noise "
            "would: prices are those of privacy.scheme=gaussian"
        )
    if settings.task.partition == "nodes":
        raise ValueError(
            "a price is found by training without privacy, which only a simulation may: with "
            "task.partition=nodes the data are on real nodes"
        )


@dataclass(frozen=True, kw_only=True)
class Price:
    """Accuracy of one step over the seeds, and what the step costs.

    Attributes:
        step: Its name.
        accuracies: On the public test part, one a seed.
        costs: What accuracy fell by from the step before, one a seed; none for the first.
        is_asked: Whether it is the training that was asked for.
    """

    step: str
    accuracies: tuple[float, ...]
    costs: tuple[float, ...]
    is_asked: bool

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def cost(self) -> float | None:
        """The mean cost over the seeds; None for the first step."""
        return statistics.fmean(self.costs) if self.costs else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, accuracies and costs in [-1, 1]."""
        return {
            "step": self.step,
            "private": self.is_asked,
            "accuracy_mean": self.accuracy,
            "accuracy_std": spread(self.accuracies),
            "cost_mean": self.cost,
            "cost_std": spread(self.costs),
            "accuracies": list(self.accuracies),
            "costs": list(self.costs),
        }


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation over seeds, None of fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else None


def prices(accuracies: Mapping[str, Sequence[float]]) -> list[Price]:
    """Return what each step costs.

    Args:
        accuracies: By the steps' names, in their order, the asked one last; in each the seeds in
            the same order.

    Raises:
        ValueError: If a step has not the seeds of the others.
    """
    if len({len(each) for each in accuracies.values()}) != 1:
        raise ValueError("every step needs the same seeds: what is missing was not trained")
    found: list[Price] = []
    names = list(accuracies)
    for name, values in accuracies.items():
        before = found[-1].accuracies if found else ()
        costs = [b - a for b, a in zip(before, values, strict=True)] if found else []
        found.append(
            Price(
                step=name,
                accuracies=tuple(values),
                costs=tuple(costs),
                is_asked=name == names[-1],
            )
        )
    return found


def points(value: float | None, deviation: float | None = None) -> str:
    """Return a difference of accuracies in percentage points, for people."""
    if value is None or math.isnan(value):
        return ""
    said = f"{100.0 * value:+.1f}"
    return said if deviation is None else f"{said} ± {100.0 * deviation:.1f}"
