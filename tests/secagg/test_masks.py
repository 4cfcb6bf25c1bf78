"""Masks and packing. False alarms of statistical tests: below 1e-6 a test."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from laws import ALARM, counts_p, same_law_p

from fl_dp.secagg.client import pair_seed
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.secagg.masks import add_mask, add_masks, pack, packed_bytes, unpack, word_dtype
from fl_dp.secagg.texts import prf

_SEED = hashlib.sha256(b"a seed").digest()


def mask_of(seed: bytes, bits: int, size: int) -> np.ndarray:
    total = np.zeros(size, word_dtype(bits))
    add_mask(total, seed, sign=1)
    return total


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_mask_is_aes_256_in_counter_mode(bits: int) -> None:
    size = 100_003  # several chunks, and a piece
    stream = Cipher(algorithms.AES(prf(_SEED, "mask")), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(stream.update(bytes(size * bits // 8)), f"<u{bits // 8}")
    assert (mask_of(_SEED, bits, size) == expected).all()


@pytest.mark.parametrize("size", [0, 5, 100_003])
@pytest.mark.parametrize("workers", [1, 3])
def test_many_masks_at_once_are_the_masks_one_by_one(
    size: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.secagg.masks._WORTH_THREADS", 0)
    monkeypatch.setattr("fl_dp.secagg.masks.processors", lambda: workers)
    masks = [(prf(_SEED, "many", i), 1 if i % 3 else -1) for i in range(5)]
    expected, total = np.ones(size, "<u2"), np.ones(size, "<u2")
    for seed, sign in masks:
        add_mask(expected, seed, sign=sign)
    add_masks(total, masks)
    assert (total == expected).all()


@given(st.integers(1, 32), st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_what_is_added_can_be_subtracted(bits: int, size: int, value: int) -> None:
    values = np.full(size, value, np.int64).astype(word_dtype(bits))
    total = values.copy()
    add_mask(total, _SEED, sign=1)
    add_mask(total, _SEED, sign=-1)
    assert (total == values).all()


def low_bits_p(words: np.ndarray, bits: int) -> float:
    """P-value that the low bits are uniform; of more than 8, their upper and lower 8."""
    low = words.astype(np.uint64) & np.uint64((1 << bits) - 1)
    width = min(bits, 8)
    parts = (low & np.uint64((1 << width) - 1), low >> np.uint64(bits - width))
    pmf = np.full(1 << width, 0.5**width)
    return min(counts_p(np.bincount(part.astype(int), minlength=1 << width), pmf) for part in parts)


@pytest.mark.parametrize("bits", [1, 2, 7, 8, 16, 19, 32])
def test_low_bits_of_a_mask_are_uniform(bits: int) -> None:
    fresh = np.random.default_rng(bits).bytes(32)
    assert low_bits_p(mask_of(fresh, bits, 100_000), bits) > ALARM / 2


@pytest.mark.parametrize("bits", [1, 32])
def test_a_constant_mask_fails_the_same_test(bits: int) -> None:
    assert low_bits_p(np.zeros(100_000, word_dtype(bits)), bits) < ALARM / 2


def test_two_seeds_give_masks_that_have_nothing_to_do_with_each_other() -> None:
    other = prf(_SEED, "other")
    difference = mask_of(_SEED, 16, 100_000) - mask_of(other, 16, 100_000)
    assert low_bits_p(difference, 16) > ALARM / 2
    same = mask_of(_SEED, 16, 100_000) - mask_of(_SEED, 16, 100_000)
    assert low_bits_p(same, 16) < ALARM / 2  # power


def varying_bits(seeds: list[bytes]) -> int:
    """Return how many bits are not the same in all seeds."""
    bits = np.unpackbits(np.frombuffer(b"".join(seeds), np.uint8).reshape(len(seeds), -1), axis=1)
    return int((bits != bits[0]).any(axis=0).sum())


def test_every_bit_of_a_pair_seed_varies() -> None:
    # False alarms: 256 bits, each the same in 100 pairs with 2^-99.
    roots = [RunKey.generate().root(RunKey.generate().public, 0, 1) for _ in range(100)]
    assert varying_bits([pair_seed(root, bytes(32), 0, 1) for root in roots]) == 128
    # Power: letters of base64 have a bit that never varies, in each byte.
    assert varying_bits([base64.urlsafe_b64encode(root)[:4] for root in roots]) == 28


class FirstByte:
    """A cipher whose stream is the first byte of its key, so that all of them can be tried."""

    def __init__(self, algorithm: algorithms.AES, mode: modes.CTR) -> None:
        self._byte = bytes(algorithm.key)[:1]

    def encryptor(self) -> FirstByte:
        return self

    def update_into(self, zeros: bytes, buffer: bytearray) -> None:
        buffer[: len(zeros)] = self._byte * len(zeros)


def test_a_masked_value_has_the_same_law_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # b = 2, d = 1, every seed of a byte once: the law is exact.
    monkeypatch.setattr("fl_dp.secagg.masks.prf", lambda seed, label: seed)
    monkeypatch.setattr("fl_dp.secagg.masks.Cipher", FirstByte)

    def law(value: int, seeds: Iterable[int]) -> Counter[bytes]:
        sent: Counter[bytes] = Counter()
        for seed in seeds:
            words = np.array([value], word_dtype(2))
            add_mask(words, bytes([seed]) * 32, sign=1)
            sent[pack(words, 2)] += 1
        return sent

    uniform = {bytes([value]): 64 for value in range(4)}
    assert all(law(value, range(256)) == uniform for value in range(4))
    assert law(0, [7] * 256) != law(1, [7] * 256)  # power: a constant seed


def masked_draws(value: int, count: int, seed_of: Callable[[], bytes]) -> np.ndarray:
    """Return a value of two bits as often as asked, each time under another mask."""
    return (value + np.array([mask_of(seed_of(), 2, 1)[0] & 3 for _ in range(count)])) & 3


def least_p(seed_of: Callable[[], bytes], count: int) -> float:
    """P-value that masked values of 0 and of 1 are uniform, and of one law."""
    drawn = [masked_draws(value, count, seed_of) for value in (0, 1)]
    uniform = (counts_p(np.bincount(each, minlength=4), np.full(4, 0.25)) for each in drawn)
    return min(*uniform, same_law_p(*drawn))


@pytest.mark.slow
def test_a_hundred_thousand_masked_values_do_not_tell_what_they_are() -> None:
    assert least_p(lambda: secrets.token_bytes(32), 50_000) > ALARM / 3


def test_a_constant_seed_tells_them_by_the_same_test() -> None:
    assert least_p(lambda: _SEED, 100) < ALARM / 3


@given(st.integers(1, 32), st.integers(0, 70), st.randoms(use_true_random=False))
def test_packing_keeps_the_low_bits_of_every_word(bits: int, size: int, rng: object) -> None:
    seed = rng.getrandbits(32)  # type: ignore[attr-defined]  # hypothesis types it as its own class
    words = np.random.default_rng(seed).integers(0, 2**32, size).astype(word_dtype(bits))
    blob = pack(words, bits)
    assert len(blob) == packed_bytes(bits, size)
    low = words & words.dtype.type((1 << bits) - 1)
    back = unpack(blob, bits, size)
    assert back.dtype == word_dtype(bits) and (back == low).all()


@pytest.mark.parametrize(
    ("bits", "words", "packed"),
    [
        (1, [1, 0, 0, 0, 0, 0, 0, 1, 1], "8101"),
        (2, [1, 2, 3, 0, 1], "3901"),
        (12, [0xABC, 0x123], "bc23" + "1a"),
        (20, [0x54321, 0xEDCBA], "2143badc" + "e5"),
        (19, [0x7FFFF], "ffff" + "03" + "01"),
        (32, [0x01020304], "04030201"),
    ],
)
def test_packed_bytes_are_planes_with_the_low_bits_first(
    bits: int, words: list[int], packed: str
) -> None:
    assert pack(np.array(words, word_dtype(bits)), bits).hex() == packed


@pytest.mark.parametrize("length", [3, 5])
def test_packed_words_of_the_wrong_length_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="4 bytes, got"):
        unpack(bytes(length), 16, 2)


@pytest.mark.parametrize("bits", [0, 33])
def test_words_of_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=r"\[1, 32\]"):
        word_dtype(bits)
