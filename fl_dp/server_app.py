"""The Flower `ServerApp`: trains, or asks for a statistic, as `hydra-overrides` say.

Flower's engine loads the apps before its workers start. So a training's imports are in `main`,
which the engine calls beside the workers.
"""

from __future__ import annotations

import logging
import shlex

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one training, or answer one statistic."""
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.recipes import recipe_of
    from fl_dp.app.refusals import shorten_refusals
    from fl_dp.app.server import train
    from fl_dp.app.statistics import answer_statistic

    for name in ("flwr", "flwr.fl_dp"):  # Flower logs what ends a run, and so do we
        shorten_refusals(logging.getLogger(name))
    overrides = shlex.split(str(context.run_config.get("hydra-overrides", "")))
    settings = compose_settings(overrides)
    for line in recipe_of(overrides).notes:  # `fl-dp run` has said what it sends already
        logging.getLogger("flwr.fl_dp").info("%s", line)
    job = train if settings.statistic.query is None else answer_statistic
    job(grid, settings, run_id=str(context.run_id))
