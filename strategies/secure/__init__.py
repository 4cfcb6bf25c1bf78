"""Secure sums at the server: keys of a training, and one sum from its terms to its total."""

from .one_sum import OneSum, Summed
from .setup import SecureSums, secure_sums_of

__all__ = ["OneSum", "SecureSums", "Summed", "secure_sums_of"]
