"""Numbers of an app's replies that the owner lets leave: bounded, noised, and charged."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.clients.client_noise import charge_noise
from fl_dp.clients.owner.node_policy import PolicyRefusal
from fl_dp.clients.records import number_in, only_record
from fl_dp.mechanisms import GaussianBundle, GaussianMechanism, ScalarMetric, SecureRandom
from fl_dp.protocol.message_keys import CONTRIBUTION_METRIC, METRICS_KEY, STATISTIC_QUERY_KEY
from fl_dp.protocol.secure_sum_messages import without_terms
from fl_dp.statistics import Evaluation
from fl_dp.statistics.wire import query_from_json
from fl_dp.user_code import Contained

from .policy import GatePolicy

logger = logging.getLogger("flwr.fl_dp.client")

_EXAMPLES = "num-examples"


def numbers_in(reply: Message, names: Sequence[str]) -> dict[str, float]:
    """A reply's numbers under these names; other values are left out.

    Raises:
        ValueError: It is an error, or has not exactly one MetricRecord to read them from.
    """
    if not names:
        return {}
    if reply.has_error():
        raise ValueError("the app replied with an error")
    _, record = only_record(reply.content.metric_records, "MetricRecord")
    numbers = {name: number_in(record, name) for name in names}
    return {name: number for name, number in numbers.items() if not math.isnan(number)}


def require_allowed(asked: Iterable[ScalarMetric], allowed: Iterable[ScalarMetric]) -> None:
    """Refuse numbers that the owner does not name, or names with another range.

    Raises:
        PolicyRefusal: Its text names the first of them.
    """
    by_name = {metric.name: metric for metric in allowed}
    for metric in asked:
        if metric.name not in by_name:
            raise PolicyRefusal(f"the owner does not let {metric.name!r:.50} leave")
        if metric != (own := by_name[metric.name]):
            raise PolicyRefusal(
                f"{metric.name!r:.50} is asked for in [{metric.low:g}, {metric.high:g}], and the "
                f"owner's range is [{own.low:g}, {own.high:g}]"
            )


def noised(
    metrics: Iterable[ScalarMetric], numbers: Mapping[str, float], bundle: GaussianBundle
) -> MetricRecord:
    """Numbers with a bundle's noise, and the weight that every site has.

    They may lie outside their ranges: clipped, they would bias a mean over sites. A missing number
    counts as its range's middle. The bundle has these metrics, in order, and no other scalars.
    """
    steps = bundle.scalar_steps(bundle.scalar_values(0.0, numbers))
    released = bundle.release_scalars(steps, bundle.scalar_noise(SecureRandom()))
    return _in_ranges(metrics, released)


def _in_ranges(metrics: Iterable[ScalarMetric], centred: Iterable[float]) -> MetricRecord:
    record = MetricRecord({_EXAMPLES: 1})
    for metric, value in zip(metrics, centred, strict=True):
        record[metric.name] = metric.low + (value + 0.5) * (metric.high - metric.low)
    return record


def noised_evaluation(policy: GatePolicy, app: ClientAppCallable) -> ClientAppCallable:
    """A handler that answers with an app's measurements, bounded and noised.

    Privacy: one answer is as private as one Gaussian of the owner's noise multiplier, for all that
    the site holds, zero-out neighbours: with `d` numbers, each in [-1/2, 1/2], the site moves the
    answer by `sqrt(d) / 2` at most. It is charged before the app is asked. If the app fails, or
    answers with anything else, the answer is noise around the ranges' middles; so it is once the
    budget is spent.
    """
    metrics = policy.keys.evaluation
    longest = 0.5 * math.sqrt(len(metrics))
    mechanism = GaussianMechanism(
        noise_multiplier=policy.least_noise.noise_multiplier, clipping_norm=longest
    )

    def handle(message: Message, context: Context) -> Message:
        values = np.zeros(len(metrics))
        with Contained("the app's evaluation failed, and the middles of the ranges are noised"):
            try:
                charge_noise(policy.least_noise, message, context)
                numbers = numbers_in(app(message, context), [metric.name for metric in metrics])
                values += [metric.centred(numbers.get(metric.name, math.nan)) for metric in metrics]
            except PrivacyBudgetExhausted as exhausted:
                logger.info("%s; the answer is noise alone", exhausted)
        record = _in_ranges(metrics, mechanism.privatize(values, SecureRandom()).tolist())
        return Message(RecordDict({METRICS_KEY: record}), reply_to=message)

    return handle


def require_allowed_query(config: Mapping[str, Any], policy: GatePolicy) -> None:
    """Refuse an evaluation in a secure sum that the owner does not allow, by its configuration.

    Raises:
        PolicyRefusal: It asks for anything but the owner's numbers in their ranges.
        ValueError: It asks for nothing, or can't be read.
    """
    query = _query_in(config)
    ranges = zip(query.names, query.lows, query.highs, strict=True)
    asked = [ScalarMetric(name=name, low=low, high=high) for name, low, high in ranges]
    require_allowed(asked, policy.keys.evaluation)


def summed_evaluation(app: ClientAppCallable) -> ClientAppCallable:
    """A handler that adds an app's measurements to a sum of means, as one client's.

    Privacy: the contribution is within the query's sensitivity, whatever the app answers; noise
    and masks are added around this handler. An app that fails adds zero.
    """

    def handle(message: Message, context: Context) -> Message:
        query = _query_in(config_of_sum(message))
        contribution = np.zeros(query.dimension)
        with Contained("the app's evaluation failed, and this site adds zero to the sum"):
            numbers = numbers_in(app(message, context), [_EXAMPLES, *query.names])
            contribution = query.measured(numbers, examples=numbers.get(_EXAMPLES))
        record = MetricRecord({CONTRIBUTION_METRIC: contribution.tolist()})
        return Message(RecordDict({METRICS_KEY: record}), reply_to=message)

    return handle


def config_of_sum(message: Message) -> Mapping[str, Any]:
    """The configuration of an evaluation in a secure sum, besides the sum's terms."""
    configs = without_terms(message.content).config_records
    if not configs:
        return {}
    return only_record(configs, "ConfigRecord")[1]


def _query_in(config: Mapping[str, Any]) -> Evaluation:
    if STATISTIC_QUERY_KEY not in config:
        raise PolicyRefusal("an evaluation outside of a secure sum is not private")
    query = query_from_json(str(config[STATISTIC_QUERY_KEY]))
    if not isinstance(query, Evaluation):
        raise PolicyRefusal(f"apps that know nothing of fl-dp can't answer a '{query.kind}'")
    return query
