"""Wings: parts of fl-dp that training does not need, and what a wing may bring to the app.

A wing is a folder that nothing below imports: `fl_dp/lab/`, `fl_dp/viewer/`. Its `wing.py` defines
one object `WING`, which overrides hooks of `Wing`, and of `CommandWing` in
`fl_dp/commands/wings.py`. Without the folder its commands, keys and observers are gone, and nothing
else.
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
    """What a wing brings to the app; nothing, unless it overrides a method.

    Each method imports what it needs when it is called: every command loads the wings, and most
    commands use none.
    """

    @property
    def groups(self) -> Mapping[str, type]:
        """Dataclasses of groups of keys, by the groups' names."""
        return {}

    def charges(self, settings: Settings) -> Sequence[tuple[PrivacyEvent, int]]:
        """Return what the wing releases before the first round; the plan pays for it.

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
            folder: Folder of the run.
            grid: Flower's grid.
            settings: Settings of the run.
            run_id: Names an opening of the ledger.
        """
        return settings

    def unit_values(
        self, name: str, index: int, node_config: Mapping[str, Any], config: Mapping[str, Any]
    ) -> NDArray[Any] | None:
        """Return a unit's values for a statistic of the wing's own; None for an unknown name.

        Args:
            name: Name of the values.
            index: Index of the unit among those of all nodes, from 0.
            node_config: The node's configuration.
            config: Configuration of the message.
        """
        return None


@cache
def loaded_wings() -> tuple[Any, ...]:
    """Return `WING` of each installed wing; each caller says which of its hooks it uses."""
    return tuple(import_module(f"{name}.wing").WING for name in _WINGS if _is_there(name))


def wings() -> tuple[Wing, ...]:
    """Return the installed wings."""
    return loaded_wings()


def _is_there(name: str) -> bool:
    # A deleted wing may leave an empty folder, which is found as well but has no file inside.
    return find_spec(name) is not None and find_spec(f"{name}.wing") is not None
