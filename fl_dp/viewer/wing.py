"""Registration of the viewer: its commands, and page and pictures at a run's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_dp.commands.wings import CommandWing

if TYPE_CHECKING:
    import typer

    from fl_dp.commands.jobs import Jobs
    from fl_dp.commands.terminal.summary import RunSummary


class Viewer(CommandWing):
    """Shows the folders of runs: in a browser, on a page, in a paper, in the terminal."""

    def add_commands(self, app: typer.Typer) -> None:
        """Add `runs`, `report` and `dashboard`."""
        from .commands.dashboard import dashboard
        from .commands.report import report
        from .commands.runs import runs

        for command in (runs, report, dashboard):
            app.command()(command)

    def after_runs(self, runs: Sequence[RunSummary], jobs: Jobs) -> Sequence[str]:
        """Draw ended trainings, write their report, and return lines with both paths."""
        from .ended_runs import drawn_and_written

        return drawn_and_written(runs, jobs)


WING = Viewer()
