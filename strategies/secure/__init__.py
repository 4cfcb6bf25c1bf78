"""Secure sums at the server: keys of a training, and one sum from its terms to its total."""

from .one_sum import OneSum, Summed
from .setup import SecureSums

__all__ = ["OneSum", "SecureSums", "Summed"]
