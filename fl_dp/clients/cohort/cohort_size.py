"""How many clients are trained at once, and how many rows that takes."""

from __future__ import annotations

import torch

FEWEST_ROWS = 4  # with fewer, kernels split one row among threads
# Measured on 2 processors: with less, calls dominate; with more, activations leave the cache.
_CPU_BYTES = 32 << 20
_GPU_SHARE = 0.5  # of the free memory: a step takes more than it saves for its gradient
_MOST_UNITS = 256


def units_at_once(unit_bytes: int, free_bytes: int | None = None) -> int:
    """How many clients to train at once, a power of two.

    Args:
        unit_bytes: Bytes that one client's step stores.
        free_bytes: Free bytes of the GPU; None on a CPU, where the cache counts.
    """
    budget = _CPU_BYTES if free_bytes is None else int(_GPU_SHARE * free_bytes)
    fitting = max(1, min(budget // max(unit_bytes, 1), _MOST_UNITS))
    return 1 << (fitting.bit_length() - 1)


def filled_up(units: int) -> int:
    """Rows for so many clients, a power of two: kernels round by the number of rows."""
    return 1 << (max(units, FEWEST_ROWS, torch.get_num_threads()) - 1).bit_length()
