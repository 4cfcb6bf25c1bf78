"""Bounding what one unit can contribute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.option_errors import OptionError, require_positive

# The computed norm and the scaled entries carry rounding errors far below this share, so the
# scaled vector's exact norm can't exceed the clipping norm.
_ROUNDING_MARGIN = 1.0 - 1e-12
_BLOCK = 4096  # within a block even a sequential float64 sum stays inside the margin
_SMALLEST_FACTOR = 1e-290  # below it a factor would be subnormal and lose digits


class Norm(StrEnum):
    """The norm that bounds a contribution: `"l1"` for Laplace noise, `"l2"` for everything else."""

    L1 = "l1"
    L2 = "l2"


def l1_norm(vector: NDArray[np.float64]) -> float:
    """The L1 norm over all entries in float64; NaN stays NaN, overflow gives infinity."""
    flat = vector.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return _sum_of_blocks([float(np.abs(block).sum()) for block in _blocks(flat)])


def l2_norm(vector: NDArray[np.float64]) -> float:
    """The L2 norm over all entries in float64; overflow-safe; NaN or inf stay non-finite."""
    flat = vector.reshape(-1)
    norm = math.sqrt(_squared(flat))
    if math.isfinite(norm) and (norm > 1e-150 or not flat.any()):
        return norm
    # Squares left the range of float64: scaled by the largest entry they stay inside.
    largest = float(np.max(np.abs(flat), initial=0.0))
    if not math.isfinite(largest):
        return largest
    return largest * math.sqrt(_squared(flat / largest))


def clip_by_norm(
    vector: ArrayLike, clipping_norm: float, norm: Norm = Norm.L2
) -> NDArray[np.float64]:
    """Scale `vector` down so that its norm is at most `clipping_norm` (flat clipping).

    Privacy: whatever one unit sends moves a sum by at most `clipping_norm` in that norm
    (add/remove and zero-out neighbours; twice that if a unit's data is replaced by another's). A
    vector with a NaN, an infinity or a norm beyond float64 contributes zero: if the unit were
    dropped instead, the cohort's size would depend on its data.

    Args:
        vector: Real numbers of any shape and dtype, 0-d and integers included.
        clipping_norm: Bound on the norm, positive and finite, in the vector's units.
        norm: Norm over all entries jointly, L2 by default.

    Returns:
        A new float64 array of the same shape. A zero vector stays zero.

    Raises:
        ValueError: If `clipping_norm` is not positive and finite, or `norm` is no norm.
        TypeError: If the numbers are complex.

    Reference:
        McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", 3.
    """
    require_positive(clipping_norm=clipping_norm)
    if np.iscomplexobj(vector):
        raise TypeError("complex numbers have no place in an update: send real ones")
    measure = l1_norm if Norm(norm) is Norm.L1 else l2_norm
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinity, hence zero
        clipped = np.array(vector, dtype=np.float64)
    length = measure(clipped)
    if not math.isfinite(length):
        return np.zeros_like(clipped)
    bound = float(clipping_norm) * _ROUNDING_MARGIN
    if length > bound:
        if bound / length < _SMALLEST_FACTOR:  # in two steps, each with a normal factor
            clipped /= length
            length = measure(clipped)
        clipped *= bound / length
    return clipped


def joint_clipping_norm(clipping_norms: Sequence[float]) -> float:
    """The L2 sensitivity of layers clipped one by one: the root of the sum of squares.

    Raises:
        ValueError: If there is no bound, or one is not positive and finite.
    """
    if len(clipping_norms) == 0:
        raise OptionError(
            "norms must hold a clipping norm for each layer, got none", option="norms"
        )
    for index, bound in enumerate(clipping_norms):
        require_positive(**{f"norms[{index}]": bound})
    return math.hypot(*clipping_norms)


def _squared(flat: NDArray[np.float64]) -> float:
    """The sum of squares; infinity or NaN where float64 can't hold it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _sum_of_blocks([float(np.dot(block, block)) for block in _blocks(flat)])


def _blocks(flat: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    return [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]


def _sum_of_blocks(parts: list[float]) -> float:
    """Sum non-negative parts without rounding in between."""
    try:
        return math.fsum(parts)
    except OverflowError:  # fsum raises where a plain sum says infinity
        return math.inf
