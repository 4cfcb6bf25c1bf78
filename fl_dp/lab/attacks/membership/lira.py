"""Likelihood-ratio attack: how a candidate's confidence differs from that of models without it.

For each candidate the confidences of reference models are taken as a Gaussian. Online, some of them
were trained on the candidate, and the score is the likelihood ratio of the two Gaussians. Offline,
none was, and the score is how far above them the target lies.

Reference: Carlini et al. 2022, "Membership Inference Attacks From First Principles", arXiv
2112.03570, algorithm 1 and section VI.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from .observations import Observations

_ENOUGH = 32  # reference models for a deviation of each candidate's own (section VI-B there)
_LEAST_DEVIATION = 1e-9  # where all models agree to the last digit


def lira(seen: Observations, target: int, *, online: bool) -> NDArray[np.float64]:
    """Return the score of each candidate, float64 `(candidates,)`.

    Args:
        seen: Confidences; all models but the target serve for reference.
        target: Row of the model that is attacked.
        online: Also use the references that were trained on a candidate.
    """
    rows = seen.references(target)
    references, inside = seen.candidates[rows], seen.members[rows]
    found = seen.candidates[target]
    mean_out, deviation_out = _gaussian(references, ~inside)
    if not online:
        return np.asarray((found - mean_out) / deviation_out, np.float64)
    mean_in, deviation_in = _gaussian(references, inside)
    # log p(found | member) / p(found | not).
    ratio = norm.logpdf(found, mean_in, deviation_in) - norm.logpdf(found, mean_out, deviation_out)
    return np.asarray(ratio, np.float64)


def _gaussian(
    confidences: NDArray[np.float64], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """Return mean and deviation of each candidate over the chosen models.

    With few models they share one deviation: one of their own would be noise. A candidate for which
    no model was chosen gets the mean of all.
    """
    counts = chosen.sum(axis=0)
    sums = np.where(chosen, confidences, 0.0).sum(axis=0)
    everywhere = float(sums.sum() / max(counts.sum(), 1))
    means = np.where(counts > 0, sums / np.maximum(counts, 1), everywhere)
    squares = (np.where(chosen, confidences - means, 0.0) ** 2).sum(axis=0)
    if counts.min() >= _ENOUGH:
        own = np.sqrt(squares / (counts - 1))
        return means, np.maximum(own, _LEAST_DEVIATION)
    freedom = np.maximum(counts - 1, 0).sum()
    shared = float(np.sqrt(squares.sum() / max(freedom, 1)))
    return means, max(shared, _LEAST_DEVIATION)
