"""What a promise has of other groups: what it has not is refused in one form of sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from fl_dp.option_errors import IncompatibleOptions

from .options import option_name
from .promises import PROMISES, PrivacySettings

GROUPS = ("selection", "clipping", "schedule", "dp_sgd")
"""Groups of which a promise has some options."""

KEYS: Mapping[str, tuple[Any, ...]] = {
    "metrics.loss": (None,),
    "metrics.accuracy": (None,),
    "metrics.noise_std": (None,),
    "metrics.private_epsilon": (None,),
    "weights.cap": (None,),
    "weights.total": (None,),
    "simulation.units_per_node": ("auto", 1),
    "selection.coins": ("server",),
    "selection.participation_cap": (None,),
    "statistic.query": (None,),
    "statistic.law": (None,),
}
"""Keys that some promises have, and values with which one is not used."""


def require_fitting(privacy: PrivacySettings, settings: Any) -> None:
    """Refuse an option or a key that a promise does not have.

    Args:
        privacy: The promise.
        settings: All groups of the run.

    Raises:
        IncompatibleOptions: With what to write instead.
    """
    for group in GROUPS:
        chosen = option_name(group, getattr(settings, group))
        options = getattr(privacy.fitting, group)
        if chosen not in options:
            others = [each.mode for each in PROMISES if chosen in getattr(each.fitting, group)]
            instead = f"write {{{group}={options[0]}}}{_or(options[1:])}"
            raise _error(privacy.mode, group, chosen, f"{instead}, or {_privacy(others)}")
    for key, unused in KEYS.items():
        value = reduce(getattr, key.split("."), settings)
        if value not in unused and key not in privacy.fitting.keys:
            others = [each.mode for each in PROMISES if key in each.fitting.keys]
            raise _error(privacy.mode, key, value, f"write {_privacy(others)}, or leave it out")


def _error(mode: str, option: str, value: Any, instead: str) -> IncompatibleOptions:
    return IncompatibleOptions(
        f"{{privacy={mode}}} has no {{{option}={value}}}: {instead}", options=(option, "privacy")
    )


def _privacy(modes: Sequence[str]) -> str:
    return f"{{privacy={modes[0]}}}{_or(modes[1:])}"


def _or(others: Sequence[str]) -> str:
    """Return what may be written as well, after the first."""
    if not others:
        return ""
    *most, last = others
    return "".join(f", {each}" for each in most) + f" or {last}"
