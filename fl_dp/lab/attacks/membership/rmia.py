"""Robust membership inference attack (RMIA): one or two reference models are enough.

A candidate is compared with others that no model was trained on: by how much does the target raise
its probability, over what references give it, beyond what it does for theirs?

Reference: Zarifzadeh, Liu and Shokri 2024, "Low-Cost High-Power Membership Inference Attacks",
arXiv 2312.03262, equations 4 and 10; the offline attack.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from .observations import Observations

OFFLINE_A = 0.3
"""Value of `a` that the authors use for images; it was not tuned here."""


def rmia(
    seen: Observations,
    target: int,
    *,
    references: int,
    offline_a: float = OFFLINE_A,
    gamma: float = 1.0,
) -> NDArray[np.float64]:
    """Return the share of the population that each candidate beats, float64 `(candidates,)`.

    Ties, which a small population has many of, are broken by the ratio itself: at few false alarms
    there would be no threshold otherwise.

    Args:
        seen: Confidences; for each candidate the first models serve that were not trained on it.
        target: Row of the model that is attacked.
        references: How many of them, at least 1.
        offline_a: How `p` of a mean model follows from `p_out` of those without the candidate:
            `((1 + a) p_out + 1 - a) / 2`.
        gamma: Factor by which a candidate has to beat one of the population, at least 1.

    Raises:
        ValueError: If a number is out of its range.
    """
    if references < 1:
        raise ValueError(f"references is {references}; write at least 1")
    if not 0.0 <= offline_a <= 1.0:
        raise ValueError(f"offline_a is {offline_a}; write a number in [0, 1], usually 0.3")
    if not gamma >= 1.0:
        raise ValueError(f"gamma is {gamma}; write at least 1")
    candidates, population = expit(seen.candidates), expit(seen.population)

    def raised(p: NDArray[np.float64], models: NDArray[np.int64]) -> NDArray[np.float64]:
        usual = ((1.0 + offline_a) * p[models].mean(axis=0) + 1.0 - offline_a) / 2.0
        return np.asarray(p[target] / np.maximum(usual, np.finfo(float).tiny), np.float64)

    scores = np.empty(candidates.shape[1])
    for models, places in _by_references(seen, target, references):
        theirs = np.sort(raised(population, models))
        ours = raised(candidates[:, places], models)
        beaten = np.searchsorted(theirs, ours / gamma, side="left")
        # Candidates who beat the same share, all of it for instance, are told apart by how much.
        scores[places] = (beaten + ours / (1.0 + ours)) / (len(theirs) + 1)
    return scores


def _by_references(
    seen: Observations, target: int, references: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return sets of reference models, each with the candidates that it serves."""
    rows = seen.references(target)
    outside = ~seen.members[rows]
    # A candidate that was part of all of them is compared with the first, which tell less.
    outside |= ~outside.any(axis=0)
    chosen = outside & (outside.cumsum(axis=0) <= references)
    patterns, of = np.unique(chosen, axis=1, return_inverse=True)
    of = of.reshape(-1)
    return [
        (rows[pattern], np.flatnonzero(of == index)) for index, pattern in enumerate(patterns.T)
    ]
