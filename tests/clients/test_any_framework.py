"""Gradients of any framework are clipped record by record, in float64, and added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from numpy.typing import NDArray

from fl_dp.clients import RecordsInBatches
from fl_dp.clients.record_sums import sum_of_records
from fl_dp.mechanisms import GaussianBundle
from fl_dp.protocol.instruction import RoundInstruction

NORM, COUNT = 0.7, 11
MODEL = ArrayRecord([np.zeros((2, 3)), np.zeros(4)])
GRADIENTS = [
    np.random.default_rng(place).normal(size=(COUNT, *each.shape)).astype(np.float32)
    for place, each in enumerate(MODEL.to_numpy_ndarrays())
]


def records(
    gradients: Sequence[NDArray[Any]] = GRADIENTS, *, count: int = COUNT, at_once: int = 4
) -> RecordsInBatches:
    def of_rows(rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        assert len(rows) == at_once
        return [each[rows] for each in gradients]

    return RecordsInBatches(model=MODEL, count=count, gradients=of_rows, at_once=at_once)


def flat(sums: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([each.ravel() for each in sums.values()])


def test_each_record_is_clipped_on_its_own_however_they_are_batched() -> None:
    each = np.concatenate([one.reshape(COUNT, -1) for one in GRADIENTS], axis=1).astype(float)
    lengths = np.linalg.norm(each, axis=1, keepdims=True)
    expected = (each * np.minimum(1.0, NORM / lengths)).sum(axis=0)
    for at_once in (1, 4, 64):
        sums, count = records(at_once=at_once).clipped_sum(range(COUNT), NORM)
        assert count == COUNT
        assert flat(sums) == pytest.approx(expected, abs=1e-12)


def test_one_record_moves_the_sum_by_the_norm_at_most_whatever_its_gradient() -> None:
    for wild in (1e30, 1e-30, 0.0):
        changed = [each.copy() for each in GRADIENTS]
        changed[0][3] *= wild
        without = [row for row in range(COUNT) if row != 3]
        whole, _ = records(changed).clipped_sum(range(COUNT), NORM)
        rest, _ = records(changed).clipped_sum(without, NORM)
        assert np.linalg.norm(flat(whole) - flat(rest)) <= NORM * (1.0 + 1e-6)


def test_a_gradient_that_is_not_finite_counts_as_zero_alone() -> None:
    for broken in (np.nan, np.inf):
        changed = [each.copy() for each in GRADIENTS]
        changed[1][3, 0] = broken
        without = [row for row in range(COUNT) if row != 3]
        whole, count = records(changed).clipped_sum(range(COUNT), NORM)
        rest, _ = records(changed).clipped_sum(without, NORM)
        assert count == COUNT - 1
        assert flat(whole) == pytest.approx(flat(rest), abs=1e-12)


def test_a_node_answers_with_a_sum_in_the_form_of_the_model_even_of_no_record() -> None:
    bundle = GaussianBundle(noise_multiplier=1.0, clipping_norms=(NORM,), count_noise_std=5.0)
    everybody = RoundInstruction(
        server_round=1, sampling_rate=1.0, max_units=50, of_records=True, bundle=bundle
    )
    context = Context(1, 1, {}, RecordDict(), {})
    for count in (COUNT, 0):
        steps, _ = sum_of_records(
            everybody, MODEL, {}, context, lambda *_, count=count: records(count=count)
        )
        shapes = [each.shape for each in steps.to_numpy_ndarrays()]
        assert shapes == [each.shape for each in MODEL.to_numpy_ndarrays()]
        moved = max(float(np.abs(each).max()) for each in steps.to_numpy_ndarrays())
        assert (moved > 0.0) == (count > 0)


class Panic(BaseException):
    """A native library's, which is no `Exception`."""


BAD = 5


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("failure", [ValueError, SystemExit, Panic])
def test_a_record_that_fails_counts_as_zero_alone(
    failure: type[BaseException], at_once: int, caplog: pytest.LogCaptureFixture
) -> None:
    def of_rows(rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        if BAD in rows:
            raise failure("record 5")
        return [each[rows] for each in GRADIENTS]

    broken = RecordsInBatches(model=MODEL, count=COUNT, gradients=of_rows, at_once=at_once)
    whole, count = broken.clipped_sum(range(COUNT), NORM)
    without, _ = records().clipped_sum([row for row in range(COUNT) if row != BAD], NORM)
    assert count == COUNT - 1
    assert flat(whole) == pytest.approx(flat(without), abs=1e-12)
    assert caplog.text.count("counts as zero") == 1


def test_only_records_that_were_drawn_are_read() -> None:
    read: set[int] = set()

    def of_rows(rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        read.update(rows.tolist())
        return [each[rows] for each in GRADIENTS]

    drawn = [3, 4, 6, 7, 8]
    RecordsInBatches(model=MODEL, count=COUNT, gradients=of_rows, at_once=4).clipped_sum(
        drawn, NORM
    )
    assert read == set(drawn)


def test_a_function_that_takes_the_mean_of_its_batch_away_gets_one_record_unless_declared() -> None:
    def of_rows(rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        shifted = [1e3 * (each[rows] + 1.0) for each in GRADIENTS]
        scale = 1.0 if BAD in rows and len(set(rows.tolist())) > 1 else -1.0
        return [scale * each for each in shifted]

    moved = {}
    for name, declared in (("alone", {}), ("declared", {"at_once": 64})):
        node = RecordsInBatches(model=MODEL, count=COUNT, gradients=of_rows, **declared)
        whole, _ = node.clipped_sum(range(COUNT), NORM)
        rest, _ = node.clipped_sum([row for row in range(COUNT) if row != BAD], NORM)
        moved[name] = np.linalg.norm(flat(whole) - flat(rest))
    assert moved["alone"] <= NORM * (1.0 + 1e-6)
    assert moved["declared"] > 10 * NORM


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gradients": GRADIENTS[:1]}, "one for each record of the batch, of each array"),
        ({"gradients": [each.mean(-1) for each in GRADIENTS]}, "of each array"),
    ],
)
def test_what_is_no_gradient_of_each_record_counts_as_none(
    change: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    sums, count = records(**change).clipped_sum(range(COUNT), NORM)
    assert count == 0
    assert not flat(sums).any()
    assert said in caplog.text


@pytest.mark.parametrize("change", [{"at_once": 0}, {"count": -1}])
def test_numbers_are_checked(change: Any) -> None:
    with pytest.raises(ValueError, match="write at least 0 and 1"):
        records(**change)
