"""Parts of a node: the bridge from Flower's messages to a `NumPyClient`, and DP-SGD inside one.

This room may know Flower and the promise, never strategies, tasks or the app. Names that need
torch and Opacus are imported on first use.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

from .any_framework import RecordsInBatches
from .client_noise import noised_client_app
from .coins import coins_mod
from .compressed_reply import compression_mod
from .numpy_client_app import numpy_client_app
from .owner.deadline import deadline_mod
from .owner.node_config import NodeConfig, NodeConfigError
from .owner.node_policy import PolicyRefusal
from .personal_part import PersonalClient
from .trained_unit import TrainedRows, UnitReport
from .units import NodeUnits

if TYPE_CHECKING:
    from .model_exchange import exchanged_arrays, trained_names
    from .node_records import NodeRecords
    from .opacus_client import OpacusClient
    from .per_record.dp_sgd import DPSGD
    from .per_record.fit_for_dp_sgd import private_module
    from .per_record.persons import Persons
    from .per_record.record_batches import FixedLengthPadding, RecordWise
    from .per_record.record_loss import LossInOutputs, WithFullMask
    from .torch_units import TorchUnits
    from .training_check import check_training
else:
    # With torch and Opacus, which many clients can do without.
    __getattr__ = lazy_exports(
        __name__,
        {
            "DPSGD": "per_record.dp_sgd",
            "exchanged_arrays": "model_exchange",
            "private_module": "per_record.fit_for_dp_sgd",
            "trained_names": "model_exchange",
            "NodeRecords": "node_records",
            "OpacusClient": "opacus_client",
            "Persons": "per_record.persons",
            "FixedLengthPadding": "per_record.record_batches",
            "RecordWise": "per_record.record_batches",
            "LossInOutputs": "per_record.record_loss",
            "WithFullMask": "per_record.record_loss",
            "TorchUnits": "torch_units",
            "check_training": "training_check",
        },
    )

__all__ = [
    "DPSGD",
    "FixedLengthPadding",
    "LossInOutputs",
    "NodeConfig",
    "NodeConfigError",
    "NodeRecords",
    "NodeUnits",
    "OpacusClient",
    "PersonalClient",
    "Persons",
    "PolicyRefusal",
    "RecordWise",
    "RecordsInBatches",
    "TorchUnits",
    "TrainedRows",
    "UnitReport",
    "WithFullMask",
    "check_training",
    "coins_mod",
    "compression_mod",
    "deadline_mod",
    "exchanged_arrays",
    "noised_client_app",
    "numpy_client_app",
    "private_module",
    "trained_names",
]
