"""Texts that nearly repeat others, by their runs of five words.

>>> near_copies(["Buy it now for 5 dollars!"], ["buy it NOW for 7 dollars"]).tolist()
[True]
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[^\W\d_]+")
_RUN = 5  # words
_ALIKE = 0.5  # of a text's runs
_MIX = np.uint64(0x100000001B3)


def near_copies(texts: Sequence[str], others: Sequence[str]) -> NDArray[np.bool_]:
    """Which texts have more than half of their runs in the others, `(n,)`.

    Letters alone are compared, without capitals; a text of fewer words is one run.
    """
    runs = [_runs(text) for text in texts]
    owners = np.repeat(np.arange(len(runs)), [*map(len, runs)])
    hits = np.isin(np.concatenate(runs), np.concatenate([_runs(other) for other in others]))
    shared = np.bincount(owners, hits, len(runs))
    return shared > _ALIKE * np.bincount(owners, minlength=len(runs))


def _runs(text: str) -> NDArray[np.uint64]:
    """Hashes of a text's runs, each once; one at least."""
    words = [zlib.crc32(word.encode()) for word in _WORD.findall(text.lower())]
    codes = np.array(words + [0] * (_RUN - len(words)), np.uint64)
    hashes = np.zeros(len(codes) - _RUN + 1, np.uint64)
    for start in range(_RUN):
        hashes = hashes * _MIX + codes[start : start + len(hashes)]
    return np.unique(hashes)
