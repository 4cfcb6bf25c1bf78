"""Settings that were asked for, that protect, and that nobody would keep to."""

from __future__ import annotations

from collections.abc import Mapping

from fl_dp.option_errors import IncompatibleOptions

from .settings import Settings


def check_kept(given: Mapping[str, str], settings: Settings) -> None:
    """Check that a choice that was written does not take away what another one promises.

    Args:
        given: The keys that were written, with their values.
        settings: What they came to.

    Raises:
        ValueError: If it does, with what to write instead.
    """
    promises = settings.protects_clients or settings.protects_records
    if given.get("dp_sgd") == "off" and not promises and given.get("privacy") != "none":
        raise IncompatibleOptions(
            "{dp_sgd=off} leaves nothing of a promise to records: leave it out, or write "
            "{privacy=none} if nobody is to be protected"
        )
