"""The covariance of correlated noise, and a test of drawn noise against it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def covariance(coefficients: Sequence[int], indices: Sequence[int]) -> np.ndarray:
    """Covariance of these releases' noises, in variances of the fresh noise.

    C^-1 C^-T, C being lower triangular with the coefficients below the diagonal, as far as the
    indices follow on each other: a gap is a cut.
    """
    matrix = np.zeros((len(indices), len(indices)))
    for row in range(len(indices)):
        for back in range(min(row + 1, len(coefficients))):
            if indices[row] - indices[row - back] != back:
                break
            matrix[row, row - back] = coefficients[back] / coefficients[0]
    inverse = np.linalg.inv(matrix)
    return inverse @ inverse.T


def covariance_p(noise: np.ndarray, designed: np.ndarray) -> float:
    """P-value of releases' noise, shape `(releases, coordinates)`, under a designed covariance.

    Whitened by the design's Cholesky factor, the rows' sums of squares and of products are
    compared with those of independent standard normals, the worst with Bonferroni's factor.
    """
    releases, count = noise.shape
    white = np.linalg.solve(np.linalg.cholesky(designed), noise)
    gram = white @ white.T
    law = stats.chi2(count)
    worst = min(2 * min(law.sf(value), law.cdf(value)) for value in np.diag(gram))
    off = np.abs(gram[np.triu_indices(releases, 1)]).max(initial=0.0)
    worst = min(worst, 2 * stats.norm.sf(off / np.sqrt(count)))
    return float(min(1.0, worst * releases * (releases + 1) / 2))
