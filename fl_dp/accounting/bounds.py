"""Bounds on what releases spend: every valid epsilon by name, and the smallest.

    >>> history = {PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.05): 100}
    >>> epsilon(history, delta=1000**-1.1)
    EpsilonBounds(pld=2.402..., rdp=2.904..., naive=116...)

Where even bounds in closed form exceed 100, a distribution would take minutes and gigabytes for no
useful number. Without it the result is conservative: just beyond 100 by a tenth of epsilon if a
tenth of all units is sampled, by a fifth if a hundredth is; the larger epsilon, the less. There
`gdp` and `zcdp` count each sample as the whole roster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from scipy.optimize import minimize_scalar

from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)
from fl_dp.option_errors import require_probability

from .budget import NeighboringRelation
from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    History,
    PoissonGaussianEvent,
    PrivacyEvent,
    TruncatedPoissonGaussianEvent,
    freeze,
)
from .gaussian_formulas import gaussian_epsilon, mu_squared
from .loss_distributions import SEARCH_INTERVAL, distribution_epsilon, reporting_interval
from .renyi import epsilon_at_order, renyi_epsilon

VAST_EPSILON = 100.0
"""Beyond it only the bounds in closed form are computed: no such epsilon is a promise."""


@dataclass(frozen=True, kw_only=True, repr=False)
class EpsilonBounds:
    """Upper bounds on epsilon at one delta, each valid on its own; infinite where none is known.

    Attributes:
        pld: Privacy-loss distributions.
        rdp: Renyi DP.
        gdp: Gaussian DP (Dong, Roth and Su 2022): exact for Gaussians without sampling; for
            Poisson samples only above `VAST_EPSILON`. Its central-limit version for samples is no
            bound, and not here.
        zcdp: Zero-concentrated DP (Bun and Steinke 2016); for Poisson samples only above
            `VAST_EPSILON`.
        gumbel: As pld, with the top of a set of scores charged as the release of all its noisy
            scores; only with exponential draws.
        filter: Guarantee of a gate: its budget, or its odometer's bound.
        naive: Basic composition, each release at an equal share of delta; for comparison only.
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
        """The finite bounds."""
        values = {field.name: float(getattr(self, field.name)) for field in fields(self)}
        return {name: value for name, value in values.items() if math.isfinite(value)}

    @property
    def best(self) -> float:
        """The smallest bound: the number to quote."""
        return min(self.by_name.values(), default=math.inf)

    @property
    def best_name(self) -> str:
        """The name of the smallest bound; `none` without any."""
        bounds = self.by_name
        return min(bounds, key=lambda name: bounds[name], default="none")

    def plus(self, slack: float) -> EpsilonBounds:
        """Bounds larger by `slack` each."""
        return EpsilonBounds(**{name: value + slack for name, value in self.by_name.items()})

    def within(self, budget: float) -> EpsilonBounds:
        """The bounds, or a gate's guarantee at `budget` where all are above it."""
        return self if self.best <= budget else EpsilonBounds(filter=budget)

    def __repr__(self) -> str:
        """Show the finite bounds."""
        values = [f"{name}={value:.6g}" for name, value in self.by_name.items()]
        return f"EpsilonBounds({', '.join(values)})"


def epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> EpsilonBounds:
    """Return the epsilon of the releases in `history` together at `delta`.

    Valid for parameters fixed beforehand; adaptively chosen noise needs a filter.

    Raises:
        ValueError: If `delta` is not in (0, 1) or a count is negative.
    """
    require_probability(delta=delta)
    frozen = freeze(history)
    relation, interval = neighboring_relation, reporting_interval(frozen)
    rdp = renyi_epsilon(frozen, delta, relation)
    vast = _is_vast(frozen, delta, rdp)
    unsampled = _without_amplification(frozen) if vast else frozen
    pld = gumbel = math.inf
    if not vast:
        pld = distribution_epsilon(frozen, delta, relation, interval)
    if not vast and _top_of_many(frozen):
        gumbel = distribution_epsilon(frozen, delta, relation, interval, all_scores=True)
    return EpsilonBounds(
        pld=pld,
        rdp=rdp,
        gdp=_gdp_epsilon(unsampled, delta, relation),
        zcdp=zcdp_epsilon(_zcdp_rho(unsampled, relation), delta),
        gumbel=gumbel,
        naive=_naive_epsilon(frozen, delta, relation),
    )


def pld_epsilon(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    interval: float | None = None,
) -> float:
    """The bound by privacy-loss distributions alone, infinite where there is none.

    `interval` is the privacy loss's discretisation; None: that of reports.

    Raises:
        ValueError: As `epsilon` does.
    """
    require_probability(delta=delta)
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
    """The smallest of the bounds that any events can share: PLD, `gumbel` included, and Renyi DP.

    For gates and searches; `epsilon` returns more. Above `VAST_EPSILON`, and for Gaussians without
    sampling, it is one in closed form. Else PLD is smaller, except where each release spends so
    little that the discretisation costs more than Renyi DP does, or where it has no amplification
    or no bound. `interval` is as in `pld_epsilon`.

    Raises:
        ValueError: As `epsilon` does.
    """
    require_probability(delta=delta)
    frozen = freeze(history)
    if all(isinstance(event, GaussianEvent) for event, _ in frozen):
        return _gdp_epsilon(frozen, delta, neighboring_relation)  # exact, and no search
    rdp = renyi_epsilon(frozen, delta, neighboring_relation)
    if _is_vast(frozen, delta, rdp):
        unsampled = _without_amplification(frozen)
        return min(
            rdp,
            _gdp_epsilon(unsampled, delta, neighboring_relation),
            zcdp_epsilon(_zcdp_rho(unsampled, neighboring_relation), delta),
        )
    step = interval or reporting_interval(frozen)
    bounds = [distribution_epsilon(frozen, delta, neighboring_relation, step), rdp]
    if _top_of_many(frozen):
        bounds.append(
            distribution_epsilon(frozen, delta, neighboring_relation, step, all_scores=True)
        )
    return min(bounds)


def _is_vast(history: FrozenHistory, delta: float, rdp: float) -> bool:
    """Whether a history spends too much to compute a distribution of its losses."""
    if math.isinf(rdp):
        # To contribute zero is one way to be replaced, and has a Renyi bound.
        rdp = renyi_epsilon(_as_poisson(history), delta, NeighboringRelation.ZERO_OUT)
    return rdp > VAST_EPSILON and math.isfinite(rdp)


def _as_poisson(history: FrozenHistory) -> FrozenHistory:
    """Leave out the cut of truncated samples."""
    uncut: list[tuple[PrivacyEvent, int]] = []
    for event, count in history:
        match event:
            case TruncatedPoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate):
                event = PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate)
        uncut.append((event, count))
    return freeze(uncut)


def _without_amplification(history: FrozenHistory) -> FrozenHistory:
    """Charge every sample as if each unit were in it: a mixture over samples is no worse."""
    unsampled: list[tuple[PrivacyEvent, int]] = []
    for event, count in history:
        match event:
            case PoissonGaussianEvent(noise_multiplier=z):
                event = GaussianEvent(noise_multiplier=z)
            case TruncatedPoissonGaussianEvent(noise_multiplier=z):
                # A unit that leaves a full sample may be replaced, as in one of fixed size.
                event = FixedSizeGaussianEvent(
                    noise_multiplier=z,
                    num_units=event.num_units,
                    cohort=min(event.max_cohort, event.num_units),
                )
        unsampled.append((event, count))
    return freeze(unsampled)


def _top_of_many(history: FrozenHistory) -> bool:
    """Whether several are chosen at once by scores, of which a unit moves one alone."""
    return any(
        isinstance(event, ExponentialEvent) and event.draws > 1 and event.one_coordinate
        for event, _ in history
    )


def zcdp_epsilon(rho: float, delta: float) -> float:
    """A `rho`-zCDP release's epsilon at `delta`, the best over all real orders.

    Reference:
        Canonne, Kamath and Steinke 2020, proposition 12.
    """
    if rho == 0.0 or math.isinf(rho):
        return rho

    def at(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return epsilon_at_order(rho * order, order, delta)

    # rho a + log(1/delta) / (a - 1) is least at a = 1 + sqrt(log(1/delta) / rho).
    around = math.log(math.sqrt(math.log(1.0 / delta) / rho))
    optimum = minimize_scalar(at, bounds=(around - 6.0, around + 6.0), method="bounded")
    return float(optimum.fun)


def _gdp_epsilon(history: FrozenHistory, delta: float, relation: NeighboringRelation) -> float:
    total = 0.0
    for event, count in history:
        if not isinstance(event, GaussianEvent | FixedSizeGaussianEvent):
            return math.inf
        total += count * mu_squared(event, relation)
    return gaussian_epsilon(1.0 / math.sqrt(total), delta) if total else 0.0


def _zcdp_rho(history: FrozenHistory, relation: NeighboringRelation) -> float:
    return sum(count * _rho_of(event, relation) for event, count in history)


def _rho_of(event: PrivacyEvent, relation: NeighboringRelation) -> float:
    distance = relation.distance
    match event:
        case GaussianEvent() | FixedSizeGaussianEvent():
            return mu_squared(event, relation) / 2.0
        case LaplaceEvent(noise_multiplier=scale):
            return (distance / scale) ** 2 / 2.0  # epsilon-DP is epsilon^2 / 2-zCDP
        case ExponentialEvent(epsilon=spread, draws=draws):
            # Bounded range e is e^2 / 8-zCDP (Cesar and Rogers 2021): a quarter of plain DP.
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
