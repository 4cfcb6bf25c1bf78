"""Nodes that host several units: the same privacy and the same models as a node a unit."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from local_grid import FIRST_NODE, Answer, LocalGrid, answer_with_app, arrays_of, reply
from played_rounds import HandOver, PaperLedger
from scipy import stats
from trainings import SIX_SIGMA, FixedClient, Training, able, plan_of, record, train

from fl_dp import Plan
from fl_dp.accounting import FixedSizeSampling, PoissonSampling, VisibleSampling
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, ScalarMetric, SecureRandom
from fl_dp.plan import CentralPlan
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, SCALARS_METRIC
from fl_dp.strategies import DPFedAvg, LawSelection

ALARM = 1e-6
CLIP = 0.1
LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)
MODEL = record(w=np.zeros(6), n=np.int64(3), s=np.float32(1.0))
UnitOf = Callable[[int], FixedClient]


def unit_of(unit: int) -> FixedClient:
    """The unit of that number, wherever it is hosted: some are clipped, one is broken."""
    update = np.random.default_rng(unit).normal(size=6) * (0.02 if unit % 2 else 2.0)
    update = np.full(6, np.nan) if unit == 7 else update
    return FixedClient(update, num_examples=unit, metrics={"loss": unit / 10})


def nodes_of(hosted: list[range], make: UnitOf = unit_of) -> Answer:
    """Nodes that host these units each, by the numbers that they have among all."""

    def client_fn(context: Any, unit: int) -> FixedClient:
        return make(hosted[int(context.node_config["partition-id"])][unit])

    units = NodeUnits(
        client_fn=client_fn,
        count=lambda context, config: len(hosted[int(context.node_config["partition-id"])]),
    )
    app = numpy_client_app(lambda context: client_fn(context, 0), units=units)
    return answer_with_app(app, len(hosted))


def evenly(units: int, per_node: int) -> list[range]:
    return [range(start, min(start + per_node, units)) for start in range(0, units, per_node)]


def hosting(
    folder: Path,
    plan: Plan,
    units: int,
    per_node: int,
    make: UnitOf = unit_of,
    **options: Any,
) -> Training:
    """Train on nodes that host that many units each, but for the last one."""
    (folder / str(per_node)).mkdir()
    hosted = evenly(units, per_node)
    how: dict[str, Any] = dict(nodes=len(hosted), units_per_node=per_node)
    return train(folder / str(per_node), plan, nodes_of(hosted, make), MODEL, **how, **options)


QUIET: dict[str, Any] = dict(noise_multiplier=1e-4, clipping=FixedClipping(norm=CLIP))


@pytest.mark.parametrize("weight_cap", [None, 20.0])
def test_fifty_units_on_five_nodes_train_the_model_of_fifty_nodes(
    tmp_path: Path, weight_cap: float | None
) -> None:
    # Noise of 2e-7 on the mean; a single update more or less would move it by up to 2e-3.
    plan = plan_of(50, rounds=2, **QUIET)
    alone, together = (
        hosting(tmp_path, plan, 50, per_node, weight_cap=weight_cap).models[-1]
        for per_node in (1, 10)
    )
    np.testing.assert_allclose(together["w"], alone["w"], atol=2 * SIX_SIGMA * 2e-7)
    assert np.abs(alone["w"]).max() > 1e-3
    assert (together["n"], alone["n"]) == (3, 3)


def test_with_the_same_coins_and_noise_nothing_tells_five_nodes_from_fifty(
    tmp_path: Path,
) -> None:
    plan = plan_of(
        50,
        rounds=3,
        sampling_rate=0.4,
        clipping=AdaptiveClipping(norm=1.0),
        metrics=(LOSS,),
        noise_multiplier=1.0,
    )
    results = []
    for per_node in (1, 10):
        trained = hosting(tmp_path, plan, 50, per_node, rng=SecureRandom(insecure_seed=5))
        metrics = trained.result.train_metrics_clientapp
        results.append((trained.models[-1], trained.clipping_norms, metrics))
    (alone, norms, metrics), (together, same_norms, same_metrics) = results
    np.testing.assert_array_equal(together["w"], alone["w"])
    assert same_norms == norms
    assert {r: dict(m) for r, m in same_metrics.items()} == {r: dict(m) for r, m in metrics.items()}
    assert len(metrics) == 3


def steps_of(length: float, plan: Any) -> float:
    return float(np.floor(length / plan.bundle(plan.noise_multiplier).updates.grid))


def sum_reply(message: Message, first: float, scalars: list[float]) -> Message:
    values = {"w": np.array([first, 0, 0, 0, 0, 0]), "s": np.float64(0.0)}
    return reply(message, values, **{SCALARS_METRIC: scalars})


@pytest.mark.parametrize("extra", [0.0, 0.01, np.nan])
def test_a_node_whose_sum_is_more_than_its_units_can_reach_contributes_nothing(
    tmp_path: Path, extra: float, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(4, **QUIET)
    most = steps_of(2 * CLIP * (1 - 1e-11), plan)

    @able(Ability.UNITS, Ability.SUMS)
    def answer(message: Message, node: int) -> Message:
        return sum_reply(message, np.floor(most * (1 + extra)) if node == 0 else 0.0, [])

    trained = train(tmp_path, plan, answer, MODEL, nodes=2, units_per_node=2)
    moved = 0.0 if extra else 2 * CLIP / 4
    np.testing.assert_allclose(trained.move[0], moved, atol=SIX_SIGMA * 1e-4 * CLIP / 4)
    assert ("contributes zero" in caplog.text) == bool(extra)


def test_a_node_that_was_asked_for_one_unit_is_bound_to_one(tmp_path: Path) -> None:
    # Out of four units, one is drawn a round; its node answers for both that it hosts.
    plan = plan_of(4, sampling=VisibleSampling(cohort=1), **QUIET)
    both = steps_of(2 * CLIP * (1 - 1e-11), plan)
    answer = able(Ability.UNITS, Ability.SUMS)(lambda m, _: sum_reply(m, both, []))
    trained = train(tmp_path, plan, answer, MODEL, nodes=2, units_per_node=2)
    np.testing.assert_allclose(trained.move[0], 0.0, atol=SIX_SIGMA * 1e-4 * CLIP)


@pytest.mark.parametrize("scalars", [[3.0], [np.nan], [-3.0], []])
def test_a_node_whose_scalars_are_more_than_its_units_can_reach_contributes_nothing(
    tmp_path: Path, scalars: list[float]
) -> None:
    plan = plan_of(4, metrics=(LOSS,), scalar_noise_std=0.01, **QUIET)
    unit = 0.5 / plan.bundle(1e-4).scalar_mechanisms[-1].grid

    @able(Ability.UNITS, Ability.SUMS)
    def answer(message: Message, node: int) -> Message:
        told = [share * unit for share in scalars] if node == 0 else [unit]
        return sum_reply(message, steps_of(CLIP * 0.999, plan), told)

    trained = train(tmp_path, plan, answer, MODEL, nodes=2, units_per_node=2)
    # The other node's update and metric count: one unit of loss 4 and three that are not there.
    metrics = trained.result.train_metrics_clientapp[1]
    assert metrics["loss"] == pytest.approx(2.0 + 4 * 0.5 / 4, abs=4 * SIX_SIGMA * 0.01 / 4)
    assert trained.move[0] == pytest.approx(CLIP * 0.999 / 4, abs=SIX_SIGMA * 2e-4 * CLIP)


def test_scalars_of_a_nodes_units_add_up_to_their_mean(tmp_path: Path) -> None:
    # Losses 0, 0.1, ... 1.1, of which unit 7's update is not finite: it reports nothing at all.
    plan = plan_of(12, metrics=(LOSS,), scalar_noise_std=0.01, **QUIET)
    trained = hosting(tmp_path, plan, 12, 4)
    losses = [2.0 if unit == 7 else unit / 10 for unit in range(12)]
    metrics = trained.result.train_metrics_clientapp[1]
    assert dict(metrics) == {"loss": pytest.approx(np.mean(losses), abs=4 * 0.06 / 12)}


# --- coins at the nodes -------------------------------------------------------------------------


def test_nodes_that_flip_the_coins_are_all_asked_the_same_and_told_no_unit(
    tmp_path: Path,
) -> None:
    plan = plan_of(12, rounds=5, sampling_rate=0.1, **QUIET)
    trained = hosting(tmp_path, plan, 12, 4, coins_at_nodes=True)
    sent = trained.grid.sent
    assert len(sent) == 5 * 3
    for server_round in range(5):
        group = sent[3 * server_round : 3 * server_round + 3]
        assert {m.metadata.dst_node_id for m in group} == set(range(FIRST_NODE, FIRST_NODE + 3))
        texts = {str(m.content["config"][INSTRUCTION_KEY]) for m in group}
        assert len(texts) == 1
        told = json.loads(texts.pop())
        assert told["units"] is None
        assert told["sampling_rate"] == 0.1


def reply_shape(message: Message) -> Any:
    """Everything about a reply but its numbers."""
    [arrays] = message.content.array_records.values()
    assert isinstance(arrays, ArrayRecord)
    metrics = [
        {name: len(value) if isinstance(value, list) else type(value) for name, value in m.items()}
        for m in message.content.metric_records.values()
    ]
    return (
        list(message.content),
        {name: (array.dtype, array.shape, len(array.data)) for name, array in arrays.items()},
        metrics,
        message.has_error(),
    )


def test_a_reply_looks_the_same_whether_or_not_a_coin_came_up(tmp_path: Path) -> None:
    # At rate 0.2 a node of four units draws none in 41 % of rounds: neither all of 60 nor none.
    plan = plan_of(8, rounds=30, sampling_rate=0.2, metrics=(LOSS,), **QUIET)
    honest = nodes_of(evenly(8, 4))
    shapes, empty = [], []

    def watched(message: Message, node: int) -> Message | None:
        made = honest(message, node)
        assert made is not None
        shapes.append(reply_shape(made))
        empty.append(not arrays_of(made)["w"].any())
        return made

    released_sums(plan, watched, nodes=2, units_per_node=4)
    assert 0 < sum(empty) < len(empty) == 60
    assert all(shape == shapes[0] for shape in shapes)


def released_sums(plan: Plan, answer: Answer, *, nodes: int, units_per_node: int) -> list[float]:
    """Play the plan's rounds with coins at the nodes; return the first entry of each sum."""
    assert isinstance(plan, CentralPlan)
    plan = replace(plan, units_per_node=units_per_node, coins_at_nodes=True)
    strategy = DPFedAvg(
        HandOver(),
        plan=plan,
        ledger=PaperLedger(plan),  # type: ignore[arg-type]  # plays one
    )
    grid = LocalGrid(answer, nodes)
    sums = []
    for server_round in range(1, plan.rounds + 1):
        messages = strategy.loop.open(server_round, MODEL, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        arrays, _ = strategy.loop.release(server_round, replies)
        sums.append(float(arrays["w"].numpy()[0]) * plan.denominator)
    return sums


def test_coins_at_the_nodes_draw_each_unit_at_the_charged_rate() -> None:
    # A unit sends 1, so that a sum counts who took part: in 60 rounds of 40 units at rate 0.3. A
    # rate of 0.4 would be ten deviations too much, and k-of-N would not vary at all.
    rounds, units, rate = 60, 40, 0.3
    plan = plan_of(units, rounds=rounds, sampling_rate=rate, noise_multiplier=1e-3)
    one = FixedClient(np.array([1.0, 0, 0, 0, 0, 0]))
    answer = nodes_of(evenly(units, 10), lambda _: one)
    sums = released_sums(plan, answer, nodes=4, units_per_node=10)
    law = stats.binom(rounds * units, rate)
    total = round(sum(sums))
    assert 2 * min(law.sf(total - 1), law.cdf(total)) > ALARM
    spread = (rounds - 1) * np.var(sums, ddof=1) / (units * rate * (1 - rate))
    chi2 = stats.chi2(rounds - 1)
    assert 2 * min(chi2.sf(spread), chi2.cdf(spread)) > ALARM


@pytest.mark.parametrize(
    ("plan", "options", "why"),
    [
        (
            dict(sampling=FixedSizeSampling(cohort=2)),
            dict(selection=LawSelection(FixedSizeSampling(cohort=2))),
            "Poisson",
        ),
        (dict(sampling_rate=1.0, participation_cap=1), {}, "participation cap"),
        (dict(client_scheme="gaussian"), {}, "noise is added at each client"),
    ],
)
def test_coins_at_the_nodes_go_with_poisson_samples_for_everybody_only(
    plan: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        made = plan_of(4, units_per_node=2, coins_at_nodes=True, **plan)
        DPFedAvg(
            HandOver(),
            plan=made,
            ledger=PaperLedger(made),  # type: ignore[arg-type]  # plays one
            **options,
        )


# --- a roster that does not divide --------------------------------------------------------------


@pytest.mark.parametrize("coins_at_nodes", [False, True])
def test_a_node_may_host_fewer_units_than_the_others(
    tmp_path: Path, coins_at_nodes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # Ten units on nodes of up to four: the denominator stays ten.
    caplog.set_level(logging.ERROR)
    plan = plan_of(10, **QUIET)
    one = FixedClient(np.array([CLIP, 0, 0, 0, 0, 0]) / 2)
    trained = hosting(tmp_path, plan, 10, 4, lambda _: one, coins_at_nodes=coins_at_nodes)
    np.testing.assert_allclose(trained.move[0], CLIP / 2, atol=SIX_SIGMA * 1e-4 * CLIP / 10)


def test_counted_cohorts_need_nodes_of_equal_size() -> None:
    with pytest.raises(ValueError, match="units_per_node=4 has to divide num_clients=10"):
        plan_of(10, sampling=FixedSizeSampling(cohort=3), units_per_node=4)


def test_the_server_asks_by_node_and_names_the_units_that_it_drew(tmp_path: Path) -> None:
    plan = plan_of(12, sampling=PoissonSampling(sampling_rate=0.5), **QUIET)
    trained = hosting(tmp_path, plan, 12, 4)
    nodes = [m.metadata.dst_node_id for m in trained.grid.sent]
    assert len(set(nodes)) == len(nodes)
    for message in trained.grid.sent:
        told = json.loads(str(message.content["config"][INSTRUCTION_KEY]))
        assert set(told["units"]) <= set(range(4))
        assert told["sampling_rate"] is None
