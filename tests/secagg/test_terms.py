"""Terms of a sum: one text for one meaning, and integer rules that floats get wrong."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_terms import SEGMENTS, terms

from fl_dp.secagg import SumTerms
from fl_dp.secagg.texts import digest


@given(
    st.integers(1, 2**63 - 1),
    st.floats(2.0, 1e9),
    st.one_of(st.none(), st.floats(1e-9, 1.0)),
    st.sampled_from(["train", "evaluate", "query.x", 'a "quoted" ü']),
)
def test_terms_survive_their_text(
    number: int, scale: float, rate: float | None, purpose: str
) -> None:
    made = terms(number=number, noise_scale=scale, sampling_rate=rate, purpose=purpose)
    read = SumTerms.from_json(made.to_json())
    assert read == made and read.hash == made.hash
    assert made.hash == digest("terms", made.to_json().encode())


def test_the_hash_is_the_same_in_every_version() -> None:
    assert terms().hash.hex() == "7e003674979adf2ddbf4ef865e0b4480ba00cd7c3cce1670b460833b311e0844"


@pytest.mark.parametrize("name", sorted(json.loads(terms().to_json())))
def test_every_field_is_in_the_hash(name: str) -> None:
    other: dict[str, Any] = {
        "purpose": "evaluate",
        "directory": "0c" * 32,
        "content": "0c" * 32,
        "cohort": tuple(range(1, 11)),
        "committee": tuple(range(1, 11)),
        "threshold": 9,
        "least": 10,
        "degree": 6,
        "cross_check": True,
        "segments": SEGMENTS[:1],
        "sampling_rate": None,
        "promised": 2,
        "rotated": True,
    }
    one = terms()
    changes: Any = {name: other[name] if name in other else getattr(one, name) - 1}
    changed = replace(one, **changes)
    assert changed.hash != one.hash


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + " ",
        lambda text: text.replace(":", ": ", 1),
        lambda text: text.replace('"bits":16', '"bits":true'),
        lambda text: text.replace('"bits":16,', '"bits":16,"bits":16,'),
        lambda text: text.replace('"bits":16,', ""),
        lambda text: text.replace("0x1.0000000000000p", "0x1.p"),
        lambda text: text.replace("0x1.4000000000000p+4", "inf"),
        lambda text: text.replace("[0,1,", "[1,0,", 1),
        lambda text: text.replace("[0,1,", "[0,true,", 1),
        lambda text: text.replace('"train"', '"tr\\u0061in"'),
        lambda text: "[" * 100_000,
        lambda text: "",
    ],
)
def test_another_text_is_refused(spoil: Any) -> None:
    text = terms().to_json()
    spoilt = spoil(text)
    if spoilt == text:
        pytest.fail("the test changes nothing")
    with pytest.raises(ValueError):
        SumTerms.from_json(spoilt)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 0}, "number"),
        ({"run": 2**64}, "run"),
        ({"purpose": "a\nb"}, "purpose"),
        ({"directory": "0a"}, "directory must be 32 bytes"),
        ({"cohort": (1, 0, *range(2, 10))}, "ascending"),
        ({"committee": tuple(range(256))}, "committee"),
        ({"degree": 5}, "degree must be even"),
        ({"bits": 33}, "bits"),
        ({"noise_scale": 1.9}, "noise_scale must be at least 2"),
        ({"noise_scale": float("nan")}, "noise_scale"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"reply_after": -1.0}, "reply_after"),
        ({"segments": ()}, "segments"),
        ({"colluding": -1}, "colluding"),
        ({"threshold": 5}, r"threshold must lie in \[6"),
        ({"least": 3}, "could open a sum of"),
        ({"rotated": 1}, "rotated must be true or false"),
    ],
)
def test_terms_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        terms(**changes)


class TestRing:
    @pytest.mark.parametrize(("n", "degree"), [(2, 2), (10, 40)])
    def test_a_small_cohort_is_complete(self, n: int, degree: int) -> None:
        made = terms(n, degree=degree, threshold=n, least=n, colluding=0)
        assert made.complete
        everybody = set(range(n))
        assert all(set(near) == everybody - {i} for i, near in made.neighbours.items())

    def test_terms_of_many_who_are_all_neighbours_take_no_more_than_their_places(self) -> None:
        """A server that lies may write any degree: all pairs of 20,000 would be 3 GB."""
        made = terms(20_000, degree=20_000, committee=(1, 2, 3), threshold=3, least=20_000)
        tracemalloc.start()
        try:
            assert made.neighbours[7] == tuple(p for p in range(20_000) if p != 7)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize(("n", "degree"), [(10, 2), (25, 22)])
    def test_neighbours_are_mutual_sorted_and_as_many_as_the_degree(
        self, n: int, degree: int
    ) -> None:
        near = terms(n, degree=degree).neighbours
        for i, others in near.items():
            assert len(set(others)) == degree and i not in others
            assert list(others) == sorted(others)
            assert all(i in near[j] for j in others)

    def test_another_sum_has_another_ring(self) -> None:
        assert terms(24, degree=4).neighbours != terms(24, degree=4, number=4).neighbours


def fewest_in_two_arcs(made: SumTerms, online: set[int]) -> int:
    """Rule R3's u by its definition: all pairs of disjoint arcs."""
    ring, half = made._ring, made.degree // 2
    n = len(ring)
    arcs = [{(start + step) % n for step in range(half)} for start in range(n)]
    return min(
        sum(ring[at] in online for at in one | other)
        for one, other in combinations(arcs, 2)
        if not one & other
    )


@given(st.data())
def test_rule_r3_looks_at_all_pairs_of_disjoint_arcs(data: st.DataObject) -> None:
    n = data.draw(st.integers(6, 14))
    degree = 2 * data.draw(st.integers(1, (n - 2) // 2))
    lost = data.draw(st.sets(st.integers(0, n - 1), max_size=n // 2))
    made = terms(n, degree=degree, colluding=data.draw(st.integers(0, 1)), cross_check=True)
    if not data.draw(st.booleans()):
        made = replace(made, cross_check=False, threshold=n)
    online = set(range(n)) - lost
    noise = made.noise
    fewest = fewest_in_two_arcs(made, online)
    assert made.too_thin(online) == (
        not made.complete
        and fewest * noise.honest_members
        <= noise.colluding * noise.honest_members + noise.lies * (degree - noise.colluding)
    )


def test_rule_r3_in_integers_where_floats_go_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    # L 7, t 6, c_L 1, n_min 3, n 9, k 6: H = 6, lies = 1, so tau = 5/6.
    monkeypatch.setattr("fl_dp.accounting.shared_noise.SharedNoise.__post_init__", lambda _: None)
    made = terms(9, committee=tuple(range(7)), threshold=6, least=3, degree=6, colluding=1)
    noise = made.noise
    assert (noise.honest_members, noise.lies) == (6, 1)
    assert noise.guaranteed == 2  # ceil((3 * 6 - 9) / 5)
    # u = 1 = c: one repliers is not more than the colluding one and what lies take away.
    assert not 1 <= (1 - 5 / 6) * 6  # what floats say
    thin = replace(made, colluding=0, committee=tuple(range(6)), threshold=5)
    assert (thin.noise.honest_members, thin.noise.lies) == (6, 1)
    online = next(
        set(online)
        for online in combinations(range(9), 4)
        if fewest_in_two_arcs(thin, set(online)) == 1
    )
    assert thin.too_thin(online)  # 1 * 6 <= 1 * 6


def test_a_node_that_assumes_more_colluders_wants_a_thicker_ring() -> None:
    made = terms(30, degree=6, threshold=30, least=15, colluding=1)
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(50):
        online = set(rng.permutation(30)[:20].tolist())
        verdicts.add((made.too_thin(online), made.too_thin(online, made.noise_of(3))))
    assert (False, True) in verdicts and (True, False) not in verdicts
