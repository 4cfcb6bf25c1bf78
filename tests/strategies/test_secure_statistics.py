"""Statistics and evaluations by secure sums, over real handlers, keys and ledgers.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.node_answers import RehearsalFailed
from flat_plans import calibrated_plan, noised_plan
from flwr.app import Array, ArrayRecord, Context
from local_grid import FIRST_NODE, LocalGrid
from secure_nodes import SecureNodes, refusals

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.secagg import SecureSumFailed
from fl_dp.statistics import (
    Answer,
    Count,
    Evaluation,
    Frequencies,
    Mean,
    NoiseChoice,
    Quantiles,
    Query,
    Sum,
    choose_noise,
)
from fl_dp.statistics.wire import query_from_json
from fl_dp.strategies import (
    AskOptions,
    DPFedAvg,
    RosterTooLarge,
    ask_federation,
    evaluate_federation,
)

NODES = 5
VALUES = "heights"
MODEL = ArrayRecord({"w": Array(np.zeros(3))})
METRICS = Evaluation(names=("loss", "accuracy"), lows=(0.0, 0.0), highs=(4.0, 1.0))


def chosen(query: Query, noise_multiplier: float = 0.01) -> NoiseChoice:
    """With so little noise that the sum can be read off, unless another is given."""
    mechanism = GaussianMechanism(
        noise_multiplier=noise_multiplier, clipping_norm=query.l2_sensitivity
    )
    return NoiseChoice(query=query, mechanisms=(mechanism,))


def options_of(
    choice: NoiseChoice, *, times: int = 1, units: int = 1, **given: Any
) -> dict[str, Any]:
    return {
        "rounds": 0,
        "num_clients": NODES * units,
        "units_per_node": units,
        "sampling_rate": 1.0,
        "clipping_norm": 1.0,
        "secure_sum": SecureSum(max_parameters=1000),
        "contribution_check": False,
        "other_releases": [(event, times) for event in choice.events],
    } | given


def plan_of(choice: NoiseChoice, **given: Any) -> Plan:
    return noised_plan(1.0, delta=1e-3, **options_of(choice, **given))


def federation(
    folder: Path,
    values: Sequence[object],
    *,
    units: int = 1,
    of: Callable[[object, int], object] = lambda value, unit: value,
    **given: Any,
) -> SecureNodes:
    """A node for each value; an exception among them is raised."""

    def statistics_fn(context: Context, unit: int, config: Any, name: str) -> object:
        assert name == VALUES
        value = of(values[context.node_id - FIRST_NODE], unit)
        if isinstance(value, Exception):
            raise value
        return value

    folder.mkdir(exist_ok=True)
    return SecureNodes(folder, [[None] * units] * len(values), statistics_fn=statistics_fn, **given)


def asked(
    folder: Path,
    nodes: SecureNodes,
    choice: NoiseChoice,
    plan: Plan | None = None,
    **options: Any,
) -> Answer:
    with PrivacyLedger.open(folder / "server.db", plan or plan_of(choice)) as ledger:
        grid = LocalGrid(nodes, len(nodes.updates))
        given = AskOptions(timeout=5.0, roster_timeout=0.5, **options)
        return ask_federation(grid, ledger, "it", choice, given, values=VALUES)


def spent(folder: Path) -> tuple[int, int]:
    """Other releases that the server's ledger has as spent, and those it has as committed."""
    with PrivacyLedger.read(folder / "server.db") as ledger:
        kinds = [entry.kind for entry in ledger.entries]
        return ledger.other_releases_spent, kinds.count("commit")


# --- What it answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "values", "expected"),
    [
        (Count(), [[1.0], [], [1.0], [1.0], []], 3.0),
        (Sum(lows=(-2.0,), highs=(9.0,)), [[9.0], [-2.0], [-7.0], [1.0], [1.0]], [7.0]),
        (Mean(lows=(0.0,), highs=(10.0,)), [[1.0], [2.0], [3.0], [4.0], [5.0]], [3.0]),
        (Frequencies(categories=("a", "b")), [["a"], ["b"], ["a"], ["a"], ["c"]], [3.0, 1.0]),
        (
            Quantiles(probabilities=(0.5,), grid=(0.0, 1.0, 2.0, 3.0, 4.0)),
            [[1.0], [2.0], [0.0], [2.0], [4.0]],
            [2.0],
        ),
    ],
)
def test_every_kind_of_query_is_answered(
    tmp_path: Path, query: Query, values: list[object], expected: Any
) -> None:
    choice = chosen(query)
    answer = asked(tmp_path, federation(tmp_path, values), choice)
    np.testing.assert_allclose(answer.value, expected, atol=0.4)
    assert answer.events == choice.events == (GaussianEvent(noise_multiplier=0.01),)


def test_several_units_a_node_are_summed_on_it(tmp_path: Path) -> None:
    choice = chosen(Count())
    nodes = federation(tmp_path, [[1.0]] * NODES, units=3)
    answer = asked(tmp_path, nodes, choice, plan_of(choice, units=3))
    assert float(answer.value) == pytest.approx(3 * NODES, abs=0.4)


def test_metrics_of_a_model_are_means_over_units(tmp_path: Path) -> None:
    choice = chosen(METRICS)

    def measured(node: int, unit: int) -> tuple[float, int, dict[str, Any]] | None:
        return None if node == 2 else (float(node), 10, {"accuracy": 0.5 + 0.1 * unit})

    nodes = SecureNodes(tmp_path, [[None, None]] * NODES, measured=measured)
    with PrivacyLedger.open(tmp_path / "server.db", plan_of(choice, units=2)) as ledger:
        grid = LocalGrid(nodes, NODES)
        answer = evaluate_federation(
            grid, ledger, "model", choice, AskOptions(timeout=5.0), arrays=MODEL
        )
    assert float(answer["loss"].value) == pytest.approx((0 + 1 + 3 + 4) / 4, abs=0.2)
    assert float(answer["accuracy"].value) == pytest.approx(0.55, abs=0.05)
    assert float(answer["count"].value) == pytest.approx(8, abs=0.4)
    assert [kind for kind, _ in nodes.seen].count("evaluate") == NODES


# --- Who sees what --------------------------------------------------------------------------------


def test_no_message_to_the_server_has_a_node_s_vector(tmp_path: Path) -> None:
    choice = chosen(Sum(lows=(0.0,) * 8, highs=(9.0,) * 8))
    nodes = federation(tmp_path, [np.full(8, 3.0)] * NODES)
    asked(tmp_path, nodes, choice)
    masked = [r for r in nodes.replies if r.metadata.message_type == "query.fl_dp_statistic"]
    assert len(masked) == NODES
    words = []
    for reply in masked:
        assert set(reply.content) == {"masked", "bundles"}
        assert not list(reply.content.metric_records)
        words.append(reply.content.array_records["masked"]["masked"].numpy().tobytes())
    assert len(set(words)) == NODES  # all five have one vector


def test_the_noise_is_that_of_all_shares(tmp_path: Path) -> None:
    """6,000 draws: a standard deviation is then within 0.05, more than 5 of its own deviations."""
    query = Sum(lows=(0.0,) * 1000, highs=(1.0,) * 1000)
    choice = chosen(query, 2.0)
    plan = plan_of(choice, times=6)
    nodes = federation(tmp_path, [np.zeros(1000)] * NODES)
    noise = []
    for _ in range(6):
        answer = asked(tmp_path, nodes, choice, plan)
        noise.append(answer.value / answer.error)
    for off, fits in ((1.0, True), (0.9, False), (1.1, False)):
        assert bool(abs(np.std(noise) / off - 1.0) < 0.05) is fits


def test_shares_that_are_certain_have_the_charged_multiplier(tmp_path: Path) -> None:
    choice = chosen(Sum(lows=(0.0,), highs=(1.0,)), 2.0)
    plan = plan_of(choice)
    assert isinstance(plan, DistributedPlan)
    noise = plan.noise
    answer = asked(tmp_path, federation(tmp_path, [[0.0]] * NODES), choice, plan)
    certain = float(answer.error[0]) * math.sqrt(noise.honest_shares / NODES)
    assert certain == pytest.approx(2.0, rel=1e-6)


def test_a_hostile_unit_moves_the_sum_by_its_bound_alone(tmp_path: Path) -> None:
    """The contribution of a query lies: the node clips it once more."""
    choice = chosen(Sum(lows=(0.0, 0.0), highs=(1.0, 1.0)))

    class Lies(Sum):
        def contribution(self, values: object) -> Any:
            return np.array([1e30, -1e30])

    nodes = federation(tmp_path, [[[0.0, 0.0]]] * NODES)
    served = iter(range(NODES))

    def one_lies(text: str) -> Query:
        query = query_from_json(text)
        if next(served) == 1:
            return Lies(lows=(0.0, 0.0), highs=(1.0, 1.0))
        return query

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fl_dp.clients.queries.query_from_json", one_lies)
        answer = asked(tmp_path, nodes, choice)
    assert np.linalg.norm(answer.value) == pytest.approx(choice.query.l2_sensitivity, abs=0.3)


def test_a_node_that_fails_adds_zero_and_noise(tmp_path: Path) -> None:
    choice = chosen(Count())
    values: list[object] = [[1.0], RuntimeError("age of patient 7 is 34"), [1.0], [1.0], [1.0]]
    nodes = federation(tmp_path, values)
    answer = asked(tmp_path, nodes, choice)
    assert float(answer.value) == pytest.approx(4.0, abs=0.4)
    assert not refusals(nodes)


# --- What it charges ------------------------------------------------------------------------------


def test_every_node_is_charged_what_the_plan_says(tmp_path: Path) -> None:
    choice = chosen(Count(), 1.5)
    asked(tmp_path, federation(tmp_path, [[1.0]] * NODES), choice)
    assert spent(tmp_path) == (1, 1)
    for node in range(NODES):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as ledger:
            ((event, count),) = ledger.spendings[0].history
        assert count == 1
        assert event.noise_multiplier == pytest.approx(1.5, rel=1e-9)  # type: ignore[union-attr]


@pytest.mark.parametrize("first", ["statistic", "training"])
def test_nodes_have_room_for_a_training_and_its_statistics(tmp_path: Path, first: str) -> None:
    """A node's ledger asks for more room where noise is of two kinds; none falls silent."""
    choice, rounds = chosen(Count(), 8.0), 6
    budget = PrivacyBudget(epsilon=4.0, delta=1e-4)
    plan = calibrated_plan(budget, **options_of(choice, rounds=rounds))
    update = [np.full(3, 0.1)]
    nodes = SecureNodes(tmp_path, [[update]] * NODES, statistics_fn=lambda *_: [1.0])
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        grid = LocalGrid(nodes, NODES)

        def train() -> None:
            DPFedAvg(plan=plan, ledger=ledger).start(grid, MODEL, num_rounds=rounds, timeout=5.0)

        def ask() -> None:
            ask_federation(grid, ledger, "it", choice, AskOptions(timeout=5.0), values=VALUES)

        for step in (ask, train) if first == "statistic" else (train, ask):
            step()
    for node in range(NODES):
        with NodeLedger.read(tmp_path / f"node-{node}" / "ledger.db") as kept:
            (spending,) = kept.spendings
            assert spending.charges == rounds + 1
            assert {count for _, count in spending.history} == {1, rounds}


def test_a_sum_that_fails_stays_charged(tmp_path: Path) -> None:
    choice = chosen(Count(), 1.5)
    nodes = federation(
        tmp_path, [[1.0]] * NODES, loses=lambda kind, times, node: kind == "secagg_open"
    )
    with pytest.raises(SecureSumFailed):
        asked(tmp_path, nodes, choice)
    assert spent(tmp_path) == (1, 0)
    with NodeLedger.read(tmp_path / "node-0" / "ledger.db") as ledger:
        assert ledger.spendings[0].charges == 1


def test_without_keys_nothing_is_charged(tmp_path: Path) -> None:
    choice = chosen(Count())
    nodes = federation(
        tmp_path, [[1.0]] * NODES, loses=lambda kind, times, node: kind == "secagg_key"
    )
    with pytest.raises(RehearsalFailed, match="nothing was charged"):
        asked(tmp_path, nodes, choice)
    assert spent(tmp_path) == (0, 0)


# --- What is refused before anybody is asked ------------------------------------------------------


ONE = chosen(Count())
CLIENTS_NOISE: dict[str, Any] = {
    "client_scheme": "gaussian",
    "secure_sum": None,
    "units_per_node": None,
    "rounds": 1,
}
OF_RECORDS: dict[str, Any] = {"nodes": NODES, "unit": "record", "coins_at_nodes": True}


@pytest.mark.parametrize(
    ("choice", "plan", "nodes", "asking", "says"),
    [
        (choose_noise(Count(), 1.0, 1e-3, law="laplace"), {}, NODES, {}, "law='gaussian'"),
        (
            choose_noise(Quantiles(probabilities=(0.5,), grid=(0, 1)), 1.0, 1e-3),
            {},
            NODES,
            {},
            "law='gaussian'",
        ),
        (
            NoiseChoice(
                query=Count(),
                mechanisms=(GaussianMechanism(noise_multiplier=1.0, clipping_norm=2.0),),
            ),
            {},
            NODES,
            {},
            "the query's own sensitivity",
        ),
        (ONE, {}, NODES, {"rng": SecureRandom()}, "leave rng out"),
        (ONE, {}, NODES + 1, {}, r"6 nodes .* is for 5"),
        (chosen(Count(), 5.0), CLIENTS_NOISE, NODES, {}, "trust no server"),
        (ONE, OF_RECORDS, NODES, {}, "twice what a statistic is charged"),
    ],
)
def test_what_no_secure_sum_can_answer_is_refused_before_anybody_is_asked(
    tmp_path: Path,
    choice: NoiseChoice,
    plan: dict[str, Any],
    nodes: int,
    asking: dict[str, Any],
    says: str,
) -> None:
    there = federation(tmp_path, [[1.0]] * nodes)
    with pytest.raises((ValueError, RosterTooLarge), match=says):
        asked(tmp_path, there, choice, plan_of(choice, **plan), **asking)
    assert not there.seen
    assert spent(tmp_path) == (0, 0)
