"""Loss threshold: whoever the model fits best was probably trained on.

Reference: Yeom et al. 2018, "Privacy Risk in Machine Learning", arXiv 1709.01604, adversary 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .observations import Observations


def loss_threshold(seen: Observations, target: int) -> NDArray[np.float64]:
    """Return the negative loss of each candidate, float64 `(candidates,)`; no reference is used.

    Args:
        seen: Confidences; those of the target alone are looked at.
        target: Row of the model that is attacked.
    """
    return np.asarray(-np.logaddexp(0.0, -seen.candidates[target]), np.float64)
