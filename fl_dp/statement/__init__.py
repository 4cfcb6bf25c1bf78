"""Statements: what a plan and its ledger mean, in words and numbers. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .check import records_behind_statement, statement_differences, statement_page
    from .of_clients import describe_event, privacy_statement, promise_in_words, statement_markdown
    from .of_records import record_statement, record_statement_markdown
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "describe_event",
    "privacy_statement",
    "promise_in_words",
    "record_statement",
    "record_statement_markdown",
    "records_behind_statement",
    "statement_differences",
    "statement_markdown",
    "statement_page",
]
