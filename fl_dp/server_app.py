"""The Flower `ServerApp`: composes the settings from the run's `hydra-overrides` and trains."""

from __future__ import annotations

import shlex

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_dp.app.compose import compose_settings
from fl_dp.app.server import train

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one training."""
    overrides = shlex.split(str(context.run_config.get("hydra-overrides", "")))
    train(grid, compose_settings(overrides), run_id=str(context.run_id))
