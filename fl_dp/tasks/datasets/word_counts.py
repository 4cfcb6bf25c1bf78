"""Words of a text, counted at hashed coordinates: no vocabulary, no training, no data.

    >>> word_counts(["a good film"], 4096).shape
    (1, 4096)

A word or sign that occurs c times counts 1 + log c, whatever its capitals. Two words that share a
coordinate are rarely in one text, and signs by the hash cancel their sums on average.

References:
    Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning".
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+|[^\w\s]")
_SIGN = 1 << 31  # the highest bit of a hash


def word_counts(texts: Sequence[str], width: int) -> NDArray[np.float32]:
    """Count texts' words, `(n, width)`; zeros for a text without words."""
    table = np.zeros((len(texts), width), np.float32)
    for row, text in zip(table, texts, strict=True):
        counts = Counter(_WORD.findall(text.lower()))
        hashes = np.array([zlib.crc32(word.encode(errors="replace")) for word in counts], np.int64)
        weights = 1.0 + np.log(np.array([*counts.values()], np.float64))
        np.add.at(row, hashes % width, np.where(hashes & _SIGN, weights, -weights))
    return table
