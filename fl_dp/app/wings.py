"""Wings: parts of fl-dp that training does not need, and what they may bring to the app.

A wing is a folder that nothing below imports: `fl_dp/lab/`, `fl_dp/viewer/`. Its `wing.py` defines
one object `WING`, which overrides hooks of `Wing`, and of `CommandWing` in
`fl_dp/commands/wings.py`. Without the folder only its commands, keys and observers are gone.
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

    Methods import what they need when called: every command loads the wings, most use none.
    """

    @property
    def groups(self) -> Mapping[str, type]:
        """Dataclasses of key groups, by group name."""
        return {}

    def charges(self, settings: Settings) -> Sequence[tuple[PrivacyEvent, int]]:
        """Releases of the wing before the first round; the plan pays for them.

        Raises:
            IncompatibleOptions: The settings allow no such release.
        """
        return ()

    def before_training(
        self, folder: Path, grid: Grid, settings: Settings, *, run_id: str
    ) -> Settings:
        """Do the server's work before the first round; return the settings to train with.

        `folder` is the run's, and `run_id` names an opening of the ledger.

        Privacy: what is released here is what `charges` says, in the run's ledger.
        """
        return settings

    def unit_values(
        self, name: str, index: int, node_config: Mapping[str, Any], config: Mapping[str, Any]
    ) -> NDArray[Any] | None:
        """A unit's values for the wing's own statistic; None for an unknown name.

        `index` is the unit's among those of all nodes, from 0; `config` is the message's.
        """
        return None


@cache
def loaded_wings() -> tuple[Any, ...]:
    """`WING` of each installed wing; each caller says which hooks it uses."""
    return tuple(import_module(f"{name}.wing").WING for name in _WINGS if _is_there(name))


def wings() -> tuple[Wing, ...]:
    """The installed wings."""
    return loaded_wings()


def _is_there(name: str) -> bool:
    # A deleted wing may leave an empty folder, which is found as well but has no file inside.
    return find_spec(name) is not None and find_spec(f"{name}.wing") is not None
