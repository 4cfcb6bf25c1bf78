"""dp-accounting's steps on dense privacy-loss distributions, on arrays and not entry by entry.

Its loops over numbers and its complex transforms of real numbers take most of a search for noise.
Bounds and truncations are the library's, and sums are in its order. Results differ only by the
rounding of exponentials and of the transform, which is paid for.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import fftconvolve

_TRUNCATED = 1e-15  # mass that a composition may move to the infinite loss, as in the library
_ORDERS = 20  # of the Chernoff bounds, in both directions


def composed_pair(
    first: library.PrivacyLossDistribution, second: library.PrivacyLossDistribution
) -> library.PrivacyLossDistribution:
    """The privacy loss of both releases together; both are pessimistic, on one interval."""
    remove = _convolved(first._pmf_remove, second._pmf_remove)
    if first._symmetric and second._symmetric:
        return library.PrivacyLossDistribution(remove)
    return library.PrivacyLossDistribution(remove, _convolved(first._pmf_add, second._pmf_add))


def composed_with_itself(
    distribution: library.PrivacyLossDistribution, count: int
) -> library.PrivacyLossDistribution:
    """The privacy loss of `count` equal releases, at least 1."""
    remove = _self_convolved(distribution._pmf_remove, count)
    if distribution._symmetric:
        return library.PrivacyLossDistribution(remove)
    return library.PrivacyLossDistribution(remove, _self_convolved(distribution._pmf_add, count))


def epsilon_at(distribution: library.PrivacyLossDistribution, delta: float) -> float:
    """The smallest epsilon, not below 0, whose delta is at most `delta`."""
    epsilon = _epsilon_at(distribution._pmf_remove, delta)
    if distribution._symmetric:
        return epsilon
    return max(epsilon, _epsilon_at(distribution._pmf_add, delta))


def _convolved(first: Any, second: Any) -> Any:
    first, second = first.to_dense_pmf(), second.to_dense_pmf()
    first.validate_composable(second)
    probs = cast(NDArray[np.float64], fftconvolve(first._probs, second._probs))
    start = _longest_prefix(probs, _TRUNCATED / 2.0)
    end = max(probs.size - _longest_prefix(probs[::-1], _TRUNCATED / 2.0), start + 1)
    truncated = probs[start:end].copy()
    truncated[0] += probs[:start].sum()  # smaller losses count as the smallest one that remains
    infinite = (
        first._infinity_mass
        + second._infinity_mass
        - first._infinity_mass * second._infinity_mass
        + probs[end:].sum()
    )
    lowest = first._lower_loss + second._lower_loss + start
    return pld_pmf.DensePLDPmf(first._discretization, lowest, truncated, float(infinite), True)


def _self_convolved(pmf: Any, count: int) -> Any:
    dense = pmf.to_dense_pmf()
    probs = np.asarray(dense._probs, dtype=np.float64)
    first, last = _bounds(probs, count)
    length = fft.next_fast_len(max(last - first + 1, probs.size), real=True)
    # A transform wraps around: the tiny mass outside the bounds is added inside.
    whole = fft.irfft(fft.rfft(probs, length) ** count, length)
    truncated = np.roll(whole, -first)[: last - first + 1]
    infinite = _TRUNCATED - math.expm1(count * math.log1p(-dense._infinity_mass))
    lowest = dense._lower_loss * count + first
    return pld_pmf.DensePLDPmf(dense._discretization, lowest, truncated, infinite, True)


def _bounds(probs: NDArray[np.float64], count: int) -> tuple[int, int]:
    """The index range of all but `_TRUNCATED` of a convolution, by Chernoff bounds."""
    first, last = 0, (probs.size - 1) * count
    spare = math.log(2.0 / _TRUNCATED)
    for sign in (1.0, -1.0):
        # No exponent is beyond 20: the moments need no logarithms inside.
        one = np.exp(np.arange(probs.size) * (sign / probs.size))
        weighted = probs.copy()
        for step in range(1, _ORDERS + 1):
            weighted *= one
            moment = float(weighted.sum())
            if moment <= 0.0:
                continue
            order = sign * step / probs.size
            bound = (count * math.log(moment) + spare) / order
            if sign > 0.0:
                last = min(last, math.ceil(bound))
            else:
                first = max(first, math.floor(bound))
    return first, last


def _longest_prefix(probs: NDArray[np.float64], mass: float) -> int:
    """How many first entries have at most this mass together."""
    beyond = np.cumsum(probs) > mass
    return int(beyond.argmax()) if beyond.any() else probs.size


def _epsilon_at(pmf: Any, delta: float) -> float:
    """The epsilon of one direction.

    Delta at epsilon is the mass of all larger losses less `e^epsilon` times their mass without the
    unit. The search goes down from the largest loss to the first below the epsilon of those above.
    """
    infinite = float(pmf._infinity_mass)
    if infinite > delta:
        return math.inf
    dense = pmf.to_dense_pmf()
    indices = np.arange(dense._lower_loss + dense.size - 1, max(dense._lower_loss, 0) - 1, -1)
    losses = indices * dense._discretization  # those below 0 have no part in an epsilon above it
    probs = np.asarray(dense._probs, dtype=np.float64)[::-1][: losses.size]
    with_unit = np.cumsum(np.concatenate([[infinite], probs]))
    without = np.cumsum(np.concatenate([[0.0], np.exp(-losses) * probs]))
    # Losses so large that e^-loss is 0: their own is the only finite epsilon they give.
    too_large = (with_unit[1:] >= delta) & (without[1:] == 0.0)
    if too_large.any():
        return float(losses[too_large.argmax()])
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = np.log((with_unit - delta) / without)
    enough = (with_unit > delta) & (without > 0.0)
    ends = np.flatnonzero(enough[:-1] & (reached[:-1] >= losses))
    last = int(ends[0]) if ends.size else losses.size
    if with_unit[last] <= without[last] + delta:
        return 0.0
    return float(reached[last])
