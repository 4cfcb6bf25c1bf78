"""The path of a round on the strategy object itself, with every client under our control."""

from __future__ import annotations

import gc
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fl_dp.strategies.modes import CentralMode
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from laws import ALARM, normal_p
from local_grid import LocalGrid, answer_with_update, arrays_of, reply
from trainings import plan_of, record

from fl_dp import PrivacyLedger
from fl_dp.mechanisms import FixedClipping
from fl_dp.strategies import (
    DPFedAvg,
    Draw,
    LawSelection,
    UnfitModel,
    Unit,
)

N = 100


def mean_update(answer: Any, start: Any, model: ArrayRecord | None = None) -> dict[str, np.ndarray]:
    """Run one round over `N` nodes and return what it did to the model."""
    model = model if model is not None else record(w=np.zeros(4, np.float64))
    after = start(plan_of(N), LocalGrid(answer, N), model, timeout=2.0).result.arrays
    return {name: array.numpy() - model[name].numpy() for name, array in after.items()}


# With noise multiplier 0.5 and denominator 100 the noise on the mean has deviation 0.005: six of
# them (2e-9 a coordinate) are the tolerance of every exact value below.
TOLERANCE = 6 * 0.005


def updates(num_clients: int, value: float = 0.25) -> list[dict[str, Any]]:
    return [{"w": np.array([value, 0.0, 0.0, 0.0])} for _ in range(num_clients)]


def test_the_mean_update_is_the_clipped_sum_over_the_public_constant(start: Any) -> None:
    moved = mean_update(answer_with_update(updates(N)), start)
    np.testing.assert_allclose(moved["w"], [0.25, 0, 0, 0], atol=TOLERANCE)


def test_a_client_that_claims_many_records_counts_once(start: Any) -> None:
    honest = answer_with_update(updates(N))

    def answer(message: Message, partition: int) -> Message:
        made = honest(message, partition)
        assert made is not None
        made.content["metrics"] = MetricRecord({"num-examples": 1000 if partition == 0 else 1})
        return made

    moved = mean_update(answer, start)
    np.testing.assert_allclose(moved["w"], [0.25, 0, 0, 0], atol=TOLERANCE)


@pytest.mark.parametrize("silent", [0, N // 2, N])
def test_missing_replies_change_neither_denominator_nor_noise(start: Any, silent: int) -> None:
    honest = answer_with_update(updates(N))
    grid = LocalGrid(lambda m, p: None if p < silent else honest(m, p), N)
    done = start(plan_of(N), grid, record(w=np.zeros(4)), timeout=1.5)
    moved = done.result.arrays["w"].numpy()
    np.testing.assert_allclose(moved, [0.25 * (N - silent) / N, 0, 0, 0], atol=TOLERANCE)
    assert (done.ledger.rounds_spent, done.ledger.rounds_committed) == (1, 1)


def test_seeds_of_the_process_repeat_no_noise(start: Any) -> None:
    """The power: what numpy draws after its seed is the same."""
    trained, drawn = [], []
    for _ in range(2):
        random.seed(42)
        np.random.seed(42)
        torch.manual_seed(42)
        trained.append(mean_update(answer_with_update(updates(N)), start)["w"])
        np.random.seed(42)
        drawn.append(np.random.normal(size=4))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not (trained[0] == trained[1]).any()


HOSTILE = {
    "zero": np.zeros(4),
    "nan": np.array([np.nan, 1.0, 1.0, 1.0]),
    "inf": np.array([np.inf, 0.0, 0.0, 0.0]),
    "minus inf and nan": np.array([-np.inf, np.nan, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_zero_or_non_finite_update_contributes_zero(
    start: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = updates(N)
    sent[3] = {"w": HOSTILE[name]}
    moved = mean_update(answer_with_update(sent), start)
    np.testing.assert_allclose(moved["w"], [0.2475, 0, 0, 0], atol=TOLERANCE)


@pytest.mark.parametrize("huge", [1e3, 1e30, 1e300])
def test_a_huge_update_moves_the_mean_by_at_most_the_clipping_norm(start: Any, huge: float) -> None:
    sent = updates(N, 0.0)
    sent[3] = {"w": np.array([huge, 0.0, 0.0, 0.0])}
    moved = mean_update(answer_with_update(sent), start)
    np.testing.assert_allclose(moved["w"], [0.01, 0, 0, 0], atol=TOLERANCE)


def test_zero_dimensional_parameters_are_clipped_and_noised_like_any_other(
    start: Any,
) -> None:
    model = record(scale=np.float32(0.0), w=np.zeros(3, np.float32))
    sent = [{"scale": np.float32(3.0), "w": np.array([4.0, 0.0, 0.0])} for _ in range(N)]
    moved = mean_update(answer_with_update(sent), start, model=model)
    assert moved["scale"].shape == ()
    assert moved["scale"] == pytest.approx(0.6, abs=TOLERANCE)
    assert moved["w"][0] == pytest.approx(0.8, abs=TOLERANCE)
    alone = mean_update(answer_with_update([{}] * N), start, model=record(scale=np.float32(1.0)))
    assert alone["scale"] != 0  # noise, though nobody changed it


def test_integer_buffers_stay_with_the_server(start: Any) -> None:
    model = record(w=np.zeros(2, np.float32), counter=np.int64(7), mask=np.array([True, False]))
    sent = [{"w": np.array([0.25, 0.0]), "counter": np.int64(1000)} for _ in range(N)]
    result = start(plan_of(N, rounds=2), LocalGrid(answer_with_update(sent), N), model).result
    assert list(result.arrays) == ["w", "counter", "mask"]
    assert result.arrays["counter"].numpy() == 7
    assert result.arrays["counter"].numpy().dtype == np.int64
    assert result.arrays["mask"].numpy().dtype == np.bool_
    assert result.arrays["w"].numpy()[0] == pytest.approx(0.5, abs=2 * TOLERANCE)


def test_arrays_are_matched_by_name_not_by_place(start: Any) -> None:
    model = record(a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))

    def answer(message: Message, partition: int) -> Message:
        got = arrays_of(message)
        return reply(message, {"b": got["b"] - 0.5, "a": got["a"] + 0.25})

    moved = mean_update(answer, start, model=model)
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
    start: Any, malformed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    honest = answer_with_update(updates(N))
    moved = mean_update(lambda m, p: malformed(m) if p < 20 else honest(m, p), start)
    np.testing.assert_allclose(moved["w"], [0.2, 0, 0, 0], atol=TOLERANCE)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    [of_the_promise, of_the_rehearsal, of_the_round] = warnings
    assert "NO PRIVACY" in of_the_promise
    assert "plain Flower ClientApp" in of_the_rehearsal
    assert "contributes zero" in of_the_round
    assert "patient" not in caplog.text


def test_no_cohort_size_and_no_client_metric_leaves_the_strategy(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    honest = answer_with_update(updates(97))

    def answer(message: Message, partition: int) -> Message:
        made = honest(message, partition)
        assert made is not None
        made.content["metrics"] = MetricRecord({"num-examples": 12345, "loss": 0.98765})
        return made

    caplog.set_level(logging.DEBUG, logger="flwr")
    grid = LocalGrid(answer, 97)
    plan = plan_of(97, sampling_rate=0.5)
    result = start(plan, grid, record(w=np.zeros(4, np.float32))).result
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    for private in ("12345", "98765", "Sampled", "Received"):
        assert private not in caplog.text
    assert f" {len(grid.sent)} " not in caplog.text.replace("48.5", "")


def test_the_budget_ends_training_normally_with_the_last_private_model(tmp_path: Path) -> None:
    plan = noised_plan(
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


def test_more_rounds_than_the_plan_pays_for_are_refused_before_training(start: Any) -> None:
    grid = LocalGrid(answer_with_update(updates(N)), N)
    with pytest.raises(ValueError, match="4 rounds"):
        start(plan_of(N, rounds=3), grid, record(w=np.zeros(4)), rounds=4)
    assert not grid.sent


def test_a_ledger_of_another_plan_is_refused(open_ledger: Any) -> None:
    ledger = open_ledger(plan_of(N))
    with pytest.raises(ValueError, match="another plan"):
        DPFedAvg(plan=plan_of(N + 1), ledger=ledger)


def test_a_round_is_charged_before_anyone_is_sampled(
    open_ledger: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(plan := plan_of(N, rounds=3, sampling_rate=0.5))
    spent_when_sampled: list[int] = []
    select = LawSelection.select

    def spy(self: LawSelection, draw: Draw) -> list[Unit]:
        spent_when_sampled.append(PrivacyLedger.read(ledger.location).rounds_spent)
        return select(self, draw)

    monkeypatch.setattr(LawSelection, "select", spy)
    start(plan, LocalGrid(answer_with_update(updates(N)), N), record(w=np.zeros(4)), ledger=ledger)
    assert spent_when_sampled == [1, 2, 3]


def test_a_crash_in_a_round_leaves_it_spent_and_uncommitted(open_ledger: Any, start: Any) -> None:
    ledger = open_ledger(plan := plan_of(N))
    grid = LocalGrid(answer_with_update(updates(N)), N)

    written: list[int] = []  # by the trial of a copy, before anything is charged

    class Broken(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if written:
                raise RuntimeError("disk full")
            written.append(server_round)
            return super().aggregate_train(server_round, replies)

    with pytest.raises(RuntimeError, match="disk full"):
        start(plan, grid, record(w=np.zeros(4)), Broken(), ledger=ledger)
    assert (ledger.rounds_spent, ledger.rounds_committed) == (1, 0)


def test_a_round_that_was_not_reserved_releases_nothing(open_ledger: Any) -> None:
    plan = plan_of(N, rounds=2)
    strategy = DPFedAvg(plan=plan, ledger=open_ledger(plan))
    with pytest.raises(RuntimeError, match="not reserved"):
        strategy.aggregate_train(1, [])
    grid = LocalGrid(answer_with_update([{}] * N), N)
    list(strategy.loop.open(1, record(w=np.zeros(2)), ConfigRecord(), grid))
    with pytest.raises(RuntimeError, match="not reserved"):
        strategy.loop.release(2, [])


# --- laws, on the strategy object ---------------------------------------------------------------


def released_noise(start: Any, *, silent: bool, scale: float = 1.0) -> np.ndarray:
    """Noise of one round over (noise multiplier x clipping norm / denominator), 300,000 draws."""
    size = 300_000
    plan = plan_of(N, noise_multiplier=1.5 * scale, clipping=FixedClipping(norm=0.5))
    answer = (lambda m, p: None) if silent else answer_with_update([{}] * N)
    timeout = 0.2 if silent else 60.0
    done = start(plan, LocalGrid(answer, N), record(w=np.zeros(size)), timeout=timeout)
    return np.asarray(done.result.arrays["w"].numpy() / (1.5 * 0.5 / plan.denominator))


@pytest.mark.parametrize("silent", [False, True])
def test_the_noise_of_a_round_has_the_charged_law_whoever_replies(start: Any, silent: bool) -> None:
    assert normal_p(released_noise(start, silent=silent)) > ALARM


def test_the_law_test_rejects_nine_tenths_of_the_noise(start: Any) -> None:
    assert normal_p(released_noise(start, silent=False, scale=0.9)) < ALARM


def test_a_model_that_memory_has_no_room_for_is_refused_before_anybody_is_asked(
    open_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(4)
    ledger, grid = open_ledger(plan), LocalGrid(answer_with_update([{"w": np.zeros(1000)}] * 4), 4)
    for free, fits in ((43_000, False), (45_000, True), (None, True)):
        monkeypatch.setattr("fl_dp.strategies.unfit_model.free_memory", lambda free=free: free)
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        if fits:
            strategy.start(grid, record(w=np.zeros(1000)), num_rounds=1)
            continue
        with pytest.raises(UnfitModel, match=r"GiB at the server, .* nobody was asked"):
            strategy.start(grid, record(w=np.zeros(1000)), num_rounds=1)
        assert ledger.rounds_spent == 0
        assert not grid.sent and not grid.introductions
    assert ledger.rounds_spent == 2


def test_replies_of_a_large_model_do_not_pile_up(
    open_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.strategies.open_round._LARGE", 1)
    plan = plan_of(8)
    answers, alive = answer_with_update([{"w": np.full(1000, 0.1)}] * 8), list[int]()

    fold = CentralMode.fold

    def counted(mode: Any, *given: Any, **options: Any) -> Any:
        found = [each for each in gc.get_objects() if isinstance(each, Array)]
        alive.append(sum(each.shape == (1000,) for each in found))
        return fold(mode, *given, **options)

    monkeypatch.setattr(CentralMode, "fold", counted)
    gc.collect()
    gc.disable()
    try:
        strategy = DPFedAvg(plan=plan, ledger=open_ledger(plan), window=1)
        strategy.start(LocalGrid(answers, 8), record(w=np.zeros(1000)), num_rounds=1)
    finally:
        gc.enable()
    assert len(alive) == 8
    assert alive[-1] <= alive[2]
