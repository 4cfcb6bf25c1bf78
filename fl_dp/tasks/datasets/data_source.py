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
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from importlib import import_module
from typing import cast

import numpy as np

from fl_dp.tasks.datasets.columns import are_texts, encoding_of, width
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import BYTES, DataFormat, Form
from fl_dp.tasks.datasets.held_out import of_clients, with_public_part, with_validation_part
from fl_dp.tasks.datasets.sources import SOURCES

OWN_DATA = ("csv", "parquet", "folder")
"""The user's own files, which are read by a `DataFormat`."""

EMBEDDED = {"digits": Form((1, 8, 8), 10), "breast_cancer": Form((30,), 2)}
"""Sets that ship inside scikit-learn, with their forms: they have no folder."""

PUBLIC_FORMS = EMBEDDED | {name: source.form for name, source in SOURCES.items()}
"""Forms of the public data sets."""

BRING_PUBLIC = ("movies",)
"""Sets with public records of their own (`Dataset.public_x`), besides the training part."""

DATASETS = (*PUBLIC_FORMS, *OWN_DATA)

# The module with `load_NAME`, unless it is called NAME.
_MODULES = {
    "digits": "shipped",
    "breast_cancer": "shipped",
    "mnist": "idx_files",
    "fashion_mnist": "idx_files",
    "adult": "public_tables",
    "hospital_stay": "public_tables",
    "lending": "public_tables",
    "spam": "public_texts",
    "movies": "public_texts",
    "csv": "own_tables",
    "parquet": "own_tables",
    "folder": "own_images",
}


@dataclass(frozen=True)
class DataSource:
    """A data set as an experiment uses it.

    Attributes:
        name: `digits`, `breast_cancer`, `fashion_mnist`, `mnist`, `cifar10`, `adult`,
            `hospital_stay`, `lending`, `spam`, `movies` or `shakespeare`; `csv`, `parquet` or
            `folder` for your own data.
        data_dir: Folder of the data set; None is where packages and `fl-dp data` put it.
        data_format: How to read the user's own files; None takes every default.
        validation: Measure on a fixed fifth of the training part, which is not trained on, instead
            of the test part.
        public: Number of training records that are public: they move to `Dataset.public_x`,
            without labels. Of `BRING_PUBLIC`, how many of the public records are used.
        clients: Natural clients to use, by names or patterns (`*`, `?`); `!` leaves one out:
            `['!hamlet: *']`. None: all.
    """

    name: str
    _: KW_ONLY
    data_dir: str | None = None
    data_format: DataFormat | None = None
    validation: bool = False
    public: int = 0
    clients: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Validate, and make equal what is read alike.

        Raises:
            ValueError: The name is unknown.
        """
        if self.name not in DATASETS:
            raise ValueError(f"unknown dataset {self.name!r}; write one of {', '.join(DATASETS)}")
        if self.name in EMBEDDED:
            object.__setattr__(self, "data_dir", None)
        own_format = (self.data_format or DataFormat()) if self.name in OWN_DATA else None
        object.__setattr__(self, "data_format", own_format)

    @property
    def is_whole(self) -> bool:
        """Whether it is the set as its files hold it."""
        return not self.validation and not self.public and self.clients is None


def load_dataset(source: DataSource | str) -> Dataset:
    """Load a data set, once per process: the same object for the same source, or its name.

    Raises:
        ValueError: If the name is unknown, a file is not the published one or does not fit the
            format, or `clients` are none of the set's.
        FileNotFoundError: If the folder or a file in it is missing.
        ModuleNotFoundError: If a library that reads the files is not installed.
    """
    source = source_of(source)
    return _load_once(source) if source.is_whole else _divided_once(source)


def source_of(source: DataSource | str) -> DataSource:
    """The source itself, or that of a name."""
    return DataSource(source) if isinstance(source, str) else source


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
        encoding = encoding_of(data_format)
        numbers = len(data_format.columns) if encoding is None else width(encoding)
        return Form((numbers,), outputs, BYTES if are_texts(encoding) else None)
    return None


@cache
def _load_once(source: DataSource) -> Dataset:
    name = source.name
    # Imported late: a run on one set should not pay for another.
    module = import_module(f"fl_dp.tasks.datasets.{_MODULES.get(name, name)}")
    loader = getattr(module, f"load_{name}")
    load = cast(Callable[..., Dataset], loader)
    if source.data_format is not None:
        dataset = load(source.data_dir, source.data_format)
    else:
        dataset = load() if name in EMBEDDED else load(source.data_dir)
    return _shared(dataset)


@cache
def _divided_once(source: DataSource) -> Dataset:
    dataset = _load_once(replace(source, validation=False, public=0, clients=None))
    if source.clients is not None:
        dataset = of_clients(dataset, source.clients)
    if source.validation:
        dataset = with_validation_part(dataset)
    if source.public:
        dataset = with_public_part(dataset, source.public)
    return _shared(dataset)


def _shared(dataset: Dataset) -> Dataset:
    """Make a set's arrays read-only: all clients of this process share them."""
    for value in vars(dataset).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return dataset
