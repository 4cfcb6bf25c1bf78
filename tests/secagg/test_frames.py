"""Encodings that are hashed, signed and keyed: injective, and the same in every version."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dp.secagg.texts import digest, frame, prf

_LABELS = st.sampled_from(["", "a", "ab"])
_PARTS = st.lists(st.binary(max_size=2), max_size=3)


@given(_LABELS, _PARTS, _LABELS, _PARTS)
def test_different_inputs_have_different_frames(
    label: str, parts: list[bytes], other_label: str, others: list[bytes]
) -> None:
    same = (label, parts) == (other_label, others)
    assert (frame(label, *parts) == frame(other_label, *others)) == same


@given(_PARTS, st.integers(0, 12), st.integers(0, 3))
def test_bytes_do_not_move_from_one_part_to_the_next(parts: list[bytes], cut: int, at: int) -> None:
    whole = b"".join(parts)
    moved = [whole[:cut], whole[cut:]]
    assert (frame("x", *parts) == frame("x", *moved)) == (parts == moved)


def test_a_frame_is_lengths_and_bytes() -> None:
    expected = b"\0\0\0\x0efl-dp secagg 1" + b"\0\0\0\x02ab" + b"\0\0\0\x08" + bytes(7) + b"\x05"
    assert frame("ab", 5) == expected


def test_golden_digests_so_that_two_versions_agree() -> None:
    golden = "d4667bd104a92d7489df9f6a7e8d8953684890c86d505511d433719ae6fc3f40"
    assert digest("pair", b"\x01" * 32, 3, 7).hex() == golden
    assert (
        digest("pair", b"\x01" * 32, 3, 7)
        == hashlib.sha256(frame("pair", b"\x01" * 32, 3, 7)).digest()
    )
    assert (
        prf(b"key", "mask").hex()
        == "9d4cbe3355eff89cd30889de59ad9975525ef794336c825704de5264c240485c"
    )
    assert prf(b"key", "mask") == hmac.new(b"key", frame("mask"), "sha256").digest()


@pytest.mark.parametrize("number", [-1, 2**64])
def test_an_integer_beyond_eight_bytes_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        frame("x", number)
