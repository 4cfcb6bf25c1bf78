"""Statements: what a plan and its ledger mean, in words and numbers. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .check import (
        entries_behind_statement,
        read_statement,
        statement_differences,
        statement_page,
    )
    from .markdown import statement_markdown
    from .of_clients import privacy_statement, promise_in_words
    from .of_records import record_statement
    from .promise import NoPromise, PrivacyStatement, RecordStatement
    from .words import describe_event
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "NoPromise",
    "PrivacyStatement",
    "RecordStatement",
    "describe_event",
    "entries_behind_statement",
    "privacy_statement",
    "promise_in_words",
    "read_statement",
    "record_statement",
    "statement_differences",
    "statement_markdown",
    "statement_page",
]
