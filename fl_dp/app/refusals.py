"""Errors that end a run on purpose: each is shown in one line, without a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.app.overrides import ConfigError
from fl_dp.files import StorageUnavailable
from fl_dp.ledger import LedgerCorrupted
from fl_dp.option_errors import ArgumentError, OptionError
from fl_dp.strategies import (
    NobodyContributes,
    RehearsalFailed,
    RosterIncomplete,
    RosterTooLarge,
    UnfitModel,
)

REFUSALS = (
    PrivacyBudgetExhausted,
    LedgerCorrupted,
    StorageUnavailable,
    RosterIncomplete,
    RosterTooLarge,
    RehearsalFailed,
    NobodyContributes,
    UnfitModel,
    ConfigError,
    OptionError,
    ArgumentError,
)
"""Errors of ledger, nodes, model and arguments whose message says all that a traceback could."""


class _OneLine(logging.Filter):
    """Replaces the traceback of a refusal by its message."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, REFUSALS):
            record.msg, record.args = f"{record.getMessage()}: {error}", ()
            record.exc_info = None
        return True


def shorten_refusals(logger: logging.Logger) -> None:
    """From now on log refusals without their traceback; other errors keep theirs."""
    if not any(isinstance(existing, _OneLine) for existing in logger.filters):
        logger.addFilter(_OneLine())


@contextmanager
def refusals_end_the_script() -> Iterator[None]:
    """End a script by one line on standard error instead of a refusal's traceback.

    Raises:
        SystemExit: With status 1, caused by the refusal.
    """
    try:
        yield
    except REFUSALS as refused:
        raise SystemExit(f"error: {refused}") from refused
