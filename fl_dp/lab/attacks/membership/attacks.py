"""Membership attacks by name, and the game in which each model is the target once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .lira import lira
from .observations import Observations
from .rmia import rmia
from .roc import Roc

Attack: TypeAlias = Callable[[Observations, int], NDArray[np.float64]]
"""Scores the candidates of one model, float64 `(candidates,)`: the higher, the more a member."""


def loss_threshold(seen: Observations, target: int) -> NDArray[np.float64]:
    """Return the negative loss of each candidate, float64 `(candidates,)`; no reference is used.

    Records that a model fits best were probably trained on.

    Reference: Yeom et al. 2018, "Privacy Risk in Machine Learning", arXiv 1709.01604, adversary 2.

    Args:
        seen: Confidences; those of the target alone are looked at.
        target: Row of the model that is attacked.
    """
    return np.asarray(-np.logaddexp(0.0, -seen.candidates[target]), np.float64)


ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "loss threshold": loss_threshold,
        "lira offline": partial(lira, online=False),
        "lira online": partial(lira, online=True),
        "rmia, 1 reference": partial(rmia, references=1),
        "rmia, 2 references": partial(rmia, references=2),
    }
)
"""Every attack, by the name that tables and pictures use."""


def attacked(seen: Observations, attack: Attack) -> Roc:
    """Attack every model, each with the others for reference, and return the ROC of all scores."""
    scores = np.stack([attack(seen, target) for target in range(seen.models)])
    return Roc(scores[seen.members], scores[~seen.members])
