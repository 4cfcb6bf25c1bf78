"""Data sets: where they come from, their form, their split over clients. No torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .data import DATASETS, EMBEDDED, OWN_DATA, form_of, load_dataset
    from .dataset import Dataset
    from .forms import DataFormat, Form
    from .partitions import PARTITIONS, client_indices, partition
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "DATASETS",
    "EMBEDDED",
    "OWN_DATA",
    "PARTITIONS",
    "DataFormat",
    "Dataset",
    "Form",
    "client_indices",
    "form_of",
    "load_dataset",
    "partition",
]
