"""Whole rounds of encoded updates and narrow models, against rounds without."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from local_grid import Answer, answer_with_app, arrays_of, introducing, reply
from trainings import (
    SIX_SIGMA,
    FixedClient,
    Training,
    able,
    client_fn,
    noised,
    plan_of,
    record,
    train,
)

from fl_dp.accounting import PoissonSampling
from fl_dp.clients import numpy_client_app
from fl_dp.mechanisms import FixedClipping, client_scheme
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, NOISED_KEY
from fl_dp.strategies import LawSelection
from fl_dp.updates import Compression
from fl_dp.updates.arrays import array_bytes, narrowed, widened
from fl_dp.updates.compression import ENCODED_UPDATE

N, SIZE, CLIP = 10, 20_000, 0.5
QUIET = 1e-4  # a noise multiplier: what is left is the update
UPS = {
    "float16": Compression(up="float16"),
    "bfloat16": Compression(up="bfloat16"),
    "quantize": Compression(up="quantize", bits=12),
    "top_k": Compression(up="top_k", fraction=1.0, bits=12),
}
up = pytest.mark.parametrize("compression", UPS.values(), ids=UPS)
down = pytest.mark.parametrize("name", ["float16", "bfloat16"])


def clients_of(num_clients: int, update: Any = 0.0) -> Answer:
    app = numpy_client_app(client_fn(lambda node: FixedClient(update)))
    return answer_with_app(app, num_clients)


def quiet_plan(**changes: Any) -> Any:
    fields: dict[str, Any] = dict(noise_multiplier=QUIET, clipping=FixedClipping(norm=CLIP))
    return plan_of(N, **(fields | changes))


def quietly(
    folder: Path,
    answer: Answer,
    compression: Compression,
    model: ArrayRecord | None = None,
    *,
    timeout: float = 60.0,
    **changes: Any,
) -> Training:
    """A training with hardly any noise, so that what is left is the update."""
    model = record(w=np.zeros(SIZE)) if model is None else model
    plan = quiet_plan(**changes)
    return train(folder, plan, answer, model, compression=compression, timeout=timeout)


def an_update(norm: float) -> np.ndarray:
    direction = np.random.default_rng(5).normal(size=SIZE)
    return norm * direction / np.linalg.norm(direction)


# --- up -----------------------------------------------------------------------------------------


@up
def test_a_central_round_of_encoded_updates_is_that_of_plain_ones(
    tmp_path: Path, compression: Compression
) -> None:
    update = an_update(0.4)
    trained = quietly(tmp_path, clients_of(N, update), compression)
    error = 0.02 * np.abs(update).max() + SIX_SIGMA * QUIET * CLIP / N
    np.testing.assert_allclose(trained.move, update, atol=error)


@up
def test_the_server_clips_what_it_decodes(tmp_path: Path, compression: Compression) -> None:
    trained = quietly(tmp_path, clients_of(N, an_update(1000.0)), compression)
    assert np.linalg.norm(trained.move) == pytest.approx(CLIP, rel=1e-2)


@pytest.mark.parametrize("bits", [1, 2])
def test_no_rounding_error_gets_past_the_clipping(tmp_path: Path, bits: int) -> None:
    # An update of norm 0.5 is several times as long in one bit a coordinate.
    honest = clients_of(N, an_update(CLIP))
    trained = quietly(
        tmp_path,
        lambda message, node: honest(message, node) if node == 0 else None,
        Compression(up="quantize", bits=bits),
        noise_multiplier=1e-5,
        timeout=1.0,
    )
    assert np.linalg.norm(N * trained.move) <= CLIP * 1.001


@pytest.mark.parametrize("scheme", ["gaussian", "laplace", "exponential"])
def test_in_local_mode_the_mean_has_the_noise_of_the_clients(tmp_path: Path, scheme: str) -> None:
    # 12 bits add a ten-thousandth to the variance at most; noise that one of two clients forgot
    # would be 29 % away.
    noise: dict[str, Any] = dict(client_scheme=scheme, noise_multiplier=2.0)
    trained = quietly(tmp_path, clients_of(N), UPS["quantize"], **noise)
    levels = 2**12 if scheme == "exponential" else None
    own = client_scheme(scheme, noise_multiplier=2.0, clipping_norm=CLIP, levels=levels).noise_std
    tolerance = SIX_SIGMA * 2.0 / math.sqrt(2 * SIZE)
    assert np.std(trained.move) == pytest.approx(own * math.sqrt(N) / N, rel=tolerance)


def test_in_local_mode_the_server_gets_the_noised_vector_and_nothing_else(tmp_path: Path) -> None:
    replies: list[Message] = []

    @introducing
    def watched(message: Message, node: int) -> Message | None:
        answered = clients_of(N, 1e-3)(message, node)
        if answered is not None and message.metadata.message_type == "train":
            replies.append(answered)
        return answered

    noise: dict[str, Any] = dict(client_scheme="gaussian", noise_multiplier=2.0)
    quietly(tmp_path, watched, UPS["quantize"], **noise)
    assert len(replies) == N
    for answered in replies:
        assert set(answered.content) == {ENCODED_UPDATE, "metrics", NOISED_KEY}
        assert dict(answered.content["metrics"]) == {"num-examples": 1}
        update = UPS["quantize"].decode(answered.content.array_records[ENCODED_UPDATE], SIZE)
        assert np.std(update) == pytest.approx(2.0 * CLIP, rel=0.05)


@pytest.mark.parametrize(
    ("bits", "multiplier", "levels"),
    [(4, 2.0, 16), (2, 0.1, None), (16, 4.0, None)],
)
def test_the_exponential_scheme_gets_as_many_points_as_the_encoding_can_tell_apart(
    tmp_path: Path, bits: int, multiplier: float, levels: int | None
) -> None:
    plan = quiet_plan(client_scheme="exponential", noise_multiplier=multiplier)
    compression = Compression(up="quantize", bits=bits)
    trained = train(tmp_path, plan, clients_of(N), record(w=np.zeros(8)), compression=compression)
    told = json.loads(str(trained.grid.sent[0].content["config"][INSTRUCTION_KEY]))
    assert told["client_noise"]["levels"] == levels


@up
def test_without_privacy_updates_are_encoded_too(compression: Compression) -> None:
    update = an_update(100.0)
    trained = train(
        None,
        None,
        clients_of(N, update),
        record(w=np.zeros(SIZE)),
        nodes=N,
        selection=LawSelection(PoissonSampling(sampling_rate=1.0)),
        compression=compression,
    )
    np.testing.assert_allclose(trained.move, update, atol=0.02 * np.abs(update).max())


@pytest.mark.parametrize("scheme", [None, "gaussian"])
def test_a_client_that_knows_nothing_of_encodings_is_read_as_ever(
    tmp_path: Path, scheme: str | None
) -> None:
    def plain(message: Message, node: int) -> Message:
        trained = arrays_of(message)["w"] + 1e-3
        return reply(message, {"w": trained}) if scheme is None else noised(message, w=trained)

    answer = plain if scheme is None else able(Ability.NOISE)(plain)
    plan = quiet_plan(client_scheme=scheme)
    trained = train(tmp_path, plan, answer, record(w=np.zeros(64)), compression=UPS["quantize"])
    np.testing.assert_allclose(trained.move, 1e-3, atol=SIX_SIGMA * QUIET * CLIP)


def hostile(message: Message, node: int) -> Message:
    """Node 0 encodes garbage, the others are honest."""
    if node:
        honest = clients_of(N, 1e-3)(message, node)
        assert honest is not None
        return honest
    garbage = ArrayRecord({"scales": Array(np.full((1, 2), np.nan)), "codes": Array(np.zeros(9))})
    content = RecordDict({ENCODED_UPDATE: garbage, "metrics": MetricRecord()})
    return Message(content, reply_to=message)


def test_an_encoding_that_can_not_be_read_contributes_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = quietly(tmp_path, hostile, UPS["quantize"], record(w=np.zeros(64)))
    np.testing.assert_allclose(trained.move, 0.9e-3, atol=SIX_SIGMA * QUIET * CLIP / N)
    assert "an update was refused and contributes zero" in caplog.text


# --- down ---------------------------------------------------------------------------------------


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    if name == "float16":
        return values.astype(np.float16).astype(values.dtype)
    return widened(narrowed(values.astype(np.float32))).astype(values.dtype)


@down
@pytest.mark.parametrize("scheme", [None, "gaussian"])
@pytest.mark.parametrize("compression_up", ["none", "quantize"])
def test_the_rounding_of_a_narrow_model_is_no_part_of_an_update(
    tmp_path: Path, name: str, scheme: str | None, compression_up: str
) -> None:
    # Rounding moves these weights by up to 0.001 and more, four times what an update does.
    start = np.random.default_rng(6).normal(size=SIZE).astype(np.float32)
    trained = quietly(
        tmp_path,
        clients_of(N, np.float32(2.0**-12)),
        Compression(up=compression_up, bits=12, down=name),
        record(w=start),
        client_scheme=scheme,
        noise_multiplier=1e-5,
    )
    assert np.abs(rounded(start, name) - start).max() > 9e-4
    np.testing.assert_allclose(trained.move, 2.0**-12, atol=1.1e-5)


@down
def test_clients_get_the_rounded_model_and_the_server_keeps_the_exact_one(
    tmp_path: Path, name: str
) -> None:
    start = np.random.default_rng(7).normal(size=100)
    seen: list[np.ndarray] = []

    class Watching(FixedClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            seen.append(parameters[0].copy())
            return super().fit(parameters, config)

    app = numpy_client_app(client_fn(lambda node: Watching(0.0)))
    answer = answer_with_app(app, N)
    trained = quietly(
        tmp_path, answer, Compression(down=name), record(w=start), noise_multiplier=1e-5
    )
    for got in seen:
        np.testing.assert_array_equal(got, rounded(start, name))
    np.testing.assert_allclose(trained.models[-1]["w"], start, atol=1e-5)


@down
def test_nodes_that_sum_their_units_can_get_a_narrow_model(tmp_path: Path, name: str) -> None:
    trained = train(
        tmp_path,
        quiet_plan(noise_multiplier=1e-5),
        clients_of(N, 1e-3),
        record(w=np.full(50, 1.0 + 2.0**-12)),
        coins_at_nodes=True,
        compression=Compression(down=name),
    )
    np.testing.assert_allclose(trained.move, 1e-3, atol=1e-5)


@down
def test_a_client_that_can_not_read_a_narrow_model_contributes_zero(
    tmp_path: Path, name: str
) -> None:
    def plain(message: Message, node: int) -> Message:
        with pytest.raises(TypeError):
            arrays_of(message)
        [model] = message.content.array_records.values()
        return reply(message, {"w": np.frombuffer(model["w"].data[-200:], "<u2")})

    model = record(w=np.ones(100))
    trained = quietly(tmp_path, plain, Compression(down=name), model, noise_multiplier=1e-5)
    assert np.abs(trained.move).max() < 1e-5


# --- every kind of model ------------------------------------------------------------------------

KINDS = record(
    single=np.ones((3, 4), np.float32),
    double=np.ones(5),
    half=np.ones(2, np.float16),
    scalar=np.array(1.0, np.float32),
    empty=np.zeros((0, 3), np.float32),
    seen=np.array(7),
    mask=np.array([True, False]),
)
KINDS["bf"] = Array("bfloat16", (2,), "numpy.ndarray", Array(np.array([0x3F80] * 2, "<u2")).data)


@pytest.mark.parametrize(
    ("up", "name"), [("none", "bfloat16"), *((up, "float16") for up in ("none", *UPS))]
)
def test_every_kind_of_array_keeps_its_form(tmp_path: Path, up: str, name: str) -> None:
    compression = Compression(up=up, bits=16, fraction=1.0, down=name)
    wide: dict[str, Any] = dict(clipping=FixedClipping(norm=100.0), noise_multiplier=1e-5)
    trained = quietly(tmp_path, clients_of(N, 2.0), compression, KINDS, **wide)
    arrays = trained.result.arrays
    assert {n: (a.dtype, a.shape) for n, a in arrays.items()} == {
        n: (a.dtype, a.shape) for n, a in KINDS.items()
    }
    np.testing.assert_allclose(arrays["single"].numpy(), 3.0, atol=0.02)
    assert arrays["seen"].numpy() == 7
    np.testing.assert_array_equal(arrays["bf"].numpy(), [0x3F80] * 2)


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression(), *UPS.values()], ids=["none", *UPS])
def test_the_bytes_that_are_told_are_those_of_the_messages(
    tmp_path: Path, compression: Compression
) -> None:
    replies: list[Message] = []

    def watched(message: Message, node: int) -> Message | None:
        answered = clients_of(N, 1e-3)(message, node)
        replies.extend([] if answered is None else [answered])
        return answered

    chosen = Compression(up=compression.up, bits=12, down="float16")
    model = record(w=np.zeros((100, 50), np.float32), b=np.zeros(50, np.float32), n=np.array(3))
    trained = train(tmp_path, quiet_plan(), watched, model, compression=chosen)
    for messages, told in (
        (trained.grid.sent, trained.strategy.bytes_down),
        (replies, trained.strategy.bytes_up),
    ):
        for message in messages:
            [arrays] = message.content.array_records.values()
            assert array_bytes(arrays) == told
            wire = recorddict_to_proto(RecordDict({"arrays": arrays})).ByteSize()
            assert told <= wire <= told + 64 * (1 + len(arrays))


def test_the_bytes_of_a_sum_of_units_are_those_of_its_steps(tmp_path: Path) -> None:
    sizes: set[int] = set()

    def watched(message: Message, node: int) -> Message | None:
        answered = clients_of(N, 1e-3)(message, node)
        if answered is not None:
            sizes.update(map(array_bytes, answered.content.array_records.values()))
        return answered

    model = record(w=np.zeros((10, 5), np.float32), b=np.zeros(5))
    trained = train(tmp_path, quiet_plan(), introducing(watched), model, coins_at_nodes=True)
    assert sizes == {trained.strategy.bytes_up}
