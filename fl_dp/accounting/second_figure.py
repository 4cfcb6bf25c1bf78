"""The epsilon of dp-accounting's own accountants for a history, beside ours.

    >>> history = {PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.05): 100}
    >>> second_figure(history, 1e-5, ours=epsilon(history, 1e-5)).epsilon
    3.502...

Each release becomes an event of that library, whose accountant composes them without our bounds,
distributions or convolutions. The two figures share the list of events; that a round is charged as
the right one can be checked only in `fl_dp/plan/` and `fl_dp/mechanisms/`. For truncated samples,
Laplace noise and fixed-size samples our bounds call that library's functions, so only the
composition is computed twice.

The events determine the grid of the losses. Rounding to it adds variance, a twelfth of the
interval squared: at most half a per cent of the losses' variance, less where a finer grid costs
little. A history whose grid would take many seconds has no second figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import PrivacyAccountant
from dp_accounting.rdp import RdpAccountant

from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)

from .bounds import EpsilonBounds
from .budget import NeighboringRelation
from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    History,
    PoissonGaussianEvent,
    PrivacyEvent,
    RandomStoppingEvent,
    TruncatedPoissonGaussianEvent,
    freeze,
)
from .gaussian_formulas import loss_of_mixture
from .renyi import quiet_orders

TOLERANCE = 0.01
"""Relative: the most by which two sound figures may differ, discretisation included."""

_MOST_POINTS = 50_000  # of all grids together: about a second
_MOST_RENYI_EVENTS = 20  # different ones, each with some seconds of series at worst
_FINEST, _COARSEST = 1e-4, 5e-3  # share of the losses' variance that rounding to the grid may add
_TAIL = 10.0  # standard deviations: dp-accounting leaves out e^-50 of the mass
_POINTS_OF_TRUNCATED = 5.0  # a truncated sample is a mixture of many, and takes so much longer

# A copy, not shared with our own bounds: a second figure shows if they read a relation wrongly.
_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.ZERO_OUT: dpa.NeighboringRelation.REPLACE_SPECIAL,
    NeighboringRelation.REPLACE_ONE: dpa.NeighboringRelation.REPLACE_ONE,
}


class _NoFigure(ValueError):
    """dp-accounting has no figure for a history, or only a slow one; the text says why."""


@dataclass(frozen=True, kw_only=True)
class SecondFigure:
    """Epsilon as dp-accounting computes it.

    Attributes:
        how: The accountant and its neighbours, or why there is no figure.
        epsilon: Its figure; None if there is none.
        ours: Our bound to compare with; None if there is none.
    """

    how: str
    epsilon: float | None = None
    ours: float | None = None

    @property
    def difference(self) -> float:
        """The figure relative to our bound, less 1; negative if it is below."""
        if self.epsilon is None or self.ours is None or self.epsilon == self.ours:
            return 0.0
        if not self.ours:
            return math.inf
        return self.epsilon / self.ours - 1.0

    @property
    def above_ours(self) -> bool:
        """Whether it exceeds ours by more than discretisation explains."""
        return self.difference > TOLERANCE


def second_figure(
    history: History,
    delta: float,
    *,
    ours: EpsilonBounds,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    slack: float = 0.0,
) -> SecondFigure:
    """The epsilon at `delta`, in (0, 1), that dp-accounting computes for the releases.

    There is none if that library has no event for a release under that relation, the figure would
    take many seconds, or our bound is a gate's guarantee.

    `ours` are our bounds for the same history: the smallest is compared with distributions of
    losses, `rdp` with Renyi DP. `slack` is lambda, twice of which is added to epsilon, as to ours.
    """
    if ours.best_name == "filter":
        return SecondFigure(
            how="our bound is what the gate of the budget guarantees, and composes nothing"
        )
    try:
        theirs, accountant = _epsilon_of(freeze(history), delta, neighboring_relation)
    except _NoFigure as error:
        return SecondFigure(how=str(error))
    how = f"{accountant}, for {_RELATIONS[neighboring_relation].name} neighbours"
    if slack:
        how += f", with our own {2.0 * slack:.2g} for what shares of noise are no Gaussians"
    comparable = ours.best if accountant == PLDAccountant.__name__ else ours.rdp
    return SecondFigure(how=how, epsilon=theirs + 2.0 * slack, ours=comparable)


@lru_cache(maxsize=64)
def _epsilon_of(
    history: FrozenHistory, delta: float, relation: NeighboringRelation
) -> tuple[float, str]:
    """The library's epsilon and its accountant's name.

    Raises:
        _NoFigure: If there is none.
    """
    if not history:
        raise _NoFigure("nothing was released")
    accountant: PrivacyAccountant = PLDAccountant(_RELATIONS[relation])
    events = [(_event_of_distributions(event), count) for event, count in history]
    if _supports(accountant, events):
        accountant = PLDAccountant(_RELATIONS[relation], _interval(history, relation))
    else:
        accountant = RdpAccountant(neighboring_relation=_RELATIONS[relation])
        events = [(_event_of_renyi(event, relation), count) for event, count in history]
        if not _supports(accountant, events):
            raise _NoFigure(_no_event(history, relation))
        if len(history) > _MOST_RENYI_EVENTS:
            raise _NoFigure(
                f"{len(history)} different releases would take its Renyi accountant many seconds"
            )
    with quiet_orders():
        for event, count in events:
            accountant.compose(event, count)
        epsilon = float(accountant.get_epsilon(delta))
    return epsilon, type(accountant).__name__


def _supports(accountant: PrivacyAccountant, events: Sequence[tuple[dpa.DpEvent, int]]) -> bool:
    return all(accountant.supports(event) for event, _ in events)


def _event_of_distributions(event: PrivacyEvent) -> dpa.DpEvent:
    """The library's event; its distributions take multipliers relative to the norm."""
    match event:
        case GaussianEvent(noise_multiplier=multiplier):
            return dpa.GaussianDpEvent(multiplier)
        case PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=rate):
            return dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(multiplier))
        case TruncatedPoissonGaussianEvent():
            return dpa.TruncatedSubsampledGaussianDpEvent(
                dataset_size=event.num_units,
                sampling_probability=event.sampling_rate,
                truncated_batch_size=event.max_cohort,
                noise_multiplier=event.noise_multiplier,
            )
        case LaplaceEvent(noise_multiplier=scale):
            return dpa.LaplaceDpEvent(scale)
        case _:
            return dpa.UnsupportedDpEvent()


def _event_of_renyi(event: PrivacyEvent, relation: NeighboringRelation) -> dpa.DpEvent:
    """The library's event; its Renyi accountant takes multipliers over the distance."""
    match event:
        case GaussianEvent(noise_multiplier=multiplier):
            return dpa.GaussianDpEvent(multiplier / relation.distance)
        case PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=rate):
            gaussian = dpa.GaussianDpEvent(multiplier / relation.distance)
            return dpa.PoissonSampledDpEvent(rate, gaussian)
        case FixedSizeGaussianEvent(num_units=units, cohort=cohort, noise_multiplier=multiplier):
            gaussian = dpa.GaussianDpEvent(multiplier / relation.distance)
            return dpa.SampledWithoutReplacementDpEvent(units, cohort, gaussian)
        case LaplaceEvent(noise_multiplier=scale):
            return dpa.LaplaceDpEvent(scale / relation.distance)
        case ZcdpEvent(rho=rho):
            return dpa.ZCDpEvent(rho * relation.distance**2)
        case RandomStoppingEvent(releases=releases, mean_runs=mean, shape=shape):
            composed = [
                dpa.SelfComposedDpEvent(_event_of_renyi(release, relation), count)
                for release, count in releases
            ]
            return RepeatAndSelectDpEvent(dpa.ComposedDpEvent(composed), mean, shape)
        case _:
            return dpa.UnsupportedDpEvent()


def _no_event(history: FrozenHistory, relation: NeighboringRelation) -> str:
    kinds = {event.kind for event, _ in history}
    if ExponentialEvent.kind in kinds:
        return "dp-accounting has no event for draws of the exponential mechanism"
    return (
        f"no accountant of dp-accounting takes all of {', '.join(sorted(kinds))} together for "
        f"{relation} neighbours"
    )


def _interval(history: FrozenHistory, relation: NeighboringRelation) -> float:
    """The interval of the grid of privacy losses.

    Raises:
        _NoFigure: If the needed grid would take too long.
    """
    spans = [_span_and_variance(event, relation) for event, _ in history]
    width = sum(span for span, _ in spans)
    releases = sum(count for _, count in history)
    variance = math.fsum(
        count * variance for (_, count), (_, variance) in zip(history, spans, strict=True)
    )
    widest = math.sqrt(12.0 * variance / releases)
    interval = max(math.sqrt(_FINEST) * widest, width / _MOST_POINTS)
    if not interval <= math.sqrt(_COARSEST) * widest:
        raise _NoFigure(
            f"with {len(history)} different releases, of which each spends as little as here, "
            "dp-accounting's grid of privacy losses would take much longer than a second"
        )
    return interval


def _span_and_variance(event: PrivacyEvent, relation: NeighboringRelation) -> tuple[float, float]:
    """Roughly the span of one release's privacy losses, and their variance."""
    distance = float(relation.distance)
    match event:
        case GaussianEvent(noise_multiplier=z):
            return distance / z * (2.0 * _TAIL + distance / z), (distance / z) ** 2
        case LaplaceEvent(noise_multiplier=scale):
            return 2.0 * distance / scale, (distance / scale) ** 2
        case PoissonGaussianEvent(noise_multiplier=z, sampling_rate=q):
            span, variance = _of_mixture(z, q)
            return distance * span, variance
        case TruncatedPoissonGaussianEvent(noise_multiplier=z, sampling_rate=q):
            span, variance = _of_mixture(z, q)
            return _POINTS_OF_TRUNCATED * distance * span, variance
        case _:
            raise _NoFigure(f"no grid of privacy losses is known for {event.kind}")


def _of_mixture(z: float, q: float) -> tuple[float, float]:
    """Both for `(1-q) N(0, z^2) + q N(1, z^2)` against `N(0, z^2)`, by quadrature."""
    x = np.linspace(-_TAIL * z, 1.0 + _TAIL * z, 4001)
    losses = loss_of_mixture(x, z, q)
    weights = np.exp(-0.5 * (x / z) ** 2)
    weights /= weights.sum()
    mean = float(weights @ losses)
    return float(losses[-1] - losses[0]), float(weights @ (losses - mean) ** 2)
