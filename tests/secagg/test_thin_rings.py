"""Rule R3 against servers that cut a ring by lies about who replied; without it they succeed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from secure_sums import segments

from fl_dp.accounting.shared_noise import SharedNoise
from fl_dp.secagg import SumTerms

TERMS = SumTerms(
    run=7,
    number=1,
    purpose="train",
    directory="00" * 32,
    content="ab" * 32,
    cohort=tuple(range(9)),
    committee=tuple(range(9)),
    threshold=9,
    least=9,
    degree=4,
    colluding=0,
    cross_check=False,
    segments=segments(1),
    bits=16,
    noise_scale=2.0,
)


def ring_of(rng: np.random.Generator, colluding: int) -> SumTerms | None:
    """Terms over a ring with random numbers; None: no terms have them."""
    n, members = int(rng.integers(8, 17)), int(rng.integers(4, 9))
    threshold = int(rng.integers((members + colluding) // 2 + 1, members + 1))
    try:
        return replace(
            TERMS,
            number=int(rng.integers(1, 2**31)),
            cohort=tuple(range(n)),
            committee=tuple(range(members)),
            threshold=threshold,
            least=int(rng.integers(2, n + 1)),
            degree=int(rng.choice([2, 4, 6])),
            colluding=colluding,
        )
    except ValueError:
        return None


def smallest_opened(terms: SumTerms, rng: np.random.Generator, *, rule: bool) -> int | None:
    """Fewest honest clients whose sum a server opens that says two arcs are gone; None: no sum.

    Each member is told that most of two arcs of `degree / 2` places is gone, with as many of the
    rest as it takes. Members refuse what the rules forbid; without R3 only too few repliers.
    """
    noise, n, half = terms.noise, len(terms.cohort), terms.degree // 2
    ring = np.array(terms._ring)
    first = int(rng.integers(n))
    second = first + int(rng.integers(half, n - half + 1))
    cut = np.concatenate([ring[(start + np.arange(half)) % n] for start in (first, second)])
    # Those who collude stand in the arcs first: their masks are known.
    order = np.concatenate([rng.permutation(cut), rng.permutation(np.setdiff1d(ring, cut))])
    corrupt = order[: noise.colluding]
    told = np.ones((noise.honest_members, n), bool)
    gone_at_most = n - terms.least
    liable = np.setdiff1d(cut, corrupt)
    for member, row in enumerate(told):
        count = min(liable.size, gone_at_most)
        gone = np.take(liable, range(member * count, (member + 1) * count), mode="wrap")
        if rng.random() < 0.3 and count:
            gone = rng.choice(liable, size=count, replace=False)
        row[gone] = False
        if rule and terms.too_thin(frozenset(np.flatnonzero(row).tolist())):
            return None  # a server that is refused has lost its sum
    return _smallest(terms, noise, told, frozenset(corrupt.tolist()))


def _smallest(
    terms: SumTerms, noise: SharedNoise, told: NDArray[np.bool_], corrupt: frozenset[int]
) -> int | None:
    needed = terms.threshold - noise.colluding_members
    own = told.sum(0) >= needed
    pair = (told[:, :, None] & ~told[:, None, :]).sum(0) >= needed
    near = np.zeros_like(pair)
    for place, others in terms.neighbours.items():
        near[place, list(others)] = True
    honest = [place for place in terms.cohort if place not in corrupt]
    closed = (near & ~(pair | pair.T))[np.ix_(honest, honest)]
    count, group = connected_components(csr_array(closed), directed=False)
    mine = own[honest]
    sizes = [int((group == each).sum()) for each in range(count) if mine[group == each].all()]
    return min(sizes, default=None)


@pytest.mark.slow
@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_no_server_cuts_a_ring_that_rule_r3_lets_pass(colluding: int) -> None:
    rng = np.random.default_rng(colluding)
    opened = below_without = 0
    for _ in range(1000):
        terms = ring_of(rng, colluding)
        if terms is None or terms.complete:
            continue
        seed = int(rng.integers(2**31))
        smallest = smallest_opened(terms, np.random.default_rng(seed), rule=True)
        if smallest is not None:
            opened += 1
            assert smallest + colluding >= terms.noise.guaranteed, (terms, seed)
        bare = smallest_opened(terms, np.random.default_rng(seed), rule=False)
        if bare is not None:
            below_without += bare + colluding < terms.noise.guaranteed
    assert opened > 50
    assert below_without > 5  # power: without the rule the same servers win
