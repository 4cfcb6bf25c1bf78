"""Flower's strategies as server optimizers: the same step, refusals, and going on after a stop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flwr.server.strategy as legacy
import flwr.serverapp.strategy as flower
import numpy as np
import pytest
from fl_dp.strategies.optimizer_state import NotPlain, pack_state, unpack_state
from fl_dp.strategies.server_optimizer import ServerOptimizer
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
    strategy_utils,
)
from local_grid import LocalGrid, answer_with_update
from safetensors.numpy import load_file, save_file
from trainings import numbers, plan_of, record

from fl_dp.strategies import DPFedAvg
from fl_dp.updates.arrays import ArrayForm, array_of

MAKE: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.3, server_momentum=0.9),
    "FedAdam": lambda: FedAdam(eta=0.03),
    "FedYogi": lambda: FedYogi(eta=0.03),
    "FedAdagrad": lambda: FedAdagrad(eta=0.03),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
}
ROSTER = range(1, 5)


@pytest.fixture(autouse=True)
def flower_knows_its_task() -> None:
    LocalGrid(lambda message, partition: None, 1)  # Flower makes no message without a run's id


def model_of(dtype: Any, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).standard_normal
    return {
        "w": np.asarray(draw((3, 2)), dtype),
        "scale": np.asarray(draw(), dtype),
        "none": np.zeros((0, 2), dtype),
    }


def step(
    optimizer: ServerOptimizer, number: int, model: dict[str, Any], private: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Do a round as DPFedAvg does: the next model has the dtypes of the last."""
    instruction = optimizer.instruct(number, record(**model), ConfigRecord(), ROSTER)
    stepped, _ = optimizer.step(number, record(**private), instruction)
    assert stepped is not None
    updated = numbers(stepped)
    return {name: updated[name].astype(model[name].dtype) for name in model}


def train(
    optimizer: ServerOptimizer, model: dict[str, np.ndarray], rounds: range
) -> dict[str, np.ndarray]:
    for number in rounds:
        change = model_of(np.float32, seed=100 + number)
        private = {k: (model[k] + 0.01 * change[k]).astype(model[k].dtype) for k in model}
        model = step(optimizer, number, model, private)
    return model


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], **tol: Any) -> None:
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert got[name].dtype == values.dtype
        if tol:
            np.testing.assert_allclose(got[name], values, **tol)
        else:
            np.testing.assert_array_equal(got[name], values)


# The step is Flower's.


def flower_s_own(
    strategy: Strategy, model: dict[str, Any], changes: list[list[dict[str, Any]]]
) -> list[dict[str, np.ndarray]]:
    """Run a strategy as Flower does, on clients of equal weight, and return each round's model."""
    models = []
    for number, updates in enumerate(changes, start=1):
        grid = LocalGrid(answer_with_update(updates), len(updates))
        messages = strategy.configure_train(number, record(**model), ConfigRecord(), grid)
        # In the order of the clients: the last bit of a sum depends on it.
        messages = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        updated, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert updated is not None
        model = {k: v.astype(model[k].dtype) for k, v in numbers(updated).items()}
        models.append(model)
    return models


CHANGES = [
    [
        {k: 0.1 * v for k, v in model_of(np.float64, seed=10 * number + client).items()}
        for client in range(3)
    ]
    for number in range(4)
]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, {"rtol": 0, "atol": 1e-6}), (np.float64, {})]
)
def test_a_step_with_the_mean_is_flower_s_step_with_the_clients(
    name: str, dtype: Any, tolerance: dict[str, float]
) -> None:
    model = model_of(dtype)
    expected = flower_s_own(MAKE[name](), model, CHANGES)
    optimizer = ServerOptimizer(MAKE[name]())
    for number, updates in enumerate(CHANGES, start=1):
        private = {}
        for key, values in model.items():
            if tolerance:
                mean = sum(update[key] for update in updates) / len(updates)
                private[key] = (values + mean).astype(dtype)
            else:  # rounded at each addition as Flower does
                private[key] = np.asarray(
                    sum((values + update[key]) * (1 / len(updates)) for update in updates)
                )
        model = step(optimizer, number, model, private)
        assert_same(model, expected[number - 1], **tolerance)


@pytest.mark.parametrize("name", MAKE)
def test_half_precision_is_computed_with_as_float32(name: str) -> None:
    half, single = (
        model_of(np.float16),
        {k: v.astype(np.float32) for k, v in model_of(np.float16).items()},
    )
    # So small that its square is zero in float16, while FedAdam divides by its root.
    private = {k: v + np.float32(1e-4) for k, v in single.items()}
    results = []
    for model in (half, single):
        optimizer = ServerOptimizer(MAKE[name]())
        instruction = optimizer.instruct(1, record(**model), ConfigRecord(), ROSTER)
        stepped, _ = optimizer.step(1, record(**private), instruction)
        assert stepped is not None
        results.append(numbers(stepped))
    assert_same(*results)
    rounded = {k: v.astype(np.float16) for k, v in private.items()}
    updated = step(ServerOptimizer(MAKE[name]()), 1, half, rounded)
    assert {v.dtype for v in updated.values()} == {np.dtype(np.float16)}


@pytest.mark.parametrize("stored", [np.uint16, "V2"])
@pytest.mark.parametrize("name", MAKE)
def test_bfloat16_which_numpy_does_not_know_is_computed_with_as_float32(
    name: str, stored: Any
) -> None:
    model = np.array([1.0, -2.5], np.float32)
    change = np.array([0.125, 0.5], np.float32)
    form = ArrayForm(shape=(2,), declared="bfloat16", stored=np.dtype(stored), bfloat16=True)
    results = []
    for arrays in (ArrayRecord({"w": array_of(model, form)}), record(w=model)):
        optimizer = ServerOptimizer(MAKE[name]())
        instruction = optimizer.instruct(1, arrays, ConfigRecord(), ROSTER)
        stepped, _ = optimizer.step(1, record(w=model + change), instruction)
        assert stepped is not None
        results.append(numbers(stepped))
        optimizer.state()
    assert_same(*results)


def test_fedavgm_steps_from_the_model_that_the_clients_got() -> None:
    optimizer = ServerOptimizer(FedAvgM(server_learning_rate=0.5))
    first = {"w": np.zeros(2, np.float32)}
    train_once = {"w": np.ones(2, np.float32)}
    assert step(optimizer, 1, first, train_once)["w"].tolist() == [0.5, 0.5]
    # A second training, from another model: Flower's own would go on from 0.5.
    other = {"w": np.full(2, 10, np.float32)}
    assert step(optimizer, 1, other, {"w": np.full(2, 11, np.float32)})["w"].tolist() == [10.5] * 2


@pytest.mark.parametrize("least", ["min_train_nodes", "min_available_nodes"])
def test_the_inner_strategy_does_not_wait_for_nodes_that_a_small_roster_lacks(
    least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(seconds: float) -> None:
        raise AssertionError("it asks again for nodes that are not there")

    monkeypatch.setattr(strategy_utils, "sleep", waits)
    seven: dict[str, Any] = {least: 7}
    optimizer = ServerOptimizer(FedAvg(**seven))
    optimizer.instruct(1, record(w=np.zeros(2)), ConfigRecord(), [5])


class Personal(FedAvg):
    def configure_train(self, *args: Any) -> Any:
        messages = list(super().configure_train(*args))
        for place, message in enumerate(messages):
            message.content = message.content.copy()
            message.content["config"] = ConfigRecord({"place": place})
        return messages


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (FedAvg(fraction_train=0.0), r"fraction_train=1\.0"),
        (Personal(), "Personal sends different things"),
    ],
)
def test_a_strategy_without_one_message_for_all_is_an_error(inner: Strategy, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServerOptimizer(inner).instruct(1, record(w=np.zeros(2)), ConfigRecord(), ROSTER)


@pytest.mark.parametrize("wrong", [{"v": np.zeros(2)}, {"w": np.zeros((2, 1))}])
def test_a_strategy_that_returns_another_model_is_an_error(wrong: dict[str, Any]) -> None:
    class Renaming(FedAvg):
        def aggregate_train(self, *args: Any) -> Any:
            return record(**wrong), None

    with pytest.raises(ValueError, match="Renaming returned arrays of other names or shapes"):
        step(ServerOptimizer(Renaming()), 1, {"w": np.zeros(2)}, {"w": np.ones(2)})


def test_a_function_that_averages_metrics_is_not_called() -> None:
    def average_loss(contents: Any, weight: str) -> MetricRecord:
        return MetricRecord({"loss": contents[0]["metrics"]["loss"]})

    inner = FedAvg(train_metrics_aggr_fn=average_loss)
    optimizer = ServerOptimizer(inner)
    assert step(optimizer, 1, {"w": np.zeros(1)}, {"w": np.ones(1)})["w"] == 1
    assert inner.train_metrics_aggr_fn is average_loss


# What can't be a server optimizer.

REFUSED = {
    **dict.fromkeys(("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"), "robustness"),
    **dict.fromkeys(
        (name for name in flower.__all__ if name.startswith("DifferentialPrivacy")), "noise.*twice"
    ),
    **dict.fromkeys(("FedXgbBagging", "FedXgbCyclic"), "trees"),
    "QFedAvg": "training loss",
}
DP_ARGUMENTS: dict[str, dict[str, Any]] = {
    "DifferentialPrivacyServerSideFixedClipping": {"clipping_norm": 1.0},
    "DifferentialPrivacyClientSideFixedClipping": {"clipping_norm": 1.0},
    "DifferentialPrivacyServerSideAdaptiveClipping": {},
    "DifferentialPrivacyClientSideAdaptiveClipping": {},
}


def build(name: str) -> Any:
    arguments: dict[str, Any] = {}
    if name in DP_ARGUMENTS:
        arguments = {"strategy": FedAvg(), "noise_multiplier": 0.1, "num_sampled_clients": 5}
    elif name == "QFedAvg":
        arguments = {"client_learning_rate": 0.1}
    return getattr(flower, name)(**arguments, **DP_ARGUMENTS.get(name, {}))


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_needs_the_clients_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} can't be .*{REFUSED[name]}"):
        ServerOptimizer(build(name))


def test_every_strategy_of_flower_is_either_refused_or_tested() -> None:
    assert set(flower.__all__) == REFUSED.keys() | MAKE.keys() | {"Strategy", "Result"}


def test_a_private_strategy_inside_a_private_strategy_is_refused(open_ledger: Any) -> None:
    ledger = open_ledger(plan := plan_of(4))
    with pytest.raises(TypeError, match=r"^DPFedAvg can't be .* private path"):
        DPFedAvg(strategy=DPFedAvg(plan=plan, ledger=ledger), plan=plan, ledger=ledger)


@pytest.mark.parametrize("given", [FedAvg, object(), None, "fedavg"])
def test_what_is_no_strategy_object_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"pass an object of a strategy .* for example FedAvg\(\)"):
        ServerOptimizer(given)


def test_a_strategy_of_the_legacy_api_is_one_error_that_names_its_page() -> None:
    class Mine(legacy.FedProx):
        pass

    for given, successor in (
        (legacy.FedAdam, "FedAdam"),
        (legacy.FedAvg(), "FedAvg"),
        (Mine(proximal_mu=0.1), "FedProx"),
    ):
        with pytest.raises(TypeError, match=rf"legacy API: import {successor} from") as refused:
            ServerOptimizer(given)
        assert "docs/migration.md" in str(refused.value)
        assert "\n" not in str(refused.value)


# Going on in another process.


def through_a_file(state: dict[str, Any], folder: Path, kind: str) -> dict[str, Any]:
    if kind == "safetensors":
        save_file(state, folder / "state")
        return load_file(folder / "state")
    np.savez(folder / "state.npz", **state)
    with np.load(folder / "state.npz", allow_pickle=False) as loaded:
        return dict(loaded)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", MAKE)
def test_three_rounds_and_three_after_a_stop_are_six_rounds(
    name: str, dtype: Any, tmp_path: Path
) -> None:
    straight = train(ServerOptimizer(MAKE[name]()), model_of(dtype), range(1, 7))
    stopped = ServerOptimizer(MAKE[name]())
    model = train(stopped, model_of(dtype), range(1, 4))
    state = through_a_file(stopped.state(), tmp_path, "safetensors")
    resumed = ServerOptimizer(MAKE[name]())
    resumed.restore(state)
    assert resumed.last_round == 3
    assert_same(train(resumed, model, range(4, 7)), straight)


def test_a_state_is_a_copy_and_restoring_takes_copies() -> None:
    optimizer = ServerOptimizer(FedAdam())
    model = train(optimizer, model_of(np.float32), range(1, 3))
    state = optimizer.state()
    kept = {key: values.copy() for key, values in state.items()}
    other = ServerOptimizer(FedAdam())
    other.restore(state)
    train(other, model, range(3, 5))
    train(optimizer, model, range(3, 5))
    assert all(values.flags.c_contiguous for values in state.values())
    assert_same(state, kept)


def test_settings_come_from_the_new_strategy() -> None:
    optimizer = ServerOptimizer(FedAdam(eta=0.1))
    train(optimizer, model_of(np.float32), range(1, 3))
    inner = FedAdam(eta=0.01)
    ServerOptimizer(inner).restore(optimizer.state())
    assert inner.eta == 0.01
    assert inner.m_t


def test_a_setting_that_training_changed_is_saved() -> None:
    class Decaying(FedAvgM):
        def aggregate_train(self, *args: Any) -> Any:
            self.server_learning_rate *= 0.5
            return super().aggregate_train(*args)

    optimizer = ServerOptimizer(Decaying(server_learning_rate=1.0))
    train(optimizer, model_of(np.float32), range(1, 3))
    inner = Decaying(server_learning_rate=1.0)
    ServerOptimizer(inner).restore(optimizer.state())
    assert inner.server_learning_rate == 0.25


@pytest.mark.parametrize("fresh", [False, True])
def test_what_the_strategy_writes_into_the_config_lasts_over_rounds_and_a_stop(
    fresh: bool,
) -> None:
    class DecayingAtClients(FedAvg):
        def configure_train(self, number: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["lr"] *= 0.5
            return super().configure_train(number, arrays, config, grid)

    def sent(optimizer: ServerOptimizer, number: int, config: ConfigRecord) -> Any:
        config = ConfigRecord({"lr": 1.0}) if fresh else config
        instruction = optimizer.instruct(number, record(w=np.zeros(1)), config, ROSTER)
        optimizer.step(number, record(w=np.zeros(1)), instruction)
        return instruction["config"]["lr"]

    first, config = ServerOptimizer(DecayingAtClients()), ConfigRecord({"lr": 1.0})
    assert [sent(first, number, config) for number in (1, 2)] == [0.5, 0.25]
    resumed, config = ServerOptimizer(DecayingAtClients()), ConfigRecord({"lr": 1.0})
    resumed.restore(first.state())
    assert [sent(resumed, number, config) for number in (3, 4)] == [0.125, 0.0625]


class Holder(FedAvg):
    """A strategy that changes `kept` in each round as it is told."""

    def __init__(self, kept: Any, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.kept = kept
        self.change = change

    def aggregate_train(self, *args: Any) -> Any:
        self.kept = self.change(self.kept)
        return super().aggregate_train(*args)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def up(self) -> Counter:
        self.count += 1
        return self


@pytest.mark.parametrize(
    ("change", "kind"),
    [(Counter.up, "Counter"), (lambda _: {1}, "set"), (lambda _: FedAvg(), "FedAvg")],
)
def test_what_can_t_be_saved_is_an_error_if_it_changed(change: Any, kind: str) -> None:
    optimizer = ServerOptimizer(Holder(Counter(), change))
    train(optimizer, model_of(np.float32), range(1, 2))
    expected = rf"Holder\.kept changed .*'kept' is a .*{kind}\. .* state_dict\(\)"
    with pytest.raises(TypeError, match=expected):
        optimizer.state()


@pytest.mark.parametrize("kept", [Counter(), threading.Lock(), lambda: 1, {"f": print}, FedAvg()])
def test_what_can_t_be_saved_is_left_alone_if_it_did_not_change(kept: Any) -> None:
    optimizer = ServerOptimizer(Holder(kept, lambda kept: kept))
    train(optimizer, model_of(np.float32), range(1, 2))
    assert not [key for key in optimizer.state() if "kept" in key]


def test_a_strategy_may_save_itself() -> None:
    class Own(Holder):
        def state_dict(self) -> dict[str, Any]:
            return {"count": self.kept.count, "history": np.arange(self.kept.count)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.kept.count = state["count"]
            assert state["history"].tolist() == [0, 1]

    optimizer = ServerOptimizer(Own(Counter(), Counter.up))
    train(optimizer, model_of(np.float32), range(1, 3))
    inner = Own(Counter(), Counter.up)
    ServerOptimizer(inner).restore(optimizer.state())
    assert inner.kept.count == 2


def test_a_state_goes_into_the_same_kind_of_strategy_once() -> None:
    optimizer = ServerOptimizer(FedAdam())
    model = train(optimizer, model_of(np.float32), range(1, 3))
    state = optimizer.state()
    with pytest.raises(ValueError, match="that of FedAdam, the server optimizer is FedYogi"):
        ServerOptimizer(FedYogi()).restore(state)
    with pytest.raises(ValueError, match="used already: restore into a new one"):
        optimizer.restore(state)
    resumed = ServerOptimizer(FedAdam())
    resumed.restore(state)
    # FedAdam's bias correction counts rounds: beginning again at 1 would be another optimizer.
    with pytest.raises(ValueError, match=r"round 1 was done before .* continue with round 3"):
        train(resumed, model, range(1, 2))


def test_a_state_with_a_part_missing_changes_nothing() -> None:
    damage = "attributes/m_t/w"
    optimizer = ServerOptimizer(FedAdam())
    train(optimizer, model_of(np.float32), range(1, 3))
    state = optimizer.state()
    del state[damage]
    fresh = FedAdam()
    with pytest.raises(ValueError, match=f"a part of it is missing: '{damage}'"):
        ServerOptimizer(fresh).restore(state)
    assert fresh.m_t is None


# The format.

PLAIN: list[Any] = [
    None,
    -(2**80),
    float("inf"),
    "größe",
    b"\x00\xff",
    np.float32(1 / 3),
    np.asarray(2.5, np.float16),
    np.zeros((0, 4), np.int8),
    np.arange(12).reshape(3, 4).T,
    (1, [2, (3,)], {}),
    {"a/b": np.ones(1), "a": {"b": np.zeros(2)}, "structure": np.ones(3), 4: None, None: 5},
    OrderedDict(z=1, a=np.bool_(True)),
    ConfigRecord({"lr": 0.1, "names": ["a", "b"], "raw": b"x"}),
    MetricRecord({"loss": 0.5, "many": [1, 2]}),
]


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_equal(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_equal(ours, theirs)
    else:
        assert got == expected


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_survive_a_file(value: Any, kind: str, tmp_path: Path) -> None:
    assert_equal(
        unpack_state(through_a_file(pack_state({"v": value}), tmp_path, kind)), {"v": value}
    )


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        np.array([None]),
        np.ones(1, np.complex128),
        np.ma.masked_array([1.0], [True]),
        {(1, 2): 3},
        Array(dtype="bfloat16", shape=(1,), stype="torch", data=b"xx"),
    ],
    ids=repr,
)
def test_what_is_not_plain_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(NotPlain, match="'here"):
        pack_state({"here": value})


def test_the_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not the state of a server optimizer"):
        ServerOptimizer(FedAvg()).restore(
            pack_state({"strategy": "FedAvg", "round": 1, "config": {}})
        )


def test_what_pack_did_not_make_is_refused() -> None:
    with pytest.raises(ValueError, match="not a saved state"):
        unpack_state({"structure": np.arange(3, dtype=np.uint8)})
