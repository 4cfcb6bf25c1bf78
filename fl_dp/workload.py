"""What the settings name: the data, each unit's part of it, the model, and where it trains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.clients.node_config import DATA_PATH_KEY, NodeConfig
from fl_dp.tasks import (
    EMBEDDED,
    OWN_DATA,
    DataFormat,
    Dataset,
    DeviceData,
    build_model,
    client_indices,
    get_arrays,
    load_dataset,
)

from .settings import Settings

_T = TypeVar("_T")


def dataset_of(settings: Settings, data_path: str | None = None) -> Dataset:
    """Return the run's data set, loaded once a process.

    Args:
        settings: Name the set and, for somebody's own files, their format.
        data_path: A node's own folder; its training part is read instead of `task.data_dir`. None:
            everybody's, or with `task.partition=nodes` the server's, which is a test part alone.

    Raises:
        FileNotFoundError: If it is not there.
        ModuleNotFoundError: If a library that reads it is not installed.
        ValueError: If it is corrupt, or does not fit the settings.
    """
    task = settings.task
    if data_path is not None and task.name in EMBEDDED:
        raise ValueError(
            f"task={task.name} has no files that could lie in {DATA_PATH_KEY}: leave it out"
        )
    data_dir = task.data_dir if data_path is None else data_path
    return load_dataset(task.name, data_dir=data_dir, data_format=_format_of(settings, data_path))


def parts_of(settings: Settings) -> tuple[NDArray[np.int64], ...]:
    """Return the training rows of each client, split once a process.

    Raises:
        FileNotFoundError: If the data set is not there.
        ModuleNotFoundError: If a library that reads it is not installed.
        ValueError: If it is corrupt, or can't be split as asked.
    """
    task = settings.task
    if task.partition == "nodes":
        raise ValueError(
            "task.partition=nodes is for SuperNodes that bring their own data, each started with "
            f"--node-config '{DATA_PATH_KEY}=\"/absolute/folder\"'; a simulation has none: choose "
            "another partition"
        )
    return client_indices(
        task.name,
        num_clients=task.num_clients,
        kind=task.partition,
        seed=settings.seed,
        alpha=task.alpha,
        shards_per_client=task.shards_per_client,
        data_dir=task.data_dir,
        data_format=_format_of(settings, None),
    )


def check_data(settings: Settings) -> None:
    """Load at the server what it needs, so that what is wrong shows before anything is released.

    Raises:
        FileNotFoundError: If the data set is not there.
        ModuleNotFoundError: If a library that reads it is not installed.
        ValueError: If it is corrupt, can't be split as asked, or has nothing to test on.
    """
    if settings.task.partition != "nodes":
        parts_of(settings)
    if not len(dataset_of(settings).test_y):
        raise ValueError("the test part has no rows: the model could not be measured")


def data_of_unit(
    settings: Settings, place: int, node_config: Mapping[str, Any]
) -> tuple[Dataset, NDArray[np.int64]] | None:
    """Return the data set in which a unit's examples lie, and their rows.

    With a `data-path` all training rows of that folder are the node's own, whatever the partition
    is: nothing else is read there, and the server names no folder.

    Args:
        settings: As the server sent them.
        place: Number of the unit among those of all nodes, which share a simulated split.
        node_config: The node's configuration.

    Returns:
        None for a unit beyond the roster of a simulation.

    Raises:
        FileNotFoundError: If the data is not there.
        ModuleNotFoundError: If a library that reads it is not installed.
        ValueError: If it does not fit the settings; the text can hold data.
    """
    data_path = own_data_path(node_config)
    if data_path is not None:
        dataset = dataset_of(settings, data_path)
        return dataset, np.arange(len(dataset.train_y))
    parts = parts_of(settings)
    return (dataset_of(settings), parts[place]) if place < len(parts) else None


def own_data_path(node_config: Mapping[str, Any]) -> str | None:
    """Return the folder of a node's own data, if it has any.

    Raises:
        NodeConfigError: If the configuration is no good.
    """
    return NodeConfig.of(node_config).data_path


def examples_of(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return features and labels of some training rows, on the device that trains."""
    return _device_data(dataset, training_device()).examples(rows)


def training_device() -> torch.device:
    """Return CUDA's first GPU where torch sees one, otherwise the CPU.

    A simulation's worker without a share of a GPU sees none.
    """
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def initial_arrays_of(settings: Settings) -> ArrayRecord:
    """Return the first weights of the run's model."""
    arrays = get_arrays(_built(settings, dataset_of(settings)))
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def model_of(settings: Settings, dataset: Dataset | None = None) -> nn.Module:
    """Return the run's model with its first weights, on the device that trains.

    Args:
        settings: Name the model.
        dataset: What it is for; None is the server's, `dataset_of(settings)`.
    """
    return _built(settings, dataset or dataset_of(settings)).to(training_device())


def _built(settings: Settings, dataset: Dataset) -> nn.Module:
    return build_model(
        settings.model.name,
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        hidden=settings.model.hidden,
        vocabulary_size=dataset.vocabulary_size,
        seed=settings.seed,
    )


# One run's set; a process that goes on to another run's need not keep the first on the device.
@lru_cache(maxsize=1)
def _device_data(dataset: Dataset, device: torch.device) -> DeviceData:
    free_memory = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return DeviceData(dataset, device, free_memory=free_memory)


def _format_of(settings: Settings, data_path: str | None) -> DataFormat | None:
    task = settings.task
    if task.name not in OWN_DATA:
        return None
    if data_path is not None:
        splits: tuple[str, ...] = ("train",)
    elif task.partition == "nodes":
        splits = ("test",)
    else:
        splits = ("train", "test")
    image_shape = None
    if task.image_shape is not None:
        channels, height, width = task.image_shape
        image_shape = (channels, height, width)
    return DataFormat(
        classes=_tuple(task.classes),
        label_column=task.label_column,
        client_column=task.client_column,
        columns=_tuple(task.columns),
        image_shape=image_shape,
        mean=_tuple(task.mean),
        std=_tuple(task.std),
        test_fraction=task.test_fraction,
        splits=splits,
    )


def _tuple(values: list[_T] | None) -> tuple[_T, ...] | None:
    return None if values is None else tuple(values)
