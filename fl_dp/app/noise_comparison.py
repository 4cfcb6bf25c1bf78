"""From settings to the question which noise suits a training best."""

from __future__ import annotations

import time

from flwr.app import Context, RecordDict

from fl_dp.accounting import NeighboringRelation
from fl_dp.accounting.noise_comparison import NoiseRequest

from .noise_choice import server_momentum
from .planning import declared_records, target_delta
from .settings import SETTINGS_KEY, Settings

_MIB = 2**20
_TIMED = 256  # records whose gradients are computed, to see how long that takes


def seconds_of_a_node(settings: Settings) -> float | None:
    """Return how long this machine takes for the gradients of all records of one client.

    None where units are clients, whose training is the same in every kind of round, and where
    clients bring their own data.

    Raises:
        FileNotFoundError: If the data set is not there.
    """
    if not settings.sums_records or settings.task.partition == "nodes":
        return None
    from .task_client import records_fn  # with torch
    from .workload import initial_arrays_of

    node: dict[str, bool | float | int | str] = {"partition-id": 0}
    config = {SETTINGS_KEY: settings.for_clients().to_json()}
    context = Context(0, 0, node, RecordDict(), {})
    gradients = records_fn(context, config, initial_arrays_of(settings))
    rows = range(min(len(gradients), _TIMED))
    seconds = []
    for _ in range(2):  # the first time sets up
        began = time.perf_counter()
        gradients.clipped_sum(rows, 1.0)
        seconds.append(time.perf_counter() - began)
    return min(seconds) * len(gradients) / max(1, len(rows))


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
    clients = privacy.noised_by in ("server", "nodes") and privacy.unit == "client"
    if not (clients or settings.sums_records):
        raise ValueError(
            "kinds of noise are compared where it is the server's or comes in shares: write "
            "privacy=central, privacy=distributed or privacy=distributed_records, got "
            f"privacy={privacy.mode} privacy.unit={privacy.unit}"
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
    units = declared_records(settings) if settings.sums_records else settings.task.num_clients
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
