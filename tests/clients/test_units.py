"""A node of several units: what one unit can move, and what a reply does not tell."""

from __future__ import annotations

import logging
import math
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fixed_draws import fix_draws
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from laws import ALARM, counts_p
from scipy import stats

from fl_dp.clients import NodeUnits, TrainedRows, UnitReport, numpy_client_app
from fl_dp.clients.units import sum_of_units
from fl_dp.mechanisms import GaussianBundle, ScalarMetric
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import SCALARS_METRIC, UTILITY_METRIC
from fl_dp.updates import VectorLayout, clipped_sum, only_array_record
from fl_dp.updates.clipped_sum import ClippedSum

pytestmark = pytest.mark.slow

SECRET = "patient 4711 has condition X"
NORM = 0.5
MODEL: dict[str, np.ndarray] = {
    "w": np.array([1.0, -2.0, 4.0], dtype=np.float32),
    "b": np.array(0.5, dtype=np.float64),
    "seen": np.array(7, dtype=np.int64),
}
LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)


def bundle(
    *,
    norms: tuple[float, ...] = (NORM,),
    metrics: tuple[ScalarMetric, ...] = (LOSS,),
    bit: bool = True,
) -> GaussianBundle:
    return GaussianBundle(
        noise_multiplier=1.0,
        clipping_norms=norms,
        unclipped_bit=bit,
        metrics=metrics,
        scalar_noise_std=10.0,
    )


def instruction(**fields: Any) -> RoundInstruction:
    usual: dict[str, Any] = {"server_round": 1, "max_units": 8, "bundle": bundle()}
    return RoundInstruction(**usual | fields)


def app_of(clients: Any, **more: Any) -> ClientApp:
    """Return an app whose node hosts these clients, one a unit."""
    units = NodeUnits(
        client_fn=lambda context, unit: clients[unit], count=lambda context, config: len(clients)
    )
    return numpy_client_app(lambda context: clients[0], units=units, **more)


@pytest.fixture
def sums(node: Any, read: Any) -> Callable[..., Any]:
    """Return a node's sum in grid steps, flat and as exact integers, and its metrics."""

    def ask(clients: Any, **fields: Any) -> tuple[Any, Any]:
        fields = {"units": tuple(range(len(clients)))} | fields
        arrays, metrics = read(node(app_of(clients)).train(MODEL, instruction(**fields)))
        flat = np.concatenate([values.reshape(-1) for values in arrays.values()])
        assert all(float(value).is_integer() for value in flat)
        return [int(value) for value in flat], metrics

    return ask


def in_steps(update: float | np.ndarray, weight: float = 1.0) -> np.ndarray:
    vector = weight * np.append(np.broadcast_to(update, 3).astype(np.float64), 0.0)
    return bundle().updates.encode(vector)


# The sum.


def test_a_node_answers_with_the_sum_of_its_units_clipped_updates(
    sums: Callable[..., Any], told: Any
) -> None:
    updates: tuple[Any, ...] = (0.25, np.array([0.125, 0.0, -0.25]), 100.0)
    total, _ = sums([told(update) for update in updates])
    # Rounding to a grid step may go either way where the update was scaled.
    expected = sum(in_steps(update) for update in updates)
    np.testing.assert_allclose(total, expected, atol=1)


@pytest.mark.parametrize("norms", [(NORM,), (0.3, 0.2)])
@pytest.mark.parametrize("cap", [None, 20.0])
def test_the_server_gets_the_sum_that_it_would_have_made_of_single_units(
    node: Any, told: Any, norms: tuple[Any, ...], cap: float | None
) -> None:
    # The same huge update eight times is as long as eight units can get.
    updates = [100.0] * 8 if cap is None else [0.1, 100.0, -0.7, 0.0, 1e9, 0.2, 0.3, -1e-6]
    clients = [told(update, num_examples=7) for update in updates]
    asked = instruction(units=tuple(range(8)), bundle=bundle(norms=norms), weight_cap=cap)
    model = ArrayRecord({name: Array(values) for name, values in MODEL.items()})
    layout = VectorLayout.of(model)
    assert asked.bundle is not None
    grid = asked.bundle.updates.grid
    single, whole = (
        ClippedSum(layout, layout.flatten(model), grid=grid, clipping_norms=norms) for _ in range(2)
    )
    for client in clients:
        app = app_of([client])
        reply = node(app).train(MODEL, RoundInstruction(server_round=1, weight_cap=cap))
        single.add(only_array_record(reply.content))
    reply = node(app_of(clients)).train(MODEL, asked)
    whole.add_steps(only_array_record(reply.content), max_units=8)
    np.testing.assert_array_equal(whole.total, single.total)
    assert whole.total.any()


def test_only_the_units_that_are_named_take_part(sums: Callable[..., Any], told: Any) -> None:
    clients = [told(0.25) for _ in range(8)]
    total, _ = sums(clients, units=(3, 7))
    assert total == sums(clients[:2])[0]
    assert [client.calls for client in clients] == [1, 1, 0, 1, 0, 0, 0, 1]


def test_units_train_on_arrays_and_a_config_of_their_own(node: Any, read: Any) -> None:
    class Spoiling(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> tuple[Any, int, Any]:
            assert config.pop("lr") == 0.1
            for values in parameters:
                values += values.dtype.type(1)
            return parameters, 1, {}

    app = app_of([Spoiling(), Spoiling(), Spoiling()])
    wide = bundle(norms=(100.0,))
    once, thrice = (
        read(node(app).train(MODEL, instruction(units=units, bundle=wide), lr=0.1))[0]
        for units in ((0,), (0, 1, 2))
    )
    np.testing.assert_array_equal(thrice["w"], 3 * once["w"])
    assert once["w"].all()


def test_a_weight_is_applied_before_clipping(sums: Callable[..., Any], told: Any) -> None:
    total, _ = sums([told(0.25, num_examples=5), told(100.0, num_examples=5)], weight_cap=20.0)
    np.testing.assert_allclose(total, in_steps(0.25, 0.25) + in_steps(100.0), atol=1)


def test_a_node_without_units_of_its_own_hosts_one_unit_its_client(
    node: Any, read: Any, told: Any
) -> None:
    app = numpy_client_app(lambda context: told(0.25))
    arrays, _ = read(node(app).train(MODEL, instruction(units=(0,))))
    np.testing.assert_array_equal(arrays["w"], in_steps(0.25)[:3])
    arrays, _ = read(node(app).train(MODEL, instruction(units=(1,))))
    assert not arrays["w"].any()


# What one unit can move.

HOSTILE: dict[str, dict[str, Any]] = {
    "huge": {"update": 1e30},
    "largest": {"update": np.finfo(np.float32).max},
    "negative": {"update": -1e30},
    "one coordinate": {"update": np.array([1e20, 0.0, 0.0])},
    "just above the bound": {"update": NORM / math.sqrt(3) * (1 + 1e-6)},
    "heavy": {"update": 1.0, "num_examples": 10**18},
}


class Panic(BaseException):
    """A native library's panic, which is no `Exception`."""


FAILING: dict[str, dict[str, Any]] = {
    "raises": {"error": RuntimeError(SECRET)},
    "panics": {"error": Panic(SECRET)},
    "exits": {"error": SystemExit(SECRET)},
    "nan": {"update": np.nan},
    "one nan": {"update": np.array([0.1, np.nan, 0.1])},
    "infinite": {"update": np.inf},
    "too few arrays": {"returns": [np.zeros(3, np.float32)]},
    "another shape": {"returns": [np.zeros(4, np.float32), np.float64(0), np.int64(7)]},
    "another dtype": {"returns": [np.zeros(3, np.int64), np.float64(0), np.int64(7)]},
    "objects": {"returns": [np.array([SECRET] * 3, object), np.float64(0), np.int64(7)]},
    "negative records": {"update": 0.1, "num_examples": -5},
    "no records": {"update": 0.1, "num_examples": None},
}


@pytest.mark.parametrize("told_to", HOSTILE.values(), ids=HOSTILE)
def test_no_unit_moves_the_sum_by_more_than_the_clipping_norm(
    sums: Callable[..., Any], told: Any, told_to: Any
) -> None:
    others = [told(0.1), told(5.0), told(-0.02)]
    without, _ = sums(others, weight_cap=20.0)
    having, _ = sums([*others, told(**told_to)], weight_cap=20.0)
    moved = sum((a - b) ** 2 for a, b in zip(having, without, strict=True))
    bound = int(NORM / bundle().updates.grid)  # the grid is a power of two: exact
    assert moved <= bound**2


def test_a_unit_can_move_the_sum_by_almost_the_clipping_norm(
    sums: Callable[..., Any], told: Any
) -> None:
    [moved, *_], _ = sums([told(np.array([1e6, 0.0, 0.0]))])
    assert moved > 0.999999 * NORM / bundle().updates.grid


@pytest.mark.parametrize("told_to", FAILING.values(), ids=FAILING)
def test_a_unit_that_fails_contributes_exactly_zero_to_every_sum(
    sums: Callable[..., Any], told: Any, told_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    good = told(0.1, metrics={"loss": 1.0})
    bad = told(**told_to, metrics={"loss": 4.0})
    caplog.set_level(logging.WARNING, logger="flwr.fl_dp.client")
    assert sums([good, bad], weight_cap=20.0) == sums([good], weight_cap=20.0)
    assert "unit 1" in caplog.text


class Dropping(NumPyClient):
    """Moves along an axis of its own, up or down by coins of torch, NumPy and `random`."""

    def __init__(self, unit: int, *, fails: bool = False, seeds: bool = False) -> None:
        self.unit, self.fails, self.seeds = unit, fails, seeds

    def fit(self, parameters: Any, config: Any) -> Any:
        if self.fails:
            raise RuntimeError(SECRET)
        coins = (float(torch.rand(())) + np.random.rand() + random.random()) % 1.0
        if self.seeds:
            random.seed(0)
            np.random.seed(0)
            torch.manual_seed(0)
        update = np.zeros(3, np.float32)
        update[self.unit % 3] = NORM if coins < 0.5 else -NORM
        return [parameters[0] + update, *parameters[1:]], 1, {}


@pytest.mark.parametrize("seeds", [False, True])
def test_a_unit_that_fails_leaves_the_coins_of_all_others_alone(
    sums: Callable[..., Any], seeds: bool
) -> None:
    """Of 8 units the first fails before its coins, or seeds those of all behind it."""
    totals = []
    for fails in (False, True):
        fix_draws("units")  # seeds the process as an app does, and couples the secret coins
        first = Dropping(0, fails=fails, seeds=seeds)
        total, _ = sums([first, *(Dropping(unit) for unit in range(1, 8))])
        totals.append(total)
    moved = sum((a - b) ** 2 for a, b in zip(*totals, strict=True))
    assert 0 < moved <= int(NORM / bundle().updates.grid) ** 2


def test_what_a_unit_raises_is_nowhere_in_the_reply(node: Any, told: Any) -> None:
    reply = node(app_of([told(error=RuntimeError(SECRET))])).train(MODEL, instruction(units=(0,)))
    assert not reply.has_error()
    assert SECRET.encode() not in pickle.dumps(reply)


def test_a_client_that_can_not_be_made_contributes_zero(node: Any, read: Any, told: Any) -> None:
    def client_fn(context: Context, unit: int) -> Any:
        if unit == 0:
            raise RuntimeError(SECRET)
        return told(0.25)

    units = NodeUnits(client_fn=client_fn, count=lambda context, config: 2)
    app = numpy_client_app(lambda context: told(), units=units)
    arrays, _ = read(node(app).train(MODEL, instruction(units=(0, 1))))
    np.testing.assert_array_equal(arrays["w"], in_steps(0.25)[:3])


@pytest.mark.parametrize("units", [(0, 2), (0, -1), (0, 10**6)])
def test_a_unit_that_the_node_does_not_host_contributes_zero(
    sums: Callable[..., Any], told: Any, units: tuple[int, ...]
) -> None:
    clients = [told(0.1), told(0.2)]
    assert sums(clients, units=units) == sums(clients, units=(0,))


def test_units_beyond_the_promised_number_take_no_part(sums: Callable[..., Any], told: Any) -> None:
    clients = [told(0.1), told(0.2), told(0.3)]
    assert sums(clients, units=(0, 1, 2), max_units=2) == sums(clients, units=(0, 1))
    assert sums(clients, units=None, sampling_rate=1.0, max_units=2) == sums(clients, units=(0, 1))


# Units that are trained together.

WHOLE = {"update": 0.25}
TOGETHER = [
    {"update": 0.1, "num_examples": 7, "metrics": {"loss": 1.0}},
    {"update": 100.0, "num_examples": 30, "metrics": {"loss": 3.5}},
    {"update": np.array([0.0, -3.0, 1e-6]), "num_examples": 2},
    {"update": 0.0, "num_examples": 0},
    {"update": 1e30, "num_examples": 20, "metrics": {"loss": math.inf}},
]


def rows_of(told_to: list[Any], units: Any, model: Any) -> TrainedRows:
    """Return what a node that trains together makes of told clients: one matrix."""
    layout = VectorLayout.of(model)
    vectors = np.repeat(layout.flatten(model)[np.newaxis], len(units), axis=0).astype(np.float32)
    for row, unit in enumerate(units):
        vectors[row, :3] += np.float32(told_to[unit].get("update", 0.0))
    reports = [
        UnitReport(
            num_examples=told_to[unit].get("num_examples", 10),
            metrics=told_to[unit].get("metrics", {}),
        )
        for unit in units
    ]
    return TrainedRows(units=units, reports=reports, vectors=vectors)


def at_once(told_to: list[Any]) -> Callable[..., Any]:
    """Return a `train_many` that trains all units together."""
    return lambda context, units, model, config: [rows_of(told_to, units, model)]


@pytest.fixture
def both(node: Any, read: Any, told: Any) -> Callable[..., Any]:
    """Return a node's reply when units are trained by `train_many`, and when one by one."""

    def ask(told_to: Any, train_many: Any, *, client: Any = None, **fields: Any) -> tuple[Any, Any]:
        fields = {"units": tuple(range(len(told_to)))} | fields
        clients = [told(**kwargs) for kwargs in told_to]
        replies = []
        for many in (train_many, None):
            units = NodeUnits(
                client_fn=lambda context, unit: clients[unit],
                count=lambda context, config: len(clients),
                train_many=many,
            )
            app = numpy_client_app(lambda context: clients[0], units=units)
            arrays, metrics = read(node(app).train(MODEL, instruction(**fields), lr=0.1))
            flat = np.concatenate([values.reshape(-1) for values in arrays.values()])
            replies.append((flat, metrics))
        return replies, [client.calls for client in clients]

    return ask


def assert_same(replies: Any) -> None:
    (together, metrics), (alone, expected) = replies
    np.testing.assert_array_equal(together, alone)
    assert metrics.keys() == expected.keys()
    for name in metrics:
        np.testing.assert_array_equal(metrics[name], expected[name])


@pytest.mark.parametrize(
    ("norms", "cap", "utility"),
    [((NORM,), None, None), ((0.3, 0.2), 20.0, "loss"), ((NORM,), 20.0, "records")],
)
def test_units_trained_together_give_the_sums_of_units_trained_alone(
    both: Callable[..., Any], norms: tuple[Any, ...], cap: float | None, utility: str | None
) -> None:
    def train_many(context: Context, units: Any, model: Any, config: Any) -> Iterator[TrainedRows]:
        assert config["lr"] == 0.1
        yield rows_of(TOGETHER, units[:2], model)
        yield rows_of(TOGETHER, units[2:], model)

    replies, calls = both(
        TOGETHER, train_many, bundle=bundle(norms=norms), weight_cap=cap, utility=utility
    )
    assert_same(replies)
    assert replies[0][0].any()
    assert calls == [1] * len(TOGETHER)  # one by one alone


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize(
    ("norms", "cap", "utility"),
    [((NORM,), None, None), ((0.3, 0.2), 20.0, "loss"), ((NORM,), 20.0, "records")],
)
def test_rows_may_be_tensors_wherever_they_are_summed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    both: Callable[..., Any],
    norms: tuple[Any, ...],
    cap: float | None,
    utility: str | None,
    stays: bool,
) -> None:
    monkeypatch.setitem(MODEL, "b", MODEL["b"].astype(np.float32))  # float64 goes to the host
    monkeypatch.setattr(clipped_sum, "_stays_there", lambda rows: stays)
    told_to = [*TOGETHER, {"update": math.nan, "num_examples": 20, "metrics": {"loss": 1.0}}]

    def train_many(context: Context, units: Any, model: Any, config: Any) -> Iterator[TrainedRows]:
        for part in (units[:2], units[2:]):
            rows = rows_of(told_to, part, model)
            yield replace(rows, vectors=torch.from_numpy(rows.vectors))

    replies, calls = both(
        told_to, train_many, bundle=bundle(norms=norms), weight_cap=cap, utility=utility
    )
    assert_same(replies)
    assert replies[0][0].any()
    assert calls == [1] * len(told_to)  # one by one alone
    assert caplog.text.count("the update of unit 5 is not finite and contributes zero") == 2


def test_units_that_are_left_out_are_trained_one_by_one(both: Callable[..., Any]) -> None:
    def train_many(context: Context, units: Any, model: Any, config: Any) -> list[TrainedRows]:
        return [rows_of(TOGETHER, (3, 1), model)]

    replies, calls = both(TOGETHER, train_many, utility="loss")
    assert_same(replies)
    assert calls == [2, 1, 2, 1, 2]


def test_only_hosted_units_that_take_part_are_trained_together(both: Callable[..., Any]) -> None:
    asked = []

    def train_many(context: Context, units: Any, model: Any, config: Any) -> list[TrainedRows]:
        asked.append(units)
        return [rows_of(TOGETHER, units, model)]

    replies, _ = both(TOGETHER, train_many, units=(4, 9, 0, -1), utility="records")
    assert_same(replies)
    assert asked == [(4, 0)]


def yields(*parts: tuple[int, int] | BaseException) -> Callable[..., Any]:
    """Return a `train_many` that yields these parts of units, or raises them."""

    def train_many(context: Context, units: Any, model: Any, config: Any) -> Iterator[TrainedRows]:
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            yield part if isinstance(part, TrainedRows) else rows_of(TOGETHER, part, model)

    return train_many


def changed(**changes: Any) -> Callable[..., Any]:
    """Return a `train_many` whose rows are no rows."""

    def train_many(context: Context, units: Any, model: Any, config: Any) -> Iterator[TrainedRows]:
        rows = rows_of(TOGETHER, units, model)
        made = {name: change(getattr(rows, name)) for name, change in changes.items()}
        yield TrainedRows(**(vars(rows) | made))

    return train_many


BROKEN = {
    "raises": yields(RuntimeError(SECRET)),
    "raises after some": yields((0, 2), RuntimeError(SECRET)),
    "panics after some": yields((0, 2), Panic(SECRET)),
    "exits": yields(SystemExit(SECRET)),
    "is no function": 3,
    "returns nothing": lambda *_: None,
    "the same unit twice": yields((0, 0)),
    "a unit again": yields((0, 1), (1, 2)),
    "a unit that was not asked for": yields((0, 7)),
    "too wide": changed(vectors=lambda v: np.hstack([v, v])),
    "integers": changed(vectors=lambda v: np.zeros(v.shape, np.int64)),
    "a flat vector": changed(vectors=lambda v: v[:, 0]),
    "a list": changed(vectors=lambda v: [[SECRET]] * len(v)),
    "too few reports": changed(reports=lambda r: r[1:]),
    "too few rows": changed(vectors=lambda v: v[1:]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_when_training_together_fails_units_are_trained_one_by_one(
    both: Callable[..., Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    replies, _ = both(TOGETHER, BROKEN[kind], utility="records", weight_cap=20.0)
    assert_same(replies)
    assert "together failed" in caplog.text
    assert SECRET not in str(replies)


SPOILT = {name: told for name, told in FAILING.items() if "update" in told} | {
    "metrics that are none": {"update": 0.1, "metrics": 3}
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_unit_that_is_spoilt_contributes_zero_and_the_others_stay(
    both: Callable[..., Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    told_to = [*TOGETHER[:2], SPOILT[kind], *TOGETHER[2:]]

    caplog.set_level(logging.WARNING, logger="flwr.fl_dp.client")
    [(having, metrics), _], _ = both(told_to, at_once(told_to), weight_cap=20.0)
    assert "unit 2" in caplog.text
    [(without, expected), _], _ = both(
        told_to, at_once(told_to), weight_cap=20.0, units=(0, 1, 3, 4, 5)
    )
    np.testing.assert_array_equal(having, without)
    assert metrics == expected


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_row_moves_the_sum_by_more_than_the_clipping_norm(
    both: Callable[..., Any], kind: str
) -> None:
    told_to = [*TOGETHER, HOSTILE[kind]]

    sums = []
    for units in (tuple(range(6)), tuple(range(5))):
        [(total, _), _], _ = both(told_to, at_once(told_to), weight_cap=20.0, units=units)
        sums.append([int(step) for step in total])
    moved = sum((a - b) ** 2 for a, b in zip(*sums, strict=True))
    assert 0 < moved <= int(NORM / bundle().updates.grid) ** 2


def test_a_node_of_one_unit_trains_it_alone(both: Callable[..., Any]) -> None:
    replies, calls = both([WHOLE], yields(RuntimeError(SECRET)))
    assert_same(replies)
    assert calls == [2]


# Scalars and utilities.


def test_the_scalars_of_units_are_summed_in_grid_steps(sums: Callable[..., Any], told: Any) -> None:
    clients = [told(0.1, metrics={"loss": 4.0}), told(9.0, metrics={"loss": 1.0}), told(0.1)]
    _, metrics = sums(clients)
    scalar = bundle().scalar_mechanisms[-1]
    bit, loss = (
        sum(float(scalar.encode(value)) for value in values)
        for values in ((0.5, -0.5, 0.5), (0.5, -0.25, 0.0))
    )
    assert metrics == {"num-examples": 1, SCALARS_METRIC: [bit, loss]}


@pytest.mark.parametrize("loss", [1e30, -1e30, float("inf"), float("nan"), "high", None])
def test_no_metric_moves_its_sum_by_more_than_a_half(
    sums: Callable[..., Any], told: Any, loss: float | str | None
) -> None:
    _, metrics = sums([told(0.1, metrics={"loss": loss})])
    assert abs(int(metrics[SCALARS_METRIC][1])) <= int(0.5 / bundle().scalar_mechanisms[-1].grid)


def test_no_metric_of_a_unit_leaves_by_itself(sums: Callable[..., Any], told: Any) -> None:
    _, metrics = sums([told(0.1, metrics={"loss": 1.5, "age": 42.0}, num_examples=57)])
    assert set(metrics) == {"num-examples", SCALARS_METRIC}
    assert metrics["num-examples"] == 1


def test_utilities_stand_in_the_order_of_the_units_asked(
    sums: Callable[..., Any], told: Any
) -> None:
    clients = [
        told(0.1, metrics={"loss": 1.0}),
        told(error=RuntimeError(SECRET)),
        told(0.1),
        told(0.1, metrics={"loss": 3.0}),
    ]
    _, metrics = sums(clients, units=(3, 1, 2, 5, 0), utility="loss")
    expected = [3.0, math.nan, math.nan, math.nan, 1.0]
    np.testing.assert_array_equal(metrics[UTILITY_METRIC], expected)


# Instructions that contradict themselves.


@pytest.mark.parametrize(
    "fields",
    [
        {"bundle": None},
        {"units": (0, 0)},
        {"sampling_rate": 0.5},
        {"units": None, "sampling_rate": 0.5, "utility": "loss"},
        {"max_units": 10**9},
    ],
    ids=str,
)
def test_a_contradiction_is_an_error_before_any_training(
    node: Any, told: Any, fields: dict[str, Any]
) -> None:
    client = told(0.1)
    reply = node(app_of([client])).train(MODEL, instruction(**{"units": (0,)} | fields))
    assert reply.error.reason in ("ValueError", "OptionError")
    assert client.calls == 0


# The node's own coins.


def test_how_many_units_take_part_is_binomial(told: Any) -> None:
    # A right coin fails a test once in 1e6 runs; one that is 10 % off must fail.
    rounds, hosted = 1000, 20
    clients = [told() for _ in range(hosted)]
    units = NodeUnits(client_fn=lambda _, unit: clients[unit], count=lambda *_: hosted)
    model = ArrayRecord({"w": Array(np.zeros(1))})
    context = Context(1, 1, {}, RecordDict(), {})
    asked, before = instruction(units=None, sampling_rate=0.3, max_units=hosted), 0
    counts = np.zeros(hosted + 1, dtype=np.int64)
    for _ in range(rounds):
        sum_of_units(asked, model, {}, context, units)
        after = sum(client.calls for client in clients)
        counts[after - before] += 1
        before = after
    assert counts_p(counts, stats.binom(hosted, 0.3).pmf(np.arange(hosted + 1))) > ALARM
    for wrong in (0.27, 0.33):
        assert stats.binomtest(before, rounds * hosted, wrong).pvalue < ALARM
    for client in clients:
        assert stats.binomtest(client.calls, rounds, 0.3).pvalue > ALARM


def shape_of(reply: Any) -> tuple[Any, ...]:
    """Return all that a reply shows but its values."""
    arrays = {
        (key, name): (array.dtype, array.shape, len(array.data))
        for key, arrays in reply.content.array_records.items()
        for name, array in arrays.items()
    }
    metrics = {
        (key, name): (type(value), len(value) if isinstance(value, list) else value)
        for key, metrics in reply.content.metric_records.items()
        for name, value in metrics.items()
    }
    kinds = Counter(type(record) for record in reply.content.values())
    return list(reply.content), kinds, arrays, metrics, reply.has_error()


def test_a_reply_of_no_unit_looks_like_one_of_all(node: Any, told: Any) -> None:
    clients = [told(0.1, metrics={"loss": 1.0}) for _ in range(5)]
    clients[3] = told(error=RuntimeError(SECRET))
    none, everyone = (
        node(app_of(clients)).train(MODEL, instruction(units=None, sampling_rate=rate))
        for rate in (0.0, 1.0)
    )
    assert [client.calls for client in clients] == [1] * 5
    assert shape_of(none) == shape_of(everyone)


def test_the_log_does_not_tell_how_many_coins_came_up(
    node: Any, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clients = [told(0.1, metrics={"loss": 1.0}) for _ in range(5)]
    logs = []
    for rate in (0.0, 1.0):
        caplog.clear()
        node(app_of(clients)).train(MODEL, instruction(units=None, sampling_rate=rate))
        logs.append(caplog.messages)
    assert logs[0] == logs[1]


def test_a_mod_sees_the_sum_and_no_single_unit(node: Any, read: Any, told: Any) -> None:
    seen = []

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        seen.append(read(reply)[0]["w"])
        return reply

    app = app_of([told(0.1), told(0.2)], mods=[mod])
    arrays, _ = read(node(app).train(MODEL, instruction(units=(0, 1))))
    [got] = seen
    np.testing.assert_array_equal(got, arrays["w"])


def test_a_unit_that_leaves_more_than_the_cap_moves_the_next_one_in(
    sums: Callable[..., Any], told: Any
) -> None:
    """So add-or-remove-one is refused beside a cap, and for zero-out neighbours it is one norm."""
    up, down = told(100.0), told(-100.0)
    one_unit = float(np.linalg.norm(in_steps(100.0)))
    told_first = {"units": (0,), "max_units": 1}

    def apart(one: list[Any], other: list[Any]) -> float:
        totals = [np.array(sums(clients, **told_first)[0], dtype=float) for clients in (one, other)]
        return float(np.linalg.norm(totals[0] - totals[1])) / one_unit

    assert apart([up, down], [down]) == pytest.approx(2.0, rel=1e-3)  # removed
    assert apart([up, down], [told(0.0), down]) == pytest.approx(1.0, rel=1e-3)  # zeroed
