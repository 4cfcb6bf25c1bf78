"""What runs on a node: the bridge from Flower's messages to a `NumPyClient`."""

from .client_noise import client_noise_mod
from .numpy_client_app import numpy_client_app
from .queries import (
    CONTRIBUTION_METRIC,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
    UTILITY_QUERY_KEY,
    UtilityQuery,
)
from .trained_unit import TrainedRows, UnitReport
from .units import NodeUnits

__all__ = [
    "CONTRIBUTION_METRIC",
    "STATISTIC_QUERY_KEY",
    "STATISTIC_VALUES_KEY",
    "UTILITY_QUERY_KEY",
    "NodeUnits",
    "TrainedRows",
    "UnitReport",
    "UtilityQuery",
    "client_noise_mod",
    "numpy_client_app",
]
