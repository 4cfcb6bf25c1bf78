"""Clients of one model that are trained in one go, each by its own records and coins."""

from .alone import train_alone
from .local_training import LocalTraining, UnitData
from .together import train_units

__all__ = ["LocalTraining", "UnitData", "train_alone", "train_units"]
