"""Options and keys of other groups that a promise allows; others are refused in one form.

A kind of plan says itself what goes with it: laws in the type of its `sampling`, rules in that of
`clipping`, and keys by its fields.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import TYPE_CHECKING, Any

from fl_dp.accounting import CyclicSampling
from fl_dp.arguments import hints_of
from fl_dp.option_errors import IncompatibleOptions
from fl_dp.plan import Plan

from .clippings import CLIPPINGS
from .option import Option
from .schedules import SCHEDULES
from .selections import SELECTIONS, SelectionOption

if TYPE_CHECKING:
    from .promises import Promise

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


def require_fitting(privacy: Promise, settings: Any) -> None:
    """Refuse an option or a key that a promise does not allow.

    Raises:
        IncompatibleOptions: If there is one; the text says what to write instead.
    """
    for group in GROUPS:
        chosen = str(getattr(settings, group))
        options = getattr(privacy.fitting, group)
        if chosen not in options:
            having = [other for other in _promises() if chosen in getattr(other.fitting, group)]
            instead = f"write {group}={options[0]}{_or(options[1:])}"
            raise _error(privacy, group, chosen, having, instead)
    for key, part in KEYS.items():
        value = reduce(_value, key.split("."), settings)
        if value not in part.unused and key not in privacy.fitting.keys:
            having = [other for other in _promises() if key in other.fitting.keys]
            raise _error(privacy, key, value, having, "leave it out")


def _promises() -> list[type[Promise]]:
    from .promises import PROMISES  # which are made with their fittings

    return list(PROMISES.values())


def _value(settings: Any, key: str) -> Any:
    """Return a value; None if the chosen option has no such key."""
    return settings.get(key) if isinstance(settings, Option) else getattr(settings, key)


def _error(
    privacy: Promise, option: str, value: Any, having: Sequence[type[Promise]], instead: str
) -> IncompatibleOptions:
    """Return the error; it advises only promises that trust nobody more, and names others."""
    promised = [other for other in having if other.option != "none"]
    alike = [other.option for other in promised if _is_alike(other, privacy)]
    others = [other.option for other in promised]
    if alike:
        instead += f", or write {_privacy(alike)}"
    elif others:
        instead += f" (another promise has it: {_privacy(others)})"
    text = f"privacy={privacy} has no {option}={value}: {instead}"
    return IncompatibleOptions(text, option=option)


def _is_alike(other: type[Promise], privacy: Promise) -> bool:
    """Tell whether another promise trusts nobody more and protects the same unit."""
    if privacy.option == "none":
        return True
    of_default = type(privacy)  # whatever unit the settings chose
    return other.kind is not None and (other.noised_by, other.unit) == (
        of_default.noised_by,
        of_default.unit,
    )


def _privacy(modes: Sequence[str]) -> str:
    return f"privacy={modes[0]}{_or(modes[1:])}"


def _or(others: Sequence[str]) -> str:
    """Return the alternatives that follow a first one, as text."""
    if not others:
        return ""
    *most, last = others
    return "".join(f", {name}" for name in most) + f" or {last}"
