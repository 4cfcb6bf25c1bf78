"""What one unit can do to the sum: at most its clipping norm, exactly, and nothing to others."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dp.mechanisms import GaussianMechanism, clip_by_norm
from fl_dp.mechanisms import threads as shared_threads
from fl_dp.mechanisms.clipping import joint_clipping_norm, l2_norm
from fl_dp.updates import RefusedUpdate, VectorLayout, clipped_sum
from fl_dp.updates.arrays import narrowed
from fl_dp.updates.clipped_sum import ClippedSum, PlainSum

pytestmark = pytest.mark.slow

LARGEST = np.finfo(np.float64).max


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def record(**arrays: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def bfloat16(values: Any) -> Array:
    bits = narrowed(np.asarray(values, np.float32))
    return Array("bfloat16", bits.shape, "numpy.ndarray", Array(bits.view("V2")).data)


def grid_for(clipping_norm: float) -> float:
    return GaussianMechanism(noise_multiplier=1.0, clipping_norm=clipping_norm).grid


def start(
    model: ArrayRecord, clipping_norms: Sequence[float] = (1.0,), *, grid: float | None = None
) -> ClippedSum:
    layout = VectorLayout.of(model)
    if grid is None:
        grid = grid_for(joint_clipping_norm(clipping_norms))
    return ClippedSum(layout, layout.flatten(model), grid=grid, clipping_norms=clipping_norms)


def zeros_like(arrays: ArrayRecord) -> ArrayRecord:
    layout = VectorLayout.of(arrays)
    return layout.merge(layout.unflatten(np.zeros(layout.size)), arrays)


def is_within(steps: np.ndarray, grid: float, bound: float) -> bool:
    """Whether the norm of the steps is at most the bound, in rational arithmetic."""
    assert np.isfinite(steps).all()
    squares = sum(int(step) ** 2 for step in steps.tolist())
    return squares * Fraction(grid) ** 2 <= Fraction(bound) ** 2


ANY_VALUES = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
    elements=st.floats(width=16, allow_nan=True, allow_infinity=True, allow_subnormal=True),
)
EVERY_FLOAT64 = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
    elements=st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True),
)


@given(st.lists(st.one_of(ANY_VALUES, EVERY_FLOAT64), min_size=1, max_size=3), st.floats(1e-6, 1e6))
def test_flat_clipping_is_what_the_mechanism_encodes(
    layers: list[np.ndarray], clipping_norm: float
) -> None:
    arrays = record(**{str(i): layer for i, layer in enumerate(layers)})
    total = start(zeros_like(arrays), [clipping_norm])
    update = total.layout.flatten(arrays)
    norm = total.add(arrays)

    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=clipping_norm)
    encoded = mechanism.encode(update)
    assert np.abs(total.total - encoded).max(initial=0) <= 1
    assert (np.trunc(total.total) == total.total).all()
    assert is_within(total.total, mechanism.grid, clipping_norm)
    expected = l2_norm(update)
    assert norm == pytest.approx(expected if math.isfinite(expected) else math.inf, rel=1e-12)


@given(
    st.lists(
        st.tuples(st.one_of(ANY_VALUES, EVERY_FLOAT64), st.floats(1e-3, 1e3)),
        min_size=2,
        max_size=4,
    )
)
def test_clipping_by_layer_is_clipping_each_alone(
    layers: list[tuple[np.ndarray, float]],
) -> None:
    arrays = record(**{str(i): layer for i, (layer, _) in enumerate(layers)})
    bounds = [bound for _, bound in layers]
    total = start(zeros_like(arrays), bounds)
    norm = total.add(arrays)

    update = total.layout.flatten(arrays)
    parts = [update[spec.start : spec.stop] for spec in total.layout.released]
    if math.isinf(norm):  # then the clipped layers are zero, but for a joint norm beyond float64
        assert not total.total.any()
        assert not math.isfinite(l2_norm(update))
        return
    clipped = [clip_by_norm(part, bound) for part, bound in zip(parts, bounds, strict=True)]
    expected = np.concatenate([np.trunc(layer / total.grid) for layer in clipped])
    assert np.abs(total.total - expected).max(initial=0) <= 1
    for spec, bound in zip(total.layout.released, bounds, strict=True):
        assert is_within(total.total[spec.start : spec.stop], total.grid, bound)
    assert total.sensitivity == joint_clipping_norm(bounds)


KINDS: dict[str, Any] = {
    "zero": np.zeros(5),
    "nan": np.array([1.0, np.nan]),
    "inf": np.array([np.inf, 1.0]),
    "minus inf": np.array([-np.inf, np.inf]),
    "1e30": np.full(7, 1e30),
    "float32, 1e30": np.full(7, 1e30, np.float32),
    "largest float64": np.array([LARGEST, -LARGEST]),
    "one largest float64": np.array([0.0, -LARGEST]),
    "largest float32": np.full(3, np.finfo(np.float32).max),
    "largest float16": np.full(3, 65504, np.float16),
    "largest bfloat16": bfloat16(np.full(3, 3e38)),
    "infinite bfloat16": bfloat16([np.inf, 0.0]),
    "long double beyond float64": np.array([LARGEST], np.longdouble) * 4,
    "denormals": np.full(4, 5e-324),
    "float32 denormals": np.full(4, 1e-45, np.float32),
    "1e-200": np.full(3, 1e-200),
    "scalar": np.array(3.0),
    "float16 scalar": np.array(3.0, np.float16),
    "bfloat16": bfloat16([[0.3, -4.0]]),
    "empty": np.zeros((0, 3)),
    "in Fortran order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(3, dtype=">f4"),
    "just above": np.array([1.0 + 2**-52]),
    "exactly at the norm": np.array([1.0]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clipping_norm", [1e-250, 1e-3, 1.0, 1e200])
def test_no_contribution_is_longer_than_the_clipping_norm(kind: str, clipping_norm: float) -> None:
    values = KINDS[kind]
    arrays = ArrayRecord({"w": values if isinstance(values, Array) else Array(values)})
    total = start(zeros_like(arrays), [clipping_norm])
    norm = total.add(arrays)
    assert is_within(total.total, total.grid, clipping_norm)
    update = total.layout.flatten(arrays)
    if not np.isfinite(update).all() or norm == math.inf:
        assert norm == math.inf
        assert not total.total.any()
    elif norm > clipping_norm:  # nothing is wasted either
        assert l2_norm(total.total) * total.grid > clipping_norm * (1 - 1e-6)
    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=clipping_norm)
    assert np.abs(total.total - mechanism.encode(update)).max(initial=0) <= 1


@pytest.mark.parametrize("clipping_norms", [(1.0,), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_layer_zeroes_the_whole_contribution(
    clipping_norms: tuple[float, ...], bad: float
) -> None:
    model = record(a=np.zeros(3), b=np.zeros(2), c=np.zeros(1))
    total = start(model, clipping_norms)
    assert total.add(record(a=np.ones(3), b=np.array([0.0, bad]), c=np.ones(1))) == math.inf
    assert not total.total.any()


def test_the_update_is_the_difference_from_the_model_in_float64() -> None:
    model = record(w=np.array([1e8, 1.0], np.float32), s=np.array(2.0))
    total = start(model, [1e9])
    norm = total.add(record(w=np.array([1e8 + 8, 1.5], np.float32), s=np.array(2.0 + 2**-30)))
    assert norm == pytest.approx(math.hypot(8, 0.5), rel=1e-9)
    np.testing.assert_allclose(total.total * total.grid, [8, 0.5, 2**-30], atol=total.grid)


@pytest.mark.parametrize("clipping_norms", [(1.0,), (0.5, 2.0)])
@given(weight=st.floats(0, 1))
def test_a_weight_shortens_the_clipped_update(
    clipping_norms: tuple[float, ...], weight: float
) -> None:
    model = record(a=np.zeros(3), b=np.zeros(2))
    arrays = record(a=np.array([3.0, 4.0, 0.1]), b=np.array([0.1, -0.2]))
    whole, part = start(model, clipping_norms), start(model, clipping_norms)
    assert part.add(arrays, weight=weight) == whole.add(arrays)
    np.testing.assert_allclose(part.total, weight * whole.total, atol=2)
    assert (np.abs(part.total) <= np.abs(whole.total)).all()


@pytest.mark.parametrize("weight", [-0.1, 1.0 + 1e-9, math.nan, math.inf])
def test_a_weight_outside_zero_to_one_is_an_error(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        start(record(w=np.zeros(1))).add(record(w=np.zeros(1)), weight=weight)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped_sum, "_BLOCK", 10_000)


def many_updates() -> tuple[ArrayRecord, list[ArrayRecord]]:
    """Several blocks, arrays within a block and across blocks, so that threads take part."""
    rng = np.random.default_rng(1)
    shapes = {"a": (30_005,), "b": (7,), "e": (0,), "c": (2, 9_988), "d": (12_000,), "f": ()}
    model = record(
        **{n: np.asarray(rng.normal(size=s), dtype=np.float32) for n, s in shapes.items()}
    )
    layout = VectorLayout.of(model)
    origin = layout.flatten(model)
    return model, [
        layout.unflatten(origin + scale * rng.normal(size=layout.size))
        for scale in (1e-5, 1e-2, 1.0, 100.0)
    ]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("clipping_norms", [(1.0,), (1.0, 0.01, 0.1, 2.0, 0.5, 1.0)])
@pytest.mark.usefixtures("_small_blocks")
def test_a_contribution_does_not_depend_on_the_others_nor_on_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, clipping_norms: tuple[float, ...]
) -> None:
    model, updates = many_updates()
    monkeypatch.setattr(shared_threads, "usable_processors", lambda: 1)
    alone = []
    for update in updates:
        total = start(model, clipping_norms)
        total.add(update)
        alone.append(total.total)
        bounds = clipping_norms if len(clipping_norms) > 1 else [total.sensitivity]
        for group, bound in zip(total._groups, bounds, strict=True):
            assert is_within(total.total[group], total.grid, bound)
    monkeypatch.setattr(shared_threads, "usable_processors", lambda: threads)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        together = start(model, clipping_norms)
        before = np.zeros(together.layout.size)
        for index in order:
            together.add(updates[index])
            assert (together.total - before == alone[index]).all()
            before = together.total.copy()
        assert (together.total == np.sum(alone, axis=0)).all()


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("clipping_norm", [1e-3, 1.0])
def test_a_wide_update_is_clipped_as_the_mechanism_clips_it(clipping_norm: float) -> None:
    model, updates = many_updates()
    mechanism = GaussianMechanism(noise_multiplier=0.7, clipping_norm=clipping_norm)
    for update in updates:
        total = start(model, [clipping_norm], grid=mechanism.grid)
        total.add(update)
        difference = total.layout.flatten(update) - total.layout.flatten(model)
        assert np.abs(total.total - mechanism.encode(difference)).max() <= 1


REFUSED = {
    "name": record(v=np.zeros(2)),
    "shape": record(w=np.zeros(3)),
    "dtype": record(w=np.zeros(2, np.int64)),
    "unreadable": ArrayRecord({"w": Array("float64", (2,), "numpy.ndarray", b"junk")}),
    "second array": record(w=np.ones(2), v=np.ones(2)),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("make", [start, lambda model: plain(model)])
def test_a_refused_update_leaves_the_sum_as_it_was(kind: str, make: Any) -> None:
    total = make(record(w=np.zeros(2)))
    total.add(record(w=np.array([0.5, 0.25])))
    before = total.total.copy()
    with pytest.raises(RefusedUpdate):
        total.add(REFUSED[kind])
    assert (total.total == before).all()


# Many units at once


def one_by_one(total: ClippedSum, vectors: np.ndarray) -> list[float]:
    """Add rows as single replies in the rows' dtype."""
    layout = total.layout
    return [
        total.add(
            ArrayRecord(
                {
                    spec.name: Array(vector[spec.start : spec.stop].reshape(spec.shape))
                    for spec in layout.released
                }
            )
        )
        for vector in vectors
    ]


def assert_rows_are_single_units(
    model: ArrayRecord, vectors: np.ndarray, clipping_norms: Sequence[float]
) -> None:
    """Compare both ways to the bit, and each unit's share with its bound."""
    single, rows = start(model, clipping_norms), start(model, clipping_norms)
    before = vectors.copy()
    assert rows.add_rows(vectors) == one_by_one(single, vectors)
    assert (rows.total == single.total).all()
    np.testing.assert_array_equal(vectors, before)
    for vector in vectors:
        alone = start(model, clipping_norms)
        alone.add_rows(vector[np.newaxis])
        bounds = clipping_norms if len(clipping_norms) > 1 else [alone.sensitivity]
        for group, bound in zip(alone._groups, bounds, strict=True):
            assert is_within(alone.total[group], alone.grid, bound)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clipping_norms", [(1e-3,), (1.0,), (0.5, 2.0, 1e-3, 1.0)])
def test_rows_are_added_to_the_bit_as_single_units(
    monkeypatch: pytest.MonkeyPatch, threads: int, dtype: Any, clipping_norms: tuple[float, ...]
) -> None:
    monkeypatch.setattr(shared_threads, "usable_processors", lambda: threads)
    rng = np.random.default_rng(3)
    model = record(
        a=rng.normal(size=(50, 90)).astype(dtype),
        scalar=np.array(0.3, dtype),
        steps=np.array([1, 2, 3]),
        empty=np.zeros((0, 2), dtype),
        b=rng.normal(size=(7,)).astype(dtype),
        mask=np.array(True),
    )
    origin = start(model, clipping_norms).layout.flatten(model)
    scales = 10.0 ** rng.integers(-6, 7, size=(23, 1))
    vectors = (origin + scales * rng.normal(size=(23, origin.size))).astype(dtype)
    assert_rows_are_single_units(model, vectors, clipping_norms)


@pytest.mark.usefixtures("_small_blocks")
def test_rows_of_several_blocks_are_added_to_the_bit_as_single_units() -> None:
    model, updates = many_updates()
    layout = VectorLayout.of(model)
    vectors = np.array([layout.flatten(update) for update in updates], np.float32)
    assert_rows_are_single_units(model, vectors, (1.0,))


ROWS: dict[str, float] = {
    "zero": 0.0,
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "1e30": 1e30,
    "largest float32": float(np.finfo(np.float32).max),
    "denormal": 1e-45,
    "1e-30": 1e-30,
}


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("clipping_norm", [1e-250, 1.0, 1e200])
@pytest.mark.parametrize("kind", ROWS)
def test_one_row_does_not_disturb_the_others(
    kind: str, clipping_norm: float, everywhere: bool
) -> None:
    dtype = np.float32
    model = record(a=np.zeros((2, 3), dtype), n=np.array(4), b=np.zeros((), dtype))
    good = np.full((3, 7), 0.25, dtype)
    bad = np.full(7, 0.25, dtype)
    bad[slice(None) if everywhere else 4] = ROWS[kind]
    vectors = np.insert(good, 1, bad, axis=0)
    assert_rows_are_single_units(model, vectors, (clipping_norm,))
    without, having = (start(model, [clipping_norm]) for _ in range(2))
    without.add_rows(good)
    norms = having.add_rows(vectors)
    assert is_within(having.total - without.total, having.grid, clipping_norm)
    if not math.isfinite(ROWS[kind]):
        assert norms[1] == math.inf
        assert (having.total == without.total).all()


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        (3, 4),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True),
    ),
    st.sampled_from([(1e-6,), (1.0,), (1e6,), (1.0, 1e-3)]),
)
def test_any_rows_are_added_to_the_bit_as_single_units(
    vectors: np.ndarray, clipping_norms: tuple[float, ...]
) -> None:
    model = record(a=np.ones((1, 3), vectors.dtype), b=np.array(-2.0, vectors.dtype))
    assert_rows_are_single_units(model, vectors, clipping_norms)


NO_ROWS: dict[str, Any] = {
    "a vector": np.zeros(2, np.float32),
    "too many columns": np.zeros((2, 3), np.float32),
    "three dimensions": np.zeros((1, 2, 1), np.float32),
    "integers": np.ones((1, 2), np.int64),
    "half precision": np.ones((1, 2), np.float16),
    "long doubles": np.ones((1, 2), np.longdouble),
    "objects": np.array([["secret", None]], object),
    "a list": [["a", "b"]],
}


@pytest.mark.parametrize("kind", NO_ROWS)
def test_what_are_no_rows_leaves_the_sum_as_it_was(kind: str) -> None:
    total = start(record(w=np.zeros(2, np.float32)))
    total.add_rows(np.full((1, 2), 0.25, np.float32))
    before = total.total.copy()
    with pytest.raises(RefusedUpdate):
        total.add_rows(NO_ROWS[kind])
    assert (total.total == before).all()


def test_too_many_rows_are_an_error_and_add_nothing() -> None:
    total = start(record(w=np.zeros(1)), grid=2.0**-51)
    rows = np.ones((3, 1))
    total.add_rows(rows)
    before = total.total.copy()
    with pytest.raises(OverflowError):
        total.add_rows(rows)
    assert (total.total == before).all()


def test_a_row_that_fails_half_way_adds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    total = start(record(w=np.zeros(1)))
    whole = ClippedSum._add_clipped

    def failing(part: ClippedSum, values: Any, weight: float) -> float:
        if values[0][0] == 3.0:
            raise MemoryError
        return whole(part, values, weight)

    monkeypatch.setattr(ClippedSum, "_add_clipped", failing)
    with pytest.raises(MemoryError):
        total.add_rows(np.arange(9.0)[:, np.newaxis])
    assert not total.total.any()


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("clipping_norms", [(1.0,), (1.0, 0.01, 0.1, 2.0, 0.5, 1.0)])
def test_blocks_of_a_sum_are_whole_and_are_all_of_it(clipping_norms: tuple[float, ...]) -> None:
    """The last update is in each block before it is handed out, once."""
    model, updates = many_updates()
    whole, in_blocks = start(model, clipping_norms), start(model, clipping_norms)
    for update in updates:
        whole.add(update)
        in_blocks.add(update)
    handed_out = np.full(in_blocks.layout.size, np.nan)

    def copy(total: np.ndarray, place: slice) -> None:
        assert np.isnan(handed_out[place]).all()
        handed_out[place] = total

    in_blocks.visit_blocks(copy)
    np.testing.assert_array_equal(handed_out, whole.total)
    np.testing.assert_array_equal(in_blocks.total, whole.total)


# A node that sums its own units


@pytest.mark.usefixtures("_small_blocks")
def test_sums_of_nodes_add_up_to_the_sum_of_units() -> None:
    model, updates = many_updates()
    direct, server = start(model), start(model)
    for update in updates:
        direct.add(update)
    for hosted in (updates[:3], updates[3:]):
        node = start(model)
        for update in hosted:
            node.add(update)
        server.add_steps(node.steps(), max_units=len(hosted))
    assert (server.total == direct.total).all()


@pytest.mark.parametrize("clipping_norms", [(1.0,), (0.3, 0.7)])
@pytest.mark.parametrize("units", [1, 7])
@pytest.mark.parametrize("grid", [2.0**-30, 2.0**-49])
def test_units_at_their_very_bound_are_not_refused(
    clipping_norms: tuple[float, ...], units: int, grid: float
) -> None:
    """The fine grid's rounding does not hide what the two margins leave between them."""
    rng = np.random.default_rng(2)
    model = record(a=np.zeros(10_000), b=np.zeros(()))
    for _ in range(20):
        update = record(a=rng.normal(size=10_000), b=rng.normal(size=()))
        node, server = (start(model, clipping_norms, grid=grid) for _ in range(2))
        for _ in range(units):
            node.add(update)
        server.add_steps(node.steps(), max_units=units)
        assert (server.total == node.total).all()


GRID = grid_for(1.0)
STEPS = {
    "half a step": np.array([0.5, 0.0]),
    "nan": np.array([np.nan, 0.0]),
    "inf": np.array([np.inf, 0.0]),
    "one step too long": np.array([3 / GRID + 1, 0.0]),
    "long only together": np.full(2, np.ceil(3 / GRID / math.sqrt(2))),
    "astronomic": np.full(2, LARGEST),
    "float32": np.ones(2, np.float32),
    "integers": np.ones(2, np.int64),
    "wrong shape": np.ones((2, 1)),
}


@pytest.mark.parametrize("kind", STEPS)
def test_what_no_three_units_can_sum_to_is_refused(kind: str) -> None:
    total = start(record(w=np.zeros(2, np.float32)))
    total.add(record(w=np.full(2, 0.25, np.float32)))
    before = total.total.copy()
    with pytest.raises(RefusedUpdate):
        total.add_steps(record(w=STEPS[kind]), max_units=3)
    assert (total.total == before).all()


def test_by_layer_each_layer_of_a_node_has_its_own_bound() -> None:
    total = start(record(a=np.zeros(1), b=np.zeros(1)), (1.0, 0.5), grid=2.0**-30)
    total.add_steps(record(a=np.array([1.5 * 2**30]), b=np.array([0.75 * 2**30])), max_units=2)
    with pytest.raises(RefusedUpdate, match="more than its units"):
        total.add_steps(record(a=np.zeros(1), b=np.array([1.25 * 2**30])), max_units=2)


def test_max_units_is_at_least_one() -> None:
    total = start(record(w=np.zeros(1)))
    with pytest.raises(ValueError, match="max_units"):
        total.add_steps(total.steps(), max_units=0)


# How it is made


@pytest.mark.parametrize("clipping_norms", [(), (1.0, 1.0, 1.0), (0.0,), (math.nan,), (1.0, -1.0)])
def test_clipping_norms_are_one_or_one_an_array(clipping_norms: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        start(record(a=np.zeros(1), b=np.zeros(1)), clipping_norms, grid=2.0**-30)


@pytest.mark.parametrize("grid", [0.0, math.nan, 2.0**-54])
def test_the_grid_is_positive_and_coarse_enough(grid: float) -> None:
    with pytest.raises(ValueError, match="grid"):
        start(record(w=np.zeros(1)), grid=grid)


@pytest.mark.parametrize("origin", [np.zeros(3), np.zeros((2, 1)), np.zeros(2, np.float32)])
def test_the_origin_is_a_vector_of_the_layout(origin: Any) -> None:
    layout = VectorLayout.of(record(w=np.zeros(2)))
    with pytest.raises(ValueError, match="origin"):
        ClippedSum(layout, origin, grid=GRID, clipping_norms=[1.0])


def test_more_units_than_float64_sums_exactly_are_an_error() -> None:
    total = start(record(w=np.zeros(1)), grid=2.0**-51)
    for _ in range(4):
        total.add(record(w=np.ones(1)))
    assert total.total[0] <= 2**53
    with pytest.raises(OverflowError, match="at most 4 units"):
        total.add(record(w=np.ones(1)))
    with pytest.raises(OverflowError, match="at most 4 units"):
        start(record(w=np.zeros(1)), grid=2.0**-51).add_steps(record(w=np.zeros(1)), max_units=5)


# Size


def test_memory_does_not_grow_with_the_number_of_replies() -> None:
    model = record(w=np.zeros(500_000, np.float32))
    update = record(w=np.ones(500_000, np.float32))
    peaks = []
    for replies in (1, 20):
        tracemalloc.start()
        total = start(model)
        for _ in range(replies):
            total.add(update)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1e6
    assert peaks[1] < 4 * 8 * 500_000  # the model, the sum and one update


# Without clipping


def plain(model: ArrayRecord) -> PlainSum:
    layout = VectorLayout.of(model)
    return PlainSum(layout, layout.flatten(model))


@pytest.mark.usefixtures("_small_blocks")
def test_a_plain_sum_is_the_weighted_sum_of_updates() -> None:
    model, updates = many_updates()
    total = plain(model)
    weights = [1.0, 0.0, 2.5, 600]
    expected = np.zeros(total.layout.size)
    for update, weight in zip(updates, weights, strict=True):
        difference = total.layout.flatten(update) - total.layout.flatten(model)
        assert total.add(update, weight=weight) == pytest.approx(l2_norm(difference), rel=1e-12)
        expected += weight * difference
    np.testing.assert_allclose(total.total, expected, rtol=1e-12)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, -1.0, 10**400, 1e300])
def test_a_plain_sum_ignores_a_weight_that_is_none(weight: float) -> None:
    total = plain(record(w=np.zeros(2)))
    assert total.add(record(w=np.ones(2)), weight=weight) == math.inf
    assert not total.total.any()


@pytest.mark.parametrize(
    "update", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, np.inf], [LARGEST, LARGEST]]
)
def test_a_plain_sum_ignores_an_update_that_is_not_finite(update: list[float]) -> None:
    total = plain(record(w=np.zeros(2)))
    assert total.add(record(w=np.array(update))) == math.inf
    assert not total.total.any()


# --- updates that come as flat vectors ----------------------------------------------------------

TWO_ARRAYS = record(w=np.ones((2, 3), np.float32), b=np.ones(4))


@pytest.mark.parametrize("norms", [(1.0,), (0.5, 0.25)])
@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_a_flat_update_is_clipped_and_summed_as_it_is(
    norms: tuple[float, ...], scale: float
) -> None:
    update = scale * np.array([0.5, 1, -2, 4, -0.25, 0, 8, 1, -1, 2])
    layout = VectorLayout.of(TWO_ARRAYS)
    flat, plain = start(TWO_ARRAYS, norms), PlainSum(layout, layout.flatten(TWO_ARRAYS))
    assert flat.add(update) == pytest.approx(plain.add(update)) == pytest.approx(l2_norm(update))
    np.testing.assert_array_equal(plain.total, update)
    np.testing.assert_allclose(flat.total * flat.grid, clipped(update, norms), atol=1e-9)


def clipped(update: np.ndarray, norms: tuple[float, ...]) -> np.ndarray:
    parts = [update] if len(norms) == 1 else [update[:6], update[6:]]
    return np.concatenate(
        [
            part * min(1.0, norm / l2_norm(part)) if l2_norm(part) else part
            for part, norm in zip(parts, norms, strict=True)
        ]
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_flat_update_that_is_not_finite_adds_nothing(bad: float) -> None:
    total = start(TWO_ARRAYS)
    assert total.add(np.array([*[1.0] * 9, bad])) == math.inf
    assert not total.total.any()


@pytest.mark.parametrize("shape", [(1,), (9,), (1, 10), ()])
def test_a_flat_update_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"an update has shape \(10,\)"):
        start(TWO_ARRAYS).add(np.ones(shape))
