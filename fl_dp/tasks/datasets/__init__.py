"""Data sets: where they come from, their form, their split over clients. No torch."""

from .data_source import (
    BRING_PUBLIC,
    DATASETS,
    EMBEDDED,
    OWN_DATA,
    DataSource,
    form_of,
    load_dataset,
)
from .dataset import Dataset
from .forms import DataFormat, Form
from .partitions import PARTITIONS, client_indices, partition

__all__ = [
    "BRING_PUBLIC",
    "DATASETS",
    "EMBEDDED",
    "OWN_DATA",
    "PARTITIONS",
    "DataFormat",
    "DataSource",
    "Dataset",
    "Form",
    "client_indices",
    "form_of",
    "load_dataset",
    "partition",
]
