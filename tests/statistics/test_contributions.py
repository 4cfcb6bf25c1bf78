"""Whatever a client holds or sends, it moves the sum by no more than the query's sensitivity."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dp.codec import encode_text
from fl_dp.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from fl_dp.statistics import (
    Count,
    Evaluation,
    Frequencies,
    Histogram,
    Mean,
    Quantiles,
    Query,
    ScoreHistograms,
    Sum,
    choose_noise,
    query_from_json,
)

pytestmark = pytest.mark.slow

QUERIES: list[Query] = [
    Count(),
    Count(max_records=7, nonnegative=True),
    Sum(lows=(-3.0,), highs=(2.0,), max_records=2),
    Sum(lows=(0.0, -1e300, 5.0), highs=(1e-3, 1e300, 6.0)),
    Mean(lows=(-1.0,), highs=(1.0,), max_records=3),
    Mean(lows=(0.0, -1e307, 5.0, -2.0), highs=(1e-3, 7e307, 6.0, -1.0), max_records=2),
    Histogram(edges=(-1.0, 0.0, 0.5, 4.0), max_records=4),
    Histogram(edges=(0.0, 1.0)),
    Frequencies(categories=("cat", "dog", 3), max_records=2),
    Quantiles(probabilities=(0.1, 0.5), grid=(-1.0, 0.0, 2.0, 10.0)),
    Quantiles(probabilities=(0.5,), grid=(0.0, 1.0), max_records=5),
    Evaluation(names=("loss",), lows=(0.0,), highs=(5.0,)),
    Evaluation(names=("loss", "f1"), lows=(-1.0, 0.0), highs=(5.0, 1.0), max_records=40),
    ScoreHistograms(bins=2),
    ScoreHistograms(bins=6, max_records=3),
]
# A float64 rounding error or two; the server's own clipping, tested below, allows none.
ROUNDING = 1 + 1e-12

ANY_NUMBER = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan, 0.5, 3.0]),
)
ANY_ARRAY = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_, np.longdouble]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
)
ROWS = st.sampled_from([1, 3, 4]).flatmap(
    lambda features: hnp.arrays(
        np.float64, st.tuples(st.integers(0, 12), st.just(features)), elements=ANY_NUMBER
    )
)
ANY_OBJECT = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), ANY_NUMBER),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
ANYTHING = st.one_of(
    ANY_ARRAY,
    ROWS,
    ANY_OBJECT,
    st.lists(st.sampled_from(["cat", "dog", 3, "bird", None]), max_size=9),
    st.sampled_from([10**400, [10**400], 1j, np.array([1j]), b"cat", {"cat": 1}, {3}, object()]),
)


def norms(vector: np.ndarray) -> tuple[float, float]:
    return math.fsum(np.abs(vector).tolist()), math.hypot(*vector.tolist())


@given(st.sampled_from(QUERIES), ANYTHING)
@settings(max_examples=400)
def test_a_contribution_is_within_both_sensitivities(query: Query, values: object) -> None:
    sent = query.contribution(values)
    assert sent.shape == (query.dimension,)
    assert sent.dtype == np.float64
    l1, l2 = norms(sent)
    assert l1 <= query.l1_sensitivity * ROUNDING
    assert l2 <= query.l2_sensitivity * ROUNDING


@pytest.mark.parametrize(
    ("query", "values", "reached"),
    [
        (Count(max_records=4), np.zeros(9), "both"),
        (Sum(lows=(-3.0, 0.0), highs=(2.0, 9.0)), [[-8.0, 9.0]], "both"),
        (Mean(lows=(0.0, 0.0), highs=(2.0, 2.0), max_records=3), np.full((5, 2), 2.0), "l2"),
        (Mean(lows=(0.0, 0.0), highs=(2.0, 2.0)), [[1.0, 1.0]], "l2"),
        (Mean(lows=(0.0, 0.0), highs=(2.0, 2.0)), [[0.5, 1.5]], "l1"),
        (Histogram(edges=(0.0, 1.0, 2.0), max_records=3), np.ones(3), "both"),
        (Frequencies(categories=("a", "b")), ["a"] * 7, "both"),
        (Quantiles(probabilities=(0.5,), grid=(0.0, 1.0)), [1.0] * 7, "both"),
        (
            Evaluation(names=("a", "b"), lows=(0, 0), highs=(2, 1), max_records=9),
            [30, 2, 0],
            "both",
        ),
        (ScoreHistograms(bins=4, max_records=3), [[1, 0.9]] * 7, "both"),
    ],
)
def test_the_sensitivities_are_attained(query: Query, values: object, reached: str) -> None:
    l1, l2 = norms(query.contribution(values))
    if reached in ("both", "l1"):
        assert l1 == pytest.approx(query.l1_sensitivity, rel=1e-12)
    if reached in ("both", "l2"):
        assert l2 == pytest.approx(query.l2_sensitivity, rel=1e-12)


@given(
    st.sampled_from(QUERIES),
    st.sampled_from(["laplace", "gaussian"]),
    st.data(),
)
@settings(max_examples=200)
def test_zeroing_one_client_moves_the_encoded_sum_by_at_most_the_bound(
    query: Query, law: str, data: st.DataObject
) -> None:
    if isinstance(query, Quantiles):
        law = "gaussian"  # the other sums of theirs are for exponential mechanisms
    sent = st.one_of(
        hnp.arrays(np.float64, query.dimension, elements=ANY_NUMBER),
        ANYTHING.map(query.contribution),
    )
    mechanism = choose_noise(query, 1.0, 1e-5, law=law).mechanisms[0]
    assert isinstance(mechanism, LaplaceMechanism | GaussianMechanism)
    others = sum(mechanism.encode(data.draw(sent)) for _ in range(3))
    moved = (others + mechanism.encode(data.draw(sent))) - others
    steps = [abs(int(step)) for step in moved]
    bound = int(mechanism.clipping_norm / mechanism.grid)
    # In integers, so that the check itself can't round.
    if law == "laplace":
        assert sum(steps) <= bound
    else:
        assert math.isqrt(sum(step * step for step in steps)) <= bound


@given(
    hnp.arrays(np.float64, 4, elements=ANY_NUMBER),
    hnp.arrays(np.float64, (3, 4), elements=st.floats(0, 1)),
    st.sampled_from([0.05, 0.3, 0.5, 0.9]),
)
@settings(max_examples=200)
def test_one_client_moves_every_quantile_utility_by_at_most_the_sensitivity(
    hostile: np.ndarray, others: np.ndarray, probability: float
) -> None:
    query = Quantiles(probabilities=(probability,), grid=(-1.0, 0.0, 2.0, 10.0))
    rest = np.sum([query.encode(other) for other in others], axis=0)
    with_it = query.utilities(rest + query.encode(hostile), probability)
    moved = np.abs(with_it - query.utilities(rest, probability))
    assert moved.max() <= query.sensitivity(probability) * ROUNDING


def test_the_quantile_sensitivity_is_attained() -> None:
    query = Quantiles(probabilities=(0.2,), grid=(0.0, 1.0, 2.0))
    rest = 5 * query.encode(np.array([0.0, 1.0, 0.0]))
    with_it = rest + query.encode(np.array([1.0, 0.0, 0.0]))
    moved = np.abs(query.utilities(with_it, 0.2) - query.utilities(rest, 0.2))
    assert moved.max() == pytest.approx(query.sensitivity(0.2), rel=1e-6)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("nothing", [[], np.empty((0, 3)), np.nan, [math.nan] * 3, None])
def test_a_client_without_data_contributes_zero(query: Query, nothing: object) -> None:
    assert not query.contribution(nothing).any()


def test_values_beyond_the_range_count_as_its_ends_and_nan_records_are_left_out() -> None:
    query = Sum(lows=(-1.0, 0.0), highs=(1.0, 10.0), max_records=10)
    rows = [[-math.inf, 1e308], [0.5, 5.0], [0.5, math.nan], [7.0, -1.0]]
    np.testing.assert_allclose(query.contribution(rows), [-1 + 0.5 + 1, (10 + 5 + 0) / 10])
    histogram = Histogram(edges=(0.0, 1.0, 2.0), max_records=10)
    values = [-math.inf, -5.0, 0.0, 0.999, 1.0, 2.0, 3.0, math.inf, math.nan]
    np.testing.assert_array_equal(histogram.contribution(values), [4.0, 4.0])


def test_a_client_with_too_many_records_counts_as_so_many_average_ones() -> None:
    query = Mean(lows=(0.0,), highs=(2.0,), max_records=2)
    few, many = query.contribution([0.0, 1.5]), query.contribution([0.0, 1.5] * 50)
    np.testing.assert_allclose(many, few, rtol=1e-12)


def test_labels_match_whatever_collection_they_come_in() -> None:
    words = Frequencies(categories=("cat", "dog"), max_records=9)
    some: list[Any] = ["dog", "cat", "dog", "eel", None, []]
    for animals in (some, np.array(["dog", "cat", "dog"])):
        np.testing.assert_array_equal(words.contribution(animals), [1.0, 2.0])
    np.testing.assert_array_equal(words.contribution("dog"), [0.0, 1.0])
    digits = Frequencies(categories=tuple(range(10)), max_records=9)
    for values in ([3, 3, 7], np.array([3, 3, 7], np.int32), np.array([3.0, 3.0, 7.0])):
        np.testing.assert_array_equal(np.flatnonzero(digits.contribution(values)), [3, 7])


def test_images_are_records_of_as_many_features_as_pixels() -> None:
    query = Sum(lows=(0.0,) * 4, highs=(1.0,) * 4, max_records=5)
    images = np.arange(12.0).reshape(3, 2, 2) / 12
    np.testing.assert_allclose(query.contribution(images), images.sum(axis=0).reshape(-1))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_survives_the_way_through_json(query: Query) -> None:
    arrived = query_from_json(encode_text(query))
    assert arrived == query
    assert hash(arrived) == hash(query)
    assert type(arrived) is type(query)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "mode"}, "query of kind 'mode' is unknown"),
        ({"kind": ["count"]}, "is unknown"),
        ({"kind": "count", "weight": 2}, "has no weight: it has max_records, nonnegative"),
        ({"kind": "sum", "lows": [0]}, "needs highs"),
        ({"kind": "sum", "lows": [0], "highs": [10**400]}, r"highs\[0\] must be a finite"),
        ({"kind": "sum", "lows": [0], "highs": [1, 2]}, "1 lows and 2 highs"),
        ({"kind": "mean", "lows": [-1e308], "highs": [1e308]}, "feature 0 ranges"),
        ({"kind": "count", "max_records": 0}, "whole number of at least 1, got 0"),
        ({"kind": "count", "max_records": 2**60}, "at most"),
        ({"kind": "histogram", "edges": [0, 2, 1]}, "increasing, got 2.0 before 1.0"),
        ({"kind": "histogram", "edges": [-1.7e308, 1.7e308]}, "more than float64 holds"),
        ({"kind": "frequencies", "categories": []}, "empty"),
        ({"kind": "frequencies", "categories": ["a", "a"]}, "'a' occurs twice"),
        ({"kind": "quantiles", "probabilities": [0.5, 1.0], "grid": [0, 1]}, "got 1.0"),
        ({"kind": "evaluation", "lows": [0], "highs": [1], "names": []}, "0 names and 1 ranges"),
        ({"kind": "scores", "bins": 3}, "even number from 2 to 65536, got 3"),
        (
            {"kind": "evaluation", "lows": [0, 0], "highs": [1, 1], "names": ["f1", "f1"]},
            "measured once, got f1, f1",
        ),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        query_from_json(json.dumps(document))


def test_the_exponential_mechanism_of_a_quantile_covers_what_a_client_moves() -> None:
    query = Quantiles(probabilities=(0.1, 0.5), grid=(0.0, 1.0))
    first, second = choose_noise(query, 1.0, 1e-5).mechanisms
    assert isinstance(first, ExponentialMechanism) and isinstance(second, ExponentialMechanism)
    assert (first.sensitivity, second.sensitivity) == (0.9, 0.5)
    assert not first.one_coordinate
