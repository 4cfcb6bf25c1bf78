"""Clients of one model that are trained in one go, each by its own records and coins."""

from .alone import train_alone
from .together import train_units
from .training import LocalTraining, UnitData

__all__ = ["LocalTraining", "UnitData", "train_alone", "train_units"]
