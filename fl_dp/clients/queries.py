"""QUERY messages about data: a node's part of a statistic, and its utility for the selection.

Config keys and replies stand with each handler. A reply has one record of its kind.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Self, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.statistics import Query, query_from_dict
from fl_dp.updates.instruction import UTILITY_METRIC

from .records import METRICS_KEY, Config, config_of, only_record, real_number
from .trained_unit import EXAMPLES_UTILITY
from .units import NodeUnits

logger = logging.getLogger("flwr.fl_dp.client")

STATISTIC_QUERY_KEY = "fl-dp-query"
"""Config key: the JSON text of `query_to_dict(query)`."""

STATISTIC_VALUES_KEY = "fl-dp-values"
"""Config key: the name of the values that a statistic is about."""

CONTRIBUTION_METRIC = "fl-dp-contribution"
"""Reply metric: `query.contribution` of each hosted unit, one after the other."""

UTILITY_QUERY_KEY = UTILITY_METRIC
"""Config key: the JSON text of a `UtilityQuery`."""

StatisticsFn: TypeAlias = Callable[[Context, int, Config, str], object]
"""Returns the values of one unit: node context, unit's index, message's config, values' name."""


@dataclass(frozen=True, kw_only=True)
class UtilityQuery:
    """Asks units for their utility, each with noise of its own.

    Privacy: one answer is `1 / (2 noise_multiplier^2)`-zCDP for one unit, zero-out neighbours (its
    utility becomes the null, `high / 2`), against anyone who sees it, the server included.

    Attributes:
        utility: `loss`, `examples` (how many), or a metric that `evaluate` returns.
        high: Utilities are clipped to [0, high].
        noise_multiplier: Standard deviation of the noise, divided by `high / 2`.
        units: Indexes of the node's units; None: the node is one unit.
    """

    utility: str
    high: float
    noise_multiplier: float
    units: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range or a unit is asked twice.
        """
        _ = self.mechanism  # checks itself
        if self.units is not None and len(set(self.units)) != len(self.units):
            raise ValueError("a unit answers once: a second answer would be a second release")

    @cached_property
    def mechanism(self) -> GaussianMechanism:
        """The noise on a utility's distance from the null."""
        return GaussianMechanism(
            noise_multiplier=self.noise_multiplier, clipping_norm=self.high / 2.0
        )

    def privatize(self, utilities: Sequence[float], rng: SecureRandom) -> list[float]:
        """Return one noisy utility for each unit's own; NaN counts as the null."""
        null = self.high / 2.0
        bounded = [
            null if math.isnan(utility) else min(max(utility, 0.0), self.high)
            for utility in utilities
        ]
        # Encoded one by one: a vector of them would share one bound.
        steps = np.array([float(self.mechanism.encode(utility - null)) for utility in bounded])
        noise = self.mechanism.noise(steps.size, rng)
        return [float(noisy) + null for noisy in self.mechanism.release(steps, noise)]

    def to_json(self) -> str:
        """Return the query as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the query that `to_json` wrote.

        Raises:
            ValueError: If it is out of range.
        """
        fields = json.loads(text)
        units = fields.get("units")
        return cls(**fields | {"units": None if units is None else tuple(units)})


def statistic_handler(statistics_fn: StatisticsFn | None, units: NodeUnits) -> ClientAppCallable:
    """Return a handler that contributes to a statistic.

    The server is trusted with contributions; it adds the noise (`fl_dp.statistics`). A unit whose
    values can't be had contributes zero and only the node's log says so, lest it silence the other
    units; if no unit's can, the reply is an error.

    Message: ConfigRecord with `fl-dp-query` and `fl-dp-values`.
    Reply: MetricRecord `{"fl-dp-contribution": [float]}`, `query.dimension` numbers a hosted unit.
    """

    def answer(message: Message, context: Context) -> Message:
        if statistics_fn is None:
            raise ValueError("this app answers no statistics: build it with a statistics_fn")
        config = config_of(message)
        query = query_from_dict(json.loads(str(config[STATISTIC_QUERY_KEY])))
        name = str(config[STATISTIC_VALUES_KEY])
        sent: list[float] = []
        failures: list[Exception] = []
        hosted = range(units.count(context, config))
        for unit in hosted:
            try:
                sent += _contribution(query, statistics_fn(context, unit, config, name))
            except Exception as failure:
                logger.exception("unit %d has no values '%s' and contributes zero", unit, name)
                failures.append(failure)
                sent += [0.0] * query.dimension
        if failures and len(failures) == len(hosted):
            raise failures[0]
        metrics = MetricRecord({CONTRIBUTION_METRIC: sent})
        return Message(RecordDict({METRICS_KEY: metrics}), reply_to=message)

    return answer


def utility_handler(
    client_fn: Callable[[Context], NumPyClient], units: NodeUnits
) -> ClientAppCallable:
    """Return a handler that evaluates the model and answers with noisy utilities.

    Privacy: as `UtilityQuery` says; a unit that is not hosted or whose `evaluate` fails answers
    with noise around the null, and only the node's log says so. The noise parameters come from the
    server, which has to be honest about them.

    Message: one ArrayRecord, the current model, and a ConfigRecord with `fl-dp-utility`.
    Reply: MetricRecord `{"fl-dp-utility": [float]}`, one number a unit asked.
    """

    def answer(message: Message, context: Context) -> Message:
        _, model = only_record(message.content.array_records, "ArrayRecord")
        config = config_of(message)
        query = UtilityQuery.from_json(str(config[UTILITY_QUERY_KEY]))
        makers: list[Callable[[], NumPyClient]]
        if query.units is None:
            makers = [partial(client_fn, context)]
        else:
            hosted = units.count(context, config)
            makers = [partial(_hosted, units, context, unit, hosted) for unit in query.units]
        utilities: list[float] = []
        for make_client in makers:
            try:
                utilities.append(_utility(make_client(), model, config, query.utility))
            except Exception:
                logger.exception("a utility could not be measured; the server gets the noised null")
                utilities.append(math.nan)
        sent = query.privatize(utilities, SecureRandom())
        metrics = MetricRecord({UTILITY_METRIC: sent})
        return Message(RecordDict({METRICS_KEY: metrics}), reply_to=message)

    return answer


def _contribution(query: Query, values: object) -> list[float]:
    return [float(number) for number in query.contribution(values)]


def _hosted(units: NodeUnits, context: Context, unit: int, hosted: int) -> NumPyClient:
    if not 0 <= unit < hosted:
        raise ValueError(f"this node does not host unit {unit}")
    return units.made(context, unit)


def _utility(client: NumPyClient, model: ArrayRecord, config: Config, name: str) -> float:
    loss, num_examples, metrics = client.evaluate(model.to_numpy_ndarrays(), dict(config))
    if name == "loss":
        return real_number(loss)
    return real_number(num_examples if name == EXAMPLES_UTILITY else metrics.get(name))
