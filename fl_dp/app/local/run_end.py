"""Tells the starter of a run on Flower's engine that its ServerApp has returned.

What follows is Flower's: it stops Ray, passes on the log and reports to the SuperLink.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from .superlink import FOLDER_VARIABLE, RETURNED


def announced(app: ServerApp) -> ServerApp:
    """An app that does the same, and writes `RETURNED` if that raised no error."""
    announcing = ServerApp()

    @announcing.main()
    def main(grid: Grid, context: Context) -> None:
        app(grid, context)
        if folder := os.environ.get(FOLDER_VARIABLE):  # not at a SuperLink of others
            (Path(folder) / RETURNED).touch()

    return announcing
