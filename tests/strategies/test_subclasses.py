"""Whatever a subclass of a private strategy overrides, it meets what was released and no more.

Every client moves the model by a thousand clipping norms along a coordinate of its own. A raw reply
is known by that length, and a released model by having none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from local_grid import FIRST_NODE, Answer, LocalGrid, answer_with_update, arrays_of, reply
from trainings import numbers, plan_of, record

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import ScalarMetric
from fl_dp.strategies import (
    BufferedSelection,
    DPFedAvg,
    DPFedBuff,
    UnprotectedFedAvg,
)

N, RAW, NOISE = 8, 1000.0, 1e-3
MODEL = record(w=np.zeros(N))
UPDATES = [{"w": RAW * np.eye(N)[node]} for node in range(N)]
BUFFER = BufferedSelection(BufferedSampling(cohort=N, participation_cap=2), concurrency=N)
PLANS: dict[type[DPFedAvg], Plan] = {
    DPFedAvg: plan_of(N, noise_multiplier=NOISE, rounds=2),
    DPFedBuff: plan_of(N, noise_multiplier=NOISE, rounds=2, sampling=BUFFER.sampling),
}
either = pytest.mark.parametrize("kind", PLANS)


def trained(
    folder: Path, kind: type[DPFedAvg], of: type[DPFedAvg], answer: Answer | None = None
) -> tuple[dict[str, Any], DPFedAvg, LocalGrid]:
    """Train a subclass by the plan of a class; return the last model, too."""
    plan = PLANS[of]
    grid = LocalGrid(answer or answer_with_update(UPDATES), N)
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = kind(plan=plan, ledger=ledger)
        result = strategy.start(grid, MODEL, num_rounds=plan.rounds)
        assert ledger.rounds_committed == plan.rounds
    return numbers(result.arrays), strategy, grid


def longest_in(thing: object) -> float:
    """Return the largest number in all arrays of messages and records inside a thing."""
    if isinstance(thing, Message):
        return longest_in(thing.content) if thing.has_content() else 0.0
    if isinstance(thing, ArrayRecord):
        return max((float(np.abs(each.numpy()).max()) for each in thing.values()), default=0.0)
    if isinstance(thing, RecordDict | dict):
        return max(map(longest_in, thing.values()), default=0.0)
    if isinstance(thing, list | tuple):
        return max(map(longest_in, thing), default=0.0)
    return 0.0


def overriding_all(kind: type, met: list[tuple[str, Any]]) -> type:
    """Return a subclass that notes what each method that it may override is given and returns."""

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, *given: Any, **named: Any) -> Any:
            given = tuple(_list_of(each) for each in given)
            returned = _list_of(method(self, *given, **named))
            met.append((name, [*given, *named.values(), returned]))
            return returned

        return noted

    methods = {
        name: noting(name, method)
        for name in dir(kind)
        if callable(method := getattr(kind, name))
        and not name.startswith("__")
        and not isinstance(method, type)
        and not getattr(method, "__self__", None)
        and not getattr(method, "__final__", False)
    }
    return type("Noting", (kind,), methods)


def _list_of(thing: Any) -> Any:
    once = isinstance(thing, Iterable) and hasattr(thing, "__next__")
    return list(thing) if once else thing


@either
def test_no_method_that_a_subclass_overrides_meets_a_raw_reply(
    kind: type[DPFedAvg], tmp_path: Path
) -> None:
    met: list[tuple[str, Any]] = []
    _, _, grid = trained(tmp_path, overriding_all(kind, met), kind)
    assert len(grid.sent) >= 2 * N
    assert {"configure_train", "aggregate_train"} <= {name for name, _ in met}
    for name, things in met:
        assert longest_in(things) < 2.0, name


@either
def test_the_length_of_a_raw_reply_would_be_seen(kind: type[DPFedAvg], tmp_path: Path) -> None:
    met: list[tuple[str, Any]] = []
    watching = type("Watching", (kind,), {"loop_class": overriding_all(kind.loop_class, met)})
    trained(tmp_path, watching, kind)
    assert {name for name, things in met if longest_in(things) >= RAW} == {"_replies", "release"}


class Averaging:
    """A moving average of the released models, as a Flower strategy writes it: without `super`."""

    average: Any = None
    replies: tuple[int, ...] = ()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        came = [arrays_of(each)["w"] for each in replies]
        self.replies = (*self.replies, len(came))
        mean = np.mean(came, axis=0)
        self.average = mean if self.average is None else 0.5 * self.average + 0.5 * mean
        return record(w=self.average), None


@either
def test_a_subclass_that_calls_no_super_averages_private_models(
    kind: type[DPFedAvg], tmp_path: Path
) -> None:
    model, strategy, _ = trained(tmp_path, type("Ema", (Averaging, kind), {}), kind)
    assert isinstance(strategy, Averaging)
    assert strategy.replies == (1, 1)
    # One norm of 1 by each of eight clients, in two rounds: 1/8, then half of 1/8 more.
    np.testing.assert_allclose(model["w"], 1.5 / N, atol=6 * NOISE)


def test_the_messages_that_a_subclass_sees_show_no_cohort(tmp_path: Path) -> None:
    seen: list[set[int]] = []

    class Curious(DPFedAvg):
        def configure_train(self, *given: Any) -> Any:
            messages = list(super().configure_train(*given))
            seen.append({each.metadata.dst_node_id for each in messages})
            return messages

    plan = plan_of(N, rounds=20, sampling_rate=0.5)
    grid = LocalGrid(answer_with_update([{}] * N), N)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        Curious(plan=plan, ledger=ledger).start(grid, MODEL, num_rounds=plan.rounds)
    everybody = set(range(FIRST_NODE, FIRST_NODE + N))
    assert all(shown == everybody for shown in seen)
    assert len(grid.sent) < 20 * N  # but for one in 2^160, somebody was left out


def test_what_a_subclass_writes_into_the_config_reaches_the_clients(tmp_path: Path) -> None:
    class WarmUp(DPFedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["learning-rate"] = 0.25 * server_round
            return super().configure_train(server_round, arrays, config, grid)

    _, _, grid = trained(tmp_path, WarmUp, DPFedAvg)
    told = [each.content["config"]["learning-rate"] for each in grid.sent]
    assert told == [0.25] * N + [0.5] * N


def test_a_subclass_gets_the_released_metrics_with_the_model(tmp_path: Path) -> None:
    plan = plan_of(N, metrics=(ScalarMetric(name="loss", low=0.0, high=4.0),), noise_multiplier=0.1)
    seen: list[Any] = []

    class Watching(DPFedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            [only] = replies
            seen.append(dict(only.content["metrics"]))
            return only.content["arrays"], MetricRecord({"rounds": server_round})

    def answer(message: Message, node: int) -> Message:
        return reply(message, arrays_of(message), loss=1.0)

    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = Watching(plan=plan, ledger=ledger)
        result = strategy.start(LocalGrid(answer, N), MODEL, num_rounds=1)
    released = strategy.released_metrics["loss"]
    assert released != 1.0  # it has noise in it
    assert seen == [{"loss": 0.0, "num-examples": 1}, {"loss": released, "num-examples": 1}]
    assert dict(result.train_metrics_clientapp[1]) == {"loss": released, "rounds": 1}


# --- What can't be written ------------------------------------------------------------------------


class OwnStart:
    def start(self, *given: Any, **named: Any) -> Any:
        raise AssertionError("not called")


@pytest.mark.parametrize("kind", [DPFedAvg, DPFedBuff, UnprotectedFedAvg])
@pytest.mark.parametrize(
    ("bases", "methods", "said"),
    [
        ((), {"start": OwnStart.start}, "Mine overrides start, which charges"),
        ((OwnStart,), {}, "Mine overrides start, which charges"),
        ((), {"make_mode": lambda *_: None}, r"Mine\.make_mode would not be called"),
    ],
)
def test_a_subclass_with_rounds_or_sums_of_its_own_is_refused_where_it_is_written(
    kind: type, bases: tuple[type, ...], methods: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        type("Mine", (*bases, kind), methods)


def test_flower_s_own_loop_sends_nothing(tmp_path: Path) -> None:
    """It would hand raw replies to the strategy, and charge nobody."""
    plan, grid = PLANS[DPFedAvg], LocalGrid(answer_with_update(UPDATES), N)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(FedAvg(), plan=plan, ledger=ledger)
        with pytest.raises(RuntimeError, match="not for a grid that sends"):
            Strategy.start(strategy, grid, MODEL, num_rounds=1)
        assert (ledger.rounds_spent, grid.sent) == (0, [])


def test_replies_that_no_round_released_are_refused(tmp_path: Path) -> None:
    plan, grid = PLANS[DPFedAvg], LocalGrid(answer_with_update(UPDATES), N)
    message = Message(RecordDict({"arrays": MODEL, "config": ConfigRecord()}), FIRST_NODE, "train")
    raw = list(grid.send_and_receive([message]))
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(FedAvg(), plan=plan, ledger=ledger)
        with pytest.raises(RuntimeError, match="takes the one reply that a round released"):
            strategy.aggregate_train(1, raw)
