"""Flower strategies with differential privacy. Import them as `fl_dp.strategies`."""

from .dp_fedavg import DPFedAvg
from .exchange import RosterIncomplete
from .selection import PoissonSelection, Selection

__all__ = ["DPFedAvg", "PoissonSelection", "RosterIncomplete", "Selection"]
