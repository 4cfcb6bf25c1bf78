"""From `noise` to who takes part when, and to the coefficients of correlated noise."""

from __future__ import annotations

import math
from dataclasses import replace

from fl_dp.accounting import PoissonSampling, TruncatedPoissonSampling
from fl_dp.accounting.banded import MOST_BANDS
from fl_dp.option_errors import OptionError
from fl_dp.plan import Banded
from fl_dp.strategies import (
    CyclicSelection,
    TruncatedPoissonSelection,
)
from fl_dp.updates import VectorLayout

from .settings import Settings
from .settings.noises import (
    CorrelatedNoiseSettings,
    CyclicNoiseSettings,
    SpacedNoiseSettings,
)
from .settings.selections import TruncatedPoissonSettings

_MOST_MEMORY = 1 << 30  # bytes of earlier rounds' noise, unless noise.bands says more


def separation_of(settings: Settings) -> int:
    """Return how far apart a client's rounds are: 1 without noise that needs a distance.

    Where nobody wrote it, they are as far apart as the roster allows.
    """
    noise, chosen, num_clients = settings.noise, settings.selection, settings.task.num_clients
    if not isinstance(noise, SpacedNoiseSettings):
        return 1
    if noise.separation is not None:
        return noise.separation
    return min(settings.rounds, max(1, num_clients // chosen.cohort(num_clients)))


def cyclic_selection(settings: Settings) -> CyclicSelection:
    """Return the selection of `noise=cyclic`.

    Raises:
        ValueError: If the groups are too small for the cohort.
    """
    chosen, groups = settings.selection, _groups(settings)
    rate = groups * chosen.sampling_rate
    if rate > 1.0 + 1e-9:
        raise OptionError(
            f"each of {{noise.groups={groups}}} groups would have to fill a cohort of "
            f"{{selection.sampling_rate={chosen.sampling_rate:g}}} alone: write at most "
            f"{math.floor(1.0 / chosen.sampling_rate + 1e-9)} groups"
        )
    inside: PoissonSampling | TruncatedPoissonSampling
    inside = PoissonSampling(sampling_rate=min(1.0, rate))
    if isinstance(chosen, TruncatedPoissonSettings):
        units = math.ceil(settings.task.num_clients / groups)
        inside = TruncatedPoissonSelection.comfortable(inside.sampling_rate, units).sampling
        if chosen.max_cohort is not None:
            inside = replace(inside, max_cohort=chosen.max_cohort)
    return CyclicSelection(groups, inside)


def correlation_of(settings: Settings) -> Banded | None:
    """Return the correlation of the noise; None where that of each round is independent.

    Raises:
        ValueError: If there are more bands than rounds between two of a client.
    """
    noise = settings.noise
    if not isinstance(noise, CorrelatedNoiseSettings):
        return None
    cyclic = isinstance(noise, CyclicNoiseSettings)
    apart = _groups(settings) if cyclic else separation_of(settings)
    bands = noise.bands or min(apart, _most_bands(settings))
    return Banded.optimal(rounds=settings.rounds, bands=bands, momentum=server_momentum(settings))


def _groups(settings: Settings) -> int:
    groups = settings.noise.groups if isinstance(settings.noise, CyclicNoiseSettings) else None
    if groups is None:
        most = math.floor(1.0 / settings.selection.sampling_rate + 1e-9)
        example = max(2, min(8, most, settings.rounds))
        raise OptionError(
            f"{{noise=cyclic}} needs the number of groups: write {{noise.groups={example}}}"
        )
    return groups


def _most_bands(settings: Settings) -> int:
    """Return how many bands memory allows, where nobody says."""
    if settings.noise.bands is not None:
        return settings.noise.bands
    return min(MOST_BANDS, 1 + _MOST_MEMORY // (8 * model_size(settings)))


def model_size(settings: Settings) -> int:
    """Return how many coordinates of the model are released in a round."""
    # Only here does the noise have to know the model, and with it torch.
    from .workload import initial_arrays_of

    return VectorLayout.of(initial_arrays_of(settings)).size


def server_momentum(settings: Settings) -> float:
    """Return the momentum with which the server adds up what is released."""
    return settings.server_optimizer.momentum
