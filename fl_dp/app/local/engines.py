"""Engine for simulated nodes, by its name in `simulation.engine`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from . import launch, one_process
from .devices import Machine


def engine(
    name: str,
    app: launch.App | None = None,
    *,
    more_nodes: int = 0,
    machine: Machine | None = None,
) -> AbstractContextManager[launch.Engine]:
    """An engine that runs inside its `with` block.

    Args:
        name: A name of `simulation.engine`.
        app: The training; by default fl-dp's app.
        more_nodes: Virtual nodes besides those of the settings' clients.
        machine: Resources for its simulations; by default this machine's.
    """
    if name in ("in_process", "cluster"):
        return one_process.OneProcess(app, more_nodes=more_nodes)
    return launch.LocalSuperLink(app, more_nodes=more_nodes, machine=machine)
