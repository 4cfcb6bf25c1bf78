"""Secure sums: a server learns what clients' vectors add up to, and nothing else."""

from .client import MaskedMessage, Participation
from .keys import Directory, Entry, Identity, Member, Roster
from .member import Opened
from .node import SecureNode
from .opening import OpenSum, Question, SecureSumFailed
from .receipts import Receipt
from .refused import REFUSAL_CODES, Refused
from .store import Mark, MemoryStore, NodeStore, SQLiteStore
from .terms import Segment, SumTerms

__all__ = [
    "REFUSAL_CODES",
    "Directory",
    "Entry",
    "Identity",
    "Mark",
    "MaskedMessage",
    "Member",
    "MemoryStore",
    "NodeStore",
    "OpenSum",
    "Opened",
    "Participation",
    "Question",
    "Receipt",
    "Refused",
    "Roster",
    "SQLiteStore",
    "SecureNode",
    "SecureSumFailed",
    "Segment",
    "SumTerms",
]
