"""Clients of each virtual node of a simulation, where `simulation.units_per_node=auto` is left.

A node that hosts many clients trains them together and answers with the sum of their clipped
updates: a round is then one message a worker instead of one a client. The number follows from
public constants and the machine alone. It is fixed once, before anything is planned, so a plan, a
statement and a resumed run carry a number.
"""

from __future__ import annotations

import math

from fl_dp.app.settings import Settings

from .devices import Machine, busy_workers
from .engine_choice import with_engine


def hosted(settings: Settings, machine: Machine) -> tuple[Settings, str | None]:
    """Return settings that name their engine and how many clients a node hosts, and why.

    Args:
        settings: Of the run.
        machine: Where it will be simulated.

    Returns:
        The settings, and one line for whoever started the run; None if the settings had both.
    """
    settings, engine = with_engine(settings)
    settings, units = _with_units(settings, machine)
    return settings, "; ".join(filter(None, (units, engine))) or None


def _with_units(settings: Settings, machine: Machine) -> tuple[Settings, str | None]:
    if settings.simulation.units_per_node != "auto":
        return settings, None
    reason = _each_reply_needed(settings)
    if reason is not None:
        return settings.hosting(1), f"one client per node: {reason}"
    units = _units(settings, busy_workers(settings.simulation, machine))
    settings = settings.hosting(units)
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    clients = f"the {settings.task.num_clients} clients"
    if nodes == 1:
        return settings, f"the simulation uses one node for {clients}, which clips them"
    return (
        settings,
        f"the simulation uses {nodes} nodes of up to {units} clients for {clients}; "
        "each node clips its own",
    )


def _units(settings: Settings, workers: int) -> int:
    """Return how many clients make as few nodes as keep the workers busy."""
    num_clients = settings.task.num_clients
    most = math.ceil(num_clients / workers)
    if settings.selection.name not in ("fixed", "truncated_poisson"):
        return most
    # Such cohorts are drawn from the declared clients: every node has to host the same number.
    return next(units for units in range(most, 0, -1) if num_clients % units == 0)


def _each_reply_needed(settings: Settings) -> str | None:
    """Return what needs the reply of each client by itself, if anything does."""
    noised_by, chosen = settings.privacy.noised_by, settings.selection
    by_norm = chosen.name == "exponential" and chosen.utility == "update_norm"
    needed = {
        "each brings its own data": settings.task.partition == "nodes",
        "each trains by DP-SGD": settings.protects_records,
        "privacy=none clips nothing": noised_by == "nobody",
        "privacy=local adds the noise at each client": noised_by == "clients",
        "privacy=distributed hides a node among nodes": noised_by == "nodes",
        f"compression.up={settings.compression.up} encodes each update": (
            settings.compression.up != "none"
        ),
        "weights.capped_denominator needs each weight": settings.weights.capped_denominator,
        "selection.utility=update_norm needs each update": by_norm,
        "selection=buffered takes each answer when it comes": chosen.name == "buffered",
    }
    return next((reason for reason, is_needed in needed.items() if is_needed), None)
