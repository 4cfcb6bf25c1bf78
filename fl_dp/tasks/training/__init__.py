"""Local training and evaluation of a task, one unit at a time or many together."""

from .device_data import DeviceData
from .local import (
    SquaredError,
    check_training,
    evaluate,
    evaluate_with_probabilities,
    one_thread,
    train_locally,
)
from .together import UnitData, train_together

__all__ = [
    "DeviceData",
    "SquaredError",
    "UnitData",
    "check_training",
    "evaluate",
    "evaluate_with_probabilities",
    "one_thread",
    "train_locally",
    "train_together",
]
