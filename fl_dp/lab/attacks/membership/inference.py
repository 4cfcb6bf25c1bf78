"""Membership inference: a loss threshold, LiRA, RMIA, and the game in which each model is a target.

LiRA takes a candidate's confidences under reference models as a Gaussian. Online, some of them
were trained on the candidate, and the score is the likelihood ratio of the two Gaussians. Offline,
none was, and the score is how far above them the target lies.

RMIA compares a candidate with others that no model was trained on: by how much does the target
raise its probability, over what references give it, beyond what it does for theirs? One or two
reference models are enough.

References:
    Carlini et al. 2022, "Membership Inference Attacks From First Principles", arXiv 2112.03570,
    algorithm 1 and section VI.
    Zarifzadeh, Liu and Shokri 2024, "Low-Cost High-Power Membership Inference Attacks", arXiv
    2312.03262, equations 4 and 10; the offline attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm

from .observations import Observations
from .roc import Roc

_ENOUGH = 32  # reference models for a deviation of each candidate's own (Carlini, section VI-B)
_LEAST_DEVIATION = 1e-9  # where all models agree to the last digit

OFFLINE_A = 0.3
"""Value of `a` that the authors use for images; it was not tuned here."""


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
