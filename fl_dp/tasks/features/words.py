"""Words of a text, counted at hashed coordinates: no vocabulary, no training, no data.

    >>> Words(4096)(torch.from_numpy(padded(["a good film"], 80))).shape
    torch.Size([1, 4096])

Single words and pairs of neighbours are counted; a count of c becomes 1 + log c. Two that share a
coordinate are rarely in one text, and signs by the hash cancel their sums on average.

References:
    Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning".
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.tasks.datasets.texts import texts_of

_WORD = re.compile(r"\w+|[^\w\s]")
_SIGN = 1 << 31  # the highest bit of a hash


class Words(nn.Module):
    """Hashed counts of words and pairs, text by text."""

    def __init__(self, width: int) -> None:
        """Count at `width` coordinates."""
        super().__init__()
        self._width = width

    def forward(self, records: Tensor) -> Tensor:
        """Count the words of texts, rows of bytes `(n, length)`.

        Returns:
            Float32 `(n, width)`; zeros for a text without words.
        """
        counted = [self._counted(text) for text in texts_of(records.cpu().numpy())]
        vectors = np.array(counted, np.float32).reshape(-1, self._width)
        return torch.from_numpy(vectors).to(records.device)

    def _counted(self, text: str) -> NDArray[Any]:
        words = _WORD.findall(text.lower())
        pairs = map(" ".join, pairwise(words))
        terms = Counter([*words, *pairs])
        hashes = np.array([zlib.crc32(term.encode()) for term in terms], np.int64)
        weights = 1.0 + np.log(np.array([*terms.values()], np.float64))
        signs = np.where(hashes & _SIGN, 1.0, -1.0)
        counts: NDArray[Any] = np.bincount(hashes % self._width, signs * weights, self._width)
        return counts
