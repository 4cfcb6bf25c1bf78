"""Noise that later releases partly take away: exact integers, of the designed covariance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from noise_covariance import covariance

from fl_dp.accounting import optimal_coefficients
from fl_dp.mechanisms import BandedStream, GaussianMechanism, SecureRandom, banded_stream
from fl_dp.mechanisms.banded_stream import BandedGaussianMechanism, banded_noise_scale, column_norm
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.mechanisms.laplace import DiscreteLaplace

COEFFICIENTS = (4096, 2895, 2486, 2151)
SIGNED = (4096, -1500, 0, 777)
LAW = DiscreteGaussian(2.0**30)
DIVISION = 2.0**-40  # paid for the rounding of vectors on a step that is no power of two


def carried(coefficients: tuple[int, ...], earlier: list[np.ndarray]) -> list[int]:
    """What is taken away, coordinate by coordinate, in Python's own integers."""
    size = earlier[0].size
    sums = [0] * size
    for weight, noise in zip(coefficients[1:], reversed(earlier), strict=False):
        sums = [total + weight * int(each) for total, each in zip(sums, noise, strict=True)]
    return [(total + 2048) // 4096 for total in sums]


@pytest.mark.parametrize("block", [7, 40, 1 << 15])  # several blocks, just one, part of one
@pytest.mark.parametrize("coefficients", [COEFFICIENTS, SIGNED, optimal_coefficients(100, 10)])
def test_what_is_carried_is_that_of_pythons_integers(
    monkeypatch: pytest.MonkeyPatch, coefficients: tuple[int, ...], block: int
) -> None:
    monkeypatch.setattr(banded_stream, "_BLOCK", block)
    stream, rng, again = (
        BandedStream(coefficients),
        *(SecureRandom(insecure_seed=4) for _ in range(2)),
    )
    noise: list[np.ndarray] = []
    for index in range(25):  # more than one turn of the ring
        noise.append(stream.next(LAW, 40, rng, index=index))
        assert noise[-1].dtype == np.int64
        fresh = LAW.sample(40, again)
        expected = carried(coefficients, noise[:-1]) if index else [0] * 40
        assert (fresh - noise[-1]).tolist() == expected


def test_the_covariance_of_noise_is_the_designed_one() -> None:
    # 6.5 standard deviations of an empirical covariance: 144 numbers alarm once in 1e8.
    rng, rounds, size = SecureRandom(), 12, 200_000
    stream = BandedStream(COEFFICIENTS)
    noise = np.array([stream.next(LAW, size, rng, index=index) for index in range(rounds)])
    designed = covariance(COEFFICIENTS, range(rounds))
    found = (noise / LAW.scale) @ (noise / LAW.scale).T / size
    allowed = 6.5 * np.sqrt(
        (designed**2 + np.outer(designed.diagonal(), designed.diagonal())) / size
    )
    assert allowed.max() < 0.04
    assert (np.abs(found - designed) < allowed).all()
    assert np.abs(designed - np.eye(rounds)).max() > 0.4


def test_rounding_moves_a_centre_by_less_than_a_step() -> None:
    # One transcript, two data sets: what the server kept is what each of them explains it by.
    rng, rounds, size, worst = np.random.default_rng(8), 12, 50, 0.0
    column = matrix(COEFFICIENTS, rounds)
    for _ in range(60):
        released = rng.integers(-(2**32), 2**32, (rounds, size))
        data = rng.integers(-(2**31), 2**31, (rounds, size))
        moved = np.zeros((rounds, size), dtype=np.int64)
        moved[[1, 6, 11]] = rng.integers(-(2**20), 2**20, (3, size))
        centres = []
        for sums in (data + moved, data):
            kept = [released[index] - sums[index] for index in range(rounds)]
            centres.append(
                [
                    sums[index]
                    - np.array(carried(COEFFICIENTS, kept[:index]) if index else [0] * size)
                    for index in range(rounds)
                ]
            )
        off = np.subtract(centres[0], centres[1]) - column @ moved
        assert (off[[1, 6, 11]] == 0).all()  # where the unit itself takes part
        worst = max(worst, float(np.abs(off).max()))
    assert 0.5 < worst < 1.0


def matrix(coefficients: tuple[int, ...], rounds: int) -> np.ndarray:
    """C itself; sums of multiples of 2^-12 below 2^32 are exact."""
    out = np.zeros((rounds, rounds))
    for back, each in enumerate(coefficients):
        out += each / 4096 * np.eye(rounds, k=-back)
    return out


def test_the_memory_is_as_long_as_the_bands() -> None:
    stream = BandedStream(COEFFICIENTS)
    held = []
    for index in range(6):
        stream.next(LAW, 5, SecureRandom(), index=index)
        held.append(stream.remembered)
    assert held == [1, 2, 3, 3, 3, 3]
    stream.cut()
    assert (stream.remembered, stream.cuts) == (0, 1)


@pytest.mark.parametrize(
    "coefficients", [(4096, 4096), (4096, -4096), (4096, 4095), (4096, 0, 9000)]
)
def test_coefficients_whose_sums_float64_can_not_hold_are_refused(
    coefficients: tuple[int, ...],
) -> None:
    # The inverse of 1 + x never ends, and that of 1 + 2.2 x^2 grows.
    with pytest.raises(ValueError, match="use fewer bands"):
        BandedStream(coefficients)


@pytest.mark.parametrize(("rounds", "bands"), [(100, 2), (1000, 16), (1000, 100), (10_000, 64)])
def test_the_best_coefficients_stay_in_range(rounds: int, bands: int) -> None:
    assert BandedStream(optimal_coefficients(rounds, bands)).bands == bands


@pytest.mark.parametrize(
    ("coefficients", "why"),
    [
        ((), "must be integers"),
        ((4096.0, 1.0), "must be integers"),
        ((1, 2), "must be 4096, which is 1, got 1"),
        ((4096, 2048, 0), "leave it out"),
    ],
)
def test_what_is_no_column_is_refused(coefficients: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        BandedStream(coefficients)


@pytest.mark.parametrize(
    "law", [DiscreteLaplace(2.0**30), DiscreteGaussian(2.0**32)], ids=["Laplace", "too wide"]
)
def test_a_law_that_the_range_was_not_checked_for_is_refused(law: Any) -> None:
    with pytest.raises(ValueError, match="correlated noise is Gaussian, of at most"):
        BandedStream(COEFFICIENTS).next(law, 3, SecureRandom(), index=0)


# --- The scale ------------------------------------------------------------------------------------


def mechanism(**changes: Any) -> BandedGaussianMechanism:
    fields: dict[str, Any] = dict(
        noise_multiplier=1.3, clipping_norm=0.5, coefficients=COEFFICIENTS, size=1000
    )
    return BandedGaussianMechanism(**(fields | changes))


def test_the_noise_is_larger_by_a_columns_norm_and_by_rounding() -> None:
    made = mechanism()
    norm = column_norm(COEFFICIENTS)
    assert norm == pytest.approx(math.sqrt(sum((each / 4096) ** 2 for each in COEFFICIENTS)))
    steps = made.clipping_norm / made.grid
    assert made.law.scale == 1.3 * (norm * steps * (1.0 + DIVISION) + math.sqrt(3 * 1000))
    assert made.noise_std == pytest.approx(1.3 * norm * 0.5, rel=1e-5)
    assert made.noise_std > 1.3 * norm * 0.5


@pytest.mark.parametrize("norm", [0.25, 0.3, 2.0])
def test_a_step_that_follows_the_norm_is_paid_for_at_every_norm(norm: float) -> None:
    # Its reciprocal may be rounded: an encoded vector is longer than the norm by that.
    made = mechanism(clipping_norm=norm)
    exact = banded_noise_scale(1.3, norm / made.grid, coefficients=COEFFICIENTS, size=1000)
    assert 1e-13 < made.law.scale / exact - 1.0 < 1e-11
    assert made.law.scale == mechanism().law.scale  # a stream has one law, wherever the norm goes


@pytest.mark.parametrize(("size", "bands", "excess"), [(10**6, 16, 8.6e-6), (10**8, 100, 2.5e-4)])
def test_rounding_costs_next_to_nothing(size: int, bands: int, excess: float) -> None:
    made = mechanism(
        coefficients=optimal_coefficients(1000, bands), size=size, noise_multiplier=2.4
    )
    assert made.law.scale / (made.noise_scale / made.grid) - 1.0 < 2.0 * excess


def test_one_band_is_the_plain_mechanism() -> None:
    today = GaussianMechanism(noise_multiplier=1.3, clipping_norm=0.5)
    one = mechanism(coefficients=(4096,), size=6)
    assert (one.grid, one.law.scale) == (today.grid, today.law.scale * (1.0 + DIVISION))
    total = today.encode(np.full(6, 0.1))
    drawn = BandedStream((4096,)).next(one.law, 6, SecureRandom(insecure_seed=9), index=0)
    released = today.release(total, today.noise(6, SecureRandom(insecure_seed=9)))
    assert (one.release(total, drawn) == released).all()


def test_a_participation_is_hidden_as_its_event_says() -> None:
    # What moves the centres of all releases, rounding included, over the noise: at most 1/z.
    made = mechanism(size=50)
    steps = made.clipping_norm / made.grid
    moved = column_norm(COEFFICIENTS) * steps + math.sqrt(3 * 50)
    assert made.law.scale / moved == pytest.approx(made.noise_multiplier, rel=1e-12)
    assert banded_noise_scale(2.0, 8.0, coefficients=(4096,), size=50) == 16.0


@pytest.mark.parametrize("bands", [16, 100])
def test_momentum_makes_the_grid_coarser_as_sums_get_larger(bands: int) -> None:
    coefficients = optimal_coefficients(500, bands, 0.9)
    made = mechanism(coefficients=coefficients)
    assert 2.0**24 < made.law.scale < 2.0**30
    noise = BandedStream(coefficients).next(made.law, 5, SecureRandom(), index=0)
    assert noise.dtype == np.int64
    with pytest.raises(ValueError, match="correlated noise is Gaussian, of at most"):
        BandedStream(coefficients).next(DiscreteGaussian(2.0**31), 3, SecureRandom(), index=0)
