r"""Texts as rows of bytes: UTF-8, cut at one length, filled with zeros.

>>> rows = padded(["good film", "bad"], 6)
>>> rows.shape, texts_of(rows)
((2, 6), ['good f', 'bad'])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def padded(texts: Sequence[str], length: int) -> NDArray[np.uint8]:
    """Texts as uint8 `(n, length)`, cut before a character that would not fit whole.

    A zero byte would end a text, so it becomes a space.
    """
    rows = np.zeros((len(texts), length), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        cut = text.replace("\0", " ").encode(errors="replace")[:length]
        whole = cut.decode(errors="ignore").encode()
        row[: len(whole)] = np.frombuffer(whole, np.uint8)
    return rows


def texts_of(rows: NDArray[Any]) -> list[str]:
    """The texts of rows that `padded` made, in any type of number."""
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows.astype(np.uint8)]
