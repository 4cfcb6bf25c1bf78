"""Shamir's shares: enough give the secret, fewer say nothing. False alarms: below 1e-6 a test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import ALARM, counts_p

from fl_dp.secagg.shares import combine, interpolate, inverse, split, times

_ELEMENTS = st.integers(0, 255)


@given(_ELEMENTS, _ELEMENTS, _ELEMENTS)
def test_products_are_those_of_a_field(a: int, b: int, c: int) -> None:
    assert times(a, b) == times(b, a)
    assert times(a, times(b, c)) == times(times(a, b), c)
    assert times(a, b ^ c) == times(a, b) ^ times(a, c)
    assert times(a, 1) == a and times(a, 0) == 0
    assert a == 0 or times(a, inverse(a)) == 1


def test_the_field_is_that_of_aes() -> None:
    assert times(0x57, 0x83) == 0xC1  # FIPS 197, section 4.2
    with pytest.raises(ZeroDivisionError):
        inverse(0)


@settings(max_examples=30)
@given(st.data())
def test_any_threshold_of_the_shares_give_the_secret(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 255))
    threshold = data.draw(st.integers(1, count))
    secret = data.draw(st.binary(max_size=70))
    made = split(secret, threshold, count)
    xs = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    assert combine({x: made[x - 1] for x in xs}) == secret
    others = set(range(1, count + 1)) - set(xs)
    if others:  # all shares lie on one polynomial
        at = min(others)
        assert interpolate({x: made[x - 1] for x in xs}, at) == made[at - 1]


def test_one_share_too_few_is_uniform() -> None:
    def p_value(threshold: int) -> float:
        made = split(b"\x07" * 200_000, threshold, 5)
        guess = combine(dict(zip((1, 2, 4), (made[0], made[1], made[3]), strict=True)))
        counts = np.bincount(np.frombuffer(guess, np.uint8), minlength=256)
        return counts_p(counts, np.full(256, 1 / 256))

    assert p_value(threshold=4) > ALARM
    assert p_value(threshold=3) < ALARM  # power: three of three are the secret


def test_one_share_of_two_takes_every_value_once_over_all_coefficients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for secret in (b"\x00", b"\xa7"):
        seen = set()
        for coefficient in range(256):
            drawn = bytes([coefficient])
            monkeypatch.setattr("fl_dp.secagg.shares.secrets.token_bytes", lambda _, b=drawn: b)
            seen.add(split(secret, 2, 3)[2])
        assert len(seen) == 256


@pytest.mark.parametrize(("threshold", "count"), [(0, 3), (4, 3), (2, 256)])
def test_a_threshold_out_of_range_is_refused(threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match="threshold"):
        split(b"x", threshold, count)


def test_shares_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        combine({1: b"ab", 2: b"a"})
    with pytest.raises(ValueError, match="one length"):
        combine({})
