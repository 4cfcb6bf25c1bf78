"""Counts of a text's words as an encoder's network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_dp.tasks.datasets.text_bytes import texts_of
from fl_dp.tasks.datasets.word_counts import word_counts


class HashedWords(nn.Module):
    """Hashed counts of words, text by text (`word_counts`)."""

    def __init__(self, width: int) -> None:
        """Count at `width` coordinates."""
        super().__init__()
        self._width = width

    def forward(self, records: Tensor) -> Tensor:
        """Count the words of texts, rows of bytes `(n, length)`, as float32 `(n, width)`."""
        counts = word_counts(texts_of(records.cpu().numpy()), self._width)
        return torch.from_numpy(counts).to(records.device)
