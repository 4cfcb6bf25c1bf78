"""What a node answers to queries: its name, and its part of a statistic."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context

from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.codec import encode_text
from fl_dp.protocol.message_keys import (
    CONTRIBUTION_METRIC,
    IDENTITY_ACTION,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
)
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
