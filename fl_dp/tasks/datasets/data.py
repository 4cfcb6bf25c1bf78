"""Public data sets, split once into a train and a test part.

    >>> from fl_dp.tasks.datasets import load_dataset
    >>> digits = load_dataset("digits")
    >>> digits.features(slice(0, 7)).shape
    (7, 1, 8, 8)

The split does not depend on an experiment's seed, so two runs' accuracies are comparable. A set
may stay on disk as memory-mapped bytes, shared by processes; only the rows asked for become
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import cast

import numpy as np

from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import DataFormat, Form
from fl_dp.tasks.datasets.held_out import of_clients, with_public_part, with_validation_part
from fl_dp.tasks.datasets.sources import SOURCES

OWN_DATA = ("csv", "parquet", "folder")
"""The user's own files, which are read by a `DataFormat`."""

EMBEDDED = {"digits": Form((1, 8, 8), 10), "breast_cancer": Form((30,), 2)}
"""Sets that ship inside scikit-learn, with their forms: they have no folder."""

PUBLIC_FORMS = EMBEDDED | {name: source.form for name, source in SOURCES.items()}
"""Forms of the public data sets."""

DATASETS = (*PUBLIC_FORMS, *OWN_DATA)

# The module with `load_NAME`, unless it is called NAME.
_MODULES = {
    "digits": "shipped",
    "breast_cancer": "shipped",
    "mnist": "idx_files",
    "fashion_mnist": "idx_files",
    "csv": "own_tables",
    "parquet": "own_tables",
    "folder": "own_images",
}


def load_dataset(
    name: str,
    *,
    data_dir: str | None = None,
    data_format: DataFormat | None = None,
    validation: bool = False,
    public: int = 0,
    clients: tuple[str, ...] | None = None,
) -> Dataset:
    """Load a data set, once per process: the same object for the same arguments.

    Args:
        name: A name in `DATASETS`.
        data_dir: The set's folder; None searches the usual places. Ignored by sets inside
            scikit-learn.
        data_format: How to read the user's own files; None takes every default.
        validation: Make a fifth of the training part the test part, to choose settings without the
            real one.
        public: Number of training records that are public: they move to `Dataset.public_x`,
            without labels.
        clients: Patterns of natural clients, see `held_out.of_clients`. None: all.

    Raises:
        ValueError: If the name is unknown, a file is not the published one or does not fit the
            format, or `clients` are none of the set's.
        FileNotFoundError: If the folder or a file in it is missing.
        ModuleNotFoundError: If a library that reads the files is not installed.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown dataset {name!r}; write one of {', '.join(DATASETS)}")
    if name in EMBEDDED:
        data_dir = None
    data_format = (data_format or DataFormat()) if name in OWN_DATA else None
    if not validation and not public and clients is None:
        return _load_once(name, data_dir, data_format)
    return _divided_once(name, data_dir, data_format, validation, public, clients)


def form_of(name: str, data_format: DataFormat | None) -> Form | None:
    """A task's form; None if only the files could tell it."""
    if data_format is None:
        return PUBLIC_FORMS[name]
    outputs = data_format.num_outputs
    if outputs is None:
        return None
    if data_format.image_shape is not None:
        return Form(data_format.image_shape, outputs)
    if data_format.columns is not None:
        return Form((len(data_format.columns),), outputs)
    return None


@cache
def _load_once(name: str, data_dir: str | None, data_format: DataFormat | None) -> Dataset:
    # Imported late: a run on one set should not pay for another.
    module = import_module(f"fl_dp.tasks.datasets.{_MODULES.get(name, name)}")
    loader = getattr(module, f"load_{name}")
    load = cast(Callable[..., Dataset], loader)
    if data_format is not None:
        dataset = load(data_dir, data_format)
    else:
        dataset = load() if name in EMBEDDED else load(data_dir)
    return _shared(dataset)


@cache
def _divided_once(
    name: str,
    data_dir: str | None,
    data_format: DataFormat | None,
    validation: bool,
    public: int,
    clients: tuple[str, ...] | None,
) -> Dataset:
    dataset = _load_once(name, data_dir, data_format)
    if clients is not None:
        dataset = of_clients(dataset, clients)
    if validation:
        dataset = with_validation_part(dataset)
    if public:
        dataset = with_public_part(dataset, public)
    return _shared(dataset)


def _shared(dataset: Dataset) -> Dataset:
    """Make a set's arrays read-only: all clients of this process share them."""
    for value in vars(dataset).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return dataset
