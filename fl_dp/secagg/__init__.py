"""Secure sums: a server learns what clients' vectors add up to, and nothing else.

No Flower, no torch: `fl_dp.protocol` puts what is said here into messages.
"""

from .directory import Directory
from .key_pairs import Identity
from .node_store import SQLiteStore
from .opening import OpenSum, SecureSumFailed
from .roster import Roster
from .sum_node import SecureNode
from .terms import Refused, SumTerms

__all__ = [
    "Directory",
    "Identity",
    "OpenSum",
    "Refused",
    "Roster",
    "SQLiteStore",
    "SecureNode",
    "SecureSumFailed",
    "SumTerms",
]
