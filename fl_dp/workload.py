"""What the settings name: the data set, the clients' parts of it, and the model."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import nn

from fl_dp.tasks import Dataset, build_model, client_indices, get_arrays, load_dataset

from .settings import Settings


def dataset_of(settings: Settings) -> Dataset:
    """Return the run's data set, loaded once a process.

    Raises:
        FileNotFoundError: If it is not there.
        ValueError: If it is corrupt.
    """
    return load_dataset(settings.task.name, data_dir=settings.task.data_dir)


def parts_of(settings: Settings) -> tuple[NDArray[np.int64], ...]:
    """Return the training rows of each client, split once a process.

    Raises:
        FileNotFoundError: If the data set is not there.
        ValueError: If it is corrupt, or can't be split as asked.
    """
    task = settings.task
    return client_indices(
        task.name,
        num_clients=task.num_clients,
        kind=task.partition,
        seed=settings.seed,
        alpha=task.alpha,
        shards_per_client=task.shards_per_client,
        data_dir=task.data_dir,
    )


def initial_arrays_of(settings: Settings) -> ArrayRecord:
    """Return the first weights of the run's model."""
    arrays = get_arrays(model_of(settings))
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def model_of(settings: Settings) -> nn.Module:
    """Return the run's model with its first weights."""
    dataset = dataset_of(settings)
    return build_model(
        settings.model.name,
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        hidden=settings.model.hidden,
        seed=settings.seed,
    )
