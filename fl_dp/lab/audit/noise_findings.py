"""Noise by itself: what many releases show of it where they hide nothing.

A release is audited coordinate by coordinate elsewhere: each may look right while two of them share
one draw. Here all releases are looked at together, as rows of draws that should be independent
Gaussians of one size. Two independent rows of d draws have a squared cosine that follows
Beta(1/2, (d - 1)/2), whatever their sizes, and the cosines of different pairs are pairwise
independent. So the greatest cosine of all pairs shows a draw that is used again in another release,
and the mean of their squares shows draws that are used again within one, wherever they lie: it is
1/d for independent coordinates and grows with every repetition. The energy of one part of the rows
over that of all follows a Beta law, too: it shows noise whose size follows something.

    >>> findings_on_noise(rows, alpha=1e-6, cohorts=sizes)

Noise is taken as Gaussian: on its grid of 2^-30 deviations nothing else can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
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
    """Return what a run's noise shows: its size, and whether it is used again or follows anything.

    Args:
        rows: Draws where nothing is hidden, one row a release, in charged deviations.
        alpha: Probability that noise that is as charged is accused, over all findings.
        cohorts: How many took part in each release, if known.
    """
    each = alpha / 4.0
    low, high = deviation_of(rows, alpha=each)
    return (
        Finding(
            name=SIZE_OF_NOISE,
            alpha=each,
            caught=high < 1.0,
            seen=f"between {low:.2%} and {high:.2%} of what is charged, in {rows.size} draws",
            power=f"catches {1.0 - low / high if high else 1.0:.2%} too little",
        ),
        noise_is_new(rows, alpha=each),
        coordinates_are_new(rows, alpha=each),
        noise_has_one_size(rows, alpha=each, cohorts=cohorts),
    )


def deviation_of(draws: NDArray[np.float64], *, alpha: float) -> tuple[float, float]:
    """Return an interval of the deviation of Gaussian draws; each end fails with alpha / 2."""
    squares = float(np.square(draws).sum())
    low, high = chi2.isf(alpha / 2.0, draws.size), chi2.ppf(alpha / 2.0, draws.size)
    return math.sqrt(squares / low), math.sqrt(squares / high)


def noise_is_new(rows: NDArray[np.float64], *, alpha: float) -> Finding:
    """Compare each release's noise with the next one's, and with that of every other release.

    Args:
        rows: As for `findings_on_noise`, of any size.
        alpha: Probability that independent rows are accused.
    """
    known = Finding(name=NEW_NOISE, alpha=alpha)
    if min(rows.shape) < _FEWEST:
        return _says_nothing(known, rows)
    releases, draws = rows.shape
    turned = _directions(rows)
    nexts = abs(float((turned[:-1] * turned[1:]).sum())) / (releases - 1)
    # These cosines are independent, each lighter-tailed than a normal of variance 1 / draws.
    chance = math.sqrt(2.0 * math.log(4.0 / alpha) / (draws * (releases - 1)))
    pairs = _pairs(turned)
    allowed = math.sqrt(beta.isf(alpha / (2.0 * pairs.count), 0.5, (draws - 1) / 2.0))
    bits = _bits(pairs.count)
    longest = "1 bit" if bits == 1 else f"{bits} bits or fewer"
    seeds = f"a seed of {longest}, 19 times of 20" if bits else f"of seeds {_NOTHING}"
    return Finding(
        name=NEW_NOISE,
        alpha=alpha,
        caught=nexts > chance or pairs.greatest > allowed,
        seen=f"correlation {nexts:.3g} with the next release, {chance:.3g} may be chance; at most "
        f"{pairs.greatest:.2g} of {pairs.count} pairs of releases, {allowed:.2g} may be chance",
        power=f"catches a correlation of {min(1.0, 2.0 * chance):.2g} between neighbours, and one "
        f"pair of equal releases: {seeds}",
    )


def coordinates_are_new(rows: NDArray[np.float64], *, alpha: float) -> Finding:
    """Look for draws that several coordinates of one release share, or mix, in any basis.

    Args:
        rows: As for `findings_on_noise`, of any size.
        alpha: Probability that independent rows are accused.
    """
    known = Finding(name=NEW_COORDINATES, alpha=alpha)
    if min(rows.shape) < _FEWEST:
        return _says_nothing(known, rows)
    releases, draws = rows.shape
    share = draws * _pairs(_directions(rows)).mean_square
    allowed = _greatest_share(releases, draws, alpha)
    least = 2.0 * (allowed - 1.0)  # a share of k equal coordinates among n: 1 + k / n
    return Finding(
        name=NEW_COORDINATES,
        alpha=alpha,
        caught=share > allowed,
        seen=f"squared correlation of releases {share:.4g} of that of independent coordinates, "
        f"{allowed:.4g} may be chance",
        power=f"catches a draw that {least:.2g} of the coordinates share with another one each, in "
        "the same places"
        if least < 1.0
        else f"of draws that two coordinates share it catches {_NOTHING}",
    )


def noise_has_one_size(
    rows: NDArray[np.float64],
    *,
    alpha: float,
    cohorts: NDArray[np.int64] | None = None,
    name: str = ONE_SIZE,
) -> Finding:
    """Compare the energy of each release, and of large cohorts' ones, with that of the others.

    Args:
        rows: As for `findings_on_noise`.
        alpha: Probability that noise of one size is accused.
        cohorts: How many took part in each release, if known.
        name: Of the finding.
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
    least = chance / math.sqrt(2.0 * draws)
    if large.any():
        least = chance / math.sqrt(min(int(large.sum()), int((~large).sum())) * draws)
    return Finding(
        name=name,
        alpha=alpha,
        caught=worst < alpha,
        seen=f"sizes of {releases} releases, p = {min(1.0, worst):.2g}{by_cohort}",
        power=f"catches {least:.1%} "
        + ("between large and small cohorts" if large.any() else "in a release"),
    )


def size_pvalue(
    energies: NDArray[np.float64], draws: int, part: NDArray[np.bool_] | Sequence[bool]
) -> float:
    """Return how likely the energy of a part is, if all rows have draws of one size; two-sided.

    Args:
        energies: Sums of squares of each row.
        draws: How many squares are in each sum.
        part: Which rows are compared with the others.
    """
    of = np.asarray(part)
    inside, total = float(energies[of].sum()), float(energies.sum())
    if not of.any() or of.all():
        return 1.0
    if not total > 0.0:
        return 0.0  # no noise at all
    law = beta(of.sum() * draws / 2.0, (~of).sum() * draws / 2.0)
    return float(min(1.0, 2.0 * min(law.cdf(inside / total), law.sf(inside / total))))


@dataclass(frozen=True)
class _Pairs:
    """Cosines of all pairs of rows."""

    greatest: float
    mean_square: float
    count: int


def _directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # Rows without noise are alike: all point the same way.
    first = np.eye(1, rows.shape[1])
    return np.where(lengths > 0.0, rows / np.where(lengths > 0.0, lengths, 1.0), first)


def _pairs(turned: NDArray[np.float64]) -> _Pairs:
    greatest = squares = 0.0
    for start in range(0, len(turned), _BLOCK):
        # Above the diagonal: each pair once.
        cosines = np.triu(np.abs(turned[start : start + _BLOCK] @ turned[start:].T), k=1)
        greatest = max(greatest, float(cosines.max()))
        squares += float(np.square(cosines).sum())
    count = len(turned) * (len(turned) - 1) // 2
    return _Pairs(min(greatest, 1.0), squares / count, count)


def _greatest_share(releases: int, draws: int, alpha: float) -> float:
    """Return what `draws` times the mean squared cosine exceeds with probability `alpha`.

    By the gamma law with the sum's first three moments, which is exact for many releases and for
    many draws: chi-square with as many degrees of freedom as there are pairs of either.
    """
    d, n = float(draws), float(releases)
    pairs = n * (n - 1.0) / 2.0
    one = beta(0.5, (d - 1.0) / 2.0)
    variance, skew = (float(moment) for moment in one.stats(moments="vs"))
    # Each row's square, traceless, is isotropic among symmetric matrices: triples add to the skew.
    dimension = d * (d + 1.0) / 2.0 - 1.0
    triples = n * (n - 1.0) * (n - 2.0) * (1.0 - 1.0 / d) ** 3 / dimension**2
    second, third = pairs * variance, pairs * skew * variance**1.5 + triples
    shape, scale = 4.0 * second**3 / third**2, third / (2.0 * second)
    beyond = scale * (float(gamma.isf(alpha, shape)) - shape)
    return float(1.0 + d * beyond / pairs)


def _bits(pairs: int) -> int:
    """Return the longest seed, in bits, that repeats among `pairs` pairs 19 times of 20."""
    # P(no pair is equal) = exp(-pairs / 2^bits) = 1 / 20.
    return max(0, math.floor(math.log2(pairs / math.log(20.0))))


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0.0 else math.inf if above > 0.0 else 1.0


def _says_nothing(known: Finding, rows: NDArray[np.float64]) -> Finding:
    said = f"{rows.shape[0]} releases of {rows.shape[1]} draws: too few to say anything"
    return Finding(name=known.name, alpha=known.alpha, seen=said)
