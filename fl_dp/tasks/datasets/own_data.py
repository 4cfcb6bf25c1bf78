"""Parts and classes, shared by a user's own tables and image folders."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import DataFormat, plain_label
from fl_dp.tasks.datasets.held_out import held_out_units
from fl_dp.tasks.datasets.names import few_labels, listed

logger = logging.getLogger("flwr.fl_dp.client")


def optional_import(name: str, *, extra: str, task: str) -> Any:
    """Import a module that an extra brings.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"task={task} needs {name.partition('.')[0]}, which is not installed: "
            f"pip install 'fl-dp[{extra}]'"
        ) from error


def own_folder(task: str, data_dir: str | None) -> Path:
    """The folder of the user's own data.

    Raises:
        ValueError: If none is named.
        FileNotFoundError: If it does not exist.
    """
    if data_dir is None:
        raise ValueError(f"task={task} is your own data: write task.data_dir=/absolute/folder")
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; task={task} reads your data from there")
    return folder


def splits_to_read(data_format: DataFormat, paths: dict[str, Path]) -> tuple[str, ...]:
    """The parts that have files of their own; `paths` has each part's file or folder.

    Raises:
        FileNotFoundError: If a part is missing.
        ValueError: If there is a test part, and also a fraction to cut off the training part.
    """
    fraction = data_format.test_fraction
    cuts = fraction is not None and data_format.is_shared
    if cuts and paths["test"].exists():
        raise ValueError(
            f"task.test_fraction={fraction} would hold out training rows, and there is "
            f"{paths['test']}: leave one of them out"
        )
    splits = tuple(split for split in data_format.splits if not (cuts and split == "test"))
    for split in splits:
        if not paths[split].exists():
            instead = ""
            if data_format.is_shared:
                instead = {
                    "train": " (if the nodes bring their own training data, write "
                    "task.partition=nodes)",
                    "test": ", or write task.test_fraction=0.2 to hold out training rows",
                }[split]
            alike = sorted(path.name for path in paths[split].parent.glob(f"{split}.*"))
            if alike:
                instead = f"; {alike[0]} is not read: unpack it or save it as {paths[split].name}"
            raise FileNotFoundError(f"{paths[split]} is missing: put it there{instead}")
    return splits


def dataset_of_parts(
    name: str,
    x: dict[str, NDArray[Any]],
    y: dict[str, NDArray[Any]],
    *,
    num_classes: int,
    clients: tuple[NDArray[np.int64], tuple[str, ...]] | None,
    persons: NDArray[np.int64] | None = None,
    data_format: DataFormat,
) -> Dataset:
    """Put together the parts that were read; a missing part is empty.

    But a missing test part of shared data is cut off the training part, by persons where there are
    some. `clients` has each
    training row's natural client, and their names; `persons` each one's person.

    Raises:
        ValueError: If no row is left for training or none for testing.
    """
    read = next(iter(x))
    empty_x, empty_y = x[read][:0], y[read][:0]
    train_clients, client_names = clients if clients is not None else (None, ())
    whole = Dataset(
        name=name,
        train_x=x.get("train", empty_x),
        train_y=y.get("train", empty_y),
        test_x=x.get("test", empty_x),
        test_y=y.get("test", empty_y),
        num_classes=num_classes,
        train_clients=train_clients,
        client_names=client_names,
        train_persons=persons,
    )
    if "test" in x or not data_format.is_shared:
        return whole
    assert data_format.test_fraction is not None  # otherwise the missing part was an error
    units = np.arange(len(whole.train_y)) if persons is None else persons
    test = held_out_units(units, data_format.test_fraction)
    if test is None:
        number, unit = len(np.unique(units)), "rows" if persons is None else "persons"
        raise ValueError(
            f"task.test_fraction={data_format.test_fraction} of {number} {unit} are "
            f"{round(number * data_format.test_fraction)}: write a fraction that leaves {unit} for "
            "training and for testing"
        )
    return replace(
        whole,
        train_x=whole.train_x[~test],
        train_y=whole.train_y[~test],
        test_x=whole.train_x[test],
        test_y=whole.train_y[test],
        train_clients=None if train_clients is None else train_clients[~test],
        train_persons=None if persons is None else persons[~test],
    )


def dataset_of_rows(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    fit: NDArray[np.bool_],
    *,
    num_classes: int,
    source: Path,
    persons: NDArray[np.int64] | None = None,
) -> Dataset:
    """One node's training rows; the number of those that do not fit goes to the log."""
    unfit = len(fit) - int(fit.sum())
    if unfit:
        logger.warning("%s: %d of %d rows do not fit and count as none", source, unfit, len(fit))
    return Dataset(
        name=name,
        train_x=x,
        train_y=y,
        test_x=x[:0],
        test_y=y[:0],
        num_classes=num_classes,
        train_fit=fit,
        train_persons=persons,
    )


def class_numbers(
    names: Sequence[str], classes: Sequence[str], *, source: Path | str
) -> NDArray[np.int64]:
    """The number of each label's class, int64; `source` is for the error message.

    Raises:
        ValueError: If a label is no class.
    """
    number = numbers_by_label(classes)
    unknown = [name for name in names if plain_label(name) not in number]
    if unknown:
        raise ValueError(
            f"{source}: labels that task.classes does not list: {few_labels(unknown)}; it lists "
            f"{listed(classes)}"
        )
    return np.array([number[plain_label(name)] for name in names], dtype=np.int64)


def numbers_by_label(classes: Sequence[str]) -> dict[str, int]:
    """Each class's number, by its `plain_label`.

    Raises:
        ValueError: If two classes have the same plain label.
    """
    numbers = {plain_label(name): number for number, name in enumerate(classes)}
    if len(numbers) < len(classes):
        raise ValueError(f"two classes are one name, written in two ways: {listed(classes)}")
    return numbers


def require_scale_of(data_format: DataFormat, size: int, noun: str) -> None:
    """Check that each column or channel has one mean and one deviation.

    Raises:
        ValueError: If there is another number of them.
    """
    for key in ("mean", "std"):
        values = getattr(data_format, key)
        if values is not None and len(values) != size:
            raise ValueError(
                f"task.{key} has {len(values)} numbers for {size} {noun}: write one for each"
            )
