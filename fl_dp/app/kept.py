"""Settings that were asked for, that protect, and that nobody would keep to."""

from __future__ import annotations

from collections.abc import Mapping

from fl_dp.option_errors import IncompatibleOptions

from .settings import Settings

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
        raise IncompatibleOptions(
            "{dp_sgd=off} and {privacy=dp_sgd} exclude each other: leave {dp_sgd=off} out, or "
            "write {privacy=none}"
        )
    settings.dp_sgd.require_on(
        f"{key}={value}"
        for key, value in given.items()
        if key.startswith("dp_sgd.") and key != "dp_sgd.enabled"
    )
    for key, value in given.items():
        group, _, name = key.rpartition(".")
        if group == "privacy" and name in _OF_CLIENTS and settings.protects_records_alone:
            instead = f"dp_sgd.{name}={value}" if name in _OF_BOTH else "privacy=central dp_sgd=on"
            raise IncompatibleOptions(
                f"{{{key}={value}}} is for clients, and their records alone are protected: write "
                f"{instead}, or leave it out"
            )
