"""A node of one unit under a round's instruction: its weight, its utility, its metrics."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fl_dp.clients import numpy_client_app
from fl_dp.codec import encode_text
from fl_dp.mechanisms import GaussianBundle, ScalarMetric
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, UTILITY_METRIC

MODEL: dict[str, np.ndarray] = {
    "w": np.array([1.0, -2.0, 4.0], dtype=np.float32),
    "b": np.array(0.5, dtype=np.float64),
    "seen": np.array(7, dtype=np.int64),
}
STEP = np.array([1.0, 2.0, -1.0])
LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)
ACCURACY = ScalarMetric(name="accuracy", low=0.0, high=1.0)


def bundle(*metrics: ScalarMetric) -> GaussianBundle:
    return GaussianBundle(
        noise_multiplier=1.0, clipping_norms=(1.0,), metrics=metrics, scalar_noise_std=10.0
    )


def instruction(**fields: Any) -> RoundInstruction:
    return RoundInstruction(server_round=1, **fields)


@pytest.fixture
def answer(node: Any, read: Any) -> Callable[..., Any]:
    """Return what a client's reply holds under an instruction."""

    def ask(client: Any, **fields: Any) -> Any:
        app = numpy_client_app(lambda context: client)
        return read(node(app).train(MODEL, instruction(**fields)))

    return ask


# The number of records, and the weight it becomes.


def test_the_number_of_records_stays_on_the_node(answer: Callable[..., Any], told: Any) -> None:
    _, metrics = answer(told(STEP, num_examples=10**9))
    assert metrics == {"num-examples": 1}


@pytest.mark.parametrize(
    ("num_examples", "weight"), [(0, 0.0), (5, 0.25), (20, 1.0), (21, 1.0), (np.int64(5), 0.25)]
)
def test_the_weight_is_applied_to_the_update(
    answer: Callable[..., Any], told: Any, num_examples: Any, weight: float
) -> None:
    arrays, metrics = answer(told(STEP, num_examples=num_examples), weight_cap=20.0)
    np.testing.assert_array_equal(arrays["w"], MODEL["w"] + weight * STEP)
    assert metrics == {"num-examples": 1}


@pytest.mark.parametrize("num_examples", [-1, float("nan"), "many", None])
def test_no_weight_without_a_number_of_records(
    node: Any, told: Any, num_examples: float | str | None
) -> None:
    app = numpy_client_app(lambda context: told(STEP, num_examples=num_examples))
    reply = node(app).train(MODEL, instruction(weight_cap=20.0))
    assert reply.error.reason == "ValueError"


# Metrics.


def test_only_the_metrics_that_are_asked_for_leave(answer: Callable[..., Any], told: Any) -> None:
    client = told(STEP, metrics={"loss": 1.5, "accuracy": 0.5, "age": 42.0})
    assert answer(client)[1] == {"num-examples": 1}
    assert answer(client, bundle=bundle(LOSS))[1] == {"num-examples": 1, "loss": 1.5}
    assert answer(client, bundle=bundle(LOSS, ACCURACY))[1] == {
        "num-examples": 1,
        "loss": 1.5,
        "accuracy": 0.5,
    }


@pytest.mark.parametrize("value", ["patient 4711", [1.0, 2.0], float("nan")])
def test_a_metric_that_is_no_number_does_not_leave(
    node: Any, read: Any, told: Any, value: Any
) -> None:
    app = numpy_client_app(lambda context: told(STEP, metrics={"loss": value}))
    reply = node(app).train(MODEL, instruction(bundle=bundle(LOSS)))
    assert read(reply)[1] == {"num-examples": 1}
    assert b"4711" not in pickle.dumps(reply)


@pytest.mark.parametrize("value", [np.float32(1.5), np.array([1.5])])
def test_a_metric_of_numpy_arrives_as_a_float(
    answer: Callable[..., Any], told: Any, value: Any
) -> None:
    _, metrics = answer(told(STEP, metrics={"loss": value}), bundle=bundle(LOSS))
    assert metrics["loss"] == 1.5
    assert type(metrics["loss"]) is float


# The utility.


def test_the_utility_records_is_the_number_that_fit_returned(
    answer: Callable[..., Any], told: Any
) -> None:
    client = told(STEP, num_examples=12, metrics={"records": 99.0})
    assert answer(client, utility="records")[1] == {"num-examples": 1, UTILITY_METRIC: 12.0}


def test_any_other_utility_is_a_metric_that_fit_returned(
    answer: Callable[..., Any], told: Any
) -> None:
    client = told(STEP, metrics={"loss": 2, "age": 42.0})
    assert answer(client, utility="loss")[1] == {"num-examples": 1, UTILITY_METRIC: 2.0}


@pytest.mark.parametrize("metrics", [{}, {"loss": "high"}, {"loss": float("nan")}])
def test_a_missing_utility_is_not_sent(
    answer: Callable[..., Any], told: Any, metrics: dict[str, Any]
) -> None:
    assert answer(told(STEP, metrics=metrics), utility="loss")[1] == {"num-examples": 1}


def test_an_instruction_that_can_not_be_read_is_an_error(node: Any, told: Any) -> None:
    app = numpy_client_app(lambda context: told(STEP))
    reply = node(app).train(MODEL, None, **{"fl-dp-round": "not json"})
    assert reply.has_error()


# Bfloat16, which NumPy does not have.


@pytest.mark.parametrize("asked", [None, RoundInstruction(server_round=1)])
def test_bfloat16_in_16_bit_integers_keeps_its_name(
    node: Any, told: Any, asked: RoundInstruction | None
) -> None:
    sent = Array(np.array([0x3F80, 0x4000], dtype=np.uint16))
    sent.dtype = "bfloat16"
    config: dict[str, Any] = {} if asked is None else {INSTRUCTION_KEY: encode_text(asked)}
    app = numpy_client_app(lambda context: told(1))
    content = {"model": ArrayRecord({"w": sent}), "config": ConfigRecord(config)}
    returned = node(app).ask("train", content).content["model"]["w"]
    assert returned.dtype == "bfloat16"
    np.testing.assert_array_equal(returned.numpy(), sent.numpy() + 1)
