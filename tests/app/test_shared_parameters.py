"""`model.shared` where records alone are protected: `test_shared_in_every_mode.py` has the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl_dp.app.compose import compose_settings
from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.server import train
from fl_dp.app.task_client import app
from fl_dp.clients.owner.node_privacy import simulated_nodes
from fl_dp.statement.check import statement_page

SMALL = ["model=mlp", "model.hidden=4", "task.num_clients=2", "rounds=2", "client.epochs=1"]


def trained(tmp_path: Path, *overrides: str) -> tuple[Any, dict[str, Any]]:
    """Train in this process; return Flower's result and the statement."""
    settings = compose_settings(
        [
            *SMALL,
            "privacy=dp_sgd",
            "dp_sgd.steps=1",
            "selection.sampling_rate=0.9",
            f"output_dir={tmp_path}",
            "run_name=run",
            *overrides,
        ]
    )
    nodes = range(settings.task.num_clients)
    grid = InProcessGrid(app, [{"partition-id": node} for node in nodes])
    with simulated_nodes():
        result = train(grid, settings, run_id="1")
    return result, json.loads((tmp_path / "run" / "privacy.json").read_text())


def test_the_server_has_what_travels_alone_and_the_statement_says_what(tmp_path: Path) -> None:
    result, statement = trained(tmp_path, "model.shared=['5.*']")
    assert list(result.arrays) == ["5.weight", "5.bias"]
    assert statement["shared_parameters"] == ["5.weight", "5.bias"]
    assert "neither released nor covered" in statement_page(statement)
