"""Findings on noise alone: what many releases show where they hide nothing.

Each coordinate may look right while two share one draw. So all releases are compared, as rows that
should be independent Gaussians of one size. The squared cosine of two independent rows of d draws
has the law Beta(1/2, (d - 1)/2), whatever their sizes; cosines of different pairs are pairwise
independent. So:

- The greatest cosine of all pairs shows a draw reused in another release.
- The mean squared cosine, 1/d for independent coordinates, shows draws reused within a release.
- The energy of some rows over that of all, with a Beta law, shows noise of varying size.

    >>> findings_on_noise(rows, alpha=1e-6, cohorts=sizes)

Noise is taken as Gaussian: its grid of 2^-30 deviations is too fine to show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc
from scipy.stats import beta, chi2, gamma, norm

from .verdict import Finding

SIZE_OF_NOISE = "size of the noise"
NEW_NOISE = "noise is new in each release"
NEW_COORDINATES = "noise is new in each coordinate"
ONE_SIZE = "noise has one size whatever the cohort"

_BLOCK = 1024  # rows whose cosines are in memory at once
_FEWEST = 3  # rows, and draws of each, with which anything is said
_NOTHING = "nothing with so few releases"


def findings_on_noise(
    rows: NDArray[np.float64], *, alpha: float, cohorts: NDArray[np.int64] | None = None
) -> tuple[Finding, ...]:
    """Return what a run's noise shows: its size, whether it is reused, whether its size varies.

    Args:
        rows: Draws where nothing is hidden, one row per release, in charged standard deviations.
        alpha: Probability that noise as charged is accused, over all findings.
        cohorts: Number of participants of each release, if known.
    """
    level = alpha / 4.0
    low, high = deviation_of(rows, alpha=level)
    missing = 1.0 - low / high if high else 1.0
    return (
        Finding(
            name=SIZE_OF_NOISE,
            alpha=level,
            caught=high < 1.0,
            observed=f"between {low:.2%} and {high:.2%} of what is charged, in {rows.size} draws",
            power=f"catches {missing:.2%} too little",
        ),
        noise_is_new(rows, alpha=level),
        coordinates_are_new(rows, alpha=level),
        noise_has_one_size(rows, alpha=level, cohorts=cohorts),
    )


def deviation_of(draws: NDArray[np.float64], *, alpha: float) -> tuple[float, float]:
    """An interval of Gaussian draws' deviation; each end fails with alpha / 2."""
    squares = float(np.square(draws).sum())
    low, high = chi2.isf(alpha / 2.0, draws.size), chi2.ppf(alpha / 2.0, draws.size)
    return math.sqrt(squares / low), math.sqrt(squares / high)


def noise_is_new(rows: NDArray[np.float64], *, alpha: float) -> Finding:
    """Compare each release's noise with the next one's, and with every other release's.

    For `alpha` and `rows`, here of any size, see `findings_on_noise`.
    """
    if min(rows.shape) < _FEWEST:
        return _says_nothing(NEW_NOISE, rows, alpha)
    releases, draws = rows.shape
    directions = _directions(rows)
    nexts = abs(float((directions[:-1] * directions[1:]).sum())) / (releases - 1)
    # These cosines are independent, each lighter-tailed than a normal of variance 1 / draws.
    chance = math.sqrt(2.0 * math.log(4.0 / alpha) / (draws * (releases - 1)))
    pairs = _pairs(directions)
    allowed = math.sqrt(beta.isf(alpha / (2.0 * pairs.count), 0.5, (draws - 1) / 2.0))
    bits = _bits(pairs.count)
    if bits > 1:
        seeds = f"a seed of {bits} bits or fewer, 19 times of 20"
    elif bits == 1:
        seeds = "a seed of 1 bit, 19 times of 20"
    else:
        seeds = f"of seeds {_NOTHING}"
    return Finding(
        name=NEW_NOISE,
        alpha=alpha,
        caught=nexts > chance or pairs.greatest > allowed,
        observed=f"correlation {nexts:.3g} with the next release, {chance:.3g} may be chance; at "
        f"most {pairs.greatest:.2g} of {pairs.count} pairs of releases, {allowed:.2g} may be "
        "chance",
        power=f"catches a correlation of {min(1.0, 2.0 * chance):.2g} between neighbours, and one "
        f"pair of equal releases: {seeds}",
    )


def coordinates_are_new(rows: NDArray[np.float64], *, alpha: float) -> Finding:
    """Look for draws that several coordinates of one release share, or mix, in any basis.

    For `alpha` and `rows`, here of any size, see `findings_on_noise`.
    """
    if min(rows.shape) < _FEWEST:
        return _says_nothing(NEW_COORDINATES, rows, alpha)
    releases, draws = rows.shape
    share = draws * _pairs(_directions(rows)).mean_square
    allowed = _greatest_share(releases, draws, alpha)
    least = 2.0 * (allowed - 1.0)  # a share of k equal coordinates among n: 1 + k / n
    power = f"of draws that two coordinates share it catches {_NOTHING}"
    if least < 1.0:
        power = (
            f"catches a draw that {least:.2g} of the coordinates share with another one each, in "
            "the same places"
        )
    return Finding(
        name=NEW_COORDINATES,
        alpha=alpha,
        caught=share > allowed,
        observed=f"squared correlation of releases {share:.4g} of that of independent coordinates, "
        f"{allowed:.4g} may be chance",
        power=power,
    )


def noise_has_one_size(
    rows: NDArray[np.float64],
    *,
    alpha: float,
    cohorts: NDArray[np.int64] | None = None,
) -> Finding:
    """Compare the energy of each release, and of large cohorts' releases, with the others'.

    For the arguments see `findings_on_noise`.
    """
    releases, draws = rows.shape
    energies = np.square(rows).sum(axis=1)
    parts = [np.arange(releases) == row for row in range(releases)]
    large = np.zeros(releases, dtype=np.bool_)
    if cohorts is not None:
        large = cohorts > np.median(cohorts)
        parts.append(large)
    worst = min(size_pvalue(energies, draws, part) for part in parts) * len(parts)
    by_cohort = ""
    if large.any():
        ratio = math.sqrt(_ratio(energies[large].mean(), energies[~large].mean()))
        by_cohort = f"; {ratio:.4g} times as large with cohorts above the median"
    chance = float(norm.isf(alpha / (2.0 * len(parts))))
    least, difference = chance / math.sqrt(2.0 * draws), "in a release"
    if large.any():
        least = chance / math.sqrt(min(int(large.sum()), int((~large).sum())) * draws)
        difference = "between large and small cohorts"
    return Finding(
        name=ONE_SIZE,
        alpha=alpha,
        caught=worst < alpha,
        observed=f"sizes of {releases} releases, p = {min(1.0, worst):.2g}{by_cohort}",
        power=f"catches {least:.1%} {difference}",
    )


def size_pvalue(
    energies: NDArray[np.float64], draws: int, part: NDArray[np.bool_] | Sequence[bool]
) -> float:
    """The two-sided p-value of a part's energy, if all draws have one size.

    Each row's energy is a sum of `draws` squares; rows in `part` are compared with the others.
    """
    rows = np.asarray(part)
    inside, total = float(energies[rows].sum()), float(energies.sum())
    if not rows.any() or rows.all():
        return 1.0
    if not total > 0.0:
        return 0.0  # no noise at all
    halves, share = (rows.sum() * draws / 2.0, (~rows).sum() * draws / 2.0), inside / total
    return float(min(1.0, 2.0 * min(betainc(*halves, share), betaincc(*halves, share))))


@dataclass(frozen=True)
class _Pairs:
    greatest: float
    mean_square: float
    count: int


def _directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # Rows without noise are alike: all point the same way.
    first = np.eye(1, rows.shape[1])
    return np.where(lengths > 0.0, rows / np.where(lengths > 0.0, lengths, 1.0), first)


def _pairs(directions: NDArray[np.float64]) -> _Pairs:
    greatest = squares = 0.0
    for start in range(0, len(directions), _BLOCK):
        # Above the diagonal: each pair once.
        cosines = np.triu(np.abs(directions[start : start + _BLOCK] @ directions[start:].T), k=1)
        greatest = max(greatest, float(cosines.max()))
        squares += float(np.square(cosines).sum())
    count = len(directions) * (len(directions) - 1) // 2
    return _Pairs(min(greatest, 1.0), squares / count, count)


def _greatest_share(releases: int, draws: int, alpha: float) -> float:
    """Return what `draws` times the mean squared cosine exceeds with probability `alpha`.

    A quantile of the gamma law with the same first three moments. This is exact for many releases
    and for many draws: a chi-square with one degree of freedom per pair.
    """
    d, n = float(draws), float(releases)
    pairs = n * (n - 1.0) / 2.0
    law = beta(0.5, (d - 1.0) / 2.0)
    variance, skew = (float(moment) for moment in law.stats(moments="vs"))
    # Each row's square, traceless, is isotropic among symmetric matrices: triples add to the skew.
    dimension = d * (d + 1.0) / 2.0 - 1.0
    triples = n * (n - 1.0) * (n - 2.0) * (1.0 - 1.0 / d) ** 3 / dimension**2
    second, third = pairs * variance, pairs * skew * variance**1.5 + triples
    shape, scale = 4.0 * second**3 / third**2, third / (2.0 * second)
    beyond = scale * (float(gamma.isf(alpha, shape)) - shape)
    return float(1.0 + d * beyond / pairs)


def _bits(pairs: int) -> int:
    """The longest seed, in bits, that repeats among `pairs` pairs 19 times of 20."""
    # P(no pair is equal) = exp(-pairs / 2^bits) = 1 / 20.
    return max(0, math.floor(math.log2(pairs / math.log(20.0))))


def _ratio(above: float, below: float) -> float:
    if below > 0.0:
        return above / below
    return math.inf if above > 0.0 else 1.0


def _says_nothing(name: str, rows: NDArray[np.float64], alpha: float) -> Finding:
    reason = f"{rows.shape[0]} releases of {rows.shape[1]} draws: too few to say anything"
    return Finding(name=name, alpha=alpha, observed=reason)
