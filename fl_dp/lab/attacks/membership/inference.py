"""Membership inference: a loss threshold, LiRA, RMIA, and the game with each model as the target.

LiRA takes a candidate's confidences under reference models as a Gaussian. Online, some references
were trained on it, and the score is the likelihood ratio of the two Gaussians. Offline, none was,
and the score is how far above them the target lies.

RMIA compares a candidate with others that no model was trained on: does the target raise its
probability over the references' by more than theirs? One or two references are enough.

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


def loss_threshold(observations: Observations, target: int) -> NDArray[np.float64]:
    """Each candidate's negative loss, float64 `(candidates,)`, without references.

    The records that a model fits best were probably trained on (Yeom et al. 2018, "Privacy Risk in
    Machine Learning", arXiv 1709.01604, adversary 2).
    """
    return np.asarray(-np.logaddexp(0.0, -observations.candidates[target]), np.float64)


def lira(observations: Observations, target: int, *, online: bool) -> NDArray[np.float64]:
    """Each candidate's score, float64 `(candidates,)`, by all other models.

    `online` uses references trained on a candidate, too.
    """
    rows = observations.references(target)
    references, inside = observations.candidates[rows], observations.members[rows]
    confidences = observations.candidates[target]
    mean_out, deviation_out = _gaussian(references, ~inside)
    if not online:
        return np.asarray((confidences - mean_out) / deviation_out, np.float64)
    mean_in, deviation_in = _gaussian(references, inside)
    # log p(confidence | member) - log p(confidence | not).
    inside_density = norm.logpdf(confidences, mean_in, deviation_in)
    outside_density = norm.logpdf(confidences, mean_out, deviation_out)
    return np.asarray(inside_density - outside_density, np.float64)


def rmia(
    observations: Observations,
    target: int,
    *,
    references: int,
    offline_a: float = OFFLINE_A,
    gamma: float = 1.0,
) -> NDArray[np.float64]:
    """The share of the population that each candidate beats, float64 `(candidates,)`.

    The ratio itself breaks the many ties of a small population: otherwise few false alarms would
    have no threshold.

    Args:
        observations: Confidences.
        target: Row of the attacked model.
        references: Number of references, at least 1: the first models not trained on a candidate.
        offline_a: Constant `a`, in [0, 1], of the estimate `((1 + a) p_out + 1 - a) / 2` of a mean
            model's `p`. It is from `p_out` of models without the candidate.
        gamma: Factor by which a candidate has to beat one of the population, at least 1.

    Raises:
        ValueError: If a number is out of range.
    """
    if references < 1:
        raise ValueError(f"references is {references}; write at least 1")
    if not 0.0 <= offline_a <= 1.0:
        raise ValueError(f"offline_a is {offline_a}; write a number in [0, 1], usually 0.3")
    if not gamma >= 1.0:
        raise ValueError(f"gamma is {gamma}; write at least 1")
    candidates, population = expit(observations.candidates), expit(observations.population)

    def raised(p: NDArray[np.float64], models: NDArray[np.int64]) -> NDArray[np.float64]:
        usual = ((1.0 + offline_a) * p[models].mean(axis=0) + 1.0 - offline_a) / 2.0
        return np.asarray(p[target] / np.maximum(usual, np.finfo(float).tiny), np.float64)

    scores = np.empty(candidates.shape[1])
    for models, columns in _by_references(observations, target, references):
        of_population = np.sort(raised(population, models))
        of_candidates = raised(candidates[:, columns], models)
        beaten = np.searchsorted(of_population, of_candidates / gamma, side="left")
        # Candidates that beat the same share, for instance all of it, are ranked by their ratio.
        scores[columns] = (beaten + of_candidates / (1.0 + of_candidates)) / (
            len(of_population) + 1
        )
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


def attacked(observations: Observations, attack: Attack) -> Roc:
    """Attack each model with the others for reference; return the ROC of all scores."""
    scores = np.stack([attack(observations, target) for target in range(observations.models)])
    return Roc(scores[observations.members], scores[~observations.members])


def _gaussian(
    confidences: NDArray[np.float64], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """Each candidate's mean and deviation over the chosen models.

    With few models all share one deviation, as one per candidate would be noise. A candidate
    without a chosen model gets the mean of all.
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
    observations: Observations, target: int, references: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Sets of reference models, each with the candidates that use it."""
    rows = observations.references(target)
    outside = ~observations.members[rows]
    # A candidate that all references were trained on is compared with the first ones.
    outside |= ~outside.any(axis=0)
    chosen = outside & (outside.cumsum(axis=0) <= references)
    patterns, pattern_of = np.unique(chosen, axis=1, return_inverse=True)
    pattern_of = pattern_of.reshape(-1)
    return [
        (rows[pattern], np.flatnonzero(pattern_of == index))
        for index, pattern in enumerate(patterns.T)
    ]
