"""What a node answers to queries: its name, its part of a statistic, its noisy utility."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from laws import ALARM
from scipy import stats

from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.codec import encode_text
from fl_dp.protocol.keys import (
    CONTRIBUTION_METRIC,
    IDENTITY_ACTION,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
    UTILITY_ACTION,
    UTILITY_METRIC,
    UTILITY_QUERY_KEY,
)
from fl_dp.protocol.utility import UtilityQuery
from fl_dp.statistics import Count, Frequencies, Mean

pytestmark = pytest.mark.slow

SECRET = "patient 4711 has condition X"


def units_of(clients: Any) -> NodeUnits:
    return NodeUnits(
        client_fn=lambda context, unit: clients[unit], count=lambda context, config: len(clients)
    )


# Its name.


@pytest.mark.parametrize(
    ("node_config", "name"),
    [
        ({"dp-unit-name": "ward 7", "partition-id": 3}, "ward 7"),
        ({"partition-id": 0}, "partition-0"),
        ({}, ""),
    ],
)
def test_a_node_says_its_name(node: Any, told: Any, node_config: dict[str, Any], name: str) -> None:
    app = numpy_client_app(lambda context: told())
    reply = node(app, node_config).ask(f"query.{IDENTITY_ACTION}", {"config": ConfigRecord()})
    [answer] = reply.content.config_records.values()
    assert answer["name"] == name


# Its part of a statistic.


class Panic(BaseException):
    """A native library's panic, which is no `Exception`."""


FAILURES = (RuntimeError, SystemExit, Panic)

VALUES = {"ages": [[30.0], [50.0]], "labels": ["a", "b", "b"]}


def lookup(context: Context, unit: int, config: Any, name: str) -> Any:
    return VALUES[name]


@pytest.fixture
def contribution(node: Any, told: Any) -> Callable[..., Any]:
    """Return the reply to a statistic query."""

    def ask(
        query: Any,
        statistics_fn: Any,
        *,
        name: str = "ages",
        clients: Any = None,
        text: str | None = None,
    ) -> Any:
        units = None if clients is None else units_of(clients)
        app = numpy_client_app(lambda context: told(), units=units, statistics_fn=statistics_fn)
        text = encode_text(query) if text is None else text
        config = ConfigRecord({STATISTIC_QUERY_KEY: text, STATISTIC_VALUES_KEY: name})
        return node(app).ask(f"query.{STATISTIC_ACTION}", {"config": config})

    return ask


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (Mean(lows=(0.0,), highs=(100.0,)), "ages"),
        (Frequencies(categories=("a", "b", "c")), "labels"),
    ],
)
def test_a_node_answers_with_the_query_s_contribution(
    contribution: Callable[..., Any],
    read_metrics: Any,
    query: Mean | Frequencies,
    name: str,
) -> None:
    metrics = read_metrics(contribution(query, lookup, name=name))
    expected = query.contribution(VALUES[name]).tolist()
    assert metrics == {CONTRIBUTION_METRIC: expected}


def test_a_node_of_several_units_contributes_each_one_s_vector(
    contribution: Callable[..., Any], read_metrics: Any, told: Any
) -> None:
    values = [[[10.0]], [[20.0], [30.0]], []]
    query = Mean(lows=(0.0,), highs=(100.0,))
    reply = contribution(query, lambda c, unit, *_: values[unit], clients=[told()] * 3)
    sent = np.reshape(read_metrics(reply)[CONTRIBUTION_METRIC], (3, query.dimension))
    for vector, of_unit in zip(sent, values, strict=True):
        np.testing.assert_array_equal(vector, query.contribution(of_unit))


@pytest.mark.parametrize("kind", FAILURES)
def test_a_unit_that_fails_does_not_silence_the_others(
    contribution: Callable[..., Any],
    read_metrics: Any,
    told: Any,
    kind: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(context: Context, unit: int, config: Any, name: str) -> list[list[float]]:
        if unit == 1:
            raise kind(SECRET)
        return [[1.0]]

    reply = contribution(Count(), failing, clients=[told()] * 3)
    assert read_metrics(reply) == {CONTRIBUTION_METRIC: [1.0, 0.0, 1.0]}
    assert SECRET.encode() not in pickle.dumps(reply)
    assert SECRET in caplog.text


def raising(context: Context, unit: int, config: Any, name: str) -> None:
    raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    ("statistics_fn", "more", "reason"),
    [
        (None, {}, "ValueError"),
        (raising, {}, "RuntimeError"),
        (lookup, {"name": SECRET}, "KeyError"),
        (lookup, {"text": json.dumps({"query": SECRET})}, "ValueError"),
        (lookup, {"text": SECRET}, "JSONDecodeError"),
    ],
    ids=["no statistics", "raises", "unknown name", "unknown query", "no query"],
)
def test_no_answer_to_a_statistic_is_an_error_without_a_text(
    contribution: Callable[..., Any],
    statistics_fn: Callable[..., Any] | None,
    more: dict[str, Any],
    reason: str,
) -> None:
    reply = contribution(Count(), statistics_fn, **more)
    assert reply.error.reason == reason
    assert b"4711" not in pickle.dumps(reply)


# Its utility.


@pytest.fixture
def utilities(node: Any, read_metrics: Any) -> Callable[..., Any]:
    """Return the noisy utilities of a node with these clients."""

    def ask(clients: Any, query: Any) -> Any:
        app = numpy_client_app(lambda context: clients[0], units=units_of(clients))
        content = {
            "model": ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
            "config": ConfigRecord({UTILITY_QUERY_KEY: encode_text(query)}),
        }
        metrics = read_metrics(node(app).ask(f"query.{UTILITY_ACTION}", content))
        assert set(metrics) == {UTILITY_METRIC}
        return metrics[UTILITY_METRIC]

    return ask


def precise(**fields: Any) -> UtilityQuery:
    usual: dict[str, Any] = {"utility": "loss", "high": 4.0, "noise_multiplier": 1e-5}
    return UtilityQuery(**usual | fields)


@pytest.mark.parametrize(
    ("utility", "expected"), [("loss", 1.5), ("records", 3.0), ("accuracy", 0.25), ("other", 2.0)]
)
def test_a_utility_comes_from_evaluate(
    utilities: Callable[..., Any], told: Any, utility: str, expected: float
) -> None:
    client = told(loss=1.5, num_examples=3, metrics={"accuracy": 0.25})
    [sent] = utilities([client], precise(utility=utility))
    assert sent == pytest.approx(expected, abs=1e-3)
    assert sent != expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(9.0, 4.0), (-1.0, 0.0), (np.inf, 4.0), (-np.inf, 0.0), (np.nan, 2.0), ("high", 2.0)],
)
def test_a_utility_is_clipped_to_its_range_and_null_is_its_middle(
    utilities: Callable[..., Any], told: Any, loss: float | str, expected: float
) -> None:
    [sent] = utilities([told(loss=loss)], precise())
    assert sent == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", FAILURES)
def test_a_client_that_fails_answers_with_noise_around_the_null(
    utilities: Callable[..., Any], told: Any, kind: type[BaseException]
) -> None:
    [sent] = utilities([told(error=kind(SECRET))], precise())
    assert sent == pytest.approx(2.0, abs=1e-3)
    assert sent != 2.0


def test_each_unit_that_is_asked_answers_in_order(utilities: Callable[..., Any], told: Any) -> None:
    clients = [told(loss=float(unit)) for unit in range(4)]
    sent = utilities(clients, precise(units=(3, 0, 9, 1, -1)))
    np.testing.assert_allclose(sent, [3.0, 0.0, 2.0, 1.0, 2.0], atol=1e-3)
    assert [client.calls for client in clients] == [1, 1, 0, 1]


@pytest.mark.parametrize("loss", [3.5, float("nan")])
def test_the_noise_on_utilities_has_its_scale_and_is_each_unit_s_own(
    utilities: Callable[..., Any], told: Any, scale_p: Any, loss: float
) -> None:
    # Rejects a right scale once in 1e6 runs; a scale that is 10 % off must be rejected.
    units = 5_000
    query = UtilityQuery(utility="loss", high=4.0, noise_multiplier=1.5, units=tuple(range(units)))
    mean = 2.0 if np.isnan(loss) else loss
    sent = (np.array(utilities([told(loss=loss)] * units, query)) - mean) / 3.0
    assert stats.kstest(sent, stats.norm.cdf).pvalue > ALARM
    spread = (math.sqrt(2 / math.pi), 1 - 2 / math.pi)  # E|x| and Var|x| of a standard normal
    assert scale_p(sent, *spread) > ALARM
    for wrong in (0.9, 1.1):
        assert scale_p(sent / wrong, *spread) < ALARM


@pytest.mark.parametrize(
    "fields", [{"high": 0.0}, {"high": np.inf}, {"noise_multiplier": 0.0}, {"units": (1, 1)}]
)
def test_a_utility_query_checks_itself(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        precise(**fields)
