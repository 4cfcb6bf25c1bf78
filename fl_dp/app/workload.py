"""The settings' work: data, each unit's part, the model and its device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.tasks.datasets import (
    EMBEDDED,
    OWN_DATA,
    DataFormat,
    Dataset,
    DataSource,
    Form,
    form_of,
    load_dataset,
)
from fl_dp.tasks.datasets.columns import encoding_of
from fl_dp.tasks.datasets.own_tables import in_unit_of_label
from fl_dp.tasks.datasets.schema_file import read_schema
from fl_dp.tasks.device import training_device
from fl_dp.tasks.fit import require_fit
from fl_dp.tasks.public_scores import default_metrics, require_metrics
from fl_dp.updates import SharedPart

from .settings import Settings
from .settings.data import dealt
from .settings.features import EncoderSettings
from .settings_encoder import (
    digest_named,
    encoded_data,
    encoded_form,
    encoder_digest,
    fitted_encoder,
    require_public_files,
)

if TYPE_CHECKING:  # torch is loaded where something is built or trained
    import torch
    from torch import Tensor, nn

    from fl_dp.tasks.features import Encoder
    from fl_dp.tasks.training import DeviceData

logger = logging.getLogger("flwr.fl_dp.client")

_HELD_OUT_EVERY = 5
_FACTS = ("columns", "types", "classes", "label_range")  # of rows that a schema encodes
_SCALES = ("mean", "std", "label_range")  # of features and labels; a model is for one choice


def dataset_of(
    settings: Settings, data_path: str | None = None, data_format: DataFormat | None = None
) -> Dataset:
    """The run's data set with its features; loaded once per process.

    Args:
        settings: Settings that name the set, its features and own files' format.
        data_path: A node's own folder, whose training part replaces `task.data_dir`. None:
            everybody's data; with `task.partition=nodes` the server's, which is only a test part.
        data_format: Format of own files. None: as the settings say.

    Raises:
        FileNotFoundError: The data do not exist.
        ModuleNotFoundError: A library that reads them is missing.
        ValueError: They are corrupt, or do not fit the settings.
    """
    return encoded_data(settings, _loaded(settings, data_path, data_format), data_path)


def _loaded(
    settings: Settings, data_path: str | None = None, data_format: DataFormat | None = None
) -> Dataset:
    """The data set as its files hold it, not encoded, with its public part apart."""
    task = settings.task
    if data_path is not None and task.name in EMBEDDED:
        raise ValueError(
            f"task={task.name} has no files that could lie in dp-data-path: leave it out"
        )
    if data_format is None:
        data_format = _format_of(settings, data_path)
    if data_path is not None:  # a node's own folder, of which it trains on all rows
        return load_dataset(DataSource(task.name, data_dir=data_path, data_format=data_format))
    return load_dataset(replace(_source_of(settings), data_format=data_format))


def _source_of(settings: Settings) -> DataSource:
    """The server's data, or everybody's in a simulation."""
    source: DataSource = settings.task.make(
        data_format=_format_of(settings, None), public=settings.features.public
    )
    return source


def form_of_run(settings: Settings) -> Form:
    """Form of the server's data set; no record is encoded. Raises as `dataset_of`."""
    return encoded_form(settings, _loaded(settings).form)


def with_digests(settings: Settings) -> Settings:
    """Settings with a digest of each file that the model is made of.

    Nodes and a resumed run compare their files with it.

    Raises:
        OSError: A file can't be read.
        ValueError: It differs from the digest in the settings, or does not fit.
    """
    features, model = settings.features, settings.model
    if isinstance(features, EncoderSettings):
        features = replace(features, digest=encoder_digest(features, _loaded(settings)))
    if model.initial is not None:
        model = replace(model, initial_digest=initial_digest(settings))
    settings = replace(settings, features=features, model=model)
    if model.initial is not None:
        initial_arrays_of(settings)
    if features.name != "none":
        dataset_of(settings)  # which encodes what the nodes will find
    return settings


def encoder_of_run(settings: Settings) -> Encoder | None:
    """Encoder of the run's records; None if they are used as they are. Raises as `dataset_of`."""
    features = settings.features
    if not isinstance(features, EncoderSettings):
        return None
    return fitted_encoder(features, _loaded(settings))


def training_rows(settings: Settings) -> Sequence[NDArray[np.int64]]:
    """Training rows of each client, dealt once per process. Raises as `dataset_of`."""
    task = settings.task
    if task.partition == "nodes":
        raise ValueError(
            "task.partition=nodes is for SuperNodes that bring their own data, each started with "
            "--node-config 'dp-data-path=\"/absolute/folder\"'; a simulation has none: choose "
            "another partition"
        )
    parts: Sequence[NDArray[np.int64]] = task.make_by(
        dealt, source=_source_of(settings), seed=settings.seed
    )
    return parts


def count_units(settings: Settings) -> int:
    """Number of all clients' records, or of their persons where these are told apart.

    Raises as `training_rows`.
    """
    parts, persons = training_rows(settings), dataset_of(settings).train_persons
    if persons is None:
        return sum(map(len, parts))
    return len(np.unique(np.concatenate([persons[rows] for rows in parts])))


def check_data(settings: Settings) -> None:
    """Load all that the server needs: errors show before anything is released.

    Raises:
        ValueError: Data can't be split as asked, leave most clients without records, or have
            nothing to test on. Further errors as `dataset_of`.
    """
    if settings.task.partition != "nodes":
        require_records(settings)
    if not len(dataset_of(settings).test_y):
        raise ValueError("the test part has no rows: the model could not be measured")


def require_records(settings: Settings) -> None:
    """Check that at least half of the clients have records to train on.

    Raises:
        ValueError: Fewer have. Other errors as `training_rows`.
    """
    parts = training_rows(settings)
    if settings.task.partition != "dirichlet":  # no other partition leaves a client without any
        return
    empty = sum(not len(rows) for rows in parts)
    if 2 * empty > len(parts):
        raise ValueError(
            f"task.partition=dirichlet with task.alpha={settings.task.alpha:g} leaves {empty} of "
            f"{len(parts)} clients without records, so the budget would pay for noise: write a "
            "larger task.alpha or a smaller task.num_clients"
        )


def data_of_unit(
    settings: Settings,
    index: int,
    node_config: Mapping[str, Any],
    *,
    leave_out_unfit: bool = False,
    held_out: bool = False,
) -> tuple[Dataset, NDArray[np.int64]] | None:
    """The data set with a unit's records, and their rows.

    With a `dp-data-path` all training rows of that folder are the node's own, whatever the
    partition: nothing else is read there, and the server names no folder.

    Args:
        settings: Settings as the server sent them.
        index: Index of the unit among those of all nodes, which share a simulated split.
        node_config: The node's configuration; its owner's schema goes before the settings'.
        leave_out_unfit: As `DataFormat.leave_out_unfit`. Settings that protect records always do
            so: one record must not decide about all others.
        held_out: Return the rows that the unit does not train on.

    Returns:
        Data set and rows. Rows without content are included (`fitting`): their number depends on
        no row's content. None for a unit beyond a simulation's roster.

    Raises:
        ValueError: Data do not fit the settings; the text can hold data. Further errors as
            `dataset_of`.
    """
    require_public_files(settings, node_config)
    data_path = own_data_path(node_config)
    if data_path is not None:
        data_format = _format_of_node(settings, node_config)
        if data_format is not None:
            of_records = settings.protects_records or settings.privacy.unit == "record"
            data_format = replace(data_format, leave_out_unfit=leave_out_unfit or of_records)
        dataset = dataset_of(settings, data_path, data_format)
        own = np.arange(len(dataset.train_y))
        return dataset, rows_of_unit(settings, dataset, own, held_out=held_out)
    _refuse_a_folder_of_the_server(settings, node_config)
    parts = training_rows(settings)
    if index >= len(parts):
        return None
    dataset = dataset_of(settings)
    return dataset, rows_of_unit(settings, dataset, parts[index], held_out=held_out)


def fitting(dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The given training rows that could be read as records."""
    if dataset.train_fit is None:
        return rows
    return rows[dataset.train_fit[rows]]


def data_on_roster(
    settings: Settings,
    index: int,
    node_config: Mapping[str, Any],
    *,
    leave_out_unfit: bool = False,
) -> tuple[Dataset, NDArray[np.int64]]:
    """As `data_of_unit`, for a unit that must have data.

    Raises:
        ValueError: The unit is beyond a simulation's roster. Other errors as `data_of_unit`.
    """
    data = data_of_unit(settings, index, node_config, leave_out_unfit=leave_out_unfit)
    if data is None:
        raise ValueError(f"unit {index} is beyond the roster of {settings.task.num_clients}")
    return data


def rows_of_unit(
    settings: Settings, dataset: Dataset, rows: NDArray[np.int64], *, held_out: bool = False
) -> NDArray[np.int64]:
    """Rows that a unit trains on, or is measured on.

    It trains on all, unless the last model is measured privately: then every fifth is held out, or
    all rows of every fifth person.
    """
    if settings.metrics.private_epsilon is None:
        return rows
    number = np.arange(len(rows))
    if dataset.train_persons is not None:
        _, number = np.unique(dataset.train_persons[rows], return_inverse=True)
    measured = number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    if not held_out:
        measured = ~measured
    chosen: NDArray[np.int64] = rows[measured]
    return chosen


def public_form_of(settings: Settings, node_config: Mapping[str, Any]) -> Form | None:
    """The form for which a node's model is built, without reading anybody's rows.

    None if everybody's files are in one folder and tell the form themselves.

    Raises:
        FileNotFoundError: The owner's schema file does not exist.
        ValueError: It can't be read, or the node has its own data and nothing gives their form.
    """
    _refuse_a_folder_of_the_server(settings, node_config)
    require_public_files(settings, node_config)
    data_format = _format_of_node(settings, node_config)
    form = form_of(settings.task.name, data_format)
    if form is None and data_format is not None and own_data_path(node_config) is not None:
        shape = "image_shape" if settings.task.name == "folder" else "columns"
        data_format.require(classes=data_format.num_outputs, **{shape: getattr(data_format, shape)})
    if form is None:
        return None
    return encoded_form(settings, form)


def _refuse_a_folder_of_the_server(settings: Settings, node_config: Mapping[str, Any]) -> None:
    """Check that a node whose owner requires privacy reads no folder that the server names.

    Raises:
        PermissionError: It would. The text holds no data.
    """
    owner = NodeConfig.of(node_config)
    if owner.required and owner.data_path is None and settings.task.data_dir is not None:
        raise PermissionError(
            "the server names a folder of this node (task.data_dir), and the node's owner requires "
            "privacy: say which data are meant, --node-config 'dp-data-path=\"/srv/data\"'"
        )


def own_data_path(node_config: Mapping[str, Any]) -> str | None:
    """Folder of a node's own data, if it has any. Raises as `NodeConfig.of`."""
    return NodeConfig.of(node_config).data_path


def records_of(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Features and labels of some training rows, on the device that trains."""
    return _device_data(dataset, training_device()).records(rows)


def check_model(settings: Settings) -> None:
    """Check that the run's model can be built for its data; torch is used only if needed.

    Raises:
        ModuleNotFoundError: Model or metric needs a missing library.
        ValueError: Model or metric does not fit the data.
    """
    form = form_of_run(settings)
    metrics_of(settings)
    model = settings.model
    require_fit(model.name, hidden=model.hidden, **form._asdict())
    named = model.shared is not None or model.lora_rank is not None or model.initial is not None
    if form.vocabulary_size is not None or named:
        initial_arrays_of(settings)  # built on Opacus, which may be missing; or names may not fit


def metrics_of(settings: Settings) -> list[str]:
    """The server's metrics on public rows, besides loss and accuracy.

    What judges a model instead of its accuracy is always among them (`Dataset.measure`).

    Raises:
        ModuleNotFoundError: Scikit-learn is missing.
        ValueError: A metric does not fit the data.
    """
    form, names = form_of_run(settings), settings.metrics.public
    if names is None:
        names = default_metrics(num_classes=form.num_classes, vocabulary_size=form.vocabulary_size)
    require_metrics(names, num_classes=form.num_classes)
    measure = _loaded(settings).measure
    return names if measure == "accuracy" else list(dict.fromkeys([measure, *names]))


def predictions_in_unit(settings: Settings) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A function that converts labels and predictions to the label's unit."""
    label_range = settings.task.label_range
    if label_range is None:
        return lambda values: values
    return lambda values: in_unit_of_label(values, label_range)


def width_of_label(settings: Settings) -> float:
    """Largest difference of two labels that are numbers, in their unit; else 0."""
    low, high = settings.task.label_range or (0.0, 0.0)
    return high - low


def initial_arrays_of(settings: Settings) -> ArrayRecord:
    """First weights of the run's model, without those that do not travel.

    Raises:
        ValueError: `model.shared` or `model.lora_rank` does not fit the model.
    """
    from fl_dp.model_arrays import get_arrays

    model = _built(settings, form_of_run(settings))
    arrays = get_arrays(model)
    shared = part_of(settings, model).shared
    return ArrayRecord({name: Array(arrays[name]) for name in shared})


def part_of(settings: Settings, model: nn.Module) -> SharedPart:
    """Which model parameters travel, stay at each client, or are frozen.

    Raises:
        ValueError: `model.shared` does not fit the model.
    """
    frozen: set[str] = set()
    if settings.model.lora_rank is not None:
        frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    from fl_dp.model_arrays import distinct_state

    try:
        return SharedPart.of(list(distinct_state(model)), settings.model.shared, frozen=frozen)
    except ValueError as error:
        raise ValueError(f"model.shared={settings.model.shared}: {error}") from error


def shared_parameters(settings: Settings) -> tuple[str, ...] | None:
    """Names of the parameters that travel; None if all do."""
    if settings.model.shared is None and settings.model.lora_rank is None:
        return None
    return tuple(initial_arrays_of(settings))


def set_shared(settings: Settings, model: nn.Module, arrays: ArrayRecord) -> None:
    """Write a released model's parameters into the run's model; others stay.

    Raises:
        ValueError: They are not those of the model.
    """
    from fl_dp.model_arrays import set_arrays

    names = part_of(settings, model).shared
    set_arrays(model, arrays.to_numpy_ndarrays(), names)


def model_of(settings: Settings, form: Form | None = None) -> nn.Module:
    """The run's model with its first weights, on the device that trains.

    Without a `form`, records have that of the server's data set.

    Raises:
        ValueError: This machine has no memory for the model, or its first weights don't fit.
    """
    return _built(settings, form or form_of_run(settings)).to(training_device())


def _built(settings: Settings, form: Form) -> nn.Module:
    from fl_dp.tasks.models import build_model

    chosen = settings.model
    try:
        model = build_model(chosen.name, hidden=chosen.hidden, **form._asdict(), seed=settings.seed)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise ValueError(
            f"model.hidden={chosen.hidden}: this machine has no memory for such a model: "
            "write a smaller number"
        ) from error
    if chosen.initial is not None:
        from fl_dp.tasks.models.weights import read_weights, set_weights

        initial_digest(settings)
        set_weights(model, read_weights(Path(chosen.initial)), f"model.initial={chosen.initial}")
    if chosen.lora_rank is None:
        return model
    from fl_dp.tasks.models import add_low_rank

    return add_low_rank(model, rank=chosen.lora_rank, seed=settings.seed, train=chosen.lora_train)


def initial_digest(settings: Settings) -> str:
    """SHA-256 of the first weights' file.

    Raises:
        OSError: It can't be read.
        ValueError: It differs from the digest in the settings.
    """
    chosen = settings.model
    assert chosen.initial is not None  # every caller has checked it
    digest = digest_named("model.initial", chosen.initial)
    if chosen.initial_digest not in (None, digest):
        raise ValueError(
            f"model.initial_digest is {chosen.initial_digest}, and {chosen.initial} here has "
            f"{digest}: have the same file on every machine"
        )
    return digest


# One run's set: a process that continues with another run frees the first from the device.
@lru_cache(maxsize=1)
def _device_data(dataset: Dataset, device: torch.device) -> DeviceData:
    from fl_dp.accelerator.free_memory import free_bytes
    from fl_dp.tasks.training import DeviceData

    return DeviceData(dataset, device, free_memory=free_bytes(device) or 0)


def _format_of_node(settings: Settings, node_config: Mapping[str, Any]) -> DataFormat | None:
    owner = NodeConfig.of(node_config)
    data_format = _format_of(settings, owner.data_path)
    if data_format is None or owner.data_path is None or owner.data_schema is None:
        return data_format
    pinned = read_schema(Path(owner.data_schema))
    _require_same_facts(owner.data_schema, pinned, data_format)
    own_scales = [getattr(pinned, key) for key in _SCALES]
    server_scales = [getattr(data_format, key) for key in _SCALES]
    if own_scales != server_scales:
        logger.warning(
            "%s says %s, and the server measures the model by %s: one of the two should change",
            owner.data_schema,
            dict(zip(_SCALES, own_scales, strict=True)),
            dict(zip(_SCALES, server_scales, strict=True)),
        )
    of_records = settings.protects_records or settings.sums_records
    if of_records and (pinned.person_column is None) != (data_format.person_column is None):
        owner_s, unit = pinned.person_column, settings.task.unit_of_records
        raise ValueError(
            f"the training promises to each {unit}, and {owner.data_schema} says person_column: "
            f"{owner_s}: both have to name the persons, or neither"
        )
    return replace(pinned, splits=data_format.splits)


def _require_same_facts(file: str, own: DataFormat, servers: DataFormat) -> None:
    """Check that an owner's schema encodes rows as the server's test part is encoded.

    The rehearsal asks for the model's form, and so compares schemas before any charge.

    Raises:
        ValueError: The text holds no data.
    """
    if encoding_of(own) == encoding_of(servers) is None:  # numbers as they are
        return
    differing = [key for key in _FACTS if getattr(own, key) != getattr(servers, key)]
    if differing:
        raise ValueError(
            f"{file} and the server's schema differ in {', '.join(differing)}: agree on one"
        )


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
    made: DataFormat = task.make_by(DataFormat, splits=splits)
    return made
