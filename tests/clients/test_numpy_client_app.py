"""Any NumPyClient speaks Flower's Message API, and no exception text leaves the node."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg
from local_grid import FIRST_NODE, LocalGrid, answer_with_app

from fl_dp.clients import numpy_client_app
from fl_dp.clients.records import _say_once

SECRET = "patient 4711 has condition X"
MODEL: dict[str, np.ndarray] = {
    "last.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.bias": np.array([1.5, -2.0], dtype=np.float64),
    "logit_scale": np.array(0.25, dtype=np.float32),
    "batches_seen": np.array(7, dtype=np.int64),
}


class Client(NumPyClient):
    """Returns what it got, and says so as it is told."""

    def __init__(
        self,
        metrics: dict[str, Any] | None = None,
        parameters: Any = None,
        num_examples: Any = 3,
        loss: float = 0.5,
        error: BaseException | None = None,
    ) -> None:
        self.metrics = metrics if metrics is not None else {}
        self.parameters = parameters
        self.num_examples = num_examples
        self.loss = loss
        self.error = error
        self.seen: list[tuple[Any, Any]] = []

    def _note(self, parameters: Any, config: Any) -> None:
        self.seen.append((parameters, config))
        if self.error is not None:
            raise self.error

    def fit(self, parameters: Any, config: Any) -> tuple[Any, Any, Any]:
        self._note(parameters, config)
        trained = self.parameters if self.parameters is not None else parameters
        return trained, self.num_examples, self.metrics

    def evaluate(self, parameters: Any, config: Any) -> tuple[Any, Any, Any]:
        self._note(parameters, config)
        return self.loss, self.num_examples, self.metrics


def record_of(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def message(kind: str, content: dict[str, Any]) -> Message:
    return Message(RecordDict(content), dst_node_id=FIRST_NODE, message_type=kind)


def answer_to(
    kind: str,
    client: Client,
    *,
    content: dict[str, Any] | None = None,
    mods: list[Any] | None = None,
) -> Message:
    """Send one message to one node and return its reply."""
    client_fn = client if callable(client) else lambda context: client
    grid = LocalGrid(answer_with_app(numpy_client_app(client_fn, mods), 1), 1)
    records = {"arrays": record_of(MODEL), "config": ConfigRecord({"lr": 0.1})}
    [reply] = grid.send_and_receive([message(kind, records if content is None else content)])
    return reply


def arrays_in(reply: Message) -> dict[str, np.ndarray]:
    [record] = reply.content.array_records.values()
    return {name: array.numpy() for name, array in record.items()}


def metrics_in(reply: Message) -> dict[str, Any]:
    assert not reply.has_error(), reply.error.reason
    [record] = reply.content.metric_records.values()
    return dict(record)


def assert_refused(reply: Message, reason: str) -> None:
    assert reply.has_error()
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason == reason


# What a train message becomes.


def test_arrays_reach_the_client_in_order_and_come_back_under_their_names() -> None:
    changed = [np.asarray(values + values.dtype.type(1)) for values in MODEL.values()]
    client = Client(parameters=changed)
    reply = answer_to("train", client)
    [(parameters, _)] = client.seen
    for got, sent in zip(parameters, MODEL.values(), strict=True):
        np.testing.assert_array_equal(got, sent)
    assert list(reply.content.metric_records) == ["metrics"]
    sent_back = arrays_in(reply)
    assert list(sent_back) == list(MODEL)
    for back, array in zip(sent_back.values(), changed, strict=True):
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("key", ["arrays", "fitins.parameters"])
def test_the_reply_uses_the_array_record_key_of_the_message(key: str) -> None:
    content = {key: record_of(MODEL), "config": ConfigRecord()}
    assert list(answer_to("train", Client(), content=content).content.array_records) == [key]


def test_the_config_reaches_the_client_under_whatever_key_and_is_empty_without_one() -> None:
    client, arrays = Client(), {"arrays": record_of(MODEL)}
    config = ConfigRecord({"lr": 0.1, "layers": [1, 2], "note": "x"})
    answer_to("train", client, content=arrays | {"any": config})
    answer_to("train", client, content=arrays)
    assert [seen for _, seen in client.seen] == [dict(config), {}]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_returned_arrays_is_an_error(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = [np.zeros(2, np.float32)] * count
    assert_refused(answer_to("train", Client(parameters=parameters)), "ValueError")
    assert f"fit returned {count} arrays, the model has 4" in caplog.text


def test_an_array_of_python_objects_is_an_error() -> None:
    parameters = [*list(MODEL.values())[:3], np.array([{"key": SECRET}], dtype=object)]
    reply = answer_to("train", Client(parameters=parameters))
    assert reply.has_error()
    assert SECRET.encode() not in pickle.dumps(reply)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "content",
    [
        {"config": ConfigRecord()},
        {"one": record_of(MODEL), "two": record_of(MODEL)},
        {"arrays": record_of(MODEL), "one": ConfigRecord(), "two": ConfigRecord()},
    ],
    ids=["no arrays", "two array records", "two config records"],
)
def test_a_message_that_leaves_open_what_is_meant_is_an_error(
    kind: str, content: dict[str, Any]
) -> None:
    assert_refused(answer_to(kind, Client(), content=content), "ValueError")


# What an evaluate message becomes.


def test_evaluate_replies_with_loss_number_of_records_and_metrics_alone() -> None:
    reply = answer_to("evaluate", Client({"accuracy": 0.5}, loss=0.75, num_examples=4))
    assert metrics_in(reply) == {"loss": 0.75, "num-examples": 4, "accuracy": 0.5}
    assert not reply.content.array_records


# Metrics.


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.uint8(200), 200),
        (np.array(0.5), 0.5),
        (np.array([1, 2, 3]), [1, 2, 3]),
        ([1, 2.5], [1.0, 2.5]),
        ([True, False], [1, 0]),
        ([], []),
    ],
)
def test_a_number_or_a_list_of_numbers_is_converted_to_what_flower_holds(
    given: Any, sent: float | list[Any]
) -> None:
    got = metrics_in(answer_to("evaluate", Client(metrics={"metric": given})))["metric"]
    assert got == sent
    assert type(got) is type(sent)
    if isinstance(sent, list):
        assert isinstance(got, list)
        assert [type(item) for item in got] == [type(item) for item in sent]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("north", "str"),
        (None, "NoneType"),
        ({"nested": 1}, "dict"),
        (2**63, "int"),
        ([1.0, None], "list"),
        (np.zeros((2, 2)), "ndarray"),
    ],
)
def test_a_metric_that_is_no_number_is_left_out_and_named_in_the_node_s_log(
    kind: str, value: Any, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    _say_once.cache_clear()
    found = metrics_in(answer_to(kind, Client(metrics={"accuracy": 1.0, "site": value})))
    assert found["accuracy"] == 1.0
    assert "site" not in found
    assert f"metric 'site' is left out: a {named} is no int" in caplog.text


@pytest.mark.parametrize("name", ["num-examples", "loss", 7])
def test_a_metric_never_takes_the_place_of_a_number_that_the_app_sends(name: Any) -> None:
    client = Client(metrics={"accuracy": 1.0, name: 99}, num_examples=3, loss=0.5)
    found = dict(metrics_in(answer_to("evaluate", client)))
    assert found == {"accuracy": 1.0, "num-examples": 3, "loss": 0.5}
    assert metrics_in(answer_to("train", client))["num-examples"] == 3


@pytest.mark.parametrize("metrics", [None, [1.0], "none"])
def test_metrics_that_are_no_dictionary_cost_a_client_nothing(metrics: Any) -> None:
    client = Client()
    client.metrics = metrics
    assert dict(metrics_in(answer_to("train", client))) == {"num-examples": 3}
    assert dict(metrics_in(answer_to("evaluate", client))) == {"num-examples": 3, "loss": 0.5}


@pytest.mark.parametrize("client_fn", [Client(), lambda: Client(), lambda context, unit: Client()])
def test_what_can_t_make_a_client_is_refused_when_the_app_is_made(client_fn: Any) -> None:
    with pytest.raises(TypeError, match=r"numpy_client_app\(lambda context: ") as refused:
        numpy_client_app(client_fn)
    assert "\n" not in str(refused.value)


# What the server learns of an error.


class PatientError(Exception):
    pass


def failing(context: Context) -> NoReturn:
    raise PatientError(SECRET)


def failing_mod(message: Message, context: Context, call_next: ClientAppCallable) -> NoReturn:
    raise PatientError(SECRET)


def failing_late_mod(message: Message, context: Context, call_next: ClientAppCallable) -> NoReturn:
    call_next(message, context)
    raise PatientError(SECRET)


def chained() -> PatientError:
    error = PatientError(SECRET)
    error.__cause__ = ValueError(SECRET)
    error.add_note(SECRET)
    return error


FAILURES = {
    "client": {"client": Client(error=PatientError(SECRET))},
    "client with a cause and a note": {"client": Client(error=chained())},
    "client_fn": {"client": failing},
    "mod": {"client": Client(), "mods": [failing_mod]},
    "mod after the client": {"client": Client(), "mods": [failing_late_mod]},
    "inner mod": {"client": Client(), "mods": [lambda m, c, f: f(m, c), failing_mod]},
}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_the_text_of_an_exception_is_nowhere_in_the_reply(kind: str, failure: Any) -> None:
    reply = answer_to(kind, **failure)
    assert_refused(reply, "PatientError")  # a code and its class are all that the server is told
    assert SECRET.encode() not in pickle.dumps(reply)


class PatientPanic(BaseException):
    """As a native library raises, which is no `Exception`."""


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("failure", [PatientPanic, SystemExit])
def test_what_is_no_exception_is_answered_like_one(kind: str, failure: type[BaseException]) -> None:
    reply = answer_to(kind, Client(error=failure(SECRET)))
    assert_refused(reply, failure.__name__)
    assert SECRET.encode() not in pickle.dumps(reply)


def test_the_search_for_the_text_would_find_it() -> None:
    def leaking(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        return Message(Error(ErrorCode.UNKNOWN, f"failed on {SECRET}"), reply_to=message)

    assert SECRET.encode() in pickle.dumps(answer_to("train", Client(), mods=[leaking]))


def test_the_metric_that_was_left_out_is_nowhere_in_the_reply() -> None:
    reply = answer_to("train", Client(metrics={"diagnosis": SECRET}))
    assert SECRET.encode() not in pickle.dumps(reply)
    assert b"diagnosis" not in pickle.dumps(reply)


def test_the_text_of_an_exception_stays_readable_on_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, logger="flwr.fl_dp.client"):
        answer_to("train", Client(error=PatientError(SECRET)))
    assert SECRET in caplog.text


# Mods.


def tracing(name: str, trace: list[str]) -> Callable[..., Any]:
    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        trace.append(f"{name} in")
        reply = call_next(message, context)
        trace.append(f"{name} out")
        return reply

    return mod


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_mods_run_outermost_first(kind: str) -> None:
    trace: list[str] = []
    mods = [tracing("outer", trace), tracing("middle", trace), tracing("inner", trace)]
    answer_to(kind, Client(), mods=mods)
    assert trace == ["outer in", "middle in", "inner in", "inner out", "middle out", "outer out"]


# Under Flower's own strategy.


class Stepping(NumPyClient):
    """Adds its own constant; its numbers are exact in binary."""

    def __init__(self, partition: int) -> None:
        self.step = partition + 1
        self.num_examples = (1, 3)[partition]

    def fit(self, parameters: Any, config: Any) -> tuple[Any, Any, Any]:
        assert config["server-round"] in (1, 2)
        stepped = [(values + self.step).astype(values.dtype) for values in parameters]
        return stepped, self.num_examples, {"step": float(self.step)}

    def evaluate(self, parameters: Any, config: Any) -> tuple[Any, Any, Any]:
        return float(parameters[0][0, 0]) + self.step, self.num_examples, {}


def test_fedavg_takes_exact_means_weighted_by_the_number_of_records() -> None:
    app = numpy_client_app(lambda context: Stepping(int(context.node_config["partition-id"])))
    grid = LocalGrid(answer_with_app(app, 2), 2)
    initial = {name: values for name, values in MODEL.items() if values.dtype.kind == "f"}
    result = FedAvg().start(grid=grid, initial_arrays=record_of(initial), num_rounds=2)
    mean_step = (1 * 1 + 3 * 2) / 4
    assert list(result.arrays) == list(initial)
    for name, values in initial.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), values + 2 * mean_step)
    metrics = {r: dict(m) for r, m in result.train_metrics_clientapp.items()}
    assert metrics == {1: {"step": 1.75}, 2: {"step": 1.75}}
    losses = {r: m["loss"] for r, m in result.evaluate_metrics_clientapp.items()}
    assert losses == {1: 1.75 + 1.75, 2: 3.5 + 1.75}
