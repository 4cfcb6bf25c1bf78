"""Compression at the client: after the noise, and nothing else in the reply changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_dp.clients import compression_mod, numpy_client_app
from fl_dp.clients.client_noise import client_noise_mod
from fl_dp.codec import encode_text
from fl_dp.mechanisms import GaussianBundle
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.updates import Compression
from fl_dp.updates.compression import ENCODED_UPDATE
from fl_dp.updates.narrow import narrow

SIZE = 40_000
SIX_SIGMA = 6.0  # two in a billion draws lie further out
NOISE = NoiseInstruction(scheme="gaussian", noise_multiplier=0.5, clipping_norm=2.0)  # scale 1
Q16 = Compression(up="quantize", bits=16)
MODEL: dict[str, np.ndarray] = {
    "w": np.array([1.0, -2.0, 4.0], dtype=np.float32),
    "b": np.array(0.5, dtype=np.float16),
    "wide": np.array([0.25, 3.0]),
    "none": np.zeros((2, 0), dtype=np.float32),
    "seen": np.array(7, dtype=np.int64),
}


def instruction(compression: Any, **fields: Any) -> RoundInstruction:
    return RoundInstruction(server_round=1, compression=compression, **fields)


def update_of(reply: Any, compression: Any, size: int) -> np.ndarray:
    assert not reply.has_error(), reply.error.reason
    assert list(reply.content.array_records) == [ENCODED_UPDATE]
    update = compression.update_in(reply.content, size)
    assert isinstance(update, np.ndarray)
    return update


@pytest.fixture
def update(node: Any, told: Any) -> Callable[..., Any]:
    """Return the update that the server decodes from a client's reply."""

    def ask(client: Any, model: Any, compression: Any, size: int, **fields: Any) -> np.ndarray:
        app = numpy_client_app(lambda context: client)
        reply = node(app).train(model, instruction(compression, **fields))
        return update_of(reply, compression, size)

    return ask


@pytest.mark.parametrize("up", ["float16", "bfloat16", "quantize", "top_k"])
def test_the_update_arrives_and_not_the_model(
    update: Callable[..., Any], told: Any, up: str
) -> None:
    compression = Compression(up=up, bits=16, fraction=0.5)
    step = np.array([1.0, -2.0, 0.5])
    received = update(told(step), MODEL, compression, 6)  # w, b and wide, in one vector
    np.testing.assert_allclose(received, [*step, 0, 0, 0], atol=1e-3)


def test_the_other_records_of_a_reply_stay_as_they_are(node: Any, told: Any) -> None:
    client = told(1.0, num_examples=5, metrics={"loss": 0.5})
    app = numpy_client_app(lambda context: client)
    asked = {"weight_cap": 10.0, "utility": "loss"}
    plain = node(app).train(MODEL, instruction(None, **asked)).content
    encoded = node(app).train(MODEL, instruction(Q16, **asked)).content
    assert dict(encoded.metric_records) == dict(plain.metric_records)
    assert not encoded.config_records


def test_the_weight_comes_before_the_encoding(update: Callable[..., Any], told: Any) -> None:
    received = update(told(1.0, num_examples=5), MODEL, Q16, 6, weight_cap=20.0)
    np.testing.assert_allclose(received[:3], 0.25, atol=1e-3)


def test_noise_comes_first_and_the_encoding_after_it(update: Callable[..., Any], told: Any) -> None:
    # Of a zero update top_k would keep zeros: what arrives is the noise's own largest magnitudes,
    # all beyond the normal law's 95th percentile (1.96, to six sigma of an order statistic).
    compression = Compression(up="top_k", fraction=0.05, bits=16)
    received = update(told(), {"w": np.zeros(SIZE)}, compression, SIZE, client_noise=NOISE)
    kept = np.abs(received[received != 0.0])
    assert kept.size == SIZE // 20
    density = 2.0 * math.exp(-(1.96**2) / 2) / math.sqrt(2 * math.pi)
    spread = math.sqrt(0.05 * 0.95 / SIZE) / density
    assert kept.min() == pytest.approx(1.96, abs=SIX_SIGMA * spread)


@pytest.mark.parametrize("up", ["float16", "bfloat16", "quantize"])
def test_an_encoded_update_has_the_noise_of_the_client_around_it(
    update: Callable[..., Any], told: Any, up: str
) -> None:
    compression = Compression(up=up, bits=10)
    received = update(told(), {"w": np.zeros(SIZE)}, compression, SIZE, client_noise=NOISE)
    assert received.std() == pytest.approx(1.0, rel=SIX_SIGMA / math.sqrt(2 * SIZE) + 1e-3)
    assert abs(received.mean()) < SIX_SIGMA / math.sqrt(SIZE)


@pytest.mark.parametrize("bits", [1, 4])
def test_the_exponential_scheme_s_points_are_sent_without_loss(
    update: Callable[..., Any], told: Any, bits: int
) -> None:
    noise = NoiseInstruction(
        scheme="exponential", noise_multiplier=2.0, clipping_norm=1.0, levels=2**bits
    )
    compression = Compression(up="quantize", bits=bits)
    received = update(told(), {"w": np.zeros(SIZE)}, compression, SIZE, client_noise=noise)
    mechanism = GridExponentialMechanism(noise_multiplier=2.0, clipping_norm=1.0, levels=2**bits)
    points = mechanism.points / mechanism.gain
    nearest = points[np.abs(received[:, None] - points).argmin(axis=1)]
    np.testing.assert_allclose(received, nearest, atol=1e-12)
    assert np.unique(nearest).size == 2**bits


def test_a_client_that_fails_still_sends_its_noise(update: Callable[..., Any], told: Any) -> None:
    client = told(error=RuntimeError("out of memory"))
    received = update(client, {"w": np.zeros(SIZE)}, Q16, SIZE, client_noise=NOISE)
    assert received.std() == pytest.approx(1.0, rel=SIX_SIGMA / math.sqrt(2 * SIZE) + 1e-3)


def test_a_client_that_fails_without_noise_of_its_own_is_an_error(node: Any, told: Any) -> None:
    app = numpy_client_app(lambda context: told(error=RuntimeError("patient 4711")))
    assert node(app).train(MODEL, instruction(Q16)).error.reason == "RuntimeError"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_an_error(node: Any, told: Any, bad: float) -> None:
    app = numpy_client_app(lambda context: told(bad))
    assert node(app).train(MODEL, instruction(Q16)).error.reason == "ValueError"


@pytest.mark.parametrize("fields", [{"units": (0,)}, {"sampling_rate": 0.5}])
def test_a_sum_of_units_is_never_encoded(node: Any, told: Any, fields: dict[str, Any]) -> None:
    client = told(1.0)
    bundle = GaussianBundle(noise_multiplier=1.0, clipping_norms=(1.0,))
    reply = node(numpy_client_app(lambda context: client)).train(
        MODEL, instruction(Q16, bundle=bundle, **fields)
    )
    assert reply.error.reason == "ValueError"
    assert client.calls == 0


@pytest.mark.parametrize("mod", [compression_mod, client_noise_mod])
def test_an_app_that_has_a_mod_built_in_does_not_take_it_twice(
    told: Any, mod: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=f"adds {mod.__name__} itself"):
        numpy_client_app(lambda context: told(), [mod])


# Narrow models.


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_client_trains_a_narrow_model_in_its_own_dtypes(node: Any, told: Any, name: str) -> None:
    seen = []

    class Watching(told):  # type: ignore[misc]  # a class that comes as a fixture
        def fit(self, parameters: Any, config: Any) -> Any:
            seen.extend(parameters)
            return super().fit(parameters, config)

    record = narrow(ArrayRecord({n: Array(a) for n, a in MODEL.items()}), name)
    app = numpy_client_app(lambda context: Watching(1.0))
    reply = node(app).ask("train", {"model": record, "config": ConfigRecord()})
    assert [a.dtype for a in seen] == [a.dtype for a in MODEL.values()]
    [arrays] = reply.content.array_records.values()
    assert {n: a.dtype for n, a in arrays.items()} == {n: str(a.dtype) for n, a in MODEL.items()}
    np.testing.assert_array_equal(arrays["w"].numpy(), MODEL["w"] + 1)  # short enough for both


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_noise_is_added_around_the_narrow_model_that_came(node: Any, told: Any, name: str) -> None:
    model = {"w": np.full(1000, 1.0 + 2.0**-12)}  # which is 1 in two bytes
    record = narrow(ArrayRecord({"w": Array(model["w"])}), name)
    quiet = NoiseInstruction(scheme="gaussian", noise_multiplier=1e-6, clipping_norm=2.0)
    config = ConfigRecord({INSTRUCTION_KEY: encode_text(instruction(None, client_noise=quiet))})
    app = numpy_client_app(lambda context: told(0.0))
    reply = node(app).ask("train", {"model": record, "config": config})
    [arrays] = reply.content.array_records.values()
    np.testing.assert_allclose(arrays["w"].numpy(), 1.0, atol=2e-5)


# In front of somebody else's ClientApp.


def foreign_app(*mods: Callable[..., Any]) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = {n: a.numpy() for n, a in message.content.array_records["model"].items()}
        trained = ArrayRecord({n: Array(np.asarray(a + a.dtype.type(1))) for n, a in model.items()})
        metrics = MetricRecord({"num-examples": 57})
        return Message(RecordDict({"theirs": trained, "scores": metrics}), reply_to=message)

    return app


def test_a_foreign_app_adds_its_noise_before_it_encodes(node: Any) -> None:
    here = node(foreign_app(compression_mod, client_noise_mod))
    reply = here.train({"w": np.zeros(SIZE)}, instruction(Q16, client_noise=NOISE))
    its_own = 2.0 / math.sqrt(SIZE)  # its update, clipped to 2
    noise: np.ndarray = update_of(reply, Q16, SIZE) - its_own
    assert noise.std() == pytest.approx(1.0, rel=SIX_SIGMA / math.sqrt(2 * SIZE) + 1e-3)
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


def test_mods_in_the_wrong_order_send_noise_alone(node: Any, read: Any) -> None:
    here = node(foreign_app(client_noise_mod, compression_mod))
    reply = here.train({"w": np.zeros(SIZE)}, instruction(Q16, client_noise=NOISE))
    sent = read(reply)[0]["w"]  # a model, around which there is nothing but noise
    assert sent.std() == pytest.approx(1.0, rel=SIX_SIGMA / math.sqrt(2 * SIZE))
    assert abs(sent.mean()) < SIX_SIGMA / math.sqrt(SIZE)


def test_without_a_compression_the_mod_lets_everything_pass(node: Any, read: Any) -> None:
    here = node(foreign_app(compression_mod))
    for asked in (None, instruction(None)):
        arrays, metrics = read(here.train(MODEL, asked))
        assert metrics == {"num-examples": 57}
        np.testing.assert_array_equal(arrays["w"], MODEL["w"] + 1)
