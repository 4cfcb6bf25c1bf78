"""Settings that no mode has together, told before anything is computed or started.

What a privacy plan excludes, it says itself; here stands what a plan does not know of.
"""

from __future__ import annotations

from .settings import UTILITIES_OF_EVERYBODY, Settings


def check_combinations(settings: Settings) -> None:
    """Check that the settings can be carried out together.

    Raises:
        ValueError: If they can't, with what to write instead.
    """
    mode, selection = settings.privacy.mode, settings.selection
    several = settings.simulation.units_at_node > 1
    if mode in ("none", "dp_sgd") and (several or selection.coins == "nodes"):
        raise ValueError(
            f"a node that sums its units clips them, which privacy.mode={mode} does not: write "
            "simulation.units_per_node=1 and selection.coins=server"
        )
    reported = selection.utility in UTILITIES_OF_EVERYBODY
    if mode == "local" and selection.name == "exponential" and reported:
        raise ValueError(
            f"clients that trust nobody do not report their {selection.utility} in the clear, as "
            f"selection=exponential by selection.utility={selection.utility} asks under "
            "privacy.mode=local: write selection=public"
        )
    by_norm = selection.name == "exponential" and selection.utility == "update_norm"
    if by_norm and (several or selection.coins == "nodes"):
        raise ValueError(
            "a node that sums its units does not tell the norm of each: write "
            "selection.utility=loss, or simulation.units_per_node=1"
        )
