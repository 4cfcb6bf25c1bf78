"""What a sequence of releases spends: every valid epsilon by name, and the smallest of them.

    >>> history = {PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.05): 100}
    >>> epsilon(history, delta=1000**-1.1)
    EpsilonBounds(pld=2.402..., rdp=2.904..., naive=116...)

pld: privacy-loss distributions. rdp: Renyi DP. gdp: exact for Gaussians without sampling (Dong,
Roth and Su 2022); its central-limit version for samples is no bound and not here. zcdp: zero-
concentrated DP (Bun and Steinke 2016). gumbel: as pld, with the top of a set of scores charged as
the release of all its noisy scores. naive: basic composition, each release at an equal share of
delta; for comparison, nobody should pay it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from scipy.optimize import minimize_scalar

from .events import (
    ExponentialEvent,
    FixedSizeGaussianEvent,
    FrozenHistory,
    GaussianEvent,
    History,
    LaplaceEvent,
    PrivacyEvent,
    ZcdpEvent,
    freeze,
)
from .gaussian import fixed_size_distance, gaussian_epsilon
from .loss_distributions import SEARCH_INTERVAL, distribution_epsilon, reporting_interval
from .relations import NeighboringRelation
from .renyi import epsilon_at_order, renyi_epsilon


@dataclass(frozen=True, kw_only=True, repr=False)
class EpsilonBounds:
    """Upper bounds on epsilon at one delta, each valid on its own; infinite where there is none.

    Attributes:
        pld: Privacy-loss distributions.
        rdp: Renyi DP.
        gdp: Gaussian DP; only for Gaussians without sampling.
        zcdp: Zero-concentrated DP; not for samples.
        gumbel: Privacy-loss distributions of all noisy scores; only with exponential draws.
        filter: What a privacy filter guarantees, whatever was chosen on the way.
        naive: Basic composition.
    """

    pld: float = math.inf
    rdp: float = math.inf
    gdp: float = math.inf
    zcdp: float = math.inf
    gumbel: float = math.inf
    filter: float = math.inf
    naive: float = math.inf

    @property
    def by_name(self) -> dict[str, float]:
        """The bounds that there are."""
        every = {field.name: float(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in every.items() if math.isfinite(value)}

    @property
    def best(self) -> float:
        """The smallest of them, the number to quote."""
        return min(self.by_name.values(), default=math.inf)

    @property
    def best_name(self) -> str:
        """Which one that is."""
        known = self.by_name
        return min(known, key=lambda name: known[name]) if known else "none"

    def __repr__(self) -> str:
        """Show the bounds that there are."""
        return f"EpsilonBounds({', '.join(f'{k}={v:.6g}' for k, v in self.by_name.items())})"


def epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> EpsilonBounds:
    """Return what the releases in `history` spend together at `delta`.

    Valid for releases whose parameters were fixed beforehand, not for noise that was chosen on what
    earlier releases showed: that needs a filter.

    Raises:
        ValueError: If `delta` is not in (0, 1) or a count is negative.
    """
    _check_delta(delta)
    frozen = freeze(history)
    interval = reporting_interval(frozen)
    return EpsilonBounds(
        pld=distribution_epsilon(frozen, delta, neighboring_relation, interval),
        rdp=renyi_epsilon(frozen, delta, neighboring_relation),
        gdp=_gdp_epsilon(frozen, delta, neighboring_relation),
        zcdp=zcdp_epsilon(_zcdp_rho(frozen, neighboring_relation), delta),
        gumbel=distribution_epsilon(frozen, delta, neighboring_relation, interval, all_scores=True)
        if _top_of_many(frozen)
        else math.inf,
        naive=_naive_epsilon(frozen, delta, neighboring_relation),
    )


def pld_epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    interval: float | None = None,
) -> float:
    """Return the bound by privacy-loss distributions alone, infinite where there is none.

    `interval` is the discretisation of the privacy loss, that of reports by default.

    Raises:
        ValueError: If `delta` is not in (0, 1) or a count is negative.
    """
    _check_delta(delta)
    frozen = freeze(history)
    return distribution_epsilon(
        frozen, delta, neighboring_relation, interval or reporting_interval(frozen)
    )


def tight_epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    interval: float | None = None,
) -> float:
    """Return the smallest of the bounds that any events can share, PLD and Renyi DP.

    What gates and searches ask; `epsilon` says more. PLD is the smaller one, except where each
    release spends so little that the discretisation costs more than Renyi DP does, or where it has
    no amplification or no bound. `interval` is the discretisation of the privacy loss, that of
    reports by default.

    Raises:
        ValueError: If `delta` is not in (0, 1) or a count is negative.
    """
    _check_delta(delta)
    frozen = freeze(history)
    if all(isinstance(event, GaussianEvent) for event, _ in frozen):
        return _gdp_epsilon(frozen, delta, neighboring_relation)  # exact, and no search
    step = interval or reporting_interval(frozen)
    bounds = [
        distribution_epsilon(frozen, delta, neighboring_relation, step),
        renyi_epsilon(frozen, delta, neighboring_relation),
    ]
    if _top_of_many(frozen):
        bounds.append(
            distribution_epsilon(frozen, delta, neighboring_relation, step, all_scores=True)
        )
    return min(bounds)


def _top_of_many(history: FrozenHistory) -> bool:
    """Whether several are chosen at once by scores of which a unit moves one alone."""
    return any(
        isinstance(event, ExponentialEvent) and event.draws > 1 and event.one_coordinate
        for event, _ in history
    )


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return epsilon at `delta` of a `rho`-zCDP release, the best over all real orders.

    Reference:
        Canonne, Kamath and Steinke 2020, proposition 12.
    """
    if rho == 0.0 or math.isinf(rho):
        return rho

    def at(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return epsilon_at_order(rho * order, order, delta)

    around = math.log(math.sqrt(math.log(1.0 / delta) / rho))
    found = minimize_scalar(at, bounds=(around - 6.0, around + 6.0), method="bounded")
    return float(found.fun)


def _gdp_epsilon(history: FrozenHistory, delta: float, relation: NeighboringRelation) -> float:
    precision = 0.0
    for event, count in history:
        if isinstance(event, GaussianEvent):
            distance = relation.distance
        elif isinstance(event, FixedSizeGaussianEvent):
            distance = fixed_size_distance(relation)
        else:
            return math.inf
        precision += count * (distance / event.noise_multiplier) ** 2
    return gaussian_epsilon(1.0 / math.sqrt(precision), delta) if precision else 0.0


def _zcdp_rho(history: FrozenHistory, relation: NeighboringRelation) -> float:
    return sum(count * _rho_of(event, relation) for event, count in history)


def _rho_of(event: PrivacyEvent, relation: NeighboringRelation) -> float:
    distance = relation.distance
    match event:
        case GaussianEvent(noise_multiplier=z):
            return (distance / z) ** 2 / 2.0
        case FixedSizeGaussianEvent(noise_multiplier=z):
            return (fixed_size_distance(relation) / z) ** 2 / 2.0
        case LaplaceEvent(noise_multiplier=scale):
            return (distance / scale) ** 2 / 2.0  # epsilon-DP is epsilon^2 / 2-zCDP
        case ExponentialEvent(epsilon=spread, draws=draws):
            return draws * (distance * spread) ** 2 / 8.0
        case ZcdpEvent(rho=rho):
            return rho * distance**2
        case _:
            return math.inf


def _naive_epsilon(history: FrozenHistory, delta: float, relation: NeighboringRelation) -> float:
    releases = sum(count for _, count in history)
    return sum(
        count
        * tight_epsilon(
            {event: 1}, delta / releases, neighboring_relation=relation, interval=SEARCH_INTERVAL
        )
        for event, count in history
    )


def _check_delta(delta: float) -> None:
    if not (math.isfinite(delta) and 0.0 < delta < 1.0):
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
