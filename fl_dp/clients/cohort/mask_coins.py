"""Coins of dropout: each client's from a generator of its own.

A layer's mask is a slice of these coins, and nothing else is drawn. So who else is trained beside a
client, or how long, changes none of its coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_SPAN = 1 << 31
_MOST_DRAWN = 1 << 18  # coins of a client at a time, or one step's
_APART = 0x5DEECE66D  # the order of records follows from the seed itself


class MaskCoins:
    """Masks of many clients' dropout layers, at most one row of coins for each client."""

    def __init__(self, seeds: Sequence[int], device: torch.device, *, step: int = 0) -> None:
        """Begin each client's coins.

        Args:
            seeds: Each client's own.
            device: Where the masks are.
            step: Coins that one client needs for a step; 0 draws mask by mask, for one client.
                On a CPU both ways give the same coins.
        """
        self._generators = [torch.Generator(device).manual_seed(seed ^ _APART) for seed in seeds]
        self._device = device
        self._step = step
        self._steps_drawn = max(1, _MOST_DRAWN // step) if step else 0
        self._drawn = torch.empty(0, 0, dtype=torch.int32, device=device)
        self.use(self._drawn)

    def of_step(self, number: int, steps: Sequence[int], *, rows: int) -> Tensor:
        """Coins of a step `(rows, step)`, for the clients that have more than `number` of them.

        Args:
            number: Counted from 0.
            steps: All steps of each client; they fall.
            rows: Masks have as many, some for nobody.
        """
        if not self._step:
            return self._drawn
        place = number % self._steps_drawn
        if place == 0:
            drawn = min(self._steps_drawn, steps[0] - number) * self._step
            self._drawn = torch.zeros(rows, drawn, dtype=torch.int32, device=self._device)
            left = [own - number for own in steps if own > number]
            for row, generator, own in zip(self._drawn, self._generators, left, strict=False):
                row[: own * self._step].random_(generator=generator)
        self._drawn = self._drawn[:rows]
        return self._drawn[:, place * self._step : (place + 1) * self._step]

    def use(self, coins: Tensor) -> None:
        """Make the next masks of these coins of a step."""
        self._coins, self._at = coins, 0

    def masks(self, units: int, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
        """The next layer's masks of all clients, `(units, *shape)`, scaled by `1 / (1 - p)`."""
        count = math.prod(shape)
        coins = self._coins[:, self._at : self._at + count]
        if coins.shape != (units, count):
            raise RuntimeError("a layer drops out more in one step than in another")
        self._at += count
        return _masks(coins, p, dtype).view(units, *shape)

    def mask(self, shape: Sequence[int], p: float, dtype: torch.dtype, *, padding: float) -> Tensor:
        """The next layer's mask of the only client.

        `padding` is how many times as many coins are drawn, for records that others of a cohort
        would have; these are thrown away.
        """
        count = math.prod(shape)
        coins = torch.empty(round(count * padding), dtype=torch.int32, device=self._device)
        coins.random_(generator=self._generators[0])
        return _masks(coins[:count], p, dtype).view(*shape)


def _masks(coins: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    kept = (coins >= round(p * _SPAN)).to(dtype)
    return kept.mul_(1.0 / (1.0 - p) if p < 1.0 else 0.0)
