"""Noise with a short memory, for tests of the place it will have: nothing charges for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from fl_dp.mechanisms import NoiseStream, SecureRandom
from fl_dp.mechanisms.grid import IntegerLaw

HALVINGS = 2  # coefficients are quarters


class BandedStream(NoiseStream):
    """zeta_t = z_t - round(sum_j c_j zeta_(t-j)), j from 1, in integers; z_t is fresh noise.

    Attributes:
        coefficients: The c_j, from c_0 = 1 on, in quarters: (4, 2, 1) is 1, 1/2, 1/4.
        memory: The last noises, the newest first.
        laws: Scale and size of each draw since the last cut.
        cuts: How often memory was forgotten.
    """

    def __init__(self, coefficients: Sequence[int] = (4, 2, 1)) -> None:
        super().__init__()
        assert coefficients[0] == 1 << HALVINGS
        self.coefficients = tuple(coefficients)
        self.memory: list[np.ndarray] = []
        self.laws: set[tuple[float, int]] = set()
        self.cuts = 0

    def cut(self) -> None:
        for noise in self.memory:
            noise.fill(0)
        self.memory.clear()
        self.laws.clear()
        self.cuts += 1

    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> np.ndarray:
        self.laws.add((law.scale, size))
        if len(self.laws) > 1:
            raise ValueError("a stream with memory has one law and one size: cut it first")
        carried = sum(
            (c * zeta for c, zeta in zip(self.coefficients[1:], self.memory, strict=False)),
            start=np.zeros(size, dtype=np.int64),
        )
        noise = law.sample(size, rng) - ((carried + (1 << (HALVINGS - 1))) >> HALVINGS)
        self.memory = [noise.copy(), *self.memory][: len(self.coefficients) - 1]
        return noise


def covariance(coefficients: Sequence[int], indices: Sequence[int]) -> np.ndarray:
    """Covariance of the noises of these releases, in variances of the fresh noise.

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

    Whitened by the design's Cholesky factor, the sums of squares and of products of the rows are
    compared with those of independent standard normals, the worst of them with Bonferroni's factor.
    """
    releases, count = noise.shape
    white = np.linalg.solve(np.linalg.cholesky(designed), noise)
    gram = white @ white.T
    law = stats.chi2(count)
    worst = min(2 * min(law.sf(each), law.cdf(each)) for each in np.diag(gram))
    off = np.abs(gram[np.triu_indices(releases, 1)]).max(initial=0.0)
    worst = min(worst, 2 * stats.norm.sf(off / np.sqrt(count)))
    return float(min(1.0, worst * releases * (releases + 1) / 2))
