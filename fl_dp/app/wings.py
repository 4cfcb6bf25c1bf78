"""Wings: parts of fl-dp that training does not need, and what one of them may register.

A wing is a folder that nothing below imports: `fl_dp/lab/`, `fl_dp/viewer/`. Its `wing.py` has one
object `WING`, which overrides the methods of `Wing` that it has something for. Deleting the folder
takes its commands, its keys and its observers along, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from fl_dp.accounting import PrivacyEvent

    from .settings import Settings

_WINGS = ("fl_dp.lab", "fl_dp.viewer")


class Wing:
    """What a wing registers; nothing, unless it overrides a method.

    Each method imports what it needs when it is called: every command finds the wings, and most of
    them use none.
    """

    def add_commands(self, app: Any) -> None:
        """Add commands to `fl-dp`, a `typer.Typer`."""

    @property
    def groups(self) -> Mapping[str, type]:
        """Dataclasses of groups of keys, by the groups' names."""
        return {}

    def charges(self, settings: Settings) -> Sequence[tuple[PrivacyEvent, int]]:
        """Return what the wing releases before the first round: the plan pays for it.

        Raises:
            IncompatibleOptions: If the settings allow no such release.
        """
        return ()

    def before_training(
        self, folder: Path, grid: Grid, settings: Settings, *, run_id: str
    ) -> Settings:
        """Do at the server what precedes the first round, and return the settings to train with.

        Privacy: what is released here is what `charges` says, in the run's ledger.

        Args:
            folder: Of the run.
            grid: Flower's grid.
            settings: Of the run.
            run_id: Names an opening of the ledger.
        """
        return settings

    def unit_values(
        self, name: str, place: int, node_config: Mapping[str, Any], config: Mapping[str, Any]
    ) -> NDArray[Any] | None:
        """Return a unit's values for a statistic of the wing's own; None if it knows no such name.

        Args:
            name: Of the values.
            place: Number of the unit among those of all nodes.
            node_config: The node's configuration.
            config: Of the message.
        """
        return None

    def instead_of_training(self, jobs: Any, *, as_json: bool) -> bool:
        """Do what settings ask `fl-dp run` for in place of a training; False if they ask for none.

        Args:
            jobs: `fl_dp.commands.jobs.Jobs`.
            as_json: Whether to print one JSON document.
        """
        return False

    def after_runs(self, runs: Sequence[Any], jobs: Any) -> Sequence[str]:
        """Look at trainings that have ended, and return lines for the person who started them.

        Args:
            runs: A `RunSummary` of each.
            jobs: `fl_dp.commands.jobs.Jobs`.
        """
        return ()


@cache
def wings() -> tuple[Wing, ...]:
    """Return the wings that are there."""
    return tuple(import_module(f"{name}.wing").WING for name in _WINGS if _is_there(name))


def _is_there(name: str) -> bool:
    # An empty folder, as a deleted wing may leave it, is found too, but has no file inside.
    return find_spec(name) is not None and find_spec(f"{name}.wing") is not None
