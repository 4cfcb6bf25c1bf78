"""The Flower `ClientApp`: one client of a task, trained as the server's settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.clients import NodeConfig, NodeUnits, TrainedRows, UnitReport, numpy_client_app
from fl_dp.clients.personal_part import PersonalPart
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.keys import (
    INSTRUCTION_KEY,
    RECORD_PLAN_KEY,
    STATISTIC_QUERY_KEY,
    UTILITY_QUERY_KEY,
)
from fl_dp.tasks.datasets import Dataset, Form
from fl_dp.tasks.training import (
    UnitData,
    evaluate,
    evaluate_with_probabilities,
    train_locally,
    train_together,
)
from fl_dp.user_code import Contained

from .settings import SETTINGS_KEY, Settings
from .settings.selections import ExponentialSettings
from .wings import wings
from .workload import (
    data_of_unit,
    data_on_roster,
    dataset_of,
    fitting,
    model_of,
    own_data_path,
    part_of,
    parts_of,
    predictions_in_unit,
    public_form_of,
    records_of,
    rows_of_unit,
    width_of_label,
)

if TYPE_CHECKING:
    from fl_dp.clients.record_sums import RecordsOfNode

    from .private_training import Records


_MEASURED = ("loss", "accuracy")
_UNITS_IN_MEMORY = 256  # whose records a node holds at a time


class TaskClient(NumPyClient):
    """Trains one unit on its own part of the task, or on the data of its node's `dp-data-path`.

    The number of records is reported as 1: the strategy weights every client alike, and the true
    number is the client's own business. Only for a round's instruction or a utility query, which
    keep it on the node, it is the true one.
    """

    def __init__(self, context: Context, unit: int = 0) -> None:
        """Be one of the units that a node hosts.

        Args:
            context: The node's.
            unit: Index among the node's units, from 0.

        Raises:
            ValueError: If the node has neither a `partition-id` nor a `dp-data-path`.
        """
        self.context = context
        self.node = node_of(context)
        self.unit = unit

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train from `parameters` with the settings in the message.

        Returns the loss and the accuracy of `parameters`, before training, if the instruction asks.
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
        train_locally(
            model,
            features,
            labels,
            seed=_shuffling_seed(settings, self._part(settings), config),
            **settings.client.steps,
        )
        kept = own.keep(list(get_arrays(model).values()))
        return kept, _reported(len(rows), config), metrics

    def _fit_privately(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train by DP-SGD.

        Nothing up to the charge reads a record of the node's own, so whatever goes wrong until then
        may show: the model goes back as it came.
        """
        from .private_training import private_client, record_plan_of  # with Opacus and SciPy

        plan = record_plan_of(config)
        with Contained("no private training; this client contributes nothing") as attempt:
            settings = _settings(config)
            place, node_config = self._part(settings), self.context.node_config
            own = own_data_path(node_config) is not None
            if not own and place >= settings.task.num_clients:
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
        """Return the loss of `parameters` on the unit's records; NaN without any.

        They are those that it trains on, or for private metrics those that it holds out.
        """
        settings = _settings(config)
        privately = STATISTIC_QUERY_KEY in config and settings.metrics.private_epsilon is not None
        data = self.held_out(settings) if privately else self.data(settings)
        if data is None or not len(data[1]):
            return float("nan"), _reported(0, config), {}
        dataset, rows = data
        model = model_of(settings, dataset.form)
        set_arrays(model, self._own(settings, model).whole(parameters))
        loss, accuracy = evaluate(model, *records_of(dataset, fitting(dataset, rows)))
        asked = _stays_on_the_node(config)  # a plain evaluation says no more than it has to
        if not asked:
            return loss, _reported(len(rows), config), {}
        measured = {"accuracy": accuracy}
        if dataset.form.is_of_numbers:
            measured = {"mae": (1.0 - accuracy) * width_of_label(settings)}
        return loss, _reported(len(rows), config), dict(measured)

    def scores(self, parameters: NDArrays, config: dict[str, Any]) -> NDArray[np.float64]:
        """Return label and score of each record that the unit holds out, `(n, 2)`.

        Raises:
            ValueError: If there are not two classes, or no record is held out.
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
        """Check that a message's arrays are the parameters that its settings share.

        Raises:
            ValueError: If they are not.
        """
        settings = _settings(dict(config))
        if settings.model.shared is None and settings.model.lora_rank is None:
            return  # all travel, and their number and shapes are checked
        model = model_of(settings, self._form(settings))
        part_of(settings, model).require_sent(names)

    def _form(self, settings: Settings) -> Form:
        form = public_form_of(settings, self.context.node_config)
        return dataset_of(settings).form if form is None else form

    def _own(self, settings: Settings, model: nn.Module) -> PersonalPart:
        """Return what joins the shared parameters and the unit's own, for a model as built."""
        part = part_of(settings, model)
        return PersonalPart(self.context, part=part, first=get_arrays(model), unit=self.unit)

    def _settings_and_data(
        self, config: dict[str, Scalar]
    ) -> tuple[Settings, tuple[Dataset, NDArray[np.int64]] | None]:
        settings = _settings(config)
        return settings, self.data(settings)

    def data(self, settings: Settings) -> tuple[Dataset, NDArray[np.int64]] | None:
        """Return the data set in which the unit's records lie, and the rows that it trains on."""
        return data_of_unit(settings, self._part(settings), self.context.node_config)

    def held_out(self, settings: Settings) -> tuple[Dataset, NDArray[np.int64]] | None:
        """Return the data set in which the unit's records lie, and the rows that it holds out."""
        place = self._part(settings)
        return data_of_unit(settings, place, self.context.node_config, held_out=True)

    def records(self, settings: Settings) -> Records:
        """Return the unit's records for DP-SGD, on the device that trains."""
        return _records_of(settings, self._part(settings), self.context.node_config)

    def _part(self, settings: Settings) -> int:
        return self.node * settings.simulation.units_at_node + self.unit


def train_many(
    context: Context,
    units: Sequence[int],
    model: ArrayRecord,
    config: dict[str, Any],
    *,
    parts_of: Callable[[Settings], Sequence[NDArray[np.int64]]] = parts_of,
) -> Iterator[TrainedRows]:
    """Train units of this node together, each as `TaskClient.fit` would train it.

    Args:
        context: The node's.
        units: Their numbers on this node.
        model: As the server sent it.
        config: Of the message.
        parts_of: The training rows of every unit of the run.

    Raises:
        ValueError: If the node has no `partition-id` in its configuration.
    """
    if RECORD_PLAN_KEY in config:
        return  # DP-SGD is for one unit at a time
    settings = _settings(config)
    chosen = settings.model
    if chosen.shared is not None or chosen.lora_rank is not None:
        return  # each has a model of its own, or parameters that are frozen
    dataset, origin = dataset_of(settings), model_of(settings)
    set_arrays(origin, model.to_numpy_ndarrays())
    parts = parts_of(settings)
    first = node_of(context) * settings.simulation.units_at_node
    hosted = [unit for unit in units if first + unit < len(parts)]  # the last node has fewer
    for start in range(0, len(hosted), _UNITS_IN_MEMORY):
        some = hosted[start : start + _UNITS_IN_MEMORY]
        rows = {unit: rows_of_unit(settings, parts[first + unit]) for unit in some}
        data = [
            UnitData(
                features=dataset.features(rows[unit]),
                labels=dataset.labels(rows[unit]),
                seed=_shuffling_seed(settings, first + unit, config),
            )
            for unit in some
        ]
        for places, vectors in train_together(origin, data, **settings.client.steps):
            reports = [
                UnitReport(
                    num_examples=_reported(len(unit.labels), config),
                    metrics=_metrics(
                        origin, unit.features, unit.labels, settings, config, count=len(unit.labels)
                    ),
                )
                for unit in (data[place] for place in places)
            ]
            yield TrainedRows(
                units=[some[place] for place in places], reports=reports, vectors=vectors
            )


def records_fn(context: Context, config: dict[str, Any], model: ArrayRecord) -> RecordsOfNode:
    """Return the records of this node's client, where a record is the unit.

    Raises:
        ValueError: If it has none, or they do not fit the settings.
    """
    from .private_training import node_records  # with Opacus

    settings = _settings(config)
    place, node_config = node_of(context), context.node_config
    form = public_form_of(settings, node_config)
    found = node_records(
        lambda: model_of(settings, form),
        lambda: _records_of(settings, place, node_config),
        settings=settings,
        form=form,
    )
    return found(context, config, model)


def hosted_units(context: Context, config: dict[str, Any]) -> int:
    """Return how many units of the roster this node hosts; the last node may have fewer.

    A node with its own data is one unit.

    Raises:
        ValueError: If the node has neither a `partition-id` nor a `dp-data-path`.
    """
    if own_data_path(context.node_config) is not None:
        return 1
    settings = _settings(config)
    per_node = settings.simulation.units_at_node
    before = node_of(context) * per_node
    return min(per_node, max(settings.task.num_clients - before, 0))


def statistics_fn(context: Context, unit: int, config: dict[str, Any], name: str) -> object:
    """Return a unit's `labels`, shape `(n,)`, its `records`, rows, or `records.3`, one column.

    Or what a wing has by that name, as `trials`: scores of the candidates of a choice.

    Raises:
        ValueError: If the values have another name, or the unit has no data.
    """
    settings = _settings(config)
    place = node_of(context) * settings.simulation.units_at_node + unit
    for wing in wings():
        if (values := wing.unit_values(name, place, context.node_config, config)) is not None:
            return values
    dataset, rows = data_on_roster(settings, place, context.node_config)
    rows = fitting(dataset, rows)
    if name == "labels":
        return predictions_in_unit(settings)(dataset.labels(rows))
    asked, _, feature = name.partition(".")
    if asked == "records":
        records = dataset.features(rows).reshape(len(rows), -1)
        return records[:, int(feature)] if feature else records
    raise ValueError(f"there are no values '{name}': ask for labels, records or records.3")


def _records_of(settings: Settings, place: int, node_config: Mapping[str, Any]) -> Records:
    """Read a unit's records, on the device that trains.

    Raises:
        ValueError: If it has none, or they are not one node's own and do not fit the settings.
    """
    from .private_training import Records

    dataset, rows = data_on_roster(settings, place, node_config, leave_out_unfit=True)
    fit = None if dataset.train_fit is None else dataset.train_fit[rows]
    return Records(*records_of(dataset, rows), fit=fit, folder=own_data_path(node_config))


def node_of(context: Context) -> int:
    """Return the place of a node among the simulated ones, or an id of its own.

    Raises:
        ValueError: If it has neither a `partition-id` nor a `dp-data-path`.
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
    """Whether what a unit reports is bounded on the node before anything of it leaves."""
    keys = (INSTRUCTION_KEY, UTILITY_QUERY_KEY, STATISTIC_QUERY_KEY)
    return any(key in config for key in keys)


def _metrics(
    model: nn.Module,
    features: NDArray[Any] | Tensor,
    labels: NDArray[Any] | Tensor,
    settings: Settings,
    config: dict[str, Scalar],
    *,
    count: int,
) -> dict[str, Scalar]:
    """Return what the instruction asks a unit to measure before its training.

    Args:
        model: To measure.
        features: Of the records that could be read.
        labels: Likewise.
        settings: Of the run.
        config: Of the message.
        count: How many records the unit has. One that could not be read counts as the middle of
            what a record can have, so that it moves a mean as any other does.
    """
    if not (_asks_for_metrics(config) and _has_enough(settings, count)):
        return {}
    max_loss, share = _max_loss(settings), len(labels) / max(count, 1)
    measured = evaluate(model, features, labels, max_loss=max_loss)
    if share < 1.0 and max_loss is not None:
        middles = (max_loss / 2.0, 0.5)
        each = zip(np.nan_to_num(measured), middles, strict=True)  # NaN where none could be read
        measured = tuple(share * mean + (1.0 - share) * middle for mean, middle in each)
    return dict(zip(_MEASURED, measured, strict=True))


def _asks_for_metrics(config: dict[str, Scalar]) -> bool:
    instruction = RoundInstruction.of(config)
    if instruction is None:
        return False
    bundle = instruction.bundle
    asked = {instruction.utility, *(metric.name for metric in (bundle.metrics if bundle else ()))}
    return not asked.isdisjoint(_MEASURED)


def _max_loss(settings: Settings) -> float | None:
    """Return the bound on one record's loss: with records as units the mean rests on it."""
    chosen = settings.selection
    if isinstance(chosen, ExponentialSettings) and settings.privacy.unit == "record":
        return chosen.utility_high
    return None


def _has_enough(settings: Settings, num_examples: int) -> bool:
    """Tell whether the unit has the records that the charge for its selection supposes."""
    return num_examples >= (settings.selection.records_per_client or 0)


def _shuffling_seed(settings: Settings, part: int, config: dict[str, Scalar]) -> int:
    # Apart for every part and round, and the same again when a round is repeated.
    entropy = (settings.seed, part, int(config.get("server-round", 0)))
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


app = numpy_client_app(
    TaskClient,
    units=NodeUnits(client_fn=TaskClient, count=hosted_units, train_many=train_many),
    records=records_fn,
    statistics_fn=statistics_fn,
)
