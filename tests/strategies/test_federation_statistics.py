"""One question to a whole federation: charged before it is asked, bounded whatever comes back."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainings
from flat_plans import calibrated_plan
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from local_grid import FIRST_NODE, LocalGrid, answer_with_app
from trainings import able

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PrivacyBudgetExhausted, freeze
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.mechanisms import GaussianMechanism
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import CONTRIBUTION_METRIC
from fl_dp.statistics import (
    Count,
    Frequencies,
    Mean,
    NoiseChoice,
    Quantiles,
    Query,
    ScoreHistograms,
    Sum,
    choose_noise,
)
from fl_dp.strategies import AskOptions, RosterIncomplete, ask_federation, evaluate_federation

N = 40
SURE = 200.0  # an epsilon whose noise is far below every tolerance here


def sure(query: Query) -> NoiseChoice:
    return choose_noise(query, epsilon=SURE, delta=1e-6)


def plan_of(*choices: NoiseChoice, units: int = 1) -> Plan:
    releases = freeze([(event, 1) for choice in choices for event in choice.events])
    return trainings.plan_of(N, noise_multiplier=1.0, other_releases=releases, units_per_node=units)


@pytest.fixture
def open_ledger(open_ledger: Callable[[Plan], PrivacyLedger]) -> Any:
    """Open a ledger that has put aside what these choices cost."""
    return lambda *choices, **options: open_ledger(plan_of(*choices, **options))


def ages(context: Any, unit: int, config: dict[str, Any], name: str) -> list[float]:
    """Node 0 is 20 years old, node 1 is 21, and so on; on a node of several, 40 apart."""
    assert name == "age"
    return [20.0 + float(context.node_config["partition-id"]) + 40.0 * unit]


def answering(
    statistics_fn: Any = ages, *, num_nodes: int = N, units: int | None = None
) -> LocalGrid:
    hosted = None
    if units is not None:
        hosted = NodeUnits(client_fn=lambda *_: NumPyClient(), count=lambda *_: units)
    app = numpy_client_app(lambda _: NumPyClient(), units=hosted, statistics_fn=statistics_fn)
    return LocalGrid(answer_with_app(app, num_nodes), num_nodes)


def saying(vector: Callable[[int], Any], num_nodes: int = N) -> LocalGrid:
    """Nodes that send these numbers, whatever was asked; None never answers."""

    @able(Ability.STATISTICS)
    def answer(message: Message, partition: int) -> Message | None:
        numbers = vector(partition)
        if numbers is None or isinstance(numbers, Message):
            return numbers
        metrics = MetricRecord({CONTRIBUTION_METRIC: numbers})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return LocalGrid(answer, num_nodes)


SUM = sure(Sum(lows=(0.0,), highs=(1.0,)))
TWO = sure(Sum(lows=(0.0, 0.0), highs=(1.0, 1.0)))


def total_of(grid: LocalGrid, ledger: PrivacyLedger, choice: NoiseChoice, **more: Any) -> Any:
    options = AskOptions(**{"timeout": 60.0} | more)
    return ask_federation(grid, ledger, "sum", choice, options, values="age")


# --- What it answers ------------------------------------------------------------------------------


def test_a_mean_of_all_nodes_comes_with_its_error(open_ledger: Any) -> None:
    choice = sure(Mean(lows=(0.0,), highs=(100.0,)))
    answer = ask_federation(answering(), open_ledger(choice), "ages", choice, values="age")
    assert answer["mean"].value[0] == pytest.approx(39.5, abs=1.0)
    assert 0.0 < answer["mean"].error[0] < 1.0
    assert answer.events == choice.events


@pytest.mark.parametrize(
    ("query", "values", "expected"),
    [
        (Count(), lambda partition: [1.0] * (partition % 2), N / 2),
        (Frequencies(categories=("a", "b")), lambda p: "ab"[p % 4 == 0], [30, 10]),
        (Quantiles(probabilities=(0.5,), grid=(0.0, 10.0, 20.0, 30.0)), float, [20.0]),
    ],
)
def test_every_kind_of_query_is_carried(
    open_ledger: Any, query: Query, values: Any, expected: Any
) -> None:
    choice = sure(query)
    grid = answering(lambda context, *_: values(int(context.node_config["partition-id"])))
    answer = ask_federation(grid, open_ledger(choice), "it", choice, values="any")
    np.testing.assert_allclose(answer.value, expected, atol=1.0)


class Scorer(NumPyClient):
    """Has one record of each class; the sent model is what it adds to the score of the second."""

    def scores(self, parameters: Any, config: dict[str, Any]) -> Any:
        return np.array([[0, 0.3], [1, 0.3 + float(parameters[0][0])]])


@pytest.mark.parametrize(("better", "auc"), [(0.4, 1.0), (0.0, 0.5), (-0.2, 0.0)])
def test_an_auc_of_the_clients_records_is_charged_and_comes_with_its_error(
    open_ledger: Any, better: float, auc: float
) -> None:
    choice = choose_noise(
        ScoreHistograms(bins=10, max_records=2), epsilon=SURE, delta=1e-6, law="gaussian"
    )
    app = numpy_client_app(lambda _: Scorer())
    ledger = open_ledger(choice)
    answer = evaluate_federation(
        LocalGrid(answer_with_app(app, N), N),
        ledger,
        "last model",
        choice,
        AskOptions(timeout=60.0),
        arrays=ArrayRecord({"w": Array(np.array([better]))}),
    )
    assert answer["auc"].value == pytest.approx(auc, abs=0.1)
    assert 0.0 <= answer["auc"].error < 0.1
    assert ledger.other_releases_spent == 1


def test_the_noise_is_that_of_the_choice(open_ledger: Any) -> None:
    """40 answers of 100 sums each: 4,000 draws, so that 20 % more or less is 12 deviations off."""
    mechanism = GaussianMechanism(noise_multiplier=50.0, clipping_norm=10.0)
    query = Sum(lows=(0.0,) * 100, highs=(1.0,) * 100)
    choice = NoiseChoice(query=query, mechanisms=(mechanism,))
    ledger = open_ledger(*[choice] * 40)
    grid = saying(lambda _: [0.0] * 100)
    noise = np.array([total_of(grid, ledger, choice).value for _ in range(40)])
    half = noise.std() / mechanism.noise_std
    assert half == pytest.approx(1.0, abs=6 / math.sqrt(2 * noise.size))


def test_the_query_its_values_and_the_config_travel(open_ledger: Any) -> None:
    asked: list[tuple[str, Any]] = []

    def statistics_fn(context: Any, unit: int, config: dict[str, Any], name: str) -> list[float]:
        asked.append((name, config["season"]))
        return [0.5]

    grid = answering(statistics_fn)
    ask_federation(
        grid,
        open_ledger(SUM),
        "sum",
        SUM,
        AskOptions(config=ConfigRecord({"season": "winter"}), timeout=7.0),
        values="height",
    )
    assert asked == [("height", "winter")] * N
    assert {message.metadata.message_type for message in grid.sent} == {"query.fl_dp_statistic"}
    assert {message.metadata.ttl for message in grid.sent} == {7.0}


def test_several_units_a_node_answer_one_by_one(open_ledger: Any) -> None:
    choice = sure(Mean(lows=(0.0,), highs=(100.0,)))
    grid = answering(num_nodes=N // 2, units=2)
    answer = ask_federation(grid, open_ledger(choice, units=2), "ages", choice, values="age")
    assert answer["mean"].value[0] == pytest.approx(49.5, abs=1.0)


# --- What it charges ------------------------------------------------------------------------------


def test_the_charge_is_on_disk_before_any_message_leaves(open_ledger: Any) -> None:
    query = Quantiles(probabilities=(0.25, 0.75), grid=(0.0, 50.0, 100.0))
    choice = choose_noise(query, epsilon=1.0, delta=0.0)
    ledger = open_ledger(choice)
    on_disk: list[int] = []
    inner = answering()

    @able(Ability.STATISTICS)
    def answer(message: Message, partition: int) -> Message | None:
        with PrivacyLedger.read(ledger.location) as there:
            on_disk.append(there.other_releases_spent)
            assert there.entries[-1].kind == "reserve"
        return inner.answer(message, partition)

    ask_federation(LocalGrid(answer, N), ledger, "quartiles", choice, values="age")
    assert on_disk == [2] * N
    assert [entry.kind for entry in ledger.entries[-2:]] == ["commit", "commit"]


def test_what_does_not_fit_asks_nobody(tmp_path: Path) -> None:
    choice = choose_noise(SUM.query, epsilon=1.0, delta=1e-6)
    plan = calibrated_plan(
        PrivacyBudget(epsilon=4.0, delta=1e-4),
        rounds=1,
        sampling_rate=1.0,
        clipping_norm=1.0,
        num_clients=N,
        other_releases=[(event, 1) for event in choice.events],
    )
    grid = saying(lambda _: [1.0])
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        total_of(grid, ledger, choice)
        ledger.reserve(round=1)
        with pytest.raises(PrivacyBudgetExhausted):
            total_of(grid, ledger, choice)
    assert len(grid.sent) == N


def test_what_nobody_declared_asks_nobody(open_ledger: Any) -> None:
    grid = saying(lambda _: [1.0])
    with pytest.raises(ValueError, match="not among the plan's other_releases"):
        total_of(grid, open_ledger(), SUM)
    assert not grid.sent


def test_before_all_clients_are_connected_nothing_is_charged(open_ledger: Any) -> None:
    ledger = open_ledger(SUM)
    grid = saying(lambda _: [1.0], num_nodes=N - 1)
    with pytest.raises(RosterIncomplete, match="40 clients, but 39 nodes"):
        total_of(grid, ledger, SUM, roster_timeout=0.1)
    assert ledger.other_releases_spent == 0
    assert not grid.sent


def test_more_units_than_can_be_summed_exactly_are_refused_before_the_charge(
    open_ledger: Any,
) -> None:
    exact = GaussianMechanism(noise_multiplier=1e-6, clipping_norm=1.0)
    choice = NoiseChoice(query=SUM.query, mechanisms=(exact,))
    ledger = open_ledger(choice)
    grid = saying(lambda _: [1.0])
    with pytest.raises(ValueError, match="units can be summed exactly"):
        total_of(grid, ledger, choice)
    assert ledger.other_releases_spent == 0
    assert not grid.sent


def test_a_grid_that_fails_leaves_the_charge_spent(open_ledger: Any) -> None:
    class Broken(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            if len(self.introductions) == N:
                raise ConnectionError("the line is dead")
            return super().push_messages(messages)

    ledger = open_ledger(SUM)
    with pytest.raises(ConnectionError):
        total_of(Broken(saying(lambda _: [0.5]).answer, N), ledger, SUM)
    assert ledger.other_releases_spent == 1
    assert ledger.entries[-1].kind == "reserve"


# --- What comes back ------------------------------------------------------------------------------

HOSTILE: dict[str, Any] = {
    "silent": None,
    "empty": [],
    "too long for one unit": [1.0, 1.0],
    "nan": [math.nan],
    "infinite": [math.inf],
    "minus infinite": [-math.inf],
    "huge": [1e308],
    "negative and huge": [-1e308],
    "a number": 1.0,
    "an integer": [7],
    "a large integer": [2**62],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_hostile_node_moves_the_sum_by_at_most_one_unit_s_bound(
    open_ledger: Any, name: str
) -> None:
    grid = saying(lambda partition: HOSTILE[name] if partition == 3 else [1.0])
    # Whoever is silent is waited for; on a busy machine the others may take their time.
    answer = total_of(grid, open_ledger(SUM), SUM, timeout=3.0 if name == "silent" else 60.0)
    # An honest node adds one; this one adds between minus one and one.
    assert N - 2 - 0.1 <= answer.value[0] <= N + 0.1
    if name in ("silent", "empty", "nan", "infinite", "minus infinite"):
        assert answer.value[0] == pytest.approx(N - 1, abs=0.1)


@pytest.mark.parametrize("numbers", [[1.0], [1.0] * 3, [1.0] * 5, [1.0, math.nan], []])
def test_vectors_of_another_length_count_as_zero(
    open_ledger: Any, numbers: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    grid = saying(lambda partition: numbers if partition < 10 else [0.5, 0.25])
    answer = total_of(grid, open_ledger(TWO), TWO)
    np.testing.assert_allclose(answer.value, [15.0, 7.5], atol=0.5)


@pytest.mark.parametrize("units", [1, 2])
def test_a_node_that_claims_more_units_than_the_plan_says_is_cut(
    open_ledger: Any, units: int
) -> None:
    grid = saying(lambda node: [1.0] * (10_000 if node == 0 else units), num_nodes=N // units)
    answer = total_of(grid, open_ledger(SUM, units=units), SUM)
    assert answer.value[0] == pytest.approx(N, abs=0.1)


def test_units_are_bounded_one_by_one_on_a_node(open_ledger: Any) -> None:
    node = [1e9, 0.0, 0.5, -1e9]
    grid = saying(lambda partition: node if partition == 0 else [0.0] * 4, num_nodes=N // 4)
    answer = total_of(grid, open_ledger(SUM, units=4), SUM)
    assert answer.value[0] == pytest.approx(0.5, abs=0.1)


class Repeating(LocalGrid):
    """Answers each message three times, the last time in the name of another node."""

    def replies_to(self, message_ids: Any) -> Any:
        replies = list(super().replies_to(message_ids))
        again = [reply for reply in replies for _ in range(2)]
        strangers = []
        for reply in replies:
            made = Message(
                RecordDict({"metrics": MetricRecord({CONTRIBUTION_METRIC: [1.0]})}), reply_to=reply
            )
            made.metadata.__dict__["_src_node_id"] = 7
            made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            strangers.append(made)
        return again + strangers


def test_a_second_reply_does_not_count(open_ledger: Any) -> None:
    inner = saying(lambda _: [0.5])
    answer = total_of(Repeating(inner.answer, N), open_ledger(SUM), SUM)
    assert answer.value[0] == pytest.approx(N / 2, abs=0.1)


def test_a_reply_in_the_name_of_another_node_does_not_count_twice(
    open_ledger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inner = saying(lambda _: [0.5])

    @able(Ability.STATISTICS)
    def answer(message: Message, partition: int) -> Message | None:
        made = inner.answer(message, partition)
        assert made is not None
        if partition < 10:
            made.metadata.__dict__["_src_node_id"] = FIRST_NODE + 20
        elif partition < 15:
            made.metadata.__dict__["_src_node_id"] = 7
        return made

    answer_ = total_of(LocalGrid(answer, N), open_ledger(SUM), SUM)
    # Fifteen replies are in the wrong name; of those in the name of node 20 one counts.
    assert answer_.value[0] == pytest.approx((N - 15) / 2, abs=0.1)
    assert "not asked, or twice" in caplog.text


def several_records(message: Message) -> Message:
    record = MetricRecord({CONTRIBUTION_METRIC: [1.0]})
    return Message(RecordDict({"one": record, "two": record}), reply_to=message)


def another_metric(message: Message) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"age": [1.0]})}), reply_to=message)


def a_config(message: Message) -> Message:
    return Message(RecordDict({"c": ConfigRecord({CONTRIBUTION_METRIC: "1"})}), reply_to=message)


def failed(message: Message) -> Message:
    return Message(Error(code=2, reason="age of patient 7 is 34"), reply_to=message)


@pytest.mark.parametrize("malformed", [several_records, another_metric, a_config, failed])
def test_malformed_and_failed_replies_count_as_zero_and_are_logged_once_without_data(
    open_ledger: Any, malformed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inner = saying(lambda _: [0.5])
    answered = able(Ability.STATISTICS)(
        lambda m, p: malformed(m) if p < 10 else inner.answer(m, p),
    )
    grid = LocalGrid(answered, N)
    answer = total_of(grid, open_ledger(SUM), SUM)
    assert answer.value[0] == pytest.approx((N - 10) / 2, abs=0.1)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    of_replies = [line for line in warnings if not line.startswith("NO PRIVACY")]
    assert len(of_replies) == 1
    assert "zero" in of_replies[0]
    assert "patient" not in caplog.text
