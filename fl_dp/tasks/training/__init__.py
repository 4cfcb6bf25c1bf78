"""Local training and evaluation of a task."""

from .device_data import DeviceData
from .plain_training import (
    SquaredError,
    evaluate,
    evaluate_with_probabilities,
    one_thread,
    plain_sgd,
    train_locally,
)

__all__ = [
    "DeviceData",
    "SquaredError",
    "evaluate",
    "evaluate_with_probabilities",
    "one_thread",
    "plain_sgd",
    "train_locally",
]
