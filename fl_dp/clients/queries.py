"""Questions about data: a node's part of a statistic, and a model's quality.

Each handler lists its config keys, and its reply: one record of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.typing import NDArrays
from numpy.typing import NDArray

from fl_dp.documents import real_number
from fl_dp.protocol.message_keys import (
    CONTRIBUTION_METRIC,
    METRICS_KEY,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
)
from fl_dp.statistics import Evaluation, Query, ScoreHistograms
from fl_dp.statistics.wire import query_from_json
from fl_dp.user_code import Contained, own_chance

from .records import Config, config_of, metrics_in, number_in, only_record
from .units import NodeUnits

StatisticsFn: TypeAlias = Callable[[Context, int, Config, str], object]
"""Returns the values of one unit: node context, unit's index, message's config, values' name."""


@runtime_checkable
class ScoringClient(Protocol):
    """A client that can score its records by a model."""

    def scores(self, parameters: NDArrays, config: Config) -> NDArray[Any]:
        """Return each record's label, 0 or 1, and the model's score in [0, 1], `(n, 2)`."""
        ...


def statistic_handler(statistics_fn: StatisticsFn | None, units: NodeUnits) -> ClientAppCallable:
    """Return a handler that contributes to a statistic.

    The server is trusted with contributions; it adds the noise (`fl_dp.statistics`). A unit without
    values contributes zero and only the node's log says so, lest it silence the others. If no unit
    has values, the reply is an error.

    Message: ConfigRecord with `fl-dp-query` and `fl-dp-values`. For `ScoreHistograms` also one
    ArrayRecord, the model, whose `ScoringClient.scores` are the values. Reply: MetricRecord
    `{"fl-dp-contribution": [float]}`, `query.dimension` numbers per hosted unit.
    """

    def answer(message: Message, context: Context) -> Message:
        config = config_of(message)
        hosted = units.count(context, config)
        query = query_from_json(str(config[STATISTIC_QUERY_KEY]))
        if isinstance(query, ScoreHistograms):
            _, model = only_record(message.content.array_records, "ArrayRecord")

            def scored(unit: int) -> NDArray[np.float64]:
                client = units.client_of(context, unit)
                if not isinstance(client, ScoringClient):
                    raise ValueError(
                        f"{type(client).__name__} has no scores: write a method "
                        "scores(parameters, config) that returns label and score of each record"
                    )
                return query.contribution(client.scores(model.to_numpy_ndarrays(), dict(config)))

            return _contributions(message, query, hosted, scored)
        if statistics_fn is None:
            raise ValueError("this app answers no statistics: build it with a statistics_fn")
        name = str(config[STATISTIC_VALUES_KEY])

        def counted(unit: int) -> NDArray[np.float64]:
            return query.contribution(statistics_fn(context, unit, config, name))

        return _contributions(message, query, hosted, counted)

    return answer


def evaluation_handler(units: NodeUnits) -> ClientAppCallable:
    """Return a handler that measures a model on each hosted unit, for private means.

    As `statistic_handler`, for what a unit's `evaluate` returns: number of examples, loss as
    `loss`, metrics by name. If one asked for is no number, the unit contributes zero.

    Message: one ArrayRecord, the model, and a ConfigRecord with `fl-dp-query`, an `Evaluation`.
    Reply: as of `statistic_handler`.
    """

    def answer(message: Message, context: Context) -> Message:
        _, model = only_record(message.content.array_records, "ArrayRecord")
        config = config_of(message)
        query = query_from_json(str(config[STATISTIC_QUERY_KEY]))
        if not isinstance(query, Evaluation):
            raise ValueError(f"models are measured by an Evaluation, not by '{query.kind}'")

        def measured(unit: int) -> NDArray[np.float64]:
            client = units.client_of(context, unit)
            examples, report = _measured(client, model, config)
            named = {name: number_in(report, name) for name in query.names}
            return query.measured(named, examples=examples)

        return _contributions(message, query, units.count(context, config), measured)

    return answer


def _contributions(
    message: Message,
    query: Query,
    hosted: int,
    contribution_of: Callable[[int], NDArray[np.float64]],
) -> Message:
    """Return a reply with one vector per hosted unit, zero without values.

    Raises:
        BaseException: The first failure, if no unit has values.
    """
    contributions: list[float] = []
    failures: list[BaseException] = []
    for unit in range(hosted):
        contribution = [0.0] * query.dimension
        with (
            Contained("unit %d has no values and contributes zero", unit) as attempt,
            own_chance(),
        ):
            contribution = contribution_of(unit).tolist()
        contributions += contribution
        if attempt.failure is not None:
            failures.append(attempt.failure)
    if failures and len(failures) == hosted:
        raise failures[0]
    metrics = MetricRecord({CONTRIBUTION_METRIC: contributions})
    return Message(RecordDict({METRICS_KEY: metrics}), reply_to=message)


def _measured(
    client: NumPyClient, model: ArrayRecord, config: Config
) -> tuple[float, dict[str, object]]:
    """Return a unit's number of examples, and its metrics and loss by name."""
    loss, num_examples, metrics = client.evaluate(model.to_numpy_ndarrays(), dict(config))
    return real_number(num_examples), {**metrics_in(metrics), "loss": loss}
