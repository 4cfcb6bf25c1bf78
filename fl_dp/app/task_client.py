"""The Flower `ClientApp`: one client of a task, trained by the server's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.clients import NodeConfig, NodeUnits, TrainedRows, UnitReport, numpy_client_app
from fl_dp.clients.cohort import UnitData, train_alone, train_units
from fl_dp.clients.personal_part import PersonalPart
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import (
    INSTRUCTION_KEY,
    RECORD_PLAN_KEY,
    STATISTIC_QUERY_KEY,
)
from fl_dp.tasks.datasets import DataFormat, Dataset, Form
from fl_dp.tasks.datasets.columns import cells_of_column, missing_cells
from fl_dp.tasks.datasets.forms import SCALED_LABELS
from fl_dp.tasks.training import (
    evaluate,
    evaluate_with_probabilities,
)
from fl_dp.user_code import Contained

from .settings import SETTINGS_KEY, Settings
from .tuning import TRIAL_VALUES
from .workload import (
    data_of_unit,
    data_on_roster,
    dataset_of,
    fitting,
    model_of,
    own_data_path,
    part_of,
    predictions_in_unit,
    public_form_of,
    records_of,
    rows_of_unit,
    training_rows,
    width_of_label,
)

if TYPE_CHECKING:
    from fl_dp.clients.record_sums import RecordsOfNode

    from .private_training import Records


_MEASURED = ("loss", "accuracy")
_UNITS_IN_MEMORY = 256  # whose records a node holds at a time


class TaskClient(NumPyClient):
    """Trains one unit on its part of the task, or on the data of its node's `dp-data-path`.

    The number of records is reported as 1: the strategy weights clients alike, and the true number
    stays private. A round's instruction or a statistic's query gets the true number, which does not
    leave the node.
    """

    def __init__(self, context: Context, unit: int = 0) -> None:
        """Be one of a node's units; `unit` is its index there, from 0.

        Raises:
            ValueError: The node has neither a `partition-id` nor a `dp-data-path`.
        """
        self.context = context
        self.node = node_of(context)
        self.unit = unit

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train from `parameters` with the message's settings.

        If the instruction asks, also return the loss and accuracy before training.
        """
        if RECORD_PLAN_KEY in config:
            return self._fit_privately(parameters, config)
        settings, data = self._settings_and_data(config)
        if data is None:
            return parameters, _reported(0, config), {}
        dataset, rows = data
        model = model_of(settings, dataset.form)
        features, labels = records_of(dataset, fitting(dataset, rows))
        own = self._own(settings, model)
        set_arrays(model, own.whole(parameters))
        metrics = _metrics(model, features, labels, settings, config, count=len(rows))
        seed = _shuffling_seed(settings, self._part(settings), config)
        unit = UnitData(features=features, labels=labels, seed=seed)
        train_alone(model, unit, settings.client.make())
        shared = own.keep(list(get_arrays(model).values()))
        return shared, _reported(len(rows), config), metrics

    def _fit_privately(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train by DP-SGD.

        Before the charge nothing reads the node's own records. So an error until then may show:
        the model goes back as it came.
        """
        from .private_training import private_client, record_plan_of  # with Opacus and SciPy

        plan = record_plan_of(config)
        with Contained("no private training; this client contributes nothing") as attempt:
            settings = _settings(config)
            index, node_config = self._part(settings), self.context.node_config
            own = own_data_path(node_config) is not None
            if not own and index >= settings.task.num_clients:
                return parameters, 1, {}
            form = public_form_of(settings, node_config)
            model = model_of(settings, form)
            parts = self._own(settings, model)
            whole = parts.whole(parameters)
            client = private_client(
                model,
                lambda: self.records(settings),
                plan=plan,
                settings=settings,
                context=self.context,
                config=config,
                unit=self.unit,
                form=form,
            )
        if attempt.failure is not None:
            return parameters, 1, {}
        trained, one, nothing = client.fit(whole, config)
        return parts.keep(trained), one, nothing

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss of `parameters` on the unit's training records; NaN without any.

        For private metrics: on the records that it holds out.
        """
        settings = _settings(config)
        privately = STATISTIC_QUERY_KEY in config and settings.metrics.private_epsilon is not None
        data = self.held_out(settings) if privately else self.data(settings)
        if data is None or not len(data[1]):
            return float("nan"), _reported(0, config), {}
        dataset, rows = data
        model = model_of(settings, dataset.form)
        set_arrays(model, self._own(settings, model).whole(parameters))
        records = records_of(dataset, fitting(dataset, rows))
        loss, measure = evaluate(model, *records, label_range=SCALED_LABELS)
        if not _stays_on_the_node(config):  # a plain evaluation says no more than it has to
            return loss, _reported(len(rows), config), {}
        measured = {"accuracy": measure}
        if dataset.form.is_of_numbers:
            low, high = SCALED_LABELS
            measured = {"mae": measure / (high - low) * width_of_label(settings)}
        return loss, _reported(len(rows), config), dict(measured)

    def scores(self, parameters: NDArrays, config: dict[str, Any]) -> NDArray[np.float64]:
        """Label and score of each held-out record, `(n, 2)`.

        Raises:
            ValueError: There are not two classes, or no record is held out.
        """
        settings = _settings(config)
        data = self.held_out(settings)
        if data is None or not len(data[1]) or settings.metrics.private_epsilon is None:
            raise ValueError("this unit holds no record out")
        dataset, rows = data
        if dataset.num_classes != 2:
            raise ValueError(f"scores are of two classes, and there are {dataset.num_classes}")
        model = model_of(settings, dataset.form)
        set_arrays(model, self._own(settings, model).whole(parameters))
        rows = fitting(dataset, rows)
        labels = dataset.labels(rows)
        _, _, probabilities = evaluate_with_probabilities(model, dataset.features(rows), labels)
        return np.column_stack([labels, probabilities[:, 1]])

    def require_sent(self, names: Iterable[str], config: Mapping[str, Any]) -> None:
        """Check that a message's arrays are exactly its settings' shared parameters.

        Raises:
            ValueError: They are not.
        """
        settings = _settings(dict(config))
        if settings.model.shared is None and settings.model.lora_rank is None:
            return  # all travel, and their number and shapes are checked
        model = model_of(settings, self._form(settings))
        part_of(settings, model).require_sent(names)

    def _form(self, settings: Settings) -> Form:
        form = public_form_of(settings, self.context.node_config)
        if form is None:
            return dataset_of(settings).form
        return form

    def _own(self, settings: Settings, model: nn.Module) -> PersonalPart:
        """What joins shared and own parameters, for a freshly built model."""
        part = part_of(settings, model)
        return PersonalPart(self.context, part=part, first=get_arrays(model), unit=self.unit)

    def _settings_and_data(
        self, config: dict[str, Scalar]
    ) -> tuple[Settings, tuple[Dataset, NDArray[np.int64]] | None]:
        settings = _settings(config)
        return settings, self.data(settings)

    def data(self, settings: Settings) -> tuple[Dataset, NDArray[np.int64]] | None:
        """The data set with the unit's records, and the rows that it trains on."""
        return data_of_unit(settings, self._part(settings), self.context.node_config)

    def held_out(self, settings: Settings) -> tuple[Dataset, NDArray[np.int64]] | None:
        """The data set with the unit's records, and the rows that it holds out."""
        index = self._part(settings)
        return data_of_unit(settings, index, self.context.node_config, held_out=True)

    def records(self, settings: Settings) -> Records:
        """The unit's records for DP-SGD, on the device that trains."""
        return _records_of(settings, self._part(settings), self.context.node_config)

    def _part(self, settings: Settings) -> int:
        return self.node * settings.simulation.units_at_node + self.unit


def train_many(
    context: Context,
    units: Sequence[int],
    model: ArrayRecord,
    config: dict[str, Any],
    *,
    parts_of: Callable[[Settings], Sequence[NDArray[np.int64]]] = training_rows,
) -> Iterator[TrainedRows]:
    """Train units of this node together, each as `TaskClient.fit` would.

    `units` are indices on this node; `parts_of` returns the training rows of all the run's units.

    Raises:
        ValueError: The node has no `partition-id`.
    """
    if RECORD_PLAN_KEY in config:
        return  # DP-SGD is for one unit at a time
    settings = _settings(config)
    chosen = settings.model
    if chosen.shared is not None or chosen.lora_rank is not None:
        return  # each unit has a model of its own, or parameters that are frozen
    dataset, origin = dataset_of(settings), model_of(settings)
    set_arrays(origin, model.to_numpy_ndarrays())
    training = settings.client.make()
    parts = parts_of(settings)
    first = node_of(context) * settings.simulation.units_at_node
    hosted = [unit for unit in units if first + unit < len(parts)]  # the last node has fewer
    for start in range(0, len(hosted), _UNITS_IN_MEMORY):
        chunk = hosted[start : start + _UNITS_IN_MEMORY]
        rows = [rows_of_unit(settings, dataset, parts[first + unit]) for unit in chunk]
        features, labels = records_of(dataset, np.concatenate(rows))  # where they are trained
        counts = [len(own) for own in rows]
        data = [
            UnitData(features=x, labels=y, seed=_shuffling_seed(settings, first + unit, config))
            for unit, x, y in zip(
                chunk, torch.split(features, counts), torch.split(labels, counts), strict=True
            )
        ]
        for indices, vectors in train_units(origin, data, training):
            reports = []
            for unit in (data[index] for index in indices):
                count = len(unit.labels)
                metrics = _metrics(
                    origin, unit.features, unit.labels, settings, config, count=count
                )
                reports.append(UnitReport(num_examples=_reported(count, config), metrics=metrics))
            units_of_chunk = [chunk[index] for index in indices]
            yield TrainedRows(units=units_of_chunk, reports=reports, vectors=vectors)


def records_fn(context: Context, config: dict[str, Any], model: ArrayRecord) -> RecordsOfNode:
    """Records of this node's client, where a record is the privacy unit.

    Raises:
        ValueError: It has none, or they do not fit the settings.
    """
    from .private_training import node_records  # with Opacus

    settings = _settings(config)
    index, node_config = node_of(context), context.node_config
    form = public_form_of(settings, node_config)
    records = node_records(
        lambda: model_of(settings, form),
        lambda: _records_of(settings, index, node_config),
        settings=settings,
        form=form,
    )
    return records(context, config, model)


def hosted_units(context: Context, config: dict[str, Any]) -> int:
    """Number of roster units on this node; the last node may have fewer.

    A node with its own data hosts one. A node without data raises as `TaskClient`.
    """
    if own_data_path(context.node_config) is not None:
        return 1
    settings = _settings(config)
    per_node = settings.simulation.units_at_node
    before = node_of(context) * per_node
    return min(per_node, max(settings.task.num_clients - before, 0))


def statistics_fn(context: Context, unit: int, config: dict[str, Any], name: str) -> object:
    """A unit's values by name.

    `labels` have shape `(n,)`; `records` are rows, `records.3` one of their numbers, and
    `records.age` the cells of a column that the schema describes; `missing` is 1 for each cell
    without a value; `trials` are scores of a choice's candidates.

    Raises:
        ValueError: The values have another name, or the unit has no data.
    """
    settings = _settings(config)
    index = node_of(context) * settings.simulation.units_at_node + unit
    if name == TRIAL_VALUES:
        from .tuning.trial_scores import scores_of_unit

        return scores_of_unit(index, context.node_config, config)
    dataset, rows = data_on_roster(settings, index, context.node_config)
    rows = fitting(dataset, rows)
    if name == "labels":
        return predictions_in_unit(settings)(dataset.labels(rows))
    records = dataset.features(rows).reshape(len(rows), -1)
    _, _, feature = name.partition(".")
    if name == "records":
        return records
    if feature.isdecimal():
        return records[:, int(feature)]
    data_format: DataFormat = settings.task.make_by(DataFormat)
    if name == "missing":
        return missing_cells(records, data_format)
    if name.startswith("records."):
        return cells_of_column(records, data_format, feature)
    raise ValueError(f"there are no values '{name}': ask for labels, records, records.3 or missing")


def _records_of(settings: Settings, index: int, node_config: Mapping[str, Any]) -> Records:
    """Read a unit's records, on the device that trains."""
    from .private_training import Records

    dataset, rows = data_on_roster(settings, index, node_config, leave_out_unfit=True)
    fit = None if dataset.train_fit is None else dataset.train_fit[rows]
    persons = None if dataset.train_persons is None else dataset.train_persons[rows]
    folder = own_data_path(node_config)
    return Records(*records_of(dataset, rows), fit=fit, folder=folder, persons=persons)


def node_of(context: Context) -> int:
    """Index of a simulated node, or id of a real one.

    Raises:
        ValueError: It has neither a `partition-id` nor a `dp-data-path`.
    """
    owner = NodeConfig.of(context.node_config)
    if owner.partition_id is not None:
        return owner.partition_id
    if owner.data_path is None:
        raise ValueError(
            "start the SuperNode with --node-config 'dp-data-path=\"/absolute/folder\"', or with "
            "'partition-id=...' for a part of a simulated split"
        )
    return context.node_id  # seeds the order of the records, and no more


def _settings(config: dict[str, Any]) -> Settings:
    return _settings_in(str(config[SETTINGS_KEY]))


_settings_in = lru_cache(maxsize=4)(Settings.from_json)  # each message of a run has the same


def _reported(num_examples: int, config: dict[str, Scalar]) -> int:
    # A plain reply carries its number to the server, where it would be an uncharged release.
    return num_examples if _stays_on_the_node(config) else 1


def _stays_on_the_node(config: dict[str, Scalar]) -> bool:
    """Whether the node bounds a unit's report before anything of it leaves."""
    return INSTRUCTION_KEY in config or STATISTIC_QUERY_KEY in config


def _metrics(
    model: nn.Module,
    features: NDArray[Any] | Tensor,
    labels: NDArray[Any] | Tensor,
    settings: Settings,
    config: dict[str, Scalar],
    *,
    count: int,
) -> dict[str, Scalar]:
    """What the instruction asks a unit to measure before its training.

    An unreadable record counts as the middle of its range, to move a mean as any other does;
    `count` includes such records.
    """
    if not (_asks_for_metrics(config) and _has_enough(settings, count)):
        return {}
    max_loss, share = _max_loss(settings), len(labels) / max(count, 1)
    measured = evaluate(model, features, labels, max_loss=max_loss)
    if share < 1.0 and max_loss is not None:
        middles = (max_loss / 2.0, 0.5)
        pairs = zip(np.nan_to_num(measured), middles, strict=True)  # NaN if none could be read
        measured = tuple(share * mean + (1.0 - share) * middle for mean, middle in pairs)
    metrics: dict[str, Scalar] = dict(zip(_MEASURED, measured, strict=True))
    if settings.task.label_range is not None:
        del metrics["accuracy"]  # numbers have none
    return metrics


def _asks_for_metrics(config: dict[str, Scalar]) -> bool:
    instruction = RoundInstruction.from_config(config)
    return instruction is not None and not instruction.asked_metrics.isdisjoint(_MEASURED)


def _max_loss(settings: Settings) -> float | None:
    """Bound on one record's loss; with records as units the mean rests on it."""
    chosen = settings.selection
    if settings.privacy.unit == "record":
        highest: float | None = chosen.get("utility_high")
        return highest
    return None


def _has_enough(settings: Settings, num_examples: int) -> bool:
    """Whether the unit has the records that its selection's charge assumes."""
    return num_examples >= (settings.selection.get("records_per_client") or 0)


def _shuffling_seed(settings: Settings, part: int, config: dict[str, Scalar]) -> int:
    # Differs for every part and round, and is the same when a round is repeated.
    entropy = (settings.seed, part, int(config.get("server-round", 0)))
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


app = numpy_client_app(
    TaskClient,
    units=NodeUnits(client_fn=TaskClient, count=hosted_units, train_many=train_many),
    records=records_fn,
    statistics_fn=statistics_fn,
)
