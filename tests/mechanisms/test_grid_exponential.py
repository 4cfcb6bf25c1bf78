"""The exponential mechanism over a grid. False alarms: below 1e-6 a test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from laws import ALARM, DRAWS, counts_p
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.mechanisms.randomness import CHUNK

pytestmark = pytest.mark.slow

LEVELS = [2, 3, 8, 65]
COORDINATES = [0.0, -0.2, 0.99, 3.0]


def scalar_mechanism(multiplier: float, levels: int) -> GridExponentialMechanism:
    """A mechanism over [-1, 1] whose bound is out of the way of a million equal coordinates."""
    norm = 4.0 * math.sqrt(DRAWS)
    return GridExponentialMechanism(
        noise_multiplier=multiplier / norm, clipping_norm=norm, levels=levels, half_width=1.0
    )


def draw_counts(mechanism: GridExponentialMechanism, coordinate: float) -> np.ndarray:
    sent = mechanism.privatize(np.full(DRAWS, coordinate), SecureRandom())
    steps = sent * mechanism.gain * (mechanism.levels - 1) / 2.0 + (mechanism.levels - 1) / 2.0
    places = np.rint(steps).astype(np.intp)
    np.testing.assert_allclose(steps, places, atol=1e-9)
    return np.bincount(places, minlength=mechanism.levels)


def exact_log_law(coordinate: float, rate: float, levels: int) -> np.ndarray:
    distances = np.abs(np.clip(coordinate, -1, 1) - np.linspace(-1, 1, levels))
    return np.asarray(log_softmax(-rate * distances))


@pytest.mark.parametrize(
    ("multiplier", "levels"),
    [(0.5, 2), (4.0, 3), (1.0, 8), (1.0, 65), (30.0, 65)],
)
def test_draws_follow_the_softmax(multiplier: float, levels: int) -> None:
    mechanism = scalar_mechanism(multiplier, levels)
    for coordinate in COORDINATES:
        law = np.exp(exact_log_law(coordinate, 1.0 / multiplier, levels))
        np.testing.assert_allclose(np.exp(mechanism.log_probabilities(coordinate)), law, rtol=1e-9)
        assert counts_p(draw_counts(mechanism, coordinate), law) > ALARM


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_the_law_test_rejects_a_tenth_less_and_more(wrong: float) -> None:
    counts = draw_counts(scalar_mechanism(wrong, 65), 0.3)
    assert counts_p(counts, np.exp(exact_log_law(0.3, 1.0, 65))) < ALARM


def without_table(mechanism: GridExponentialMechanism) -> GridExponentialMechanism:
    """The same mechanism, which computes every coin's probability."""
    all_open = np.zeros_like(mechanism._sure_words[0]), np.uint32(2**32 - 1)
    mechanism.__dict__["_sure_words"] = all_open
    return mechanism


@pytest.mark.parametrize(("multiplier", "levels"), [(1e-3, 2), (0.5, 2), (1.0, 9), (3.0, 4097)])
def test_a_coin_that_the_table_decides_falls_as_its_probability_says(
    multiplier: float, levels: int
) -> None:
    class ApartRandom(SecureRandom):
        """Coins' words are of one stream, and further bits of another."""

        further = SecureRandom()

        def words(self, count: int, *, room: NDArray[np.uint64] | None = None) -> Any:
            return self.further.words(count) if room is None else super().words(count, room=room)

    update = np.random.default_rng(1).uniform(-1.1, 1.1, CHUNK)
    update[: CHUNK // 10] = np.resize(np.linspace(-1, 1, min(levels, 1025)), CHUNK // 10)
    by_table = scalar_mechanism(multiplier, levels)
    by_probability = without_table(scalar_mechanism(multiplier, levels))
    for seed in range(30):
        heads = np.zeros(CHUNK, np.int64)
        decided, computed = (
            mechanism._draw(update, heads.copy(), ApartRandom(insecure_seed=seed)).copy()
            for mechanism in (by_table, by_probability)
        )
        np.testing.assert_array_equal(decided, computed)


def test_coins_by_their_probability_follow_the_softmax_and_the_test_has_power() -> None:
    law = np.exp(exact_log_law(0.3, 1.0, 9))
    for multiplier, right in ((1.0, True), (0.9, False), (1.1, False)):
        counts = draw_counts(without_table(scalar_mechanism(multiplier, 9)), 0.3)
        assert (counts_p(counts, law) > ALARM) is right


@pytest.mark.parametrize("levels", [2, 3, 65, 5000])
def test_the_table_decides_nearly_every_coin_and_none_that_is_open(levels: int) -> None:
    mechanism = scalar_mechanism(2.0, levels)
    below, most_open = (np.asarray(part).astype(object) for part in mechanism._sure_words)
    assert int(most_open) < 2**32 // 100
    of_cells, pieces = levels - 1, len(below) // (levels - 1)
    for piece in {0, 1, pieces, len(below) // 2, len(below) - 1} - {len(below)}:
        cell, within = divmod(piece, pieces)
        for end, is_least in ((within / pieces, True), ((within + 1) / pieces, False)):
            place = -1.0 + 2.0 * (cell + end) / of_cells
            right = 2.0**32 * np.exp(exact_log_law(place, 0.5, levels))[cell + 1 :].sum()
            assert below[piece] <= right if is_least else below[piece] + most_open + 1 >= right


def test_rare_points_are_as_rare_as_they_should_be() -> None:
    # At a multiplier of 0.1 the far end has probability 2e-10; look at the last that can be seen.
    mechanism = scalar_mechanism(0.1, 129)
    law = np.exp(exact_log_law(-1.0, 10.0, 129))
    counts = draw_counts(mechanism, -1.0)
    tail = np.flatnonzero(law * DRAWS < 200)[0]
    assert counts_p(counts[tail:], law[tail:] / law[tail:].sum()) > ALARM


@given(
    st.floats(-1.2, 1.2),
    st.sampled_from(LEVELS),
    st.floats(4.0, 50.0),
)
def test_the_log_ratio_to_zero_has_a_range_of_twice_the_rate_times_the_coordinate(
    coordinate: float, levels: int, multiplier: float
) -> None:
    mechanism = GridExponentialMechanism(
        noise_multiplier=multiplier, clipping_norm=1.0, levels=levels
    )
    ratios = mechanism.log_probabilities(coordinate) - mechanism.log_probabilities(0.0)
    assert np.ptp(ratios) <= 2.0 * mechanism.rate * abs(coordinate) + 1e-12


def test_that_range_is_attained() -> None:
    mechanism = GridExponentialMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    ratios = mechanism.log_probabilities(0.5) - mechanism.log_probabilities(0.0)
    assert np.ptp(ratios) == pytest.approx(2.0 * 0.5)


def renyi(first: np.ndarray, second: np.ndarray, order: float) -> float:
    """Renyi divergence of two laws given by log-probabilities (Mironov 2017, definition 3)."""
    return float(logsumexp(order * first + (1.0 - order) * second)) / (order - 1.0)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0, 20.0])
def test_a_coordinate_costs_no_more_zcdp_than_a_gaussian_would(
    multiplier: float, levels: int
) -> None:
    multiplier = max(multiplier, 4.0 / (levels - 1) if levels > 2 else 0.0)
    mechanism = GridExponentialMechanism(
        noise_multiplier=multiplier, clipping_norm=1.0, levels=levels
    )
    zero = mechanism.log_probabilities(0.0)
    closest = 0.0
    for coordinate in (1e-3, 0.1, 0.4, 0.77, 1.0):
        law = mechanism.log_probabilities(coordinate)
        rho = mechanism.rate**2 * coordinate**2 / 2.0
        for order in (1.01, 1.5, 2.0, 4.0, 16.0, 64.0, 256.0):
            for divergence in (renyi(law, zero, order), renyi(zero, law, order)):
                assert divergence <= order * rho + 1e-11
                closest = max(closest, divergence / (order * rho))
    assert closest > 0.3  # the bound is of the right size, so the test would see a wrong rate


def test_all_coordinates_together_cost_the_gaussians_zcdp_whatever_the_dimension() -> None:
    mechanism = GridExponentialMechanism(noise_multiplier=2.0, clipping_norm=3.0)
    assert mechanism.zcdp_rho == 1.0 / 8.0
    rng = np.random.default_rng(2)
    zero = mechanism.log_probabilities(0.0)
    for dimension in (1, 2, 10, 100):
        vector = rng.normal(size=dimension)
        vector *= 3.0 / np.linalg.norm(vector)
        for order in (1.5, 2.0, 32.0):
            total = sum(renyi(mechanism.log_probabilities(x), zero, order) for x in vector)
            assert total <= order * mechanism.zcdp_rho + 1e-9


@pytest.mark.parametrize("levels", [2, 65])
def test_a_small_coordinate_is_right_on_average(levels: int) -> None:
    mechanism = GridExponentialMechanism(noise_multiplier=4.0, clipping_norm=1.0, levels=levels)
    for coordinate in (1e-6, -1e-6):  # from either side: there is no kink
        mean = float(np.exp(mechanism.log_probabilities(coordinate)) @ mechanism.points)
        assert mean / mechanism.gain == pytest.approx(coordinate, rel=1e-5)
    drawn = scalar_mechanism(4.0, levels)
    sent = drawn.privatize(np.full(DRAWS, 0.02), SecureRandom())
    # Five standard errors, and the curvature over 0.02.
    assert sent.mean() == pytest.approx(0.02, abs=5 * drawn.noise_std / math.sqrt(DRAWS) + 1e-4)


@pytest.mark.parametrize("levels", [2, 65])
def test_the_deviation_at_zero_is_the_stated_one(levels: int) -> None:
    mechanism = scalar_mechanism(4.0, levels)
    sent = mechanism.privatize(np.zeros(DRAWS), SecureRandom())
    assert sent.std() == pytest.approx(mechanism.noise_std, rel=5 * math.sqrt(1.25 / DRAWS))


def test_two_levels_are_randomised_response_with_the_gaussians_deviation() -> None:
    # theory: both points are as likely at 0, so E|g| = half_width and noise_std = 1 / rate.
    mechanism = GridExponentialMechanism(noise_multiplier=0.7, clipping_norm=3.0, levels=2)
    assert mechanism.gain == pytest.approx(1.0 / 0.7)
    assert mechanism.noise_std == pytest.approx(0.7 * 3.0)


def test_many_levels_are_a_truncated_laplace() -> None:
    # theory: E|g| and E g^2 of exp(-|g|) on [-1, 1], integrated by parts.
    mechanism = GridExponentialMechanism(noise_multiplier=1.0, clipping_norm=1.0, levels=4097)
    first = (1 - 2 / math.e) / (1 - 1 / math.e)
    second = (2 - 5 / math.e) / (1 - 1 / math.e)
    assert mechanism.gain == pytest.approx(first, rel=1e-3)
    assert mechanism.noise_std == pytest.approx(math.sqrt(second) / first, rel=1e-3)


@pytest.mark.parametrize("hidden", [1.0, 0.123456789])
def test_what_is_sent_is_one_of_the_public_points_whatever_it_hides(hidden: float) -> None:
    mechanism = scalar_mechanism(1.0, 65)
    sent = mechanism.privatize(np.full(DRAWS, hidden), SecureRandom())
    assert np.isin(sent, mechanism.points / mechanism.gain).all()


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.float16]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.floats(width=16, allow_nan=True, allow_infinity=True),
    )
)
def test_any_update_is_taken_and_keeps_its_shape(update: np.ndarray) -> None:
    mechanism = GridExponentialMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    before = update.copy()
    sent = mechanism.privatize(update, SecureRandom())
    assert sent.shape == update.shape
    assert sent.dtype == np.float64
    assert np.isin(sent, mechanism.points / mechanism.gain).all()
    np.testing.assert_array_equal(update, before)


def test_an_update_is_clipped_before_it_is_drawn() -> None:
    # The first coordinate has the law of one at the bound, not of one beyond it.
    mechanism = GridExponentialMechanism(
        noise_multiplier=1.0, clipping_norm=1.0, half_width=2.0, levels=9
    )
    rng = SecureRandom()
    places = [mechanism.privatize([1e300, 0.0], rng)[0] for _ in range(4000)]
    sent = mechanism.points / mechanism.gain
    counts = np.array([np.count_nonzero(places == point) for point in sent])
    assert counts_p(counts, np.exp(mechanism.log_probabilities(1.0))) > ALARM


def test_an_update_that_is_not_finite_is_drawn_like_zero() -> None:
    mechanism = scalar_mechanism(1.0, 65)
    update = np.full(DRAWS, 0.9)
    update[0] = np.nan
    sent = mechanism.privatize(update, SecureRandom())
    assert abs(sent.mean()) < 5 * mechanism.noise_std / math.sqrt(DRAWS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"half_width": -1.0}, "half_width"),
        ({"levels": 1}, "levels must lie"),
        ({"noise_multiplier": 1e6}, "fewer levels"),
        ({"noise_multiplier": 0.01}, r"at least levels=401"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GridExponentialMechanism(**({"noise_multiplier": 1.0, "clipping_norm": 1.0} | settings))
