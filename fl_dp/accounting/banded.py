"""Matrices of correlated noise: the best coefficients, and their price.

The noise of the releases is C^-1 z. C is lower triangular and Toeplitz: its first column c_0 = 1,
c_1, ... repeats below the diagonal, and only its first `bands` entries are not 0. A model that
adds up releases has the error of the columns of A C^-1; A is one release's effect on all later
models. A participation costs the norm of a column of C. Coefficients are chosen once, for the
product of the two; the plan has them as integers.

    >>> coefficients = optimal_coefficients(rounds=100, bands=4)
    >>> coefficients
    (4096, 2895, 2486, 2151)
    >>> round(model_error(coefficients, rounds=100) * squared_norm(coefficients), 4)
    15.3362

With independent noise, `(4096,)`, the same number is 50.5.

If a unit's participations are at least `bands` indices apart, no two affect the same release. Each
is then one Gaussian event: only a column's norm enters the accounting.

References: Kairouz et al. 2021, "Practical and Private (Deep) Learning Without Sampling or
Shuffling"; Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified approach
to private training"; McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize
from scipy.signal import lfilter

from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE, require_coefficients
from fl_dp.option_errors import require_count

MOST_BANDS = 1000
_MOST_ROUNDS = 10_000  # the best coefficients hardly change beyond: the search stays one of seconds
_OVERFLOW = 1e100
_REFUSED = 1e3  # loss, in the search, of coefficients whose inverse explodes


def optimal_coefficients(
    rounds: int,
    bands: int,
    momentum: float = 0.0,
) -> tuple[int, ...]:
    """Return the coefficients with the models' least error at equal privacy.

    They do not depend on epsilon, the number of participations or amplification: those scale the
    noise of all coefficients alike.

    Args:
        rounds: Number of releases.
        bands: Most coefficients that differ from 0, at most 1000; the least distance between a
            unit's indices, or less to save memory.
        momentum: The server optimizer's, in [0, 1).

    Returns:
        Integers in units of 2^-12, the first 4096; at most `bands`, and at most `rounds`.

    Raises:
        ValueError: If an argument is out of range.
    """
    _check_workload(rounds, momentum)
    require_count(bands=bands)
    if bands > MOST_BANDS:
        raise ValueError(
            f"bands must be at most {MOST_BANDS}, got {bands}: more keep more noise in memory and "
            "gain next to nothing"
        )
    rounds = min(rounds, _MOST_ROUNDS)
    return _optimal(rounds, min(bands, rounds), momentum)


def squared_norm(coefficients: Sequence[int]) -> float:
    """|c|^2, a column's squared L2 norm: the squared sensitivity of one participation."""
    require_coefficients(coefficients)
    squares = sum(coefficient * coefficient for coefficient in coefficients)
    return squares / COEFFICIENT_ONE**2


def model_error(
    coefficients: Sequence[int],
    rounds: int,
    momentum: float = 0.0,
) -> float:
    """Return the squared error per coordinate that noise leaves, the mean of all models.

    Coefficients are in units of 2^-12; other arguments are as in `optimal_coefficients`.

    Returns:
        In squares of the fresh noise's standard deviation, for a server learning rate of 1.

    Raises:
        ValueError: If an argument is out of range.
    """
    require_coefficients(coefficients)
    _check_workload(rounds, momentum)
    column = np.array(coefficients) / COEFFICIENT_ONE
    filtered = lfilter([1.0], column, _workload(rounds, momentum))
    return float(_weights(rounds) @ np.square(filtered))


def _check_workload(rounds: int, momentum: float) -> None:
    require_count(rounds=rounds)
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}")


def _workload(rounds: int, momentum: float) -> NDArray[np.float64]:
    """One release's effect on the models after it: 1, 1 + m, 1 + m + m^2, ..."""
    return np.asarray(lfilter([1.0], [1.0, -momentum], np.ones(rounds)))


def _weights(rounds: int) -> NDArray[np.float64]:
    """Weights of the squared error that a release leaves i releases later."""
    return np.arange(rounds, 0, -1) / rounds


@lru_cache(maxsize=64)
def _optimal(rounds: int, bands: int, momentum: float) -> tuple[int, ...]:
    if bands == 1:
        return (COEFFICIENT_ONE,)
    workload, weights = _workload(rounds, momentum), _weights(rounds)
    lags = np.arange(1, bands)
    # Best for one participation in each training: the binomial series of (1 - x)^(-1/2).
    start = np.cumprod((2 * lags - 1) / (2 * lags))
    optimum = minimize(
        log_loss,
        start,
        args=(workload, weights),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 3000, "maxfun": 6000, "maxcor": 30, "ftol": 1e-12, "gtol": 1e-8},
    )
    tail = [round(value * COEFFICIENT_ONE) for value in optimum.x.tolist()]
    coefficients = [COEFFICIENT_ONE, *tail]
    while coefficients[-1] == 0:
        coefficients.pop()
    return tuple(coefficients)


def log_loss(
    tail: NDArray[np.float64], workload: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """The logarithm of error times squared norm, and its gradient by `tail`.

    As power series, a release leaves the noise H = workload / c in later models, and dH / dc_j =
    -x^j H / c. So the gradient of sum_i w_i H_i^2 is a correlation of w H with H / c.

    Args:
        tail: The coefficients after the first, which is 1; shape `(bands - 1,)`.
        workload: One release's effect on the models after it, shape `(rounds,)`.
        weights: Weight of each squared error, shape `(rounds,)`.
    """
    column = np.concatenate([[1.0], tail])
    filtered = lfilter([1.0], column, workload)
    filtered_twice = lfilter([1.0], column, filtered)
    if not np.abs(filtered_twice).max() < _OVERFLOW:  # a NaN, too
        return _REFUSED, np.zeros_like(tail)
    error = float(weights @ np.square(filtered))
    norm = float(column @ column)
    size = next_fast_len(2 * workload.size)
    correlated = irfft(rfft(weights * filtered, size) * np.conj(rfft(filtered_twice, size)), size)
    gradient = 2.0 * tail / norm - 2.0 * correlated[1 : column.size] / error
    return math.log(error * norm), gradient
