"""Flower strategies with differential privacy. Import them as `fl_dp.strategies`.

They may know Flower and the promise; of the clients only what is in `fl_dp.protocol`.
"""

from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, PerLayerClipping

from .buffered_loop import BufferedLoop
from .checkpoint import Checkpoint
from .compatibility import check_together
from .contributions import NobodyContributes
from .dp_fedavg import DPFedAvg
from .dp_fedbuff import DPFedBuff
from .federation_statistics import AskOptions, ask_federation, evaluate_federation
from .modes import Ask, CentralMode, Cohort, Mode, Released, RoundFailed
from .node_answers import RehearsalFailed
from .private_loop import PrivateLoop
from .selection import (
    BufferedSelection,
    Draw,
    LawSelection,
    Observation,
    PublicSelection,
    Selection,
)
from .unfit_model import UnfitModel
from .unit_roster import RosterIncomplete, RosterTooLarge, Unit, wait_for_roster
from .unprotected_fedavg import UnprotectedFedAvg
from .utility_selection import ExponentialSelection

__all__ = [
    "AdaptiveClipping",
    "Ask",
    "AskOptions",
    "BufferedLoop",
    "BufferedSelection",
    "CentralMode",
    "Checkpoint",
    "Cohort",
    "DPFedAvg",
    "DPFedBuff",
    "Draw",
    "ExponentialSelection",
    "FixedClipping",
    "LawSelection",
    "Mode",
    "NobodyContributes",
    "Observation",
    "PerLayerClipping",
    "PrivateLoop",
    "PublicSelection",
    "RehearsalFailed",
    "Released",
    "RosterIncomplete",
    "RosterTooLarge",
    "RoundFailed",
    "Selection",
    "UnfitModel",
    "Unit",
    "UnprotectedFedAvg",
    "ask_federation",
    "check_together",
    "evaluate_federation",
    "wait_for_roster",
]
