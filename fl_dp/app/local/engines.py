"""Engine that simulates nodes, by the name that `simulation.engine` has for it."""

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
    """Return an engine, which starts with its `with` block and is taken down after it.

    Args:
        name: One of the names of `simulation.engine`.
        app: The training, unless given.
        more_nodes: Virtual nodes besides those of the settings' clients.
        machine: For its simulations; all of this machine unless given.
    """
    if name in ("in_process", "cluster"):
        return one_process.OneProcess(app, more_nodes=more_nodes)
    return launch.LocalSuperLink(app, more_nodes=more_nodes, machine=machine)
