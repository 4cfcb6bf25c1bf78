"""Flower strategies with differential privacy. Import them as `fl_dp.strategies`."""

from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, PerLayerClipping

from .contributions import NobodyContributes
from .dp_fedavg import Checkpoint, DPFedAvg
from .exchange import RosterIncomplete, RosterTooLarge, wait_for_roster
from .federation_statistics import ask_federation
from .roster import Unit
from .selection import (
    Draw,
    FixedSelection,
    Observation,
    PoissonSelection,
    PublicSelection,
    Selection,
    TruncatedPoissonSelection,
)
from .together import check_together
from .utility_selection import DPUtilitySelection, ExponentialSelection

__all__ = [
    "AdaptiveClipping",
    "Checkpoint",
    "DPFedAvg",
    "DPUtilitySelection",
    "Draw",
    "ExponentialSelection",
    "FixedClipping",
    "FixedSelection",
    "NobodyContributes",
    "Observation",
    "PerLayerClipping",
    "PoissonSelection",
    "PublicSelection",
    "RosterIncomplete",
    "RosterTooLarge",
    "Selection",
    "TruncatedPoissonSelection",
    "Unit",
    "ask_federation",
    "check_together",
    "wait_for_roster",
]
