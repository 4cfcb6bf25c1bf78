"""A small transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .bench import CLASSES

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention of linear layers, which every way to gradients knows."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._heads = heads

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape, `(n, tokens, width)`."""
        heads = self.joint(states).unflatten(2, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        tokens = states.shape[1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=states.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(3) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads=4))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape, `(n, tokens, width)`."""
        states = states + self.attention(states)
        out: Tensor = states + self.mlp(states)
        return out


class Decoder(nn.Module):
    """A transformer that names the class of its last token; without positions."""

    def __init__(self, width: int) -> None:
        """Make four layers."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Embedding(VOCABULARY, width), *(Block(width) for _ in range(4)), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(n, classes)`."""
        logits: Tensor = self.head(self.body(tokens)[:, -1])
        return logits
