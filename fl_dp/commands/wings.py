"""What a wing may bring to the commands, besides what it brings to the app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_dp.app.wings import Wing, loaded_wings

if TYPE_CHECKING:
    import typer

    from .jobs import Jobs
    from .terminal.summary import RunSummary


class CommandWing(Wing):
    """What a wing brings to the commands; nothing, unless it overrides a method."""

    def add_commands(self, app: typer.Typer) -> None:
        """Add commands to `fl-dp`."""

    def instead_of_training(self, jobs: Jobs, *, as_json: bool) -> bool:
        """Do something in place of a training, if settings ask for it; return whether they did.

        With `as_json` it prints one JSON document.
        """
        return False

    def after_runs(self, runs: Sequence[RunSummary], jobs: Jobs) -> Sequence[str]:
        """Handle trainings that have ended, and return lines for the person who started them."""
        return ()


def command_wings() -> tuple[CommandWing, ...]:
    """Return the installed wings."""
    return loaded_wings()
