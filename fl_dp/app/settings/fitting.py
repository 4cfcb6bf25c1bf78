"""Options and keys of other groups that a promise allows; others are refused in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from fl_dp.option_errors import IncompatibleOptions

from .options import option_name
from .promises import PROMISES, NonePrivacySettings, PrivacySettings, PromiseSettings

GROUPS = ("selection", "clipping", "schedule", "dp_sgd")
"""Groups of which a promise allows some options."""

KEYS: Mapping[str, tuple[Any, ...]] = {
    "metrics.loss": (None,),
    "metrics.accuracy": (None,),
    "metrics.scalar_noise_std": (None,),
    "metrics.private_epsilon": (None,),
    "weight_cap": (None,),
    "total_weight": (None,),
    "simulation.units_per_node": ("auto", 1),
    "selection.coins_at_nodes": (False,),
    "selection.participation_cap": (None,),
    "statistic.query": (None,),
    "statistic.law": (None,),
}
"""Keys that only some promises allow, and the values with which a key is not used."""


def require_fitting(privacy: PrivacySettings, settings: Any) -> None:
    """Refuse an option or a key that a promise does not allow.

    Raises:
        IncompatibleOptions: If there is one; the text says what to write instead.
    """
    for group in GROUPS:
        chosen = option_name(group, getattr(settings, group))
        options = getattr(privacy.fitting, group)
        if chosen not in options:
            promises = [
                promise for promise in PROMISES if chosen in getattr(promise.fitting, group)
            ]
            instead = f"write {group}={options[0]}{_or(options[1:])}"
            raise _error(privacy, group, chosen, promises, instead)
    for key, unused in KEYS.items():
        value = reduce(getattr, key.split("."), settings)
        if value not in unused and key not in privacy.fitting.keys:
            promises = [promise for promise in PROMISES if key in promise.fitting.keys]
            raise _error(privacy, key, value, promises, "leave it out")


def _error(
    privacy: PrivacySettings,
    option: str,
    value: Any,
    promises: Sequence[PrivacySettings],
    instead: str,
) -> IncompatibleOptions:
    """Return the error; it advises only promises that trust nobody more, and names others."""
    alike = [promise.mode for promise in promises if _is_alike(promise, privacy)]
    others = [promise.mode for promise in promises if not isinstance(promise, NonePrivacySettings)]
    if alike:
        instead += f", or write {_privacy(alike)}"
    elif others:
        instead += f" (another promise has it: {_privacy(others)})"
    return IncompatibleOptions(f"privacy={privacy.mode} has no {option}={value}: {instead}")


def _is_alike(other: PrivacySettings, privacy: PrivacySettings) -> bool:
    """Tell whether another promise trusts nobody more and protects the same unit."""
    if isinstance(other, NonePrivacySettings):
        return False
    if isinstance(privacy, NonePrivacySettings):
        return True
    default_unit = type(privacy)().unit  # whatever the settings chose
    return (
        isinstance(other, PromiseSettings)
        and other.noised_by == privacy.noised_by
        and other.unit == default_unit
    )


def _privacy(modes: Sequence[str]) -> str:
    return f"privacy={modes[0]}{_or(modes[1:])}"


def _or(others: Sequence[str]) -> str:
    """Return the alternatives that follow a first one, as text."""
    if not others:
        return ""
    *most, last = others
    return "".join(f", {name}" for name in most) + f" or {last}"
