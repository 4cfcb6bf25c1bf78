"""Simulation of a script's `ServerApp` and `ClientApp`, in the script's process."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_dp.app.in_process import Before, InProcessGrid, configs_of_nodes
from fl_dp.app.refusals import refusals_end_the_script
from fl_dp.clients.owner.node_privacy import simulated_nodes
from fl_dp.option_errors import ArgumentError, require_count


def simulate(
    server: ServerApp,
    client: Callable[[Message, Context], Message],
    *,
    num_nodes: int | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> None:
    """Run a `ServerApp` against simulated nodes, which answer one by one.

    For scripts and notebooks: nothing is installed, started or left behind; no port is opened.

    Args:
        server: The server's app.
        client: The nodes' app, for example from `numpy_client_app`.
        num_nodes: Nodes to simulate; each finds its number, from 0, as `partition-id` in
            `context.node_config`. None: as many as the strategy's plan declares.
        run_config: The run's configuration, in both apps' `context.run_config`.

    Raises:
        SystemExit: An argument is wrong, the ledger does not pay for the run, nodes and plan do
            not fit, or (almost) no node can contribute: one line instead of a traceback.
    """
    with refusals_end_the_script():
        _require_app(client)
        if num_nodes is not None:
            require_count(num_nodes=num_nodes)
        play(server, client, num_nodes=num_nodes, run_config=run_config or {})


def _require_app(client: object) -> None:
    """Refuse what answers no messages, such as a client or its class."""
    if isinstance(client, type):
        raise ArgumentError(
            f"client must be an app, got the class {client.__name__}: write "
            f"numpy_client_app(lambda context: {client.__name__}())",
            option="client",
        )
    if isinstance(client, ClientApp):
        return
    try:
        inspect.signature(client).bind("message", "context")  # type: ignore[arg-type]  # TypeError: not callable
    except TypeError as error:
        raise ArgumentError(
            f"client must be an app, which answers a message in a context, got {client!r:.80}: "
            "write numpy_client_app(client_fn)",
            option="client",
        ) from error


def play(
    server: ServerApp,
    client: Callable[[Message, Context], Message],
    *,
    num_nodes: int | None,
    run_config: Mapping[str, Any],
    before: Before | None = None,
) -> None:
    """Run a `ServerApp` as `simulate` does, but pass exceptions on; `before` as for the grid."""
    run_id = secrets.randbits(63)
    configs = None if num_nodes is None else configs_of_nodes(num_nodes)
    grid = InProcessGrid(client, configs, run_id=run_id, run_config=run_config, before=before)
    serve_simulated(server, grid, run_id=run_id, run_config=run_config)


def serve_simulated(
    server: ServerApp, grid: InProcessGrid, *, run_id: int, run_config: Mapping[str, Any]
) -> None:
    """Run a `ServerApp` on a grid of simulated nodes."""
    with simulated_nodes():
        server(grid, Context(run_id, 0, {}, RecordDict(), dict(run_config)))
