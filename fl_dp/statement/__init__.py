"""Statements: the meaning of a plan and its ledger, in words and numbers. No Flower, no torch."""

from .check import read_statement
from .markdown import statement_markdown
from .of_clients import privacy_statement
from .of_records import record_statement
from .stated_promise import NoPromise, PrivacyStatement, RecordStatement

__all__ = [
    "NoPromise",
    "PrivacyStatement",
    "RecordStatement",
    "privacy_statement",
    "read_statement",
    "record_statement",
    "statement_markdown",
]
