"""Where privacy is switched off, or costs nothing, we train the models that Flower trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy
from local_grid import Answer, LocalGrid, answer_with_update, arrays_of, reply
from trainings import SIX_SIGMA, numbers, plan_of, record, train

from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import FixedClipping
from fl_dp.strategies import LawSelection

N, ROUNDS = 6, 5
EXAMPLES = [1, 5, 20, 2, 300, 7]


def descending(rate: float, records: list[int]) -> Answer:
    """Clients that each go some way to a model of their own: what they send depends on ours."""
    goals = np.random.default_rng(3).normal(size=(len(records), 5))

    def answer(message: Message, node: int) -> Message:
        model = arrays_of(message)
        trained = {}
        for name, values in model.items():
            goal = goals[node][: values.size].reshape(values.shape)
            trained[name] = values + rate * (goal - values)
        return reply(message, trained, **{"num-examples": records[node]})

    return answer


def first_model() -> ArrayRecord:
    return record(w=np.linspace(-1.0, 1.0, 4).reshape(2, 2), b=np.float64(0.5), c=np.zeros(5))


INNER: dict[str, Callable[[], Strategy]] = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    "FedAvgM": lambda: FedAvgM(
        fraction_evaluate=0.0, server_learning_rate=0.8, server_momentum=0.7
    ),
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.0, eta=0.05),
}


def flowers(inner: str, answer: Answer) -> dict[str, Any]:
    """The model that Flower's own loop trains on the same grid."""
    result = INNER[inner]().start(LocalGrid(answer, N), first_model(), num_rounds=ROUNDS)
    return numbers(result.arrays)


def assert_same_model(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-6, rtol=0)


@pytest.mark.parametrize("inner", INNER)
def test_without_privacy_we_train_flowers_model_weighted_by_records(inner: str) -> None:
    answer = descending(0.3, EXAMPLES)
    trained = train(
        None,
        None,
        answer,
        first_model(),
        nodes=N,
        rounds=ROUNDS,
        inner=INNER[inner](),
        selection=LawSelection(PoissonSampling(sampling_rate=1.0)),
    )
    theirs = flowers(inner, answer)
    assert_same_model(trained.models[-1], theirs)
    assert abs(theirs["w"] - first_model()["w"].numpy()).max() > 0.1


@pytest.mark.parametrize("inner", INNER)
def test_with_hardly_any_noise_and_nothing_to_clip_we_train_flowers_model(
    tmp_path: Path, inner: str
) -> None:
    # Noise of 7e-9 on each mean; the least that six updates can be summed exactly at.
    answer = descending(0.002, [10] * N)
    plan = plan_of(N, rounds=ROUNDS, noise_multiplier=2e-6, clipping=FixedClipping(norm=0.02))
    trained = train(tmp_path, plan, answer, first_model(), inner=INNER[inner]())
    theirs = flowers(inner, answer)
    assert_same_model(trained.models[-1], theirs)
    assert abs(theirs["w"] - first_model()["w"].numpy()).max() > 1e-3


# --- models of every kind -----------------------------------------------------------------------


def bfloat16(values: Any) -> np.ndarray:
    """Bits of bfloat16 numbers that float32 holds exactly."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def of_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def all_kinds() -> ArrayRecord:
    bits = Array(bfloat16([1.0, -2.0, 0.5]))
    bits.dtype = "bfloat16"
    return ArrayRecord(
        {
            "bf": bits,
            "half": Array(np.array([1.0, 2.0], np.float16)),
            "scale": Array(np.array(3.0, np.float32)),
            "half_scale": Array(np.array(4.0, np.float16)),
            "empty": Array(np.zeros((0, 7), np.float32)),
            "double": Array(np.ones((2, 1), np.float64)),
            "steps": Array(np.array(9, np.int64)),
        }
    )


@pytest.mark.parametrize("wide", [False, True], ids=["bfloat16 replies", "float32 replies"])
def test_every_kind_of_array_goes_through_a_round_and_keeps_its_form(
    tmp_path: Path, wide: bool
) -> None:
    def answer(message: Message, node: int) -> Message:
        [arrays] = message.content.array_records.values()
        made = {}
        for name, array in arrays.items():
            values = of_bfloat16(array.numpy()) if array.dtype == "bfloat16" else array.numpy()
            moved = values + 1 if name == "steps" else (values + 0.5).astype(values.dtype)
            bits = bfloat16(moved) if name == "bf" and not wide else moved
            made[str(name)] = Array(np.asarray(bits))
            if name == "bf" and not wide:
                made["bf"].dtype = "bfloat16"
        answered = reply(message, {})
        answered.content["arrays"] = ArrayRecord(made)
        return answered

    plan = plan_of(N, noise_multiplier=2e-6, clipping=FixedClipping(norm=10.0))
    model = all_kinds()
    trained = train(tmp_path, plan, answer, model)
    after = trained.result.arrays
    assert list(after) == list(model)
    for name, array in model.items():
        assert (after[name].dtype, after[name].shape) == (array.dtype, array.shape), name
    np.testing.assert_allclose(of_bfloat16(after["bf"].numpy()), [1.5, -1.5, 1.0], atol=1e-2)
    np.testing.assert_allclose(after["half"].numpy(), [1.5, 2.5], atol=2e-3)
    np.testing.assert_allclose(after["scale"].numpy(), 3.5, atol=1e-4)
    np.testing.assert_allclose(after["half_scale"].numpy(), 4.5, atol=4e-3)
    np.testing.assert_allclose(after["double"].numpy(), 1.5, atol=1e-4)
    assert after["steps"].numpy() == 9


@pytest.mark.parametrize("name", ["bf", "half", "half_scale"])
def test_narrow_arrays_are_noised_before_they_are_rounded(tmp_path: Path, name: str) -> None:
    plan = plan_of(N, noise_multiplier=3.0, clipping=FixedClipping(norm=10.0))
    model = all_kinds()
    after = train(tmp_path, plan, answer_with_update([{}] * N), model).result.arrays
    # Noise of a coordinate may vanish in the rounding now and then; not that of all of them.
    assert (after[name].numpy() != model[name].numpy()).any()


# --- cohorts of every size ----------------------------------------------------------------------


@pytest.mark.parametrize("replies", [0, 1, 3000])
def test_a_round_of_any_number_of_replies_releases_their_sum_over_the_constant(
    tmp_path: Path, replies: int
) -> None:
    declared = 3000
    plan = plan_of(declared, noise_multiplier=1e-3, clipping=FixedClipping(norm=1.0))
    honest = answer_with_update([{"w": np.array([0.25, 0.0])}] * declared)
    trained = train(
        tmp_path,
        plan,
        lambda message, node: honest(message, node) if node < replies else None,
        record(w=np.zeros(2)),
        timeout=60.0 if replies == declared else 3.0,  # a busy machine sends 3,000 in a second
    )
    expected = [0.25 * replies / declared, 0.0]
    tolerance = SIX_SIGMA * 1e-3 / declared
    np.testing.assert_allclose(trained.move, expected, atol=tolerance, rtol=0)
    assert trained.move[1] != 0.0


# By default 300,000 do, in `test_the_noise_of_a_round_has_the_charged_law_whoever_replies`.
@pytest.mark.nightly
def test_ten_million_parameters_go_through_a_round(tmp_path: Path) -> None:
    size = 10_000_000
    plan = plan_of(2, noise_multiplier=1e-3)
    ones = {"w": np.ones(size, np.float32)}
    model = record(w=np.zeros(size, np.float32))
    trained = train(tmp_path, plan, lambda message, _: reply(message, ones), model)
    moved = trained.move.astype(np.float64)
    # Two clients of ones, each clipped to 1 / sqrt(size) a coordinate, and noise of 5e-4.
    tolerance = SIX_SIGMA * 5e-4 / math.sqrt(size)
    assert moved.mean() == pytest.approx(1.0 / math.sqrt(size), abs=tolerance)
    assert moved.std() == pytest.approx(5e-4, rel=SIX_SIGMA / math.sqrt(2 * size))
