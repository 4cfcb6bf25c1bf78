"""The group of keys `tune`, which the lab adds to a run's settings.

A run's settings have them only where they were composed with the lab: what a node gets, or a test
makes by hand, has none, and that means the defaults.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fl_dp.app.settings import Settings

from .tune import TuneSettings

__all__ = ["TuneSettings", "tune_of", "with_tune"]


def tune_of(settings: Settings) -> TuneSettings:
    """Return what settings say of a choice of hyper-parameters."""
    group = getattr(settings, "tune", None)
    return group if isinstance(group, TuneSettings) else TuneSettings()


def with_tune(settings: Settings, tune: TuneSettings) -> Settings:
    """Return settings that say something else of a choice of hyper-parameters."""
    changed: dict[str, Any] = {"tune": tune}
    return replace(settings, **changed)
