"""Settings of the Flower app, typed and checked. The keys are those of `conf/`.

A setting out of range raises a ValueError that says what to write instead. The server sends the
resolved settings to the clients as JSON in each train message, so that nothing depends on a
process's working directory or environment.
"""

from .choices import CHOICES
from .data import TASK
from .options import OPTIONS
from .run import Settings
from .simulation import SimulationSettings
from .sweep import CurveSettings, SweepSettings
from .tracking import TrackingSettings

SETTINGS_KEY = "fl-dp-settings"
"""Key of the settings in a train message's ConfigRecord."""

__all__ = [
    "CHOICES",
    "OPTIONS",
    "SETTINGS_KEY",
    "TASK",
    "CurveSettings",
    "Settings",
    "SimulationSettings",
    "SweepSettings",
    "TrackingSettings",
]
