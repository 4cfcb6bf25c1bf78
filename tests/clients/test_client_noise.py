"""Noise at the client: its law, and that nothing else leaves the node."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
from flwr.clientapp.typing import ClientAppCallable
from laws import ALARM, counts_p
from scipy import stats

from fl_dp import PrivacyBudget
from fl_dp.accounting import PrivacyEvent
from fl_dp.accounting.calibration import affordable_rounds
from fl_dp.clients import noised_client_app, numpy_client_app
from fl_dp.codec import encode_text
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import GaussianBundle, ScalarMetric
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction

SECRET = "patient 4711 has condition X"
SIZE = 40_000
LARGE = {"w": np.zeros(SIZE)}
MODEL: dict[str, np.ndarray] = {
    "w": np.array([1.0, -2.0, 4.0], dtype=np.float32),
    "b": np.array(0.5, dtype=np.float16),
    "seen": np.array(7, dtype=np.int64),
}


def noise(scheme: str = "gaussian", multiplier: float = 0.5, norm: float = 2.0) -> NoiseInstruction:
    return NoiseInstruction(scheme=scheme, noise_multiplier=multiplier, clipping_norm=norm)


def instruction(client_noise: Any, **fields: Any) -> RoundInstruction:
    return RoundInstruction(server_round=1, client_noise=client_noise, **fields)


@pytest.fixture
def sent(node: Any, read: Any) -> Callable[..., Any]:
    """Return the arrays and metrics that a client's reply holds."""

    def ask(client: Any, model: Any, client_noise: Any, mods: Any = None) -> Any:
        app = numpy_client_app(lambda context: client, mods)
        return read(node(app).train(model, instruction(client_noise)))

    return ask


# The law of what is sent.


# E|x| and Var|x| of the standard laws.
SPREADS = {"gaussian": (math.sqrt(2 / math.pi), 1 - 2 / math.pi), "laplace": (1.0, 1.0)}


@pytest.mark.parametrize(("scheme", "law"), [("gaussian", stats.norm), ("laplace", stats.laplace)])
def test_what_is_sent_for_a_zero_update_follows_the_scheme_s_law(
    sent: Callable[..., Any], told: Any, scale_p: Any, scheme: str, law: Any
) -> None:
    # Rejects a right scale once in 1e6 runs; a scale that is 10 % off must be rejected.
    draws = sent(told(), LARGE, noise(scheme))[0]["w"]
    assert stats.kstest(draws, law(scale=1.0).cdf).pvalue > ALARM
    assert scale_p(draws, *SPREADS[scheme]) > ALARM
    for wrong in (0.9, 1.1):
        assert scale_p(draws / wrong, *SPREADS[scheme]) < ALARM


def test_what_is_sent_for_a_zero_update_follows_the_exponential_scheme_s_law(
    sent: Callable[..., Any], told: Any, scale_p: Any
) -> None:
    draws = sent(told(), LARGE, noise("exponential"))[0]["w"]
    mechanism = GridExponentialMechanism(noise_multiplier=0.5, clipping_norm=2.0)
    places = np.abs(draws[:, None] * mechanism.gain - mechanism.points).argmin(axis=1)
    np.testing.assert_allclose(mechanism.points[places] / mechanism.gain, draws, atol=1e-12)
    counts = np.bincount(places, minlength=mechanism.levels)
    assert counts_p(counts, np.exp(mechanism.log_probabilities(0.0))) > ALARM
    for multiplier, right in ((0.45, False), (0.5, True), (0.55, False)):
        other = GridExponentialMechanism(noise_multiplier=multiplier, clipping_norm=2.0)
        law, size = np.exp(other.log_probabilities(0.0)), np.abs(other.points)
        mean = law @ size
        p = scale_p(mechanism.points[places], mean, law @ size**2 - mean**2)
        assert (p > ALARM) == right


def test_gaussian_noise_lies_on_the_grid_so_no_low_bit_tells_the_update(
    sent: Callable[..., Any], told: Any
) -> None:
    grid = 2.0**-30  # of a noise scale of 1
    for update in (0.0, 1e-3, np.pi):
        draws = sent(told(update), LARGE, noise())[0]["w"]
        assert not np.any(np.remainder(draws, grid))


@pytest.mark.parametrize(("scheme", "order"), [("gaussian", 2), ("laplace", 1)])
def test_the_update_is_clipped_in_the_scheme_s_norm_before_the_noise(
    sent: Callable[..., Any], told: Any, scheme: str, order: int
) -> None:
    draws = sent(told(100.0), LARGE, noise(scheme, multiplier=1e-4))[0]["w"]
    expected = 2.0 / SIZE ** (1 / order)  # each of equal coordinates of a vector of norm 2
    assert abs(draws.mean() - expected) < 6 * draws.std() / np.sqrt(SIZE)


def test_a_short_update_arrives_around_itself(sent: Callable[..., Any], told: Any) -> None:
    draws = sent(told(1e-3), LARGE, noise(multiplier=1e-4))[0]["w"]
    assert abs(draws.mean() - 1e-3) < 6 * 2e-4 / np.sqrt(SIZE)


def test_each_round_has_noise_of_its_own(node: Any, read: Any, told: Any) -> None:
    here = node(numpy_client_app(lambda context: told()))
    first, second = (read(here.train(LARGE, instruction(noise())))[0]["w"] for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(SIZE)


# What a client that fails sends.

FAILURES = {
    "raises": {"error": RuntimeError(SECRET)},
    "exits": {"error": SystemExit(SECRET)},
    "is stopped by a native library": {"error": BaseException(SECRET)},
    "nan": {"update": np.nan},
    "infinite": {"update": np.inf},
    "too few arrays": {"returns": [np.zeros(3, np.float32)]},
    "another shape": {"returns": [np.zeros(4, np.float32), np.float16(0), np.int64(7)]},
    "another dtype": {"returns": [np.zeros(3, np.int64), np.float16(0), np.int64(7)]},
    "objects": {"returns": [np.array([SECRET] * 3, object), np.float16(0), np.int64(7)]},
    "no number of records": {"update": 1.0, "num_examples": "many"},
}


@pytest.mark.parametrize("told_to", FAILURES.values(), ids=FAILURES)
def test_a_client_that_fails_sends_the_noised_zero(
    node: Any, read: Any, told: Any, told_to: Any
) -> None:
    app = numpy_client_app(lambda context: told(**told_to))
    asked = instruction(noise(multiplier=1e-5), weight_cap=5.0)
    reply = node(app).train(MODEL, asked)
    arrays, metrics = read(reply)
    assert metrics == {"num-examples": 1}
    assert {n: (a.dtype, a.shape) for n, a in arrays.items()} == {
        n: (a.dtype, a.shape) for n, a in MODEL.items()
    }
    np.testing.assert_allclose(arrays["w"], MODEL["w"], atol=2e-4)
    assert (arrays["w"] != MODEL["w"]).any()
    assert b"4711" not in pickle.dumps(reply)
    assert "ToldClient" not in repr(reply)


def test_a_client_that_does_not_fail_would_be_seen(node: Any, read: Any, told: Any) -> None:
    app = numpy_client_app(lambda context: told(1.0))
    arrays, _ = read(node(app).train(MODEL, instruction(noise(multiplier=1e-5))))
    np.testing.assert_allclose(arrays["w"], MODEL["w"] + 1.0, atol=2e-4)


def test_the_weight_comes_before_the_noise(node: Any, read: Any, told: Any) -> None:
    app = numpy_client_app(lambda context: told(1.0, num_examples=5))
    asked = instruction(noise(multiplier=1e-5), weight_cap=20.0)
    arrays, _ = read(node(app).train(MODEL, asked))
    np.testing.assert_allclose(arrays["w"], MODEL["w"] + 0.25, atol=2e-4)


# What else is in the reply.


def test_integer_arrays_go_back_as_they_came(sent: Callable[..., Any], told: Any) -> None:
    returns = [MODEL["w"], MODEL["b"], np.array(4711)]
    arrays, _ = sent(told(returns=returns), MODEL, noise())
    assert arrays["seen"] == 7
    assert list(arrays) == list(MODEL)


def test_noise_is_added_outside_all_mods(sent: Callable[..., Any], told: Any) -> None:
    def leaking(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        reply.content.metric_records["metrics"]["leak"] = 1.0
        reply.content.array_records["model"]["w"] = Array(np.full(3, 1e6, np.float32))
        return reply

    arrays, metrics = sent(told(), MODEL, noise(norm=1.0, multiplier=1e-5), [leaking])
    assert metrics == {"num-examples": 1}
    assert np.linalg.norm(arrays["w"].astype(float) - MODEL["w"]) < 1.001


def test_a_mod_that_changes_the_message_does_not_change_where_the_update_starts(
    sent: Callable[..., Any], told: Any
) -> None:
    def shifting(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        message.content.array_records["model"]["w"] = Array(MODEL["w"] + 1000)
        return call_next(message, context)

    arrays, _ = sent(told(), MODEL, noise(norm=1.0, multiplier=1e-5), [shifting])
    assert np.linalg.norm(arrays["w"].astype(float) - MODEL["w"]) < 1.001


def bundle_with_metric() -> GaussianBundle:
    metric = ScalarMetric(name="loss", low=0.0, high=4.0)
    return GaussianBundle(
        noise_multiplier=1.0, clipping_norms=(1.0,), metrics=(metric,), scalar_noise_std=10.0
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"utility": "loss"},
        {"bundle": bundle_with_metric()},
        {"units": (0,)},
        {"sampling_rate": 0.5},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_would_leave_without_noise_is_refused_before_training(
    node: Any, told: Any, fields: dict[str, Any]
) -> None:
    client = told(1.0)
    app = numpy_client_app(lambda context: client)
    reply = node(app).train(MODEL, instruction(noise(), **fields))
    assert reply.error.reason == "ValueError"
    assert client.calls == 0


@pytest.mark.parametrize("wrong", [noise("none"), noise(multiplier=0.0), noise(norm=float("inf"))])
def test_noise_that_is_none_is_an_error_before_training(
    node: Any, told: Any, wrong: NoiseInstruction
) -> None:
    client = told(1.0)
    app = numpy_client_app(lambda context: client)
    # The kind of error that the instruction makes, and no word of it.
    assert node(app).train(MODEL, instruction(wrong)).error.reason in ("ValueError", "OptionError")
    assert client.calls == 0


# In front of somebody else's ClientApp.


def foreign_app(answer: Callable[[Message], Message]) -> ClientApp:
    app = noised_client_app()

    @app.train()
    def train(message: Message, context: Context) -> Any:
        return answer(message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"loss": 1.0})}), reply_to=message)

    return app


def plus_one(message: Message) -> Message:
    model = {n: a.numpy() for n, a in message.content.array_records["model"].items()}
    trained = ArrayRecord({n: Array(np.asarray(a + a.dtype.type(1))) for n, a in model.items()})
    metrics = MetricRecord({"num-examples": 57, "loss": 1.5})
    return Message(RecordDict({"theirs": trained, "scores": metrics}), reply_to=message)


def raising(message: Message) -> None:
    raise RuntimeError(SECRET)


def erring(message: Message) -> Message:
    return Message(Error(2, SECRET), reply_to=message)


def two_records(message: Message) -> Message:
    reply = plus_one(message)
    reply.content["second"] = reply.content["theirs"]
    return reply


def test_a_foreign_app_sends_a_private_update_and_nothing_else(node: Any, read: Any) -> None:
    reply = node(foreign_app(plus_one)).train(MODEL, instruction(noise(multiplier=1e-5)))
    arrays, metrics = read(reply)
    assert list(reply.content) == ["model", "metrics", "fl-dp-noised"]
    assert metrics == {"num-examples": 1}
    assert dict(reply.content["fl-dp-noised"]) == {  # what was asked for, and no more
        "round": 1,
        "scheme": "gaussian",
        "noise-multiplier": 1e-5,
        "clipping-norm": 2.0,
    }
    np.testing.assert_allclose(arrays["w"], MODEL["w"] + 1, atol=2e-4)
    assert arrays["seen"] == 7


def test_the_noise_of_a_foreign_app_has_the_right_scale(node: Any, read: Any, scale_p: Any) -> None:
    reply = node(foreign_app(plus_one)).train(LARGE, instruction(noise()))
    draws = read(reply)[0]["w"] - 2.0 / np.sqrt(SIZE)  # its update, clipped to 2
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    assert scale_p(draws, *SPREADS["gaussian"]) > ALARM
    assert scale_p(draws / 1.1, *SPREADS["gaussian"]) < ALARM


def in_place(message: Message) -> Message:
    model = message.content.array_records["model"]
    for name, array in model.items():
        changed = Array(np.asarray(array.numpy() + array.numpy().dtype.type(1)))
        array.data = changed.data
        model[name] = changed
    return Message(message.content, reply_to=message)


def test_a_foreign_app_that_trains_inside_the_message_gives_nothing_away(
    node: Any, read: Any
) -> None:
    reply = node(foreign_app(in_place)).train(MODEL, instruction(noise(multiplier=1e-5)))
    arrays, _ = read(reply)
    assert arrays["seen"] == 7
    np.testing.assert_allclose(arrays["w"], MODEL["w"] + 1, atol=2e-4)
    assert list(reply.content) == ["model", "metrics", "fl-dp-noised"]


@pytest.mark.parametrize("answer", [raising, erring, two_records])
def test_a_foreign_app_that_fails_sends_the_noised_zero(
    node: Any, read: Any, answer: Callable[..., Any]
) -> None:
    reply = node(foreign_app(answer)).train(MODEL, instruction(noise(multiplier=1e-5)))
    arrays, metrics = read(reply)
    np.testing.assert_allclose(arrays["w"], MODEL["w"], atol=2e-4)
    assert metrics == {"num-examples": 1}
    assert list(reply.content) == ["model", "metrics", "fl-dp-noised"]  # as where it works
    assert SECRET.encode() not in pickle.dumps(reply)


def test_without_client_noise_in_the_instruction_the_mod_lets_everything_pass(
    node: Any, read: Any
) -> None:
    here = node(foreign_app(plus_one))
    for asked in (None, RoundInstruction(server_round=1)):
        _, metrics = read(here.train(MODEL, asked))
        assert metrics == {"num-examples": 57, "loss": 1.5}


def test_train_messages_with_an_action_do_not_pass(node: Any, read: Any) -> None:
    app = noised_client_app()
    app.train("fast")(lambda message, context: plus_one(message))
    config = ConfigRecord({"fl-dp-round": encode_text(instruction(noise()))})
    model = ArrayRecord({n: Array(a) for n, a in MODEL.items()})
    reply = node(app).ask("train.fast", {"model": model, "config": config})
    assert read(reply)[1] == {"num-examples": 1}


# What the node's own ledger says.

BUDGET = PrivacyBudget(epsilon=6.0, delta=1e-5)
PAID = NoiseInstruction(
    scheme="gaussian",
    noise_multiplier=2.0,
    clipping_norm=0.5,
    epsilon=BUDGET.epsilon,
    delta=BUDGET.delta,
)
RELEASE = GaussianEvent(noise_multiplier=2.0)
FITTING = affordable_rounds({}, RELEASE, BUDGET.epsilon, 0.9 * BUDGET.delta, at_most=100)


@pytest.fixture
def keeping(node: Any, tmp_path: Path) -> Any:
    """Make a node that keeps a ledger, and a way to look into it."""

    class Keeping:
        path = tmp_path / "ledger.db"

        def node(self, app: Any, *, run: int = 1, **config: Any) -> Any:
            owner = {"dp-ledger-path": str(self.path), "dp-dataset-name": "ward"} | config
            return node(app, owner, run=run)

        def spent(self) -> dict[PrivacyEvent, int]:
            if not self.path.exists():
                return {}
            with NodeLedger.read(self.path) as ledger:
                return dict(ledger.spending(Account(unit="client", source="ward")).history)

    return Keeping()


def test_each_reply_is_charged_before_the_client_trains(keeping: Any, told: Any, read: Any) -> None:
    seen = []

    class Watching(told):  # type: ignore[misc]  # a class that comes as a fixture
        def fit(self, parameters: Any, config: Any) -> Any:
            seen.append(keeping.spent())
            return super().fit(parameters, config)

    here = keeping.node(numpy_client_app(lambda context: Watching(1.0)))
    for _ in range(2):
        read(here.train(MODEL, instruction(PAID)))
    assert seen == [{RELEASE: 1}, {RELEASE: 2}]


def test_a_client_that_fails_stays_charged(keeping: Any, told: Any, read: Any) -> None:
    client = told(error=RuntimeError(SECRET))
    read(keeping.node(numpy_client_app(lambda context: client)).train(MODEL, instruction(PAID)))
    assert keeping.spent() == {RELEASE: 1}


def test_beyond_the_budget_the_handler_is_not_called_and_nothing_is_charged(
    keeping: Any, told: Any, read: Any
) -> None:
    client = told(100.0)
    here = keeping.node(numpy_client_app(lambda context: client))
    assert 1 <= FITTING < 10
    for _ in range(FITTING + 3):
        read(here.train(MODEL, instruction(PAID)))
    assert client.calls == FITTING
    assert keeping.spent() == {RELEASE: FITTING}


def refused(keeping: Any, app: ClientApp, **config: Any) -> Any:
    """A node whose owner allows less than one release costs."""
    return keeping.node(app, **({"dp-max-epsilon": 0.01} | config))


def test_what_is_sent_beyond_the_budget_has_the_law_of_every_reply(
    keeping: Any, told: Any, read: Any, scale_p: Any
) -> None:
    # Rejects a right scale once in 1e6 runs; a scale that is 10 % off must be rejected.
    client = told(100.0)
    here = refused(keeping, numpy_client_app(lambda context: client))
    draws = read(here.train(LARGE, instruction(PAID)))[0]["w"]
    assert client.calls == 0
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    assert scale_p(draws, *SPREADS["gaussian"]) > ALARM
    for wrong in (0.9, 1.1):
        assert scale_p(draws / wrong, *SPREADS["gaussian"]) < ALARM
    again = read(here.train(LARGE, instruction(PAID)))[0]["w"]
    assert abs(np.corrcoef(draws, again)[0, 1]) < 6 / np.sqrt(SIZE)


@pytest.mark.parametrize("scheme", ["gaussian", "laplace", "exponential"])
def test_a_reply_beyond_the_budget_looks_like_any_other(
    keeping: Any, told: Any, scheme: str
) -> None:
    asked = instruction(replace(PAID, scheme=scheme, noise_multiplier=30.0))
    app = numpy_client_app(lambda context: told(0.1, metrics={"loss": 1.0}))
    replies = [here.train(MODEL, asked) for here in (keeping.node(app), refused(keeping, app))]
    forms = [
        (
            [(key, list(record)) for key, record in reply.content.items()],
            [
                (a.numpy().dtype, a.numpy().shape)
                for each in reply.content.array_records.values()
                for a in each.values()
            ],
            [dict(each) for each in reply.content.metric_records.values()],
        )
        for reply in replies
    ]
    assert forms[0] == forms[1]
    assert len(pickle.dumps(replies[0].content)) == len(pickle.dumps(replies[1].content))
    assert sum(keeping.spent().values()) == 1


def test_the_owner_s_cap_wins_over_the_server_s_budget(keeping: Any, told: Any, read: Any) -> None:
    most = affordable_rounds({}, RELEASE, 3.0, 0.9 * BUDGET.delta, at_most=100)
    assert 1 <= most < FITTING
    client = told(1.0)
    here = keeping.node(numpy_client_app(lambda context: client), **{"dp-max-epsilon": 3.0})
    for _ in range(FITTING):
        read(here.train(MODEL, instruction(PAID)))
    assert client.calls == most


def test_the_owner_s_cap_holds_where_the_server_names_no_budget(
    keeping: Any, told: Any, read: Any
) -> None:
    client = told(1.0)
    caps = {"dp-max-epsilon": BUDGET.epsilon, "dp-max-delta": BUDGET.delta}
    here = keeping.node(numpy_client_app(lambda context: client), **caps)
    for _ in range(FITTING + 2):
        read(here.train(MODEL, instruction(replace(PAID, epsilon=None, delta=None))))
    assert client.calls == FITTING


@pytest.mark.parametrize("damage", ["corrupted", "no folder", "no cap's delta"])
def test_a_ledger_that_can_not_be_charged_sends_the_noised_zero(
    keeping: Any, told: Any, read: Any, damage: str
) -> None:
    client = told(100.0)
    config, asked = {}, replace(PAID, clipping_norm=1e-4)
    match damage:
        case "corrupted":
            keeping.path.write_bytes(b"no ledger" * 1000)
        case "no folder":
            keeping.path = keeping.path.parent / "nowhere" / "ledger.db"
        case "no cap's delta":
            config, asked = {"dp-max-epsilon": 1.0}, replace(asked, epsilon=None, delta=None)
    here = keeping.node(numpy_client_app(lambda context: client), **config)
    arrays, metrics = read(here.train(MODEL, instruction(asked)))
    assert client.calls == 0
    assert metrics == {"num-examples": 1}
    np.testing.assert_allclose(arrays["w"], MODEL["w"], atol=2e-3)
    assert (arrays["w"] != MODEL["w"]).any()


def test_a_foreign_app_is_charged_too_and_not_called_beyond_the_budget(
    keeping: Any, read: Any
) -> None:
    calls = []

    def counted(message: Message) -> Message:
        calls.append(1)
        return plus_one(message)

    here = keeping.node(foreign_app(counted))
    for _ in range(FITTING + 2):
        read(here.train(MODEL, instruction(PAID)))
    assert (len(calls), keeping.spent()) == (FITTING, {RELEASE: FITTING})


def test_evaluating_and_training_without_noise_at_the_client_cost_nothing(
    keeping: Any, read: Any
) -> None:
    here = keeping.node(foreign_app(plus_one))
    here.ask("evaluate", {"config": ConfigRecord({"fl-dp-round": encode_text(instruction(PAID))})})
    for asked in (None, RoundInstruction(server_round=1)):
        read(here.train(MODEL, asked))
    assert keeping.spent() == {}


def test_a_server_can_not_name_the_ledger_of_a_real_node(
    node: Any, told: Any, read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    app = numpy_client_app(lambda context: told(1.0))
    read(node(app).train(MODEL, instruction(PAID), **{"fl-dp-ledgers": str(tmp_path)}))
    assert not list(tmp_path.iterdir())


def test_a_node_without_a_ledger_trains_as_often_as_it_is_asked(
    node: Any, told: Any, read: Any
) -> None:
    client = told(1.0)
    here = node(numpy_client_app(lambda context: client))
    for _ in range(FITTING + 2):
        read(here.train(MODEL, instruction(PAID)))
    assert client.calls == FITTING + 2
