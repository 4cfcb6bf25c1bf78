"""Options and keys of other groups that a promise allows.

A kind of plan says itself what goes with it: laws in the type of its `sampling`, rules in that of
`clipping`, and keys by its fields.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fl_dp.accounting import CyclicSampling
from fl_dp.arguments import hints_of
from fl_dp.plan import Plan

from .clippings import CLIPPINGS
from .option import Option
from .schedules import SCHEDULES
from .selections import SELECTIONS, SelectionOption

GROUPS = ("selection", "clipping", "schedule", "dp_sgd")
"""Groups of which a promise allows some options."""


@dataclass(frozen=True, kw_only=True)
class PartOfPlan:
    """A key that only some promises allow.

    Attributes:
        field: Field of a plan, or of its law, without which a promise has no such key; None: a
            promise names the key itself.
        unused: Values with which the key is not used.
    """

    field: str | None = None
    unused: tuple[Any, ...] = (None,)


KEYS: Mapping[str, PartOfPlan] = {
    "metrics.loss": PartOfPlan(field="metrics"),
    "metrics.accuracy": PartOfPlan(field="metrics"),
    "metrics.scalar_noise_std": PartOfPlan(field="metrics"),
    "metrics.private_epsilon": PartOfPlan(field="metrics"),
    "weight_cap": PartOfPlan(field="total_weight"),
    "total_weight": PartOfPlan(field="total_weight"),
    "simulation.units_per_node": PartOfPlan(field="units_per_node", unused=("auto", 1)),
    "selection.coins_at_nodes": PartOfPlan(field="coins_at_nodes", unused=(None, False)),
    "selection.participation_cap": PartOfPlan(field="participation_cap"),
    "statistic.query": PartOfPlan(),
    "statistic.law": PartOfPlan(),
}
"""Keys that only some promises allow."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Options of other groups that a promise allows; the first of each is the default.

    Attributes:
        selection: Options that choose who takes part.
        clipping: Options of the bound on an update.
        schedule: Options that spread the budget over the rounds.
        dp_sgd: Whether clients may, or must, train by DP-SGD.
        keys: Keys of `KEYS` that it allows.
    """

    selection: tuple[str, ...] = ("poisson", "truncated_poisson", "fixed", "public")
    clipping: tuple[str, ...] = ("fixed",)
    schedule: tuple[str, ...] = ("constant",)
    dp_sgd: tuple[str, ...] = ("off", "on")
    keys: tuple[str, ...] = ()


def fitting_of(kind: type[Plan], *keys: str) -> Fitting:
    """Return what goes with a kind of plan, and with these keys of the app's."""
    names = {field.name for field in fields(kind)}
    laws, rules = _classes(kind, "sampling"), _classes(kind, "clipping")
    if CyclicSampling in laws:
        laws += _classes(CyclicSampling, "inside")
    if not kind.masked:  # a server that lies chooses who takes part, and nobody counts it
        names |= {field.name for law in laws for field in fields(law)}
    return Fitting(
        selection=tuple(
            name
            for name, selection in SELECTIONS.items()
            if selection.law in laws and _goes_with(kind, selection)
        ),
        clipping=tuple(name for name, rule in CLIPPINGS.items() if _made_class(rule) in rules),
        schedule=tuple(SCHEDULES) if "schedule" in names else ("constant",),
        dp_sgd=("off",) if "num_records" in names else ("off", "on"),
        keys=tuple(key for key, part in KEYS.items() if key in keys or part.field in names),
    )


def _goes_with(kind: type[Plan], selection: type[SelectionOption]) -> bool:
    """Tell whether a selection knows what a kind's cohorts need, and asks nothing it forbids."""
    made = selection.makers[0]
    if "correlation" in hints_of(kind):  # a client's rounds lie apart
        return bool(inspect.signature(made.maker).parameters.keys() & {"separation", "groups"})
    return "utility" not in made.keys or kind.trusts_server


def _classes(owner: Any, field: str) -> tuple[type[Any], ...]:
    """Classes that a field takes, by its annotation."""
    hint = hints_of(owner)[field]
    return typing.get_args(hint) or (hint,)


def _made_class(rule: type[Option]) -> Any:
    maker = rule.makers[0].maker
    return maker if inspect.isclass(maker) else hints_of(maker)["return"]
