"""The path of a round on the strategy object itself, with every client under our control."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import a_draw
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from local_grid import LocalGrid, answer_with_update, arrays_of, reply
from scipy import stats

from fl_dp import PrivacyBudget, PrivacyLedger, PrivacyPlan
from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import FixedClipping
from fl_dp.strategies import DPFedAvg, Draw, PoissonSelection, RosterIncomplete, Unit

ALARM = 1e-6
N = 100


def plan_for(
    num_clients: int,
    *,
    sampling_rate: float = 1.0,
    noise_multiplier: float = 0.5,
    clipping_norm: float = 1.0,
    rounds: int = 3,
) -> PrivacyPlan:
    return PrivacyPlan.of(
        budget=PrivacyBudget(epsilon=1e6, delta=1e-6),
        rounds=rounds,
        sampling=PoissonSampling(sampling_rate=sampling_rate),
        noise_multiplier=noise_multiplier,
        clipping=FixedClipping(norm=clipping_norm),
        num_clients=num_clients,
        contribution_check=False,  # has tests of its own; here updates may be zero
    )


def record(**arrays: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def mean_update(
    answer: Any,
    open_ledger: Any,
    *,
    num_clients: int = N,
    model: ArrayRecord | None = None,
    **plan: Any,
) -> dict[str, np.ndarray]:
    """Run one round and return what it did to the model."""
    made = plan_for(num_clients, **plan)
    model = model if model is not None else record(w=np.zeros(4, np.float64))
    strategy = DPFedAvg(plan=made, ledger=open_ledger(made))
    result = strategy.start(LocalGrid(answer, num_clients), model, num_rounds=1, timeout=2.0)
    before = {name: array.numpy() for name, array in model.items()}
    return {name: array.numpy() - before[name] for name, array in result.arrays.items()}


# With noise multiplier 0.5 and denominator 100 the noise on the mean has deviation 0.005: six of
# them (2e-9 a coordinate) are the tolerance of every exact value below.
TOLERANCE = 6 * 0.005


def updates(num_clients: int, value: float = 0.25) -> list[dict[str, Any]]:
    return [{"w": np.array([value, 0.0, 0.0, 0.0])} for _ in range(num_clients)]


def test_the_mean_update_is_the_clipped_sum_over_the_public_constant(open_ledger: Any) -> None:
    moved = mean_update(answer_with_update(updates(N)), open_ledger)
    np.testing.assert_allclose(moved["w"], [0.25, 0, 0, 0], atol=TOLERANCE)


def test_a_client_that_claims_many_records_counts_once(open_ledger: Any) -> None:
    honest = answer_with_update(updates(N))

    def answer(message: Message, partition: int) -> Message:
        made = honest(message, partition)
        assert made is not None
        made.content["metrics"] = MetricRecord({"num-examples": 1000 if partition == 0 else 1})
        return made

    moved = mean_update(answer, open_ledger)
    np.testing.assert_allclose(moved["w"], [0.25, 0, 0, 0], atol=TOLERANCE)


@pytest.mark.parametrize("silent", [0, N // 2, N])
def test_missing_replies_change_neither_denominator_nor_noise(
    open_ledger: Any, silent: int
) -> None:
    honest = answer_with_update(updates(N))
    plan = plan_for(N)
    ledger = open_ledger(plan)
    strategy = DPFedAvg(plan=plan, ledger=ledger)
    result = strategy.start(
        LocalGrid(lambda m, p: None if p < silent else honest(m, p), N),
        record(w=np.zeros(4, np.float64)),
        num_rounds=1,
        timeout=1.5,
    )
    moved = result.arrays["w"].numpy()
    np.testing.assert_allclose(moved, [0.25 * (N - silent) / N, 0, 0, 0], atol=TOLERANCE)
    assert (ledger.rounds_spent, ledger.rounds_committed) == (1, 1)


HOSTILE = {
    "zero": np.zeros(4),
    "nan": np.array([np.nan, 1.0, 1.0, 1.0]),
    "inf": np.array([np.inf, 0.0, 0.0, 0.0]),
    "minus inf and nan": np.array([-np.inf, np.nan, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_zero_or_non_finite_update_contributes_zero(
    open_ledger: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = updates(N)
    sent[3] = {"w": HOSTILE[name]}
    moved = mean_update(answer_with_update(sent), open_ledger)
    np.testing.assert_allclose(moved["w"], [0.2475, 0, 0, 0], atol=TOLERANCE)


@pytest.mark.parametrize("huge", [1e3, 1e30, 1e300])
def test_a_huge_update_moves_the_mean_by_at_most_the_clipping_norm(
    open_ledger: Any, huge: float
) -> None:
    sent = updates(N, 0.0)
    sent[3] = {"w": np.array([huge, 0.0, 0.0, 0.0])}
    moved = mean_update(answer_with_update(sent), open_ledger)
    np.testing.assert_allclose(moved["w"], [0.01, 0, 0, 0], atol=TOLERANCE)


def test_zero_dimensional_parameters_are_clipped_and_noised_like_any_other(
    open_ledger: Any,
) -> None:
    model = record(scale=np.float32(0.0), w=np.zeros(3, np.float32))
    sent = [{"scale": np.float32(3.0), "w": np.array([4.0, 0.0, 0.0])} for _ in range(N)]
    moved = mean_update(answer_with_update(sent), open_ledger, model=model)
    assert moved["scale"].shape == ()
    assert moved["scale"] == pytest.approx(0.6, abs=TOLERANCE)
    assert moved["w"][0] == pytest.approx(0.8, abs=TOLERANCE)
    alone = mean_update(
        answer_with_update([{}] * N), open_ledger, model=record(scale=np.float32(1.0))
    )
    assert alone["scale"] != 0  # noise, though nobody changed it


def test_integer_buffers_stay_with_the_server(open_ledger: Any) -> None:
    model = record(w=np.zeros(2, np.float32), counter=np.int64(7), mask=np.array([True, False]))
    sent = [{"w": np.array([0.25, 0.0]), "counter": np.int64(1000)} for _ in range(N)]
    plan = plan_for(N)
    result = DPFedAvg(plan=plan, ledger=open_ledger(plan)).start(
        LocalGrid(answer_with_update(sent), N), model, num_rounds=2
    )
    assert list(result.arrays) == ["w", "counter", "mask"]
    assert result.arrays["counter"].numpy() == 7
    assert result.arrays["counter"].numpy().dtype == np.int64
    assert result.arrays["mask"].numpy().dtype == np.bool_
    assert result.arrays["w"].numpy()[0] == pytest.approx(0.5, abs=2 * TOLERANCE)


def test_arrays_are_matched_by_name_not_by_place(open_ledger: Any) -> None:
    model = record(a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))

    def answer(message: Message, partition: int) -> Message:
        got = arrays_of(message)
        return reply(message, {"b": got["b"] - 0.5, "a": got["a"] + 0.25})

    moved = mean_update(answer, open_ledger, model=model)
    np.testing.assert_allclose(moved["a"], 0.25, atol=TOLERANCE)
    np.testing.assert_allclose(moved["b"], -0.5, atol=TOLERANCE)


def wrong_name(message: Message) -> Message:
    return reply(message, {"v": arrays_of(message)["w"]})


def extra_name(message: Message) -> Message:
    return reply(message, arrays_of(message) | {"v": np.ones(1)})


def wrong_shape(message: Message) -> Message:
    return reply(message, {"w": np.ones((4, 1))})


def broadcastable_shape(message: Message) -> Message:
    return reply(message, {"w": np.ones(1)})


def wrong_dtype(message: Message) -> Message:
    return reply(message, {"w": np.ones(4, np.int64)})


def unreadable(message: Message) -> Message:
    broken = Array(np.ones(4))
    broken.data = b"not an array"
    content = RecordDict({"arrays": ArrayRecord({"w": broken}), "metrics": MetricRecord({"n": 1})})
    return Message(content, reply_to=message)


def two_records(message: Message) -> Message:
    content = RecordDict({"arrays": record(w=np.ones(4)), "more": record(w=np.ones(4))})
    return Message(content, reply_to=message)


def no_record(message: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


def failed(message: Message) -> Message:
    return Message(Error(code=2, reason="secret diagnosis of patient 7"), reply_to=message)


@pytest.mark.parametrize(
    "malformed",
    [
        wrong_name,
        extra_name,
        wrong_shape,
        broadcastable_shape,
        wrong_dtype,
        unreadable,
        two_records,
        no_record,
        failed,
    ],
)
def test_one_malformed_or_failed_reply_contributes_zero_and_is_logged_once_without_data(
    open_ledger: Any, malformed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    honest = answer_with_update(updates(N))
    moved = mean_update(lambda m, p: malformed(m) if p < 20 else honest(m, p), open_ledger)
    np.testing.assert_allclose(moved["w"], [0.2, 0, 0, 0], atol=TOLERANCE)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    [of_the_rehearsal, of_the_round] = warnings
    assert "plain Flower ClientApp" in of_the_rehearsal
    assert "contributes zero" in of_the_round
    assert "patient" not in caplog.text


def test_no_cohort_size_and_no_client_metric_leaves_the_strategy(
    open_ledger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    honest = answer_with_update(updates(97))

    def answer(message: Message, partition: int) -> Message:
        made = honest(message, partition)
        assert made is not None
        made.content["metrics"] = MetricRecord({"num-examples": 12345, "loss": 0.98765})
        return made

    plan = plan_for(97, sampling_rate=0.5)
    caplog.set_level(logging.DEBUG, logger="flwr")
    grid = LocalGrid(answer, 97)
    result = DPFedAvg(plan=plan, ledger=open_ledger(plan)).start(
        grid, record(w=np.zeros(4, np.float32)), num_rounds=1
    )
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    for private in ("12345", "98765", "Sampled", "Received"):
        assert private not in caplog.text
    assert f" {len(grid.sent)} " not in caplog.text.replace("48.5", "")


def test_the_budget_ends_training_normally_with_the_last_private_model(tmp_path: Path) -> None:
    plan = PrivacyPlan.from_noise_multiplier(
        1.0, delta=1e-3, rounds=4, sampling_rate=1.0, clipping_norm=1.0, num_clients=N
    )
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.reserve(round=1)  # a crash lost one round
    with PrivacyLedger.open(path, plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        grid = LocalGrid(answer_with_update(updates(N)), N)
        seen: list[int] = []
        result = strategy.start(
            grid,
            record(w=np.zeros(4, np.float64)),
            num_rounds=4,
            evaluate_fn=lambda number, arrays: seen.append(number),
        )
    assert strategy.budget_exhausted
    assert strategy.rounds_completed == 3
    assert seen == [0, 1, 2, 3]
    assert result.arrays["w"].numpy().any()
    assert len(grid.sent) == 3 * N  # nobody was asked in the round that did not fit
    assert PrivacyLedger.read(path).rounds_spent == 4


def test_more_rounds_than_the_plan_pays_for_are_refused_before_training(open_ledger: Any) -> None:
    plan = plan_for(N, rounds=3)
    grid = LocalGrid(answer_with_update(updates(N)), N)
    with pytest.raises(ValueError, match="4 rounds were asked for"):
        DPFedAvg(plan=plan, ledger=open_ledger(plan)).start(
            grid, record(w=np.zeros(4)), num_rounds=4
        )
    assert not grid.sent


def test_fewer_nodes_than_the_roster_is_an_error_before_training(open_ledger: Any) -> None:
    plan = plan_for(N)
    ledger = open_ledger(plan)
    grid = LocalGrid(answer_with_update(updates(7)), 7)
    with pytest.raises(RosterIncomplete, match="declares 100 clients, but 7 nodes"):
        DPFedAvg(plan=plan, ledger=ledger, roster_timeout=0.1).start(grid, record(w=np.zeros(4)))
    assert not grid.sent
    assert ledger.rounds_spent == 0


def test_a_ledger_of_another_plan_is_refused(open_ledger: Any) -> None:
    ledger = open_ledger(plan_for(N))
    with pytest.raises(ValueError, match="another plan"):
        DPFedAvg(plan=plan_for(N + 1), ledger=ledger)


def test_without_plan_or_ledger_the_error_names_the_strategy_for_that(open_ledger: Any) -> None:
    for missing in ({"plan": None}, {"ledger": None}):
        given = {"plan": plan_for(N), "ledger": open_ledger(plan_for(N))} | missing
        with pytest.raises(TypeError, match="without privacy, use UnprotectedFedAvg"):
            DPFedAvg(**given)


def test_a_round_is_charged_before_anyone_is_sampled(
    open_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(N, sampling_rate=0.5)
    ledger = open_ledger(plan)
    spent_when_sampled: list[int] = []
    select = PoissonSelection.select

    def spy(self: PoissonSelection, draw: Draw) -> list[Unit]:
        spent_when_sampled.append(PrivacyLedger.read(ledger.location).rounds_spent)
        return select(self, draw)

    monkeypatch.setattr(PoissonSelection, "select", spy)
    DPFedAvg(plan=plan, ledger=ledger).start(
        LocalGrid(answer_with_update(updates(N)), N), record(w=np.zeros(4)), num_rounds=3
    )
    assert spent_when_sampled == [1, 2, 3]


def test_a_crash_in_a_round_leaves_it_spent_and_uncommitted(open_ledger: Any) -> None:
    plan = plan_for(N)
    ledger = open_ledger(plan)

    class Broken(FedAvg):
        def aggregate_train(self, *args: Any) -> Any:
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        DPFedAvg(strategy=Broken(), plan=plan, ledger=ledger).start(
            LocalGrid(answer_with_update(updates(N)), N), record(w=np.zeros(4)), num_rounds=1
        )
    assert (ledger.rounds_spent, ledger.rounds_committed) == (1, 0)


def test_a_round_that_was_not_reserved_releases_nothing(open_ledger: Any) -> None:
    plan = plan_for(N)
    with pytest.raises(RuntimeError, match="not reserved"):
        DPFedAvg(plan=plan, ledger=open_ledger(plan)).aggregate_train(1, [])


def test_messages_carry_a_ttl_the_round_and_the_model_with_its_buffers(open_ledger: Any) -> None:
    plan = plan_for(3, rounds=1)
    grid = LocalGrid(answer_with_update([{}] * 3), 3)
    DPFedAvg(plan=plan, ledger=open_ledger(plan)).start(
        grid,
        record(w=np.zeros(2), counter=np.int64(1)),
        num_rounds=1,
        timeout=12.0,
        train_config=ConfigRecord({"key": "value"}),
    )
    for message in grid.sent:
        assert message.metadata.ttl == 12.0
        assert message.metadata.group_id == "1"
        assert set(arrays_of(message)) == {"w", "counter"}
        config = dict(message.content["config"])
        assert config == {"key": "value", "server-round": 1}


def test_a_window_bounds_how_many_clients_are_under_way(open_ledger: Any) -> None:
    plan = plan_for(50)
    grid = LocalGrid(answer_with_update(updates(50)), 50)
    DPFedAvg(plan=plan, ledger=open_ledger(plan), window=8).start(
        grid, record(w=np.zeros(4)), num_rounds=1
    )
    assert len(grid.sent) == 50
    assert grid.most_under_way == 8


@pytest.mark.parametrize(
    "inner",
    [FedAvg(), FedAvgM(server_learning_rate=1.0, server_momentum=0.5), FedAdam(eta=0.1)],
    ids=["FedAvg", "FedAvgM", "FedAdam"],
)
def test_flower_strategies_serve_as_the_server_optimizer(open_ledger: Any, inner: Any) -> None:
    plan = plan_for(N, rounds=2)
    result = DPFedAvg(strategy=inner, plan=plan, ledger=open_ledger(plan)).start(
        LocalGrid(answer_with_update(updates(N)), N),
        record(w=np.zeros(4, np.float32), n=np.int64(3)),
        num_rounds=2,
    )
    moved = result.arrays["w"].numpy()
    assert moved.dtype == np.float32
    assert result.arrays["n"].numpy() == 3
    if isinstance(inner, FedAvgM):
        assert moved[0] == pytest.approx(0.25 + 0.375, abs=3 * TOLERANCE)
    elif isinstance(inner, FedAdam):
        assert moved[0] > 0.05
    else:
        assert moved[0] == pytest.approx(0.5, abs=2 * TOLERANCE)


def test_an_inner_strategy_that_trains_nobody_is_refused(open_ledger: Any) -> None:
    plan = plan_for(N)
    ledger = open_ledger(plan)
    with pytest.raises(ValueError, match="fraction_train"):
        DPFedAvg(strategy=FedAvg(fraction_train=0.0), plan=plan, ledger=ledger).start(
            LocalGrid(answer_with_update(updates(N)), N), record(w=np.zeros(4)), num_rounds=1
        )
    assert ledger.rounds_spent == 0


# --- laws, on the strategy object ---------------------------------------------------------------


def released_noise(open_ledger: Any, *, silent: bool, scale: float = 1.0) -> np.ndarray:
    """Noise of one round over (noise multiplier x clipping norm / denominator), 300,000 draws."""
    size = 300_000
    plan = plan_for(N, noise_multiplier=1.5 * scale, clipping_norm=0.5)
    model = record(w=np.zeros(size, np.float64))
    answer = (lambda m, p: None) if silent else answer_with_update([{}] * N)
    result = DPFedAvg(plan=plan, ledger=open_ledger(plan)).start(
        LocalGrid(answer, N), model, num_rounds=1, timeout=0.2 if silent else 60.0
    )
    return result.arrays["w"].numpy() / (1.5 * 0.5 / plan.denominator)


def normal_p(sample: np.ndarray) -> float:
    statistic = float((sample**2).sum())
    variance = 2 * min(
        stats.chi2.sf(statistic, sample.size), stats.chi2.cdf(statistic, sample.size)
    )
    return float(min(variance, stats.kstest(sample, "norm").pvalue))


@pytest.mark.parametrize("silent", [False, True])
def test_the_noise_of_a_round_has_the_charged_law_whoever_replies(
    open_ledger: Any, silent: bool
) -> None:
    assert normal_p(released_noise(open_ledger, silent=silent)) > ALARM


def test_the_law_test_rejects_nine_tenths_of_the_noise(open_ledger: Any) -> None:
    assert normal_p(released_noise(open_ledger, silent=False, scale=0.9)) < ALARM


def test_the_noise_of_two_rounds_is_independent(open_ledger: Any) -> None:
    size = 100_000
    plan = plan_for(2, noise_multiplier=1.0)
    models: list[np.ndarray] = []
    DPFedAvg(plan=plan, ledger=open_ledger(plan)).start(
        LocalGrid(answer_with_update([{}] * 2), 2),
        record(w=np.zeros(size)),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(arrays["w"].numpy()),
    )
    first, second = models[1] - models[0], models[2] - models[1]
    correlation = np.corrcoef(first, second)[0, 1]
    assert abs(correlation) < 5 / np.sqrt(size)


def test_exchanging_one_client_moves_the_release_by_at_most_sensitivity_over_denominator(
    open_ledger: Any,
) -> None:
    # A mean of 100: the most that one client may move it is 1/100, two noise deviations.
    ordinary = updates(N, 0.0)
    for hostile in (np.array([1e9, 0, 0, 0]), np.full(4, np.nan), np.array([0.0, 0, 0, -1e200])):
        changed = [*ordinary[:-1], {"w": hostile}]
        moved = mean_update(answer_with_update(changed), open_ledger)["w"]
        assert np.linalg.norm(moved) <= 1.0 / N + 2 * TOLERANCE


def test_cohort_sizes_are_binomial_and_inclusions_uncorrelated() -> None:
    # False alarm below 1e-6 each; catches k-of-N sampling, whose sizes do not vary at all.
    rounds, clients, rate = 20_000, 40, 0.25
    selection, draw = PoissonSelection(rate), a_draw(clients)
    included = np.zeros((rounds, clients))
    for row in included:
        row[[unit.node for unit in selection.select(draw)]] = 1
    sizes = np.bincount(included.sum(1).astype(int), minlength=clients + 1)
    expected = stats.binom.pmf(np.arange(clients + 1), clients, rate) * rounds
    common = expected >= 5
    statistic = ((sizes[common] - expected[common]) ** 2 / expected[common]).sum()
    assert stats.chi2.sf(statistic, common.sum() - 1) > ALARM
    correlation = np.corrcoef(included, rowvar=False) - np.eye(clients)
    pairs = clients * (clients - 1) / 2
    assert abs(correlation).max() < stats.norm.isf(ALARM / pairs / 2) / np.sqrt(rounds)
    assert not np.all(included.sum(1) == clients * rate)


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan")])
def test_a_sampling_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling_rate"):
        PoissonSelection(rate)
