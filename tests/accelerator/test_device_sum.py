"""Rows on a device are clipped and summed there to the host's integers, without a wait.

On the CPU the same code runs, with tensors that the sum is told to leave where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from counted_operators import counted
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fl_dp.accelerator import device_sum
from fl_dp.accelerator.device_sum import DeviceSum, sum_of_halves, weighted_rows
from fl_dp.mechanisms import GaussianBundle, GaussianMechanism
from fl_dp.updates import BundleSum, RefusedUpdate, VectorLayout, clipped_sum
from fl_dp.updates.clipped_sum import ClippedSum, read_norms

F32 = np.finfo(np.float32)
NORMS = [(1.0,), (1e-3,), (0.5, 2.0, 1e-3)]


@pytest.fixture(autouse=True)
def _left_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped_sum, "_stays_there", lambda rows: True)


def model_of(sizes: Sequence[int], dtype: Any = np.float32) -> ArrayRecord:
    rng = np.random.default_rng(1)
    return ArrayRecord(
        {f"w{i}": Array(rng.normal(size=size).astype(dtype)) for i, size in enumerate(sizes)}
    )


def sum_for(
    model: ArrayRecord, clipping_norms: Sequence[float] = (1.0,), *, grid: float | None = None
) -> ClippedSum:
    layout = VectorLayout.of(model)
    if grid is None:
        joint = math.hypot(*clipping_norms)
        grid = GaussianMechanism(noise_multiplier=1.1, clipping_norm=joint).grid
    return ClippedSum(layout, layout.flatten(model), grid=grid, clipping_norms=clipping_norms)


def hostile(model: ArrayRecord, units: int = 12) -> NDArray[np.float32]:
    """Rows near and far, with the ends of float32, and some that are not finite."""
    rng = np.random.default_rng(2)
    start = VectorLayout.of(model).flatten(model).astype(np.float32)
    spread = 10.0 ** rng.uniform(-9, 3, (units, 1))
    rows = (start + spread * rng.standard_normal((units, start.size))).astype(np.float32)
    rows[0] = start
    rows[1, rng.integers(start.size)] = math.nan
    rows[2, rng.integers(start.size)] = math.inf
    rows[3] = -math.inf
    rows[4, rng.integers(start.size)] = F32.max
    rows[5] = F32.max * np.sign(rng.standard_normal(start.size))
    rows[6] = start + np.float32(1e-45) * rng.integers(-3, 4, start.size).astype(np.float32)
    rows[7] = start + 1e-30
    return rows


def norms_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host add up squares in the device's order; all else stays its own."""
    in_order = ClippedSum._norms

    def by_halves(self: ClippedSum, values: Any) -> list[float]:
        in_order(self, values)
        update = self._whole(values)
        norms = []
        for group in self._groups:
            squares = torch.from_numpy(update[group] ** 2)
            norm = float(sum_of_halves(squares).sqrt())
            norms.append(norm if math.isfinite(norm) else math.inf)
        return norms

    monkeypatch.setattr(ClippedSum, "_norms", by_halves)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("clipping_norms", NORMS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 0, 4095), (65_536, 3, 65_537), (4097, 200, 1)])
def test_a_device_adds_the_integers_of_the_host(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], clipping_norms: tuple[float, ...]
) -> None:
    model = model_of(sizes)
    rows = hostile(model)
    before = rows.copy()
    there, host = sum_for(model, clipping_norms), sum_for(model, clipping_norms)
    norms_by_halves(monkeypatch)
    expected = host.add_rows(rows)
    norms = there.add_rows(torch.from_numpy(rows))
    assert isinstance(norms, Tensor) and norms.dtype == torch.float64
    np.testing.assert_array_equal(there.total, host.total)
    if len(clipping_norms) == 1:
        assert norms.tolist() == expected
    np.testing.assert_allclose(norms.numpy(), expected, rtol=1e-15)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("clipping_norms", NORMS)
def test_the_order_of_squares_moves_norms_by_less_than_the_margin(
    clipping_norms: tuple[float, ...],
) -> None:
    model = model_of((70_000, 30, 1000))
    rows = hostile(model)
    there, host = sum_for(model, clipping_norms), sum_for(model, clipping_norms)
    np.testing.assert_allclose(
        read_norms(there.add_rows(torch.from_numpy(rows))), host.add_rows(rows), rtol=1e-14
    )
    assert np.abs(there.total - host.total).max() <= len(rows)


@pytest.mark.parametrize("clipping_norms", NORMS)
def test_no_row_adds_more_than_the_clipping_norm(clipping_norms: tuple[float, ...]) -> None:
    model = model_of((40, 30, 20))
    for row, values in enumerate(hostile(model)):
        total = sum_for(model, clipping_norms)
        (norm,) = read_norms(total.add_rows(torch.from_numpy(values[None])))
        bounds = clipping_norms if len(clipping_norms) > 1 else [total.sensitivity]
        for group, bound in zip(total._groups, bounds, strict=True):
            squares = sum(int(step) ** 2 for step in total.total[group])
            assert squares * Fraction(total.grid) ** 2 <= Fraction(bound) ** 2
        finite = np.isfinite(values).all()
        assert math.isfinite(norm) == finite
        assert finite or not total.total.any()
        assert row in (0, 6, 7) or not finite or total.total.any()


@pytest.mark.parametrize("clipping_norms", NORMS)
def test_a_row_a_little_too_long_is_clipped(clipping_norms: tuple[float, ...]) -> None:
    model = model_of((40, 30, 20))
    total = sum_for(model, clipping_norms)
    row = torch.from_numpy(total.layout.flatten(model))
    update = torch.ones(90, dtype=torch.float64)
    for group, bound in zip(total._groups, clipping_norms, strict=True):
        update[group] *= 1.05 * bound / float(update[group].norm())
    total.add_rows((row + update).float()[None])
    for group, bound in zip(total._groups, clipping_norms, strict=True):
        length = float(np.linalg.norm(total.total[group])) * total.grid
        assert length == pytest.approx(bound, rel=1e-5)


def test_a_row_is_the_same_to_the_bit_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of((5000, 13))
    rows = torch.from_numpy(hostile(model))
    together = sum_for(model)
    norms = read_norms(together.add_rows(rows))
    alone, each = sum_for(model), []
    monkeypatch.setattr(device_sum, "_ENTRIES", {"cpu": 1})  # a row at a time, too
    for row in rows:
        each += read_norms(alone.add_rows(row[None]))
    assert norms == each
    np.testing.assert_array_equal(together.total, alone.total)


def test_squares_are_added_by_halves() -> None:
    def by_halves(values: list[float]) -> float:
        if len(values) == 1:
            return values[0]
        half = 1 << (len(values) - 1).bit_length() - 1
        low, high = values[:half], values[half:]
        return by_halves([a + b for a, b in zip(low, high, strict=False)] + low[len(high) :])

    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 8, 1000, 4097):
        values = rng.normal(size=(3, size)) * 10.0 ** rng.integers(-8, 8, (3, size))
        expected = [by_halves(row) for row in values.tolist()]
        assert sum_of_halves(torch.from_numpy(values)).tolist() == expected
    assert sum_of_halves(torch.zeros(2, 0)).tolist() == [0.0, 0.0]


def test_a_cohort_of_any_size_takes_as_many_operators_and_no_wait() -> None:
    model = model_of((3000, 77))
    rows = torch.from_numpy(hostile(model, 50))
    counts = []
    for units in (10, 50):
        total = sum_for(model)
        total.add_rows(rows[:1])
        with counted() as run:
            total.add_rows(rows[:units])
        assert not run.copies and not run.waits
        counts.append(run.total)
        with counted() as run:
            assert total.total.any()
        assert run.copies == run.waits == {"cpu": 1}  # one vector a round
    assert counts[0] == counts[1] <= 40, counts


def test_the_sum_can_be_read_between_rows_and_mixed_with_the_host_s() -> None:
    model = model_of((90,))
    rows = hostile(model)[7:]
    mixed, host = sum_for(model), sum_for(model)
    for start, part in enumerate((rows[:2], rows[2:3], rows[3:])):
        mixed.add_rows(part if start == 1 else torch.from_numpy(part))
        host.add_rows(part)
        np.testing.assert_array_equal(mixed.total, host.total)
        np.testing.assert_array_equal(mixed.total, host.total)
    whole = np.zeros(90)
    mixed.add_rows(torch.from_numpy(rows))
    host.add_rows(rows)
    mixed.visit_blocks(lambda total, stretch: whole.__setitem__(stretch, total))
    np.testing.assert_array_equal(whole, host.total)


def test_rows_that_need_the_host_s_range_are_summed_there() -> None:
    """Float64, of rows or of the model, and clipping norms near the end of float64."""
    rows = hostile(model_of((50,)))
    for dtype, kind, norm in (
        (np.float64, np.float32, 1.0),
        (np.float32, np.float64, 1.0),
        (np.float32, np.float32, 1e-250),
    ):
        model = model_of((50,), dtype)
        there, host = sum_for(model, (norm,)), sum_for(model, (norm,))
        with np.errstate(all="ignore"):
            norms = there.add_rows(torch.from_numpy(rows.astype(kind)))
            assert norms == host.add_rows(rows.astype(kind))
        np.testing.assert_array_equal(there.total, host.total)


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(2),
        torch.zeros(2, 3),
        torch.zeros(1, 2, 1),
        torch.zeros(1, 2, dtype=torch.int64),
        torch.zeros(1, 2, dtype=torch.bfloat16),
        torch.zeros(1, 2, dtype=torch.complex64),
    ],
)
def test_a_tensor_that_is_no_matrix_of_rows_is_refused(rows: Tensor) -> None:
    total = sum_for(model_of((2,)))
    with pytest.raises(RefusedUpdate, match="is no matrix"):
        total.add_rows(rows)
    assert not total.total.any()


def test_too_many_rows_are_an_error_and_add_nothing() -> None:
    total = sum_for(model_of((1,)), grid=2.0**-51)
    total.add_rows(torch.ones(3, 1))
    before = total.total.copy()
    with pytest.raises(OverflowError):
        total.add_rows(torch.ones(3, 1))
    np.testing.assert_array_equal(total.total, before)


def test_rows_that_fail_half_way_add_nothing_and_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = sum_for(model_of((1,)), grid=2.0**-51)
    monkeypatch.setattr(device_sum, "_ENTRIES", {"cpu": 1})
    add, calls = DeviceSum._add, []

    def failing(self: DeviceSum, rows: Tensor, added: Tensor) -> Tensor:
        calls.append(rows)
        if len(calls) == 2:
            raise torch.OutOfMemoryError
        return add(self, rows, added)

    monkeypatch.setattr(DeviceSum, "_add", failing)
    with pytest.raises(torch.OutOfMemoryError):
        total.add_rows(torch.ones(3, 1))
    assert not total.total.any()
    total.add_rows(torch.ones(3, 1))  # as many as there is room for
    assert total.total.any()


def test_rows_with_a_graph_leave_none() -> None:
    rows = torch.ones(2, 3, requires_grad=True)
    total = sum_for(model_of((3,)))
    norms = total.add_rows(rows)
    assert isinstance(norms, Tensor) and not norms.requires_grad
    assert rows.grad is None


# The sums of a bundle.


def test_scalars_of_rows_are_those_of_the_host_and_are_read_with_the_sum() -> None:
    bundle = GaussianBundle(
        noise_multiplier=1.1,
        clipping_norms=(0.7,),
        count_noise_std=2.0,
    )
    model = model_of((64,))
    layout = VectorLayout.of(model)
    rows = hostile(model)
    there, host = (BundleSum(bundle, layout, layout.flatten(model)) for _ in range(2))
    with counted() as run:
        there.add_rows(torch.from_numpy(rows), [{}] * len(rows))
    assert not run.waits
    with np.errstate(all="ignore"):
        host.add_rows(rows, [{}] * len(rows))
    assert host.scalars.any()
    np.testing.assert_array_equal(there.scalars, host.scalars)
    np.testing.assert_array_equal(there.scalars, host.scalars)  # added once
    np.testing.assert_array_equal(there.updates.total, host.updates.total)


def test_as_many_reports_as_rows() -> None:
    model = model_of((3,))
    layout = VectorLayout.of(model)
    bundle = GaussianBundle(noise_multiplier=1.1, clipping_norms=(0.7,))
    sums = BundleSum(bundle, layout, layout.flatten(model))
    with pytest.raises(ValueError, match="2 rows and 1 reports"):
        sums.add_rows(torch.ones(2, 3), [{}])
    assert not sums.updates.total.any()


# Weights.


def test_weights_are_applied_to_the_bit_as_by_numpy() -> None:
    model = model_of((500,))
    origin = VectorLayout.of(model).flatten(model)
    rows = hostile(model)
    weights = np.linspace(0.0, 1.0, len(rows))
    weights[8] = 1.0
    expected = rows.copy()
    with np.errstate(all="ignore"):
        light = weights != 1.0
        update = rows[light] - origin
        expected[light] = origin + weights[light, None] * update
    given = torch.from_numpy(rows.copy())
    with counted() as run:
        made = weighted_rows(given, origin, weights)
    assert not run.waits
    np.testing.assert_array_equal(made.numpy(), expected)
    np.testing.assert_array_equal(given.numpy(), rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here")
@pytest.mark.parametrize("clipping_norms", NORMS)
def test_a_gpu_gives_the_bits_of_the_cpu(clipping_norms: tuple[float, ...]) -> None:
    model = model_of((65_537, 30, 1000))
    rows = torch.from_numpy(hostile(model))
    there, here = sum_for(model, clipping_norms), sum_for(model, clipping_norms)
    assert read_norms(there.add_rows(rows.cuda())) == read_norms(here.add_rows(rows))
    np.testing.assert_array_equal(there.total, here.total)
