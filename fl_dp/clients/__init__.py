"""What runs on a node: the bridge from Flower's messages to a `NumPyClient`."""

from .client_noise import client_noise_mod
from .compression import compression_mod
from .numpy_client_app import numpy_client_app
from .queries import (
    CONTRIBUTION_METRIC,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
    UTILITY_QUERY_KEY,
    UtilityQuery,
)
from .units import NodeUnits

__all__ = [
    "CONTRIBUTION_METRIC",
    "STATISTIC_QUERY_KEY",
    "STATISTIC_VALUES_KEY",
    "UTILITY_QUERY_KEY",
    "NodeUnits",
    "UtilityQuery",
    "client_noise_mod",
    "compression_mod",
    "numpy_client_app",
]
