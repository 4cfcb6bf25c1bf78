"""Trainings of the app, its nodes one by one in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_grid import LocalGrid, answer_at_nodes, answer_with_app

from fl_dp.app import task_client
from fl_dp.app.compose import compose_settings
from fl_dp.app.in_process import InProcessGrid, configs_of_nodes
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.settings import Settings
from fl_dp.clients.owner.node_privacy import simulated_nodes


def grid_of(settings: Settings) -> LocalGrid:
    """The nodes that settings ask for."""
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    return LocalGrid(answer_with_app(task_client.app, nodes), nodes)


def grid_of_nodes(configs: Sequence[dict[str, Any]]) -> LocalGrid:
    """Nodes with these configs of their owners."""
    return LocalGrid(answer_at_nodes(task_client.app, configs), len(configs))


def real_nodes(folder: Path, count: int, **of_owners: Sequence[Any]) -> LocalGrid:
    """Nodes with ledgers of their own, `folder/node-N/ledger.db`.

    `of_owners` are keys of their owners, with `_` for `-`, and each node's value.
    """
    configs: list[dict[str, Any]] = []
    for node in range(count):
        ledger = folder / f"node-{node}" / "ledger.db"
        ledger.parent.mkdir()
        of_owner = {key.replace("_", "-"): values[node] for key, values in of_owners.items()}
        configs.append(of_owner | {"dp-ledger-path": str(ledger), "partition-id": node})
    return grid_of_nodes(configs)


def trained_run(folder: Path, *overrides: str) -> RunFolder:
    """A training whose folder is `folder/run`."""
    settings = _settings(folder, overrides)
    train(grid_of(settings), settings, run_id="1")
    return RunFolder(folder / "run")


def trained_in_process(folder: Path, *overrides: str) -> RunFolder:
    """As `trained_run`, by the product's own grid of `simulation.engine=in_process`."""
    settings = _settings(folder, overrides)
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    with simulated_nodes():
        train(InProcessGrid(task_client.app, configs_of_nodes(nodes)), settings, run_id="1")
    return RunFolder(folder / "run")


def _settings(folder: Path, overrides: Sequence[str]) -> Settings:
    return compose_settings([*overrides, f"output_dir={folder}", "run_name=run"])
