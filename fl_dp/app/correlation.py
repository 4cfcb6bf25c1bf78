"""From `privacy=correlated` to the participants' schedule and the noise's coefficients."""

from __future__ import annotations

import math
from dataclasses import replace

from fl_dp.accounting import CyclicSampling, PoissonSampling, TruncatedPoissonSampling
from fl_dp.accounting.banded import MOST_BANDS
from fl_dp.option_errors import IncompatibleOptions, OptionError
from fl_dp.plan import Banded
from fl_dp.strategies import LawSelection, Selection
from fl_dp.updates import VectorLayout

from .settings import Settings
from .settings.promises import CorrelatedPrivacySettings
from .settings.selections import PublicSettings, TruncatedPoissonSettings

_MOST_MEMORY = 1 << 30  # bytes of earlier rounds' noise, unless privacy.bands says more


def correlated_selection(settings: Settings, chosen: CorrelatedPrivacySettings) -> Selection:
    """Participants: clients that rest between rounds, or groups that take turns.

    Raises:
        ValueError: A key belongs to the other kind, or the roster is too small for the cohort.
    """
    if isinstance(settings.selection, PublicSettings):
        if chosen.groups is not None:
            raise IncompatibleOptions(
                f"privacy.groups={chosen.groups} is for secret coins inside groups: write "
                "selection=poisson, or with selection=public how long clients rest, "
                "privacy.separation=...",
                option="privacy.groups",
            )
        apart = _separation(settings, chosen)
        return settings.selection.make(settings.task.num_clients, separation=apart)
    if chosen.separation is not None:
        raise IncompatibleOptions(
            f"privacy.separation={chosen.separation} is for cohorts that everybody sees: write "
            f"selection=public, or with selection={settings.selection.name} the number of "
            "groups that take turns, privacy.groups=...",
            option="privacy.separation",
        )
    return _cyclic_selection(settings, _groups(settings, chosen))


def correlation_of(settings: Settings, chosen: CorrelatedPrivacySettings) -> Banded:
    """The noise's correlation.

    Raises:
        ValueError: The bands exceed the rounds between a client's participations.
    """
    if isinstance(settings.selection, PublicSettings):
        apart = _separation(settings, chosen)
    else:
        apart = _groups(settings, chosen)
    bands = chosen.bands or min(apart, _most_bands(settings))
    momentum = settings.server_optimizer.momentum
    return Banded.optimal(rounds=settings.rounds, bands=bands, momentum=momentum)


def _separation(settings: Settings, chosen: CorrelatedPrivacySettings) -> int:
    """Rounds between two participations; by default as many as the roster allows."""
    if chosen.separation is not None:
        return chosen.separation
    num_clients = settings.task.num_clients
    return min(settings.rounds, max(1, num_clients // settings.selection.cohort(num_clients)))


def _cyclic_selection(settings: Settings, groups: int) -> Selection:
    chosen = settings.selection
    chosen.make(settings.task.num_clients)  # refuses what coins can't have
    rate = groups * chosen.sampling_rate
    if rate > 1.0 + 1e-9:
        raise OptionError(
            f"each of privacy.groups={groups} groups would have to fill a cohort of "
            f"selection.sampling_rate={chosen.sampling_rate:g} alone: write at most "
            f"{math.floor(1.0 / chosen.sampling_rate + 1e-9)} groups",
            option="privacy.groups",
        )
    inside: PoissonSampling | TruncatedPoissonSampling
    inside = PoissonSampling(sampling_rate=min(1.0, rate))
    if isinstance(chosen, TruncatedPoissonSettings):
        units = math.ceil(settings.task.num_clients / groups)
        inside = TruncatedPoissonSampling.comfortable(inside.sampling_rate, units)
        if chosen.max_cohort is not None:
            inside = replace(inside, max_cohort=chosen.max_cohort)
    return LawSelection(CyclicSampling(groups=groups, inside=inside))


def _groups(settings: Settings, chosen: CorrelatedPrivacySettings) -> int:
    if chosen.groups is None:
        most = math.floor(1.0 / settings.selection.sampling_rate + 1e-9)
        example = max(2, min(8, most, settings.rounds))
        raise OptionError(
            f"privacy=correlated with selection={settings.selection.name} needs the number "
            f"of groups that take turns: write privacy.groups={example}, or "
            "selection=public, where clients rest between their rounds",
            option="privacy.groups",
        )
    return chosen.groups


def _most_bands(settings: Settings) -> int:
    """Bands that memory allows, for settings without `privacy.bands`."""
    # Only here does the noise have to know the model, and with it torch.
    from .workload import initial_arrays_of

    size = VectorLayout.of(initial_arrays_of(settings)).size
    return min(MOST_BANDS, 1 + _MOST_MEMORY // (8 * size))
