"""Chi-square tests of laws on the integers, and the laws themselves."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

DRAWS = 200_000  # a scale that is 5 % off is rejected, whatever the number of cells here
ALARM = 1e-6  # how often a test of a law may fail although the law is right


def discrete_gaussian_pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    reach = int(14 * scale) + 2
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support.astype(float) ** 2) / (2 * scale**2))
    return support, weights / weights.sum()


def discrete_laplace_pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    reach = int(60 * scale) + 2
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(support) / scale)
    return support, weights / weights.sum()


def law_p(draws: np.ndarray, support: np.ndarray, pmf: np.ndarray) -> float:
    """P-value of integer draws under a law on consecutive integers."""
    low, high = int(support[0]), int(support[-1])
    inside = draws[(draws >= low) & (draws <= high)]
    counts = np.bincount(inside - low, minlength=support.size)
    assert inside.size == draws.size, "a draw lies outside the support"
    return counts_p(counts, pmf)


def counts_p(counts: np.ndarray, pmf: np.ndarray) -> float:
    """P-value of counts under probabilities, cells of at least five expected."""
    total = counts.sum()
    common = pmf * total >= 5
    expected = np.append(pmf[common], pmf[~common].sum()) * total
    observed = np.append(counts[common], total - counts[common].sum())
    if expected[-1] < 5:  # a cell that is too rare on its own joins its neighbour
        expected = np.append(expected[:-2], expected[-2:].sum())
        observed = np.append(observed[:-2], observed[-2:].sum())
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), expected.size - 1))


def same_law_p(first: np.ndarray, second: np.ndarray) -> float:
    """P-value that two samples of integers come from one law, cells of at least ten in all."""
    low = min(first.min(), second.min())
    span = int(max(first.max(), second.max()) - low) + 1
    table = np.stack([np.bincount(sample - low, minlength=span) for sample in (first, second)])
    common = table.sum(axis=0) >= 10
    rare = table[:, ~common].sum(axis=1, keepdims=True)
    cells = table[:, common]
    if rare.sum() >= 10:
        cells = np.concatenate([cells, rare], axis=1)
    return float(stats.chi2_contingency(cells).pvalue)


def normal_p(sample: np.ndarray) -> float:
    """P-value of standard normal draws: of their variance, or of their whole law."""
    statistic = float((sample**2).sum())
    law = stats.chi2(sample.size)
    variance = 2 * min(law.sf(statistic), law.cdf(statistic))
    return float(min(variance, stats.kstest(sample, "norm").pvalue))


def plackett_luce(weights: np.ndarray, k: int) -> dict[tuple[int, ...], float]:
    """Probability of each ordered choice of `k` without replacement."""
    law = {}
    for choice in itertools.permutations(range(weights.size), k):
        chance, left = 1.0, weights.sum()
        for index in choice:
            chance *= weights[index] / left
            left -= weights[index]
        law[choice] = chance
    return law
