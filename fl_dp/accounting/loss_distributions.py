"""Privacy-loss distributions: one per event, convolved over events, rounded pessimistically.

Koskela, Jalko and Honkela 2020; discretised as Doroshenko et al. 2022, "Connect the Dots": the mass
of each interval of losses is split over its two ends, keeping its probability under *both*
neighbours, which can only raise delta. For the Gaussian the split is computed from intervals'
probabilities, not from differences of the privacy profile: quicker, and free of cancellation.
Distributions and compositions are cached.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias, assert_never

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from numpy.typing import NDArray
from scipy.special import ndtr

from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)

from .bounded_range import additive_gumbel_delta, bounded_range_delta
from .budget import NeighboringRelation
from .convolutions import composed_pair, composed_with_itself, epsilon_at
from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    PoissonGaussianEvent,
    PrivacyEvent,
    RandomStoppingEvent,
    TruncatedPoissonGaussianEvent,
)
from .gaussian_formulas import fixed_size_distance, loss_of_mixture

REPORTING_INTERVAL = 1e-4
"""Discretisation of the privacy loss for reports and gates."""

SEARCH_INTERVAL = 1e-3
"""Coarser and faster: still an upper bound, within 0.3 % of the fine one at federated settings."""

_MANY_EVENTS = 8  # beyond so many distinct ones, numbers are reported at the search interval
_TAIL = 9.8  # standard deviations: the mass beyond is below e^-50 and counts as infinite
_LONGEST = 1e7  # grid points of a distribution, before it is refused as too long to compute
_ROUNDING = 2.0**-52
_LONGEST_BY_LIBRARY = 2e6  # as the library builds its own point by point

# The library shows a distribution's two halves, and how long they are, under private names only.
Distribution: TypeAlias = library.PrivacyLossDistribution


class NoDistribution(ValueError):
    """An event has no privacy-loss distribution under that neighbouring relation."""


def reporting_interval(history: FrozenHistory) -> float:
    """The discretisation at which a history's epsilon is reported."""
    return REPORTING_INTERVAL if len(history) <= _MANY_EVENTS else SEARCH_INTERVAL


def distribution_epsilon(
    history: FrozenHistory,
    delta: float,
    neighboring_relation: NeighboringRelation,
    interval: float,
    *,
    all_scores: bool = False,
) -> float:
    """The PLD bound on epsilon, infinite if an event has no distribution.

    With `all_scores`, exponential draws are bounded by the release of all their noisy scores, if a
    unit moves only one: better for the top of many.
    """
    if not history:
        return 0.0
    return _epsilon(history, delta, neighboring_relation, interval, all_scores)


@lru_cache(maxsize=8192)
def _epsilon(
    history: FrozenHistory,
    delta: float,
    relation: NeighboringRelation,
    interval: float,
    all_scores: bool,
) -> float:
    try:
        composed = _composed(history, relation, interval, all_scores)
    except NoDistribution:
        return math.inf
    # Fourier transforms leave up to a rounding error of 1 in each entry, which delta pays for.
    merged = _one_gaussian(history)
    if len(merged) > 1 or merged[0][1] > 1:
        delta -= max(composed._pmf_remove.size, composed._pmf_add.size) * _ROUNDING
    if delta <= 0.0:
        return math.inf
    with np.errstate(over="ignore"):  # masses too small to divide by: the result is infinite
        return epsilon_at(composed, delta)


def losses_of_removal(
    history: FrozenHistory, neighboring_relation: NeighboringRelation, interval: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return the privacy losses of outputs with the unit against those without it.

    For a history that is not empty.

    Returns:
        Increasing losses; their probabilities with the unit; that of an infinite loss.

    Raises:
        NoDistribution: If an event has none.
    """
    pmf = _composed(history, neighboring_relation, interval, False)._pmf_remove.to_dense_pmf()
    losses = (pmf._lower_loss + np.arange(pmf.size)) * interval
    return losses, np.asarray(pmf._probs, dtype=np.float64), float(pmf._infinity_mass)


@lru_cache(maxsize=8)
def _composed(
    history: FrozenHistory, relation: NeighboringRelation, interval: float, all_scores: bool
) -> Distribution:
    """Convolve neighbours in pairs: the short ones first."""
    parts = [
        _repeated(event, count, relation, interval, all_scores)
        for event, count in _one_gaussian(history)
    ]
    removed = sum(part._pmf_remove.size for part in parts)
    added = sum(part._pmf_add.size for part in parts)
    length = max(removed, added)
    _refuse_above(_LONGEST, length, f"{len(parts)} different releases")
    while len(parts) > 1:
        unpaired = parts[-1:] if len(parts) % 2 else []
        pairs = zip(parts[0::2], parts[1::2], strict=False)
        parts = [composed_pair(first, second) for first, second in pairs] + unpaired
    return parts[0]


def _one_gaussian(history: FrozenHistory) -> FrozenHistory:
    """Replace all unsampled Gaussians by the one that is exactly as private."""
    rest = tuple(pair for pair in history if not isinstance(pair[0], GaussianEvent))
    precision = sum(
        count / event.noise_multiplier**2
        for event, count in history
        if isinstance(event, GaussianEvent)
    )
    if not precision:
        return rest
    return ((GaussianEvent(noise_multiplier=1.0 / math.sqrt(precision)), 1), *rest)


@lru_cache(maxsize=32)
def _repeated(
    event: PrivacyEvent,
    count: int,
    relation: NeighboringRelation,
    interval: float,
    all_scores: bool,
) -> Distribution:
    single = _distribution(event, relation, interval, all_scores)
    if count == 1:
        return single
    for pmf in (single._pmf_remove, single._pmf_add):
        _refuse_above(_LONGEST, _composed_length(pmf.to_dense_pmf()._probs, count), str(event))
    return composed_with_itself(single, count)


@lru_cache(maxsize=32)
def _distribution(
    event: PrivacyEvent, relation: NeighboringRelation, interval: float, all_scores: bool
) -> Distribution:
    """The distribution of one event.

    Raises:
        NoDistribution: If there is none.
    """
    match event:
        case GaussianEvent(noise_multiplier=z):
            return poisson_gaussian(z / relation.distance, 1.0, interval)
        case PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate):
            if rate == 1.0 or relation is not NeighboringRelation.REPLACE_ONE:
                return poisson_gaussian(z / relation.distance, rate, interval)
            length = 2.0 * float(loss_of_mixture(np.array(1.0 + _TAIL * z), z, 1.0)) / interval
            _refuse_above(_LONGEST_BY_LIBRARY, length, str(event))
            # Here dp-accounting wants the multiplier relative to the clipping norm.
            return library.from_gaussian_mechanism(
                z,
                value_discretization_interval=interval,
                sampling_prob=rate,
                neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE,
            )
        case TruncatedPoissonGaussianEvent():
            return library.from_truncated_subsampled_gaussian_mechanism(
                dataset_size=event.num_units,
                sampling_probability=event.sampling_rate,
                truncated_batch_size=event.max_cohort,
                noise_multiplier=event.noise_multiplier,
                value_discretization_interval=interval,
                neighboring_relation=_LIBRARY_RELATION[relation],
            )
        case FixedSizeGaussianEvent(noise_multiplier=z):
            return poisson_gaussian(z / fixed_size_distance(relation), 1.0, interval)
        case LaplaceEvent(noise_multiplier=scale):
            length = 2.0 * relation.distance / scale / interval
            _refuse_above(_LONGEST_BY_LIBRARY, length, str(event))
            return library.from_laplace_mechanism(
                scale / relation.distance, value_discretization_interval=interval
            )
        case ExponentialEvent(epsilon=epsilon, draws=draws):
            spread = relation.distance * epsilon
            if all_scores and event.one_coordinate:
                return _additive_gumbel(spread, interval)
            single = _bounded_range(spread, interval)
            return single if draws == 1 else composed_with_itself(single, draws)
        case ZcdpEvent():
            raise NoDistribution("zCDP alone does not determine a privacy-loss distribution")
        case RandomStoppingEvent():
            raise NoDistribution("the best of a random number of runs is known by Renyi DP alone")
        case _:
            assert_never(event)


_LIBRARY_RELATION = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.ZERO_OUT: dpa.NeighboringRelation.REPLACE_SPECIAL,
    NeighboringRelation.REPLACE_ONE: dpa.NeighboringRelation.REPLACE_ONE,
}


def poisson_gaussian(
    noise_multiplier: float, sampling_rate: float, interval: float
) -> Distribution:
    """The distribution of a Gaussian on a Poisson sample, for zero-out and add-or-remove.

    The neighbours are `N(0, z^2)` and the mixture `(1-q) N(0, z^2) + q N(1, z^2)`; the mixture's
    loss against the other, `log(1 - q + q e^((2x-1)/(2 z^2)))`, grows with x.

    Raises:
        NoDistribution: If the noise is so small that the distribution is too long to compute.
    """
    z, q = noise_multiplier, sampling_rate
    lowest, highest = loss_of_mixture(np.array([-_TAIL * z, 1.0 + _TAIL * z]), z, q)
    _refuse_above(_LONGEST, (highest - lowest) / interval, f"noise_multiplier {z}")
    first = math.floor(lowest / interval)
    last = max(math.ceil(highest / interval), first + 1)
    losses = _grid(first, last, interval)
    edges = _where_loss_is(losses, z, q)
    without = _normal_mass(edges / z)
    mixture = (1.0 - q) * without + q * _normal_mass((edges - 1.0) / z)

    remove = _dots(mixture, without, losses)
    remove[0] += (1.0 - q) * ndtr(edges[0] / z) + q * ndtr((edges[0] - 1.0) / z)
    beyond = (1.0 - q) * ndtr(-edges[-1] / z) + q * ndtr((1.0 - edges[-1]) / z)
    pmf_remove = pld_pmf.DensePLDPmf(interval, first, remove, float(beyond), True)

    add = _dots(without[::-1], mixture[::-1], -losses[::-1])
    add[0] += ndtr(-edges[-1] / z)
    pmf_add = pld_pmf.DensePLDPmf(interval, -last, add, float(ndtr(edges[0] / z)), True)
    return library.PrivacyLossDistribution(pmf_remove, pmf_add)


def _composed_length(probs: NDArray[np.float64], count: int) -> float:
    """Roughly how many grid points the library takes for `count` convolutions.

    By its Chernoff bounds, at fewer orders.
    """
    longest = count * probs.size
    if longest <= _LONGEST:
        return longest
    orders = np.array([-20.0, -5.0, -1.0, 1.0, 5.0, 20.0]) / probs.size
    with np.errstate(over="ignore"):
        first, last = common.compute_self_convolve_bounds(probs, count, 1e-15, orders)
    return float(last - first + 1)


def _refuse_above(longest: float, length: float, name: str) -> None:
    if length > longest:
        raise NoDistribution(f"the privacy-loss distribution of {name} is too long to compute")


def _where_loss_is(losses: NDArray[np.float64], z: float, q: float) -> NDArray[np.float64]:
    """The x of each loss; minus infinity at losses that no x has."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # log((e^loss - (1 - q)) / q), which must not overflow for large losses.
        large = losses + np.log1p(-(1.0 - q) * np.exp(-np.maximum(losses, 30.0))) - math.log(q)
        small = losses
        if q < 1.0:
            small = np.log1p(np.expm1(np.minimum(losses, 30.0)) / q)
        odds = np.where(losses > 30.0, large, small)
    return np.where(np.isnan(odds), -np.inf, odds) * z * z + 0.5


def _grid(first: int, last: int, interval: float) -> NDArray[np.float64]:
    return np.arange(first, last + 1, dtype=np.float64) * interval


def _normal_mass(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each interval's standard normal mass, accurate in both tails."""
    below, above = ndtr(edges), ndtr(-edges)
    return np.where(edges[:-1] > 0.0, above[:-1] - above[1:], below[1:] - below[:-1])


def _dots(
    upper: NDArray[np.float64], lower: NDArray[np.float64], losses: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Split each interval's mass over its ends, keeping its mass under both neighbours."""
    interval = losses[1] - losses[0]
    # Beyond e^700, where `lower` is next to nothing, capping moves mass to the upper end only.
    odds = np.exp(np.minimum(losses[:-1], 700.0))
    to_end = (upper - lower * odds) / -math.expm1(-interval)
    to_end = np.clip(to_end, 0.0, upper)
    dots = np.zeros(losses.size)
    dots[1:] = to_end
    dots[:-1] += upper - to_end
    return dots


def _bounded_range(epsilon: float, interval: float) -> Distribution:
    reach = math.ceil(epsilon / interval)
    _refuse_above(_LONGEST_BY_LIBRARY, 2.0 * reach, f"bounded range {epsilon}")
    at = _grid(-reach, reach, interval)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -reach, reach, bounded_range_delta(epsilon, at)
    )
    return library.PrivacyLossDistribution(pmf)


def _additive_gumbel(epsilon: float, interval: float) -> Distribution:
    # A score may go up in one release and down in another: the larger of both profiles bounds
    # either, so releases compose in any mixture. The losses' tails are e^-40 at the ends; one
    # beyond e^10 is far beyond any grid, and must not overflow.
    longest = math.ceil((40.0 * math.expm1(min(epsilon, 10.0)) + epsilon) / interval)
    _refuse_above(_LONGEST_BY_LIBRARY, 2.0 * longest, f"additive Gumbel noise of {epsilon}")
    at = _grid(-longest, longest, interval)
    deltas = np.minimum.accumulate(np.maximum(*additive_gumbel_delta(epsilon, at)))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -longest, longest, deltas)
    return library.PrivacyLossDistribution(pmf)
