"""Who is blamed for a sum that did not open, whatever as many as may lie make of it."""

from __future__ import annotations

import numpy as np
import pytest
from secure_sums import Asked, Federation, ask

from fl_dp.secagg import OpenSum
from fl_dp.secagg.member import Opened


def honest_sum(nodes: int, colluding: int) -> Asked:
    house = Federation.of(nodes)
    return ask(house, house.terms(colluding=colluding), np.ones((nodes, 20), np.int64))


def lied_about(honest: Asked, wrong: np.ndarray, unread: np.ndarray, silent: set[int]) -> OpenSum:
    """The same sum again: shares by member and client are replaced, or not readable, or missing.

    A share that its client got wrong and one that its member did look alike to the server.
    """
    opening = OpenSum(honest.opening.terms, honest.opening.directory)
    opening._heads, opening._total = honest.opening._heads, honest.opening._total
    opening._asked = True
    for member, (_, opened) in honest.answers.items():
        if member in silent:
            continue
        shares = {
            place: bytes(16) if wrong[member, place] else share
            for place, share in opened.shares.items()
            if not unread[member, place]
        }
        lost = tuple(int(place) for place in np.flatnonzero(unread[member]))
        opening.answer(member, Opened(shares, lost))
    return opening


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "colluding", "cases"), [(10, 1, 150), (15, 2, 40)])
def test_nobody_honest_is_blamed_and_a_liar_that_spoilt_the_sum_always_is(
    nodes: int, colluding: int, cases: int
) -> None:
    honest, rng = honest_sum(nodes, colluding), np.random.default_rng(nodes)
    terms = honest.opening.terms
    spoilt = doubted = 0
    for _ in range(cases):
        liars = rng.choice(nodes, colluding, replace=False)
        wrong = np.zeros((nodes, nodes), bool)
        for liar in liars:
            wrong[:, liar] |= rng.random(nodes) < rng.choice([0.0, 0.1, 0.5, 1.0])
            wrong[liar] |= rng.random(nodes) < rng.choice([0.0, 0.1, 0.5, 1.0])
        unread = wrong & (rng.random((nodes, nodes)) < rng.choice([0.0, 0.5]))
        gone = int(rng.integers(0, nodes - terms.threshold + 1))
        silent = {int(each) for each in rng.choice(nodes, gone, replace=False)}
        opening = lied_about(honest, wrong, unread, silent)
        blame = opening.blame()
        assert blame.clients <= set(liars) and blame.members <= set(liars)
        if gone + colluding <= nodes - terms.threshold:  # what the committee tolerates
            assert not blame.undecided
            closed = set(opening.online) - set(opening._seeds)
            assert closed == blame.clients & closed
            spoilt += bool(closed)
            assert opening.enough or closed
        else:
            doubted += bool(blame.undecided)
    assert spoilt > cases / 10 and doubted  # power: sums fail, and not all can be decided


def test_no_more_is_said_than_was_heard() -> None:
    honest = honest_sum(10, 1)
    nothing = np.zeros((10, 10), bool)
    few = lied_about(honest, ~nothing, nothing, set(range(3)))  # below the threshold
    assert few.blame() == (frozenset(), frozenset(), frozenset())
    members = lied_about(honest, ~nothing, nothing, set())  # nobody's shares open
    assert not members.blame().undecided
