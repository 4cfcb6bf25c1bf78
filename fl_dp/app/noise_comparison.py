"""From settings to the question which noise suits a training best."""

from __future__ import annotations

from fl_dp.accounting import NeighboringRelation
from fl_dp.accounting.noise_comparison import NoiseRequest

from .noise_choice import server_momentum
from .planning import target_delta
from .settings import Settings

_MIB = 2**20


def wanted_noise(
    settings: Settings,
    *,
    size: int,
    buffer_mib: float = 1024.0,
    secret_cohorts: bool = True,
    available: float = 1.0,
) -> NoiseRequest:
    """Return the training for which noise is compared.

    Args:
        settings: Give roster, cohort, rounds and budget, and the server's momentum.
        size: Coordinates of the model.
        buffer_mib: Most memory for noise that is kept, in MiB.
        secret_cohorts: Whether who takes part can be kept secret.
        available: Share of the roster that can be asked at any time, in (0, 1].

    Raises:
        ValueError: If the settings ask for what correlated noise does not go with.
    """
    privacy = settings.privacy
    if privacy.noised_by != "server" or privacy.unit != "client":
        raise ValueError(
            "kinds of noise are compared where the server adds it for clients: write "
            f"privacy=central, got privacy={privacy.mode} privacy.unit={privacy.unit}"
        )
    if NeighboringRelation(privacy.neighboring_relation) is not NeighboringRelation.ZERO_OUT:
        raise ValueError(
            "kinds of noise are compared for zero-out neighbours, as cyclic groups promise nothing "
            f"to others: leave privacy.neighboring_relation={privacy.neighboring_relation} out"
        )
    if privacy.epsilon is None or privacy.noise_multiplier is not None:
        raise ValueError(
            "kinds of noise are compared at one budget: give privacy.epsilon, and leave "
            "privacy.noise_multiplier out"
        )
    if settings.selection.name == "own_budgets":
        raise ValueError(
            "kinds of noise are compared at one budget, and selection=own_budgets has one for each "
            "group: leave it out, or leave --compare out"
        )
    if settings.schedule.name != "constant":
        raise ValueError(
            "correlated noise has one multiplier in all rounds: compare with schedule=constant, "
            f"got schedule={settings.schedule.name}"
        )
    if not buffer_mib >= 0.0:
        raise ValueError(f"the buffer must be at least 0 MiB, got {buffer_mib:g}")
    units = settings.task.num_clients
    return NoiseRequest(
        num_units=units,
        cohort=max(1.0, settings.selection.sampling_rate * units),
        rounds=settings.rounds,
        epsilon=privacy.epsilon,
        delta=target_delta(settings),
        momentum=server_momentum(settings),
        most_remembered=int(min(buffer_mib * _MIB / (8 * size), 1e9)),
        secret_cohorts=secret_cohorts,
        available=available,
    )
