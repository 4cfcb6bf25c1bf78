"""Secure sums at the server."""

from .one_sum import OneSum, Summed
from .setup import SecureSums, secure_sums_of

__all__ = ["OneSum", "SecureSums", "Summed", "secure_sums_of"]
