"""Tasks to learn: data sets, their split over clients, models, local training and evaluation.

Nothing here knows of privacy, Flower or the simulation: a task is what would be learned without
them.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fl_dp.tasks.data import DATASETS, EMBEDDED, OWN_DATA, Dataset, load_dataset
    from fl_dp.tasks.data_format import DataFormat
    from fl_dp.tasks.device_data import DeviceData
    from fl_dp.tasks.forms import Form, form_of
    from fl_dp.tasks.model_fit import MODELS
    from fl_dp.tasks.models import build_model, get_arrays, set_arrays
    from fl_dp.tasks.partitions import PARTITIONS, client_indices, partition
    from fl_dp.tasks.together import UnitData, train_together
    from fl_dp.tasks.training import evaluate, train_locally
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "DATASETS",
    "EMBEDDED",
    "MODELS",
    "OWN_DATA",
    "PARTITIONS",
    "DataFormat",
    "Dataset",
    "DeviceData",
    "Form",
    "UnitData",
    "build_model",
    "client_indices",
    "evaluate",
    "form_of",
    "get_arrays",
    "load_dataset",
    "partition",
    "set_arrays",
    "train_locally",
    "train_together",
]
