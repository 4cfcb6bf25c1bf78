"""The group of keys `tune`, which the lab adds to a run's settings.

Only settings that were composed with the lab have it; without it the defaults hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fl_dp.app.settings import Settings

from .tune import TuneSettings

__all__ = ["TuneSettings", "tune_of", "with_tune"]


def tune_of(settings: Settings) -> TuneSettings:
    """Return the group `tune` of a run's settings."""
    group = getattr(settings, "tune", None)
    return group if isinstance(group, TuneSettings) else TuneSettings()


def with_tune(settings: Settings, tune: TuneSettings) -> Settings:
    """Return settings with another group `tune`."""
    changed: dict[str, Any] = {"tune": tune}
    return replace(settings, **changed)
