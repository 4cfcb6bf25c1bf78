"""Settings that no mode has together, told before anything is computed or started.

What a privacy plan excludes, it says itself; here stands what a plan does not know of.
"""

from __future__ import annotations

from collections.abc import Mapping

from .settings import UTILITIES_OF_EVERYBODY, Settings

# A promise to clients has these; that to records has its own, in its own group.
_OF_BOTH = ("epsilon", "delta", "noise_multiplier")
_OF_CLIENTS = (*_OF_BOTH, "scheme", "unit")


def check_kept(given: Mapping[str, str], settings: Settings) -> None:
    """Check that somebody keeps to every setting that was asked for and that protects.

    A value alone does not tell: it can be the default and asked for all the same.

    Args:
        given: The keys that somebody wrote, with their values.
        settings: What they came to.

    Raises:
        ValueError: If a key has no effect, with what to write instead.
    """
    if given.get("dp_sgd") == "off" and settings.protects_records:
        raise ValueError(
            "dp_sgd=off and privacy=dp_sgd exclude each other: leave dp_sgd=off out, or write "
            "privacy=none"
        )
    for key, value in given.items():
        group, _, name = key.rpartition(".")
        if group == "dp_sgd" and name != "enabled" and not settings.protects_records:
            raise ValueError(
                f"{key}={value} is for DP-SGD inside clients, which is off: write dp_sgd=on "
                "too, or leave it out"
            )
        if group == "privacy" and name in _OF_CLIENTS and settings.protects_records_alone:
            instead = f"dp_sgd.{name}={value}" if name in _OF_BOTH else "privacy=central dp_sgd=on"
            raise ValueError(
                f"{key}={value} is for clients, and their records alone are protected: write "
                f"{instead}, or leave it out"
            )


def check_combinations(settings: Settings) -> None:
    """Check that the settings can be carried out together.

    Raises:
        ValueError: If they can't, with what to write instead.
    """
    mode, selection = settings.privacy.mode, settings.selection
    several = settings.simulation.units_at_node > 1
    if not settings.protects_clients and (several or selection.coins == "nodes"):
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
