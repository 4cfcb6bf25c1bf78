"""Renyi DP: one vector per event, added up over events, converted at the end.

Mironov 2017; Poisson samples: Mironov, Talwar and Zhang 2019; fixed-size samples: Wang, Balle and
Kasiviswanathan 2019; conversion: Canonne, Kamath and Steinke 2020, proposition 12.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray
from scipy.special import gammaln

from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)

from .bounded_range import bounded_range_renyi
from .budget import NeighboringRelation
from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    PoissonGaussianEvent,
    PrivacyEvent,
    RandomStoppingEvent,
    TruncatedPoissonGaussianEvent,
)
from .gaussian_formulas import log1m, loss_of_mixture, mu_squared

ORDERS: tuple[float, ...] = tuple(float(order) for order in DEFAULT_RDP_ORDERS)
"""The orders of the vectors, all above 1."""

_LARGEST_INTEGRATED = 11.0  # above it integer orders take their binomial series: fewer terms
_SMALL_ORDER = 64.0  # apart from larger ones, whose series is longer than they need
_REACH, _STEPS_A_SIGMA = 12.0, 8.0  # of the integrals: e^-72 of the mass is left out
_ROUNDING = 1e-13  # absolute and relative: more than float64 can lose in one divergence
_MOST_TERMS = 2e6  # of the integrals, before noise that small is charged without sampling


@lru_cache(maxsize=4096)
def renyi_divergences(
    event: PrivacyEvent,
    neighboring_relation: NeighboringRelation,
    orders: tuple[float, ...] = ORDERS,
) -> NDArray[np.float64]:
    """Upper bounds on one event's Renyi divergence at each order, shape `(len(orders),)`.

    Read-only; infinite where no bound is known.
    """
    vector = np.array(_divergences(event, neighboring_relation, orders), dtype=np.float64)
    vector.flags.writeable = False
    return vector


def renyi_epsilon(
    history: FrozenHistory, delta: float, neighboring_relation: NeighboringRelation
) -> float:
    """The epsilon by Renyi DP, infinite if an event has no bound at any order."""
    total = summed_divergences(history, neighboring_relation, ORDERS)
    if not np.isfinite(total).any():
        return math.inf
    return float(compute_epsilon(ORDERS, total, delta)[0])


def summed_divergences(
    history: FrozenHistory, neighboring_relation: NeighboringRelation, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """The releases' divergences added up at each order, as `renyi_divergences` returns one's."""
    total = np.zeros(len(orders))
    for event, count in history:
        total += count * renyi_divergences(event, neighboring_relation, orders)
    return total


def epsilon_at_orders(divergences: NDArray[np.float64], deltas: Mapping[float, float]) -> float:
    """The least epsilon of any order, each at its own delta; infinite where no order has a bound.

    Args:
        divergences: One of each order, shape `(len(deltas),)`.
        deltas: Delta of each order.
    """
    at_order = zip(divergences, deltas.items(), strict=True)
    return min(epsilon_at_order(float(of_one), order, delta) for of_one, (order, delta) in at_order)


def gaussian_room(
    divergences: NDArray[np.float64], deltas: Mapping[float, float], epsilon: float
) -> float:
    """The mu, at least 0, of the largest Gaussian that fits beside divergences, as above."""
    rho = 0.0
    for of_one, (order, delta) in zip(divergences, deltas.items(), strict=True):
        rho = max(rho, (divergence_at_order(epsilon, order, delta) - float(of_one)) / order)
    return math.sqrt(2.0 * rho)


def epsilon_at_order(divergence: float, order: float, delta: float) -> float:
    """Convert one order's Renyi divergence to epsilon at `delta`; never below zero."""
    return max(
        0.0,
        divergence + math.log1p(-1.0 / order) - math.log(order * delta) / (order - 1.0),
    )


def divergence_at_order(epsilon: float, order: float, delta: float) -> float:
    """The largest divergence of that order that still converts to `epsilon`."""
    return epsilon - math.log1p(-1.0 / order) + math.log(order * delta) / (order - 1.0)


def _divergences(
    event: PrivacyEvent, relation: NeighboringRelation, orders: tuple[float, ...]
) -> Sequence[float] | NDArray[np.float64]:
    match event:
        case GaussianEvent() | PoissonGaussianEvent(sampling_rate=1.0):
            return np.array(orders) * (relation.distance / event.noise_multiplier) ** 2 / 2.0
        case PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate):
            if relation is NeighboringRelation.REPLACE_ONE:
                return [math.inf] * len(orders)
            return _poisson_gaussian(z, rate, orders)
        case TruncatedPoissonGaussianEvent():
            return [math.inf] * len(orders)
        case FixedSizeGaussianEvent(noise_multiplier=z, num_units=units, cohort=cohort):
            everybody = np.array(orders) * mu_squared(event, relation) / 2.0
            if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
                return everybody
            # Contributing zero is one way to be replaced. The bound needs the distance 2 for it,
            # too: it compares with samples that hold another unit instead. dp-accounting wants
            # the multiplier relative to that distance here.
            drawn = dpa.SampledWithoutReplacementDpEvent(
                units, cohort, dpa.GaussianDpEvent(z / 2.0)
            )
            amplified = _library(drawn, dpa.NeighboringRelation.REPLACE_ONE, orders)
            return np.minimum(everybody, amplified)
        case LaplaceEvent(noise_multiplier=scale):
            laplace = dpa.LaplaceDpEvent(scale / relation.distance)
            return _library(laplace, dpa.NeighboringRelation.ADD_OR_REMOVE_ONE, orders)
        case ExponentialEvent(epsilon=epsilon, draws=draws):
            spread = relation.distance * epsilon
            return [draws * bounded_range_renyi(spread, order) for order in orders]
        case ZcdpEvent(rho=rho):
            return np.array(orders) * rho * relation.distance**2
        case RandomStoppingEvent(releases=releases):
            one_run = sum(
                count * renyi_divergences(release, relation, orders) for release, count in releases
            )
            return event.law.divergences(orders, np.asarray(one_run))


def _poisson_gaussian(z: float, q: float, orders: Sequence[float]) -> NDArray[np.float64]:
    """Integrate `E[(1 - q + q e^((2x-1)/(2 z^2)))^order]` over x ~ N(0, z^2), in the log domain.

    For a function this smooth the trapezoid rule is exact to float64 at this step: the binomial
    series of integer orders agrees to 1e-12. The alternating one of the others is far slower.
    """
    alpha = np.array(orders)
    serial = (alpha == np.floor(alpha)) & (alpha > _LARGEST_INTEGRATED)
    divergences = np.empty(alpha.size)
    divergences[serial] = _binomial_series(z, q, alpha[serial])
    alpha = alpha[~serial]
    # The integrand has its mass around x = 0, ..., order.
    reach = _REACH * z
    if alpha.size * (alpha.max(initial=1.0) + 2.0 * reach) * _STEPS_A_SIGMA / z > _MOST_TERMS:
        divergences[~serial] = alpha / (2.0 * z * z)
        return divergences
    x = np.arange(-reach, float(alpha.max(initial=1.0)) + reach, z / _STEPS_A_SIGMA)
    ratio = loss_of_mixture(x, z, q)
    log_weight = -0.5 * (x / z) ** 2 - math.log(_STEPS_A_SIGMA * math.sqrt(2.0 * math.pi))
    divergences[~serial] = _log_sum_exp(alpha[:, None] * ratio + log_weight) / (alpha - 1.0)
    return np.maximum(divergences, 0.0) * (1.0 + _ROUNDING) + _ROUNDING


def _binomial_series(z: float, q: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """The divergences of integer orders (Mironov, Talwar and Zhang 2019, eq. 4)."""
    divergences = np.empty(orders.size)
    for part in (orders <= _SMALL_ORDER, orders > _SMALL_ORDER):
        order = orders[part][:, None]
        k = np.arange(float(orders[part].max(initial=0.0)) + 1.0)
        k, rest = np.minimum(k, order), np.maximum(order - k, 0.0)
        log_binomial = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(rest + 1.0)
        terms = log_binomial + k * math.log(q) + rest * log1m(q) + (k * k - k) / (2.0 * z * z)
        beyond = np.arange(terms.shape[1]) > order
        divergences[part] = _log_sum_exp(np.where(beyond, -np.inf, terms)) / (orders[part] - 1.0)
    return divergences


def _log_sum_exp(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of each row's sum of exponentials."""
    largest = terms.max(axis=1)
    sums: NDArray[np.float64] = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
    return sums


def _library(
    event: dpa.DpEvent, relation: dpa.NeighboringRelation, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    accountant = RdpAccountant(orders, relation)
    with quiet_orders():
        accountant.compose(event)
    return np.asarray(accountant.rdp, dtype=np.float64)


@contextmanager
def quiet_orders() -> Iterator[None]:
    """Silence dp-accounting's warning about orders whose series it leaves out: that is valid."""
    chatter = logging.getLogger("absl")
    before = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        yield
    finally:
        chatter.setLevel(before)
