"""A simulation's engine and each virtual node's clients, where settings say `auto`.

A node that hosts many clients trains them together and answers with the sum of their clipped
updates: one message per worker, not per client. The number of clients follows from public
constants and the machine alone. It is fixed before planning, so plan, statement and a resumed run
share it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from fl_dp.app.settings import Settings
from fl_dp.app.settings.data import TaskOption

from .devices import Machine, busy_workers

_SMALL_TABLE = 2**20  # bytes, about 3,000 rows of 50 columns


def hosted(settings: Settings, machine: Machine) -> tuple[Settings, str | None]:
    """Settings that name their engine and a node's clients, and the reason.

    The reason is one line to show; None if the settings had both.
    """
    settings, engine = with_engine(settings)
    settings, units = _with_units(settings, machine)
    return settings, "; ".join(filter(None, (units, engine))) or None


def with_engine(settings: Settings) -> tuple[Settings, str | None]:
    """Settings that name their engine, and one line if `auto` chose one process.

    A number of processors, workers or GPUs chooses Flower's engine. It starts six processes and
    Ray before the first round. For scikit-learn's data sets, under 2,000 records, and for small
    tables that takes longer than the training.
    """
    simulation = settings.simulation
    if simulation.engine != "auto":
        return settings, None
    if simulation.ray_address is not None:
        return replace(settings, simulation=replace(simulation, engine="cluster")), None
    small = is_small(settings.task) and not simulation.num_gpus
    if not small or simulation.num_cpus is not None or simulation.workers is not None:
        return replace(settings, simulation=replace(simulation, engine="flower")), None
    reason = (
        f"all nodes answer in one process, as task={settings.task.name} is small: "
        "simulation.engine=flower trains through Flower's own engine"
    )
    return replace(settings, simulation=replace(simulation, engine="in_process")), reason


def is_small(task: TaskOption) -> bool:
    """Whether a task's data load in no time: scikit-learn's sets, and small tables."""
    from fl_dp.tasks.datasets import (
        EMBEDDED,  # with NumPy, which a command that shows help can spare
    )

    if task.name in (*EMBEDDED, "hospital_stay", "lending", "spam", "movies"):
        return True
    if task.name not in ("csv", "parquet") or task.data_dir is None:
        return False
    table = Path(task.data_dir).expanduser() / f"train.{task.name}"
    return table.is_file() and table.stat().st_size <= _SMALL_TABLE


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
    """Clients per node, for the fewest nodes that keep the workers busy."""
    num_clients = settings.task.num_clients
    most = math.ceil(num_clients / workers)
    if settings.selection.name not in ("fixed", "truncated_poisson"):
        return most
    # These cohorts are drawn from the declared clients: every node has to host the same number.
    return next(units for units in range(most, 0, -1) if num_clients % units == 0)


def _each_reply_needed(settings: Settings) -> str | None:
    """Why each client's own reply is needed; None if it is not."""
    privacy, chosen = settings.privacy, settings.selection
    by_norm = chosen.name == "exponential" and chosen.utility == "update_norm"
    needed = {
        "each brings its own data": settings.task.partition == "nodes",
        "each trains by DP-SGD": settings.protects_records,
        f"privacy={privacy.mode} has no sums at nodes": (
            "simulation.units_per_node" not in privacy.fitting.keys
        ),
        "privacy=distributed hides a node among nodes": privacy.noised_by == "nodes",
        f"compression.up={settings.compression.up} encodes each update": (
            settings.compression.encodes
        ),
        "selection.utility=update_norm needs each update": by_norm,
    }
    return next((reason for reason, is_needed in needed.items() if is_needed), None)
