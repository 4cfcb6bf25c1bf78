"""What leaves a gate: one bounded, noised model of the owner's making, whatever the app sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from gated_site import RUN, App, Arrived, Site, adding, replying
from laws import ALARM
from owned_clock import OwnedClock
from scipy import stats

from fl_dp.gate.flower_wire import Parts, message_of, parts_of

SIZE = 20_000
LARGE = {"w": np.zeros(SIZE)}
MODEL: dict[str, Any] = {
    "w": np.array([1.0, -2.0, 4.0], dtype=np.float32),
    "b": np.array(0.5, dtype=np.float16),
    "seen": np.array(7, dtype=np.int64),
}
SECRET = "patient 4711 has condition X"
MULTIPLIER, NORM = 2.0, 1.0


def everything_but_arrays(arrived: Arrived) -> dict[str, Any]:
    """Return all that an answer says besides numbers of its arrays."""
    told = {
        name: getattr(part.metadata, name)
        for part in (arrived.message, arrived.shell)
        for name in ("run_id", "src_node_id", "dst_node_id", "group_id", "message_type")
    }
    message = arrived.message
    told |= {
        "error": message.error if message.has_error() else None,
        "replies to": message.metadata.reply_to_message_id,
        "ends": round(message.metadata.created_at + message.metadata.ttl, 3),
        "sizes": arrived.sizes,
        "runtime": arrived.runtime,
    }
    if message.has_content():
        told |= {
            "forms": {
                key: {name: (array.shape, array.dtype, array.stype) for name, array in each.items()}
                for key, each in message.content.array_records.items()
            },
            "metrics": {key: dict(m) for key, m in message.content.metric_records.items()},
            "configs": {key: dict(c) for key, c in message.content.config_records.items()},
        }
    return told


def is_noise_alone(arrived: Arrived, model: dict[str, Any] = MODEL) -> bool:
    """Tell whether an answer has the one form that all answers have, and no more than noise."""
    message = arrived.message
    assert not message.has_error(), message.error
    assert set(message.content) == {"arrays", "metrics"}
    assert dict(message.content["metrics"]) == {"num-examples": 1}
    assert message.metadata.message_type == "train"
    assert message.metadata.group_id == ""
    assert arrived.runtime == 0.0
    sent = arrived.arrays
    assert {name: (each.shape, each.dtype) for name, each in sent.items()} == {
        name: (each.shape, each.dtype) for name, each in model.items()
    }
    assert sent["seen"] == model["seen"]
    moved = np.concatenate([np.ravel(sent[name] - model[name]) for name in ("w", "b")])
    # One standard normal exceeds 8 in absolute value once in 1e15 runs.
    return bool(0.0 < np.abs(moved).max() < 8 * MULTIPLIER * NORM + NORM)


def test_an_app_of_flower_s_own_is_answered_for_without_knowing_it(site: Any) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        told = MetricRecord({"num-examples": 4711, "accuracy": 0.25})
        return Message(
            RecordDict({"arrays": message.content["arrays"], "metrics": told}), reply_to=message
        )

    here = site(lambda message: [app(message, context_of(message))])
    [arrived] = here.answers(MODEL)
    assert is_noise_alone(arrived)
    assert here.charges() == 1
    [seen] = here.seen
    assert dict(seen.content["config"]) == {"lr": 0.1}
    assert set(seen.content) == {"arrays", "config"}


def context_of(message: Message) -> Context:
    return Context(message.metadata.run_id, 1, {}, RecordDict(), {})


def test_the_noise_of_a_zero_update_has_the_law_that_is_charged(site: Any) -> None:
    # Rejects a right scale once in 1e6 runs; a scale that is 10 % off must be rejected.
    [arrived] = site(adding(0.0)).answers(LARGE)
    draws = arrived.arrays["w"] / (MULTIPLIER * NORM)
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    for wrong in (0.9, 1.1):
        assert stats.kstest(draws / wrong, stats.norm.cdf).pvalue < ALARM


@pytest.mark.parametrize(("update", "moved"), [(0.5, 0.5), (1e6, NORM), (-1e6, -NORM)])
def test_no_update_moves_the_answer_by_more_than_the_norm(
    site: Any, caplog: pytest.LogCaptureFixture, update: float, moved: float
) -> None:
    here = site(adding(update), **{"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12})
    [arrived] = here.answers({"w": np.zeros(1)})
    # Further off once in 1e15 runs.
    assert arrived.arrays["w"] == pytest.approx([moved], abs=8e-4)
    assert "Traceback" not in caplog.text  # though the app told no metrics: nobody asked for any


def test_a_message_that_comes_again_is_trained_and_charged_once(site: Any) -> None:
    here = site(adding(1e6), **{"dp-gate-noise-multiplier": 0.01, "dp-max-epsilon": 1e12})
    here.server.train({"w": np.zeros(1)})
    here.server.waiting *= 2
    here.step()
    here.step()
    first, second = (arrived.arrays["w"] for arrived in here.server.arrived)
    assert len(here.seen) == here.charges() == 1
    # Noise alone is 8 standard deviations from the first.
    assert first == pytest.approx([NORM], abs=0.08)
    assert second == pytest.approx([0.0], abs=0.08)


def test_noise_is_fresh_for_each_message(site: Any) -> None:
    first, second = (arrived.arrays["w"] for arrived in site(adding(0.0)).answers(LARGE, rounds=2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(SIZE)


# Hostile apps.


def in_content(**records: Any) -> App:
    return replying(lambda message: dict(message.content) | records)


def in_arrays(change: Callable[[dict[str, Any]], dict[str, Any]]) -> App:
    def content(message: Message) -> dict[str, Any]:
        model = {
            name: array.numpy() for name, array in message.content.array_records["arrays"].items()
        }
        changed = change(model)
        return {"arrays": ArrayRecord({name: Array(each) for name, each in changed.items()})}

    return replying(content)


def in_error(message: Message) -> list[Message]:
    return [Message(Error(4711, SECRET), reply_to=message)]


def in_metadata(message: Message) -> list[Message]:
    reply = Message(message.content, reply_to=message)
    for name, value in (("group_id", SECRET), ("message_type", SECRET), ("run_id", 4711)):
        reply.metadata.__dict__[f"_{name}"] = value
    reply.metadata.__dict__["_ttl"] = 4711.0
    return [reply]


def in_many_replies(message: Message) -> list[Message]:
    return [Message(message.content, reply_to=message) for _ in range(4)]


def in_a_foreign_answer(message: Message) -> list[Message]:
    reply = Message(message.content, reply_to=message)
    reply.metadata.__dict__["_reply_to_message_id"] = "f" * 64
    return [reply]


def in_no_answer_at_all(message: Message) -> list[Message]:
    reply = Message(message.content, reply_to=message)
    reply.metadata.__dict__["_reply_to_message_id"] = ""
    return [reply]


def in_bytes(message: Message) -> list[Parts]:
    parts = parts_of(Message(message.content, reply_to=message))
    return [parts._replace(contents=dict.fromkeys(parts.contents, SECRET.encode()))]


def in_objects_that_are_missing(message: Message) -> list[Parts]:
    parts = parts_of(Message(message.content, reply_to=message))
    return [parts._replace(contents=dict.fromkeys(parts.contents, b""))]


def in_a_number_of_objects(message: Message) -> list[Parts]:
    parts = parts_of(Message(message.content, reply_to=message))
    for number in range(5_000):
        parts.tree.children.add(object_id=f"{number:064x}")
    return [parts]


def with_a_header_of(shape: str) -> App:
    """Return an app whose array says another shape than its bytes have."""

    def content(message: Message) -> dict[str, Any]:
        arrays = dict(message.content.array_records["arrays"].items())
        data = arrays["w"].data.replace(b"(3,)", shape.encode())
        arrays["w"] = Array("float32", (3,), "numpy.ndarray", data)
        return {"arrays": ArrayRecord(arrays)}

    return replying(content)


TEXTS = np.array([SECRET, SECRET, SECRET])
NAN = np.array([0x7FC04711] * 3, dtype=np.uint32).view(np.float32)  # data in its payload
HOSTILE: dict[str, App] = {
    "extra arrays": in_content(more=ArrayRecord({"x": Array(np.arange(9.0))})),
    "extra metrics": in_content(metrics=MetricRecord({"num-examples": 4711, "age": [47, 11]})),
    "extra texts": in_content(config=ConfigRecord({"text": SECRET, "bytes": SECRET.encode()})),
    "an error's text and code": in_error,
    "a reply's metadata": in_metadata,
    "many replies": in_many_replies,
    "an answer to another message": in_a_foreign_answer,
    "an answer to no message": in_no_answer_at_all,
    "no answer": lambda message: [],
    "bytes": in_bytes,
    "objects without bytes": in_objects_that_are_missing,
    "a number of objects": in_a_number_of_objects,
    "one array more": in_arrays(lambda model: model | {"x": np.zeros(3)}),
    "one array less": in_arrays(lambda model: {"w": model["w"]}),
    "another name": in_arrays(lambda model: {SECRET: model["w"]}),
    "another order": in_arrays(lambda model: dict(reversed(model.items()))),
    "another shape": in_arrays(lambda model: model | {"w": np.zeros((3, 2), np.float32)}),
    "integers": in_arrays(lambda model: model | {"w": np.array([4, 7, 11])}),
    "an integer array": in_arrays(lambda model: model | {"seen": np.array(4711)}),
    "texts": in_arrays(lambda model: model | {"w": TEXTS}),
    "the payload of a NaN": in_arrays(lambda model: model | {"w": NAN}),
    "infinity": in_arrays(lambda model: model | {"w": np.full(3, np.inf, np.float32)}),
    "a wide dtype": in_arrays(lambda model: model | {"w": np.full(3, 4711.0, np.longdouble)}),
    "32 MB": in_arrays(lambda model: model | {"w": np.zeros(8_000_000, np.float32)}),
    "a header that lies": with_a_header_of("(9,)"),
    "a huge header": with_a_header_of("(99999999999,)"),
    "no content": replying(lambda message: {}),
}


@pytest.mark.parametrize("app", HOSTILE.values(), ids=HOSTILE)
def test_of_a_hostile_reply_the_form_of_all_answers_arrives_once(
    site: Callable[..., Site], app: App, owned: OwnedClock
) -> None:
    here = site(app)
    [arrived] = here.answers(MODEL)
    assert is_noise_alone(arrived)
    assert len(here.server.pushed) == 1  # nothing else was even announced
    assert here.charges() == 1
    # And the next message is answered as if nothing had been.
    here.app = adding(0.0)
    [_, second] = here.answers(MODEL)
    assert is_noise_alone(second)


def leaking(secret: str) -> App:
    """Return an app that puts what its site knows into everything that it can."""

    def app(message: Message) -> list[Message]:
        number = len(secret)
        told = Array(np.full(number, float(number)))
        content = RecordDict(
            {
                "arrays": message.content["arrays"],
                secret: ConfigRecord({secret: secret}),
                "metrics": MetricRecord({"num-examples": number, secret: [number] * number}),
            }
        )
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_group_id"] = secret
        reply.metadata.__dict__["_ttl"] = float(number)
        more = Message(RecordDict({secret: ArrayRecord({secret: told})}), reply_to=message)
        failed = Message(Error(number, secret), reply_to=message)
        return [reply, more, failed][number % 3 :] * number

    return app


def test_on_neighbouring_sites_everything_but_the_arrays_is_identical(
    site: Any, owned: OwnedClock
) -> None:
    told = []
    for number in range(2, 6):  # with another first reply each, and another number of replies
        here = site(leaking("x" * number), f"site of {number}")
        [arrived] = here.answers(MODEL)
        told.append(everything_but_arrays(arrived) | {"ends": 0.0, "replies to": ""})
    assert all(each == told[0] for each in told)


def test_without_a_gate_the_same_apps_are_told_apart(site: Any) -> None:
    """The comparison above has power: what it compares differs where nothing stands between."""
    told = []
    for number in (2, 4):
        here = site(leaking("x" * number), f"site of {number}")
        here.server.train(MODEL)
        got = here.link.pull()
        assert got is not None
        shell, tree = got
        asked = message_of(Parts(shell, tree, here.link.pull_objects(RUN, tree)))
        for reply in here.app(asked):
            assert isinstance(reply, Message)
            here.link.push(reply)
        told.append(everything_but_arrays(here.server.arrived[-1]))
    different = {name for name in told[0] if told[0][name] != told[1][name]}
    assert {"error", "runtime"} & different or {"forms", "metrics", "configs"} & different


def test_one_answer_s_end_is_that_of_the_message_whatever_the_app_says(site: Any) -> None:
    here = site(leaking("xx"))
    here.server.train(MODEL)
    asked = here.server.waiting[0].shell.metadata
    here.step()
    [arrived] = here.server.arrived
    told = everything_but_arrays(arrived)
    assert told["ends"] == pytest.approx(asked.created_at + asked.ttl, abs=0.01)
    assert told["replies to"] == asked.message_id
