"""The sum of a cohort's clipped rows on the device that holds them; one vector leaves a round.

Each step is one rounded operation on each entry, which IEEE 754 fixes: differences, products and
quotients in float64, and sums of squares by halves of the vector. So any device gives the same bits
for the same rows. Steps are integers below 2^53, whose sum is exact in any order.

For a given norm a row adds what `updates.ClippedSum` adds on the host, to the bit. There BLAS adds
up squares in an order of its own; neither order's norm is too short by more than 1e-14 for 10^9
entries, far inside the margin of the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 27}  # of float64 at a time: 32 MB, or 1 GB


class DeviceSum:
    """The sum of clipped rows in grid steps.

    Privacy: that of `updates.ClippedSum`, which counts the rows. Float32 rows around a model of at
    most float32: their norms lie in (1e-45, 1e44), where squares neither vanish nor overflow. A
    row that is not finite adds zero.
    """

    def __init__(
        self,
        origin: NDArray[np.float64],
        device: torch.device,
        *,
        grid: float,
        groups: Sequence[slice],
        bounds: Sequence[float],
    ) -> None:
        """Start from zero.

        Args:
            origin: The model that was sent, shape `(d,)`.
            device: Device of the rows.
            grid: The grid step.
            groups: Parts of a row, each clipped alone.
            bounds: L2 bound on each group's update, below its clipping norm by a margin.
        """
        self._origin = torch.from_numpy(origin).to(device)
        self._total = torch.zeros_like(self._origin)
        self._grid, self._groups, self._bounds = grid, groups, bounds

    @torch.no_grad()
    def add(self, rows: Tensor) -> Tensor:
        """Clip each row's update and add it; if that raises, nothing was added.

        Args:
            rows: The units' models, float32 `(units, d)` on the device; never changed.

        Returns:
            Each whole update's L2 norm before clipping, float64 `(units,)` on the device; infinity
            where it added nothing as it was not finite.
        """
        added = torch.zeros_like(self._total)
        norms = [self._add(part, added) for part in torch.split(rows, _rows_at_once(rows))]
        self._total += added
        return torch.cat(norms)

    def taken(self) -> NDArray[np.float64]:
        """Return the sum in the host's memory, and start again from zero."""
        total: NDArray[np.float64] = self._total.cpu().numpy().copy()
        self._total.zero_()
        return total

    def _add(self, rows: Tensor, added: Tensor) -> Tensor:
        update = rows.double().sub_(self._origin)
        scratch = update * update
        squares = torch.stack([sum_of_halves(scratch[:, group]) for group in self._groups])
        norms = squares.sqrt()
        norm = sum_of_halves(squares.T).sqrt() if len(squares) > 1 else norms[0]
        is_finite = norm.isfinite()
        for group, bound, length in zip(self._groups, self._bounds, norms, strict=True):
            # A quotient of tensors is rounded once; one with a number may become a product.
            bounds, grid = torch.full_like(length, bound), torch.full_like(length, self._grid)
            scales = torch.where(length <= bounds, 1.0, bounds / length) / grid
            update[:, group].mul_(scales[:, None])
        # Rounded towards zero: a clipped update must not get longer.
        update.trunc_().masked_fill_(~is_finite[:, None], 0.0)
        added += update.sum(0)
        return torch.where(is_finite, norm, torch.inf)


@torch.no_grad()
def weighted_rows(
    rows: Tensor, origin: NDArray[np.float64], weights: NDArray[np.float64]
) -> Tensor:
    """Multiply each row's update by its weight, to the bit as NumPy does; 1 leaves it as it is.

    Args:
        rows: Models, `(units, d)`; never changed.
        origin: The model that was sent, shape `(d,)`.
        weights: One a row.
    """
    begin = torch.from_numpy(origin).to(rows.device, non_blocking=True)
    factors = torch.from_numpy(weights).to(rows.device, non_blocking=True)[:, None]
    weighted = torch.empty_like(rows)
    size = _rows_at_once(rows)
    for part, factor, out in zip(
        *(torch.split(whole, size) for whole in (rows, factors, weighted)), strict=True
    ):
        scaled = part.double().sub_(begin).mul_(factor).add_(begin).to(rows.dtype)
        torch.where(factor == 1.0, part, scaled, out=out)
    return weighted


def _rows_at_once(rows: Tensor) -> int:
    entries = _ENTRIES.get(rows.device.type, _ENTRIES["cpu"])
    return max(1, entries // max(1, rows.shape[1]))


def sum_of_halves(values: Tensor) -> Tensor:
    """Sum the last axis, overwritten, in an order that its length alone decides.

    Returns:
        One sum for each row, in the memory of `values` unless the axis is empty.
    """
    size = values.shape[-1]
    if size == 0:
        return values.sum(-1)
    while size > 1:
        half = 1 << (size - 1).bit_length() - 1  # the largest power of two below the size
        values[..., : size - half].add_(values[..., half:size])
        size = half
    return values[..., 0]
