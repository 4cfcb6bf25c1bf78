"""Bounding what one unit can contribute."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The computed norm and the scaled entries carry rounding errors far below this share, so the
# scaled vector's exact norm can't exceed the clipping norm.
_ROUNDING_MARGIN = 1.0 - 1e-12


def l2_norm(vector: NDArray[np.float64]) -> float:
    """Return the L2 norm over all entries in float64; overflow-safe; NaN or inf stay non-finite."""
    flat = vector.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(float(np.dot(flat, flat)))
    if math.isfinite(norm) and norm > 1e-150:
        return norm
    largest = float(np.max(np.abs(flat), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    flat = flat / largest
    return largest * math.sqrt(float(np.dot(flat, flat)))


def clip_by_norm(vector: ArrayLike, clipping_norm: float) -> NDArray[np.float64]:
    """Scale `vector` down so that its L2 norm is at most `clipping_norm` (flat clipping).

    Privacy: whatever one unit sends, its contribution to a sum moves it by at most
    `clipping_norm` in L2 (add/remove and zero-out neighbours). A vector with a NaN, an infinity or
    a norm beyond float64 contributes zero: dropping the unit instead would make the cohort's size
    depend on its data.

    Args:
        vector: Real numbers of any shape and dtype, 0-d and integers included.
        clipping_norm: Bound on the L2 norm, positive and finite.

    Returns:
        A new float64 array of the same shape. A zero vector stays zero.

    Raises:
        ValueError: If `clipping_norm` is not positive and finite.

    Reference:
        McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", 3.
    """
    if not (math.isfinite(clipping_norm) and clipping_norm > 0):
        raise ValueError(f"clipping_norm must be positive and finite, got {clipping_norm}")
    clipped = np.array(vector, dtype=np.float64)
    norm = l2_norm(clipped)
    if not math.isfinite(norm):
        return np.zeros_like(clipped)
    if norm > clipping_norm * _ROUNDING_MARGIN:
        clipped *= clipping_norm * _ROUNDING_MARGIN / norm
    return clipped
