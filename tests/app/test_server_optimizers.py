"""Server optimizers as settings choose them, and rates that fall over the rounds."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from fl_dp.strategies.server_optimizer import ServerOptimizer
from flwr.app import Array, ArrayRecord, ConfigRecord
from local_grid import LocalGrid
from trainings import record

from fl_dp.app.settings import OPTIONS

FALLING = [
    name
    for name, of in OPTIONS["server_optimizer"].items()
    if "linear_decay" in {field.name for field in fields(of)}
]


@pytest.fixture(autouse=True)
def flower_knows_its_task() -> None:
    LocalGrid(lambda message, partition: None, 1)  # Flower makes no message without a run's id


_VALUES = {
    "learning_rate": 0.7,
    "linear_decay": True,
    "momentum": 0.6,
    "beta_1": 0.5,
    "beta_2": 0.4,
    "tau": 0.3,
}


@pytest.mark.parametrize("name", OPTIONS["server_optimizer"])
def test_each_server_optimizer_is_made_with_its_keys(name: str) -> None:
    default = OPTIONS["server_optimizer"][name]
    settings = replace(default, **{key: _VALUES[key] for key in asdict(default) if key != "name"})
    strategy = settings.make(rounds=1)
    assert type(strategy).__name__.lower() == name
    used = {
        "fedavg": {},
        "fedavgm": {"server_learning_rate": 0.7, "server_momentum": 0.6},
        "fedadam": {"eta": 0.7, "beta_1": 0.5, "beta_2": 0.4, "tau": 0.3},
        "fedyogi": {"eta": 0.7, "beta_1": 0.5, "beta_2": 0.4, "tau": 0.3},
        "fedadagrad": {"eta": 0.7, "tau": 0.3},
    }[name]
    plain = vars(type(strategy)())
    assert {k: v for k, v in vars(strategy).items() if k in used} == used
    unused = plain.keys() - used.keys() - {"server_opt"}
    assert all(vars(strategy)[key] == plain[key] for key in unused)


@pytest.mark.parametrize("name", FALLING)
def test_a_falling_rate_reaches_zero_after_the_last_round_and_survives_a_resume(name: str) -> None:
    settings = replace(OPTIONS["server_optimizer"][name], linear_decay=True, learning_rate=0.8)
    rate = "server_learning_rate" if name == "fedavgm" else "eta"
    optimizer = ServerOptimizer(settings.make(rounds=4))
    model, rates = ArrayRecord({"w": Array(np.zeros(2))}), []
    for number in range(1, 5):
        if number == 3:  # in another process
            optimizer, state = ServerOptimizer(settings.make(rounds=4)), optimizer.state()
            optimizer.restore(state)
        asked = optimizer.instruct(number, model, ConfigRecord(), [1])
        stepped, _ = optimizer.step(number, ArrayRecord({"w": Array(np.ones(2))}), asked)
        assert stepped is not None
        model = stepped
        rates.append(vars(optimizer.strategy)[rate])
    assert rates == pytest.approx([0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("name", FALLING)
def test_a_falling_rate_falls_in_a_trial_on_the_copy_alone(name: str) -> None:
    settings = replace(OPTIONS["server_optimizer"][name], linear_decay=True)
    inner = settings.make(rounds=2)
    before = {key: value for key, value in vars(inner).items() if key != "aggregate_train"}
    ServerOptimizer(inner).rehearse(2, record(w=np.zeros(3)), {}, [1], metrics=[], saved=False)
    assert {key: value for key, value in vars(inner).items() if key != "aggregate_train"} == before


@pytest.mark.parametrize(
    ("name", "key", "value", "instead"),
    [
        ("fedavgm", "learning_rate", 0.0, "positive and finite"),
        ("fedavgm", "momentum", 1.0, "for example 0.9"),
        ("fedadam", "beta_1", float("nan"), "for example 0.9"),
        ("fedyogi", "beta_2", -0.5, "for example 0.99"),
        ("fedadagrad", "tau", 0.0, "for example 0.001"),
    ],
)
def test_a_wrong_setting_says_what_to_write(
    name: str, key: str, value: float, instead: str
) -> None:
    with pytest.raises(ValueError) as refused:
        replace(OPTIONS["server_optimizer"][name], **{key: value})
    assert str(refused.value).startswith(f"server_optimizer.{key} must ")
    assert str(value) in str(refused.value)
    assert instead in str(refused.value)
