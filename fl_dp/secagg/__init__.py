"""Secure sums: a server learns what clients' vectors add up to, and nothing else.

No Flower, no torch: `fl_dp.protocol` puts what is said here into messages.
"""

from .client import MaskedMessage, Participation
from .directory import Directory, Entry
from .evidence import Evidence
from .keys import Identity
from .member import Opened
from .node import SecureNode
from .opening import Blame, OpenSum, Question, SecureSumFailed
from .receipts import Receipt
from .roster import Member, Roster
from .store import Mark, SQLiteStore
from .terms import REFUSAL_CODES, RefusalCode, Refused, SumTerms

__all__ = [
    "REFUSAL_CODES",
    "Blame",
    "Directory",
    "Entry",
    "Evidence",
    "Identity",
    "Mark",
    "MaskedMessage",
    "Member",
    "OpenSum",
    "Opened",
    "Participation",
    "Question",
    "Receipt",
    "RefusalCode",
    "Refused",
    "Roster",
    "SQLiteStore",
    "SecureNode",
    "SecureSumFailed",
    "SumTerms",
]
