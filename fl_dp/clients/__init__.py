"""What runs on a node: the bridge from Flower's messages to a `NumPyClient`, and DP-SGD inside one.

What needs torch and Opacus is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .client_noise import client_noise_mod
from .compression import compression_mod
from .fingerprint import fingerprint
from .node_privacy import NodePrivacy
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

if TYPE_CHECKING:
    from .dp_sgd import DPSGD as DPSGD
    from .dp_sgd import train_with_dp_sgd as train_with_dp_sgd
    from .fit_for_dp_sgd import exchanged_arrays as exchanged_arrays
    from .fit_for_dp_sgd import private_module as private_module
    from .opacus_client import OpacusClient as OpacusClient
    from .record_batches import FixedLengthPadding as FixedLengthPadding
    from .record_batches import RecordWise as RecordWise
    from .training_check import check_training as check_training

__all__ = [
    "CONTRIBUTION_METRIC",
    "DPSGD",
    "STATISTIC_QUERY_KEY",
    "STATISTIC_VALUES_KEY",
    "UTILITY_QUERY_KEY",
    "FixedLengthPadding",
    "NodePrivacy",
    "NodeUnits",
    "OpacusClient",
    "RecordWise",
    "TrainedRows",
    "UnitReport",
    "UtilityQuery",
    "check_training",
    "client_noise_mod",
    "compression_mod",
    "exchanged_arrays",
    "fingerprint",
    "numpy_client_app",
    "private_module",
    "train_with_dp_sgd",
]

_WITH_TORCH = {
    "DPSGD": "dp_sgd",
    "FixedLengthPadding": "record_batches",
    "OpacusClient": "opacus_client",
    "RecordWise": "record_batches",
    "check_training": "training_check",
    "exchanged_arrays": "fit_for_dp_sgd",
    "private_module": "fit_for_dp_sgd",
    "train_with_dp_sgd": "dp_sgd",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch and Opacus."""
    if name not in _WITH_TORCH:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f".{_WITH_TORCH[name]}", __name__), name)
