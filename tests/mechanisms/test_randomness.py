"""The stream of words and the reals made from it. False alarms: below 1e-6 a test."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import subprocess
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from fixed_draws import keys_named, system_key, use_keys
from laws import ALARM, DRAWS, counts_p
from scipy import stats

from fl_dp.mechanisms import SecureRandom


def test_coins_come_up_at_the_rate_and_independently() -> None:
    coins = SecureRandom().bernoulli(0.05, DRAWS)
    assert stats.binomtest(int(coins.sum()), DRAWS, 0.05).pvalue > ALARM
    centred = coins - 0.05
    assert abs(np.mean(centred[1:] * centred[:-1])) < 5 * 0.05 * 0.95 / np.sqrt(DRAWS)


def test_words_in_memory_of_the_caller_s_are_the_stream_s() -> None:
    room = np.zeros(1_002, dtype=np.uint64)
    words = SecureRandom(insecure_seed=7).words(1_000, room=room)
    assert np.shares_memory(words, room)
    np.testing.assert_array_equal(words, SecureRandom(insecure_seed=7).words(1_000))


def test_millions_of_coins_are_as_many_words_of_the_stream() -> None:
    words = SecureRandom(insecure_seed=7).words(100_001)
    coins = SecureRandom(insecure_seed=7).bernoulli(0.3, 100_001)
    np.testing.assert_array_equal(coins, words >> np.uint64(11) < np.uint64(int(0.3 * 2.0**53)))


@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_a_coin_outside_zero_and_one_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        SecureRandom().bernoulli(rate, 1)


def test_sure_coins_are_sure() -> None:
    rng = SecureRandom()
    assert rng.bernoulli(1.0, 10_000).all()
    assert not rng.bernoulli(0.0, 10_000).any()


def test_uniforms_are_uniform_and_inside_the_open_interval() -> None:
    sample = SecureRandom().uniforms(DRAWS)
    assert sample.min() > 0.0 and sample.max() < 1.0
    assert stats.kstest(sample, "uniform").pvalue > ALARM


def test_coins_have_a_probability_each() -> None:
    rates = np.tile([0.0, 1e-3, 0.3, 0.5, 1.0], DRAWS // 5)
    coins = SecureRandom().coins(rates).reshape(-1, 5)
    for column, rate in zip(coins.T, rates, strict=False):
        assert stats.binomtest(int(column.sum()), column.size, rate).pvalue > ALARM
    assert stats.binomtest(int(coins[:, 2].sum()), len(coins), 0.33).pvalue < ALARM


class FirstWordsSmall(SecureRandom):
    """A stream whose first call of `words` has zeros in all upper 53 bits: a rare event."""

    calls = 0

    def words(self, count: int, **room: Any) -> np.ndarray:
        self.calls += 1
        words = super().words(count, **room)
        return words & np.uint64(2047) if self.calls == 1 else words


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_a_coin_below_2_to_the_minus_53_is_decided_by_further_words(rate: float) -> None:
    coins = FirstWordsSmall().coins(np.full(DRAWS // 10, rate * 2.0**-53))
    assert stats.binomtest(int(coins.sum()), coins.size, rate).pvalue > ALARM


def test_coins_by_words_of_the_caller_s_look_at_their_upper_53_bits_alone() -> None:
    rates = np.full(DRAWS, 0.3)
    words = SecureRandom().words(DRAWS)
    by_upper = SecureRandom().coins(rates, words >> np.uint64(11) << np.uint64(11))
    np.testing.assert_array_equal(SecureRandom().coins(rates, words), by_upper)
    np.testing.assert_array_equal(by_upper, words * 2.0**-64 < 0.3)
    # A tie is decided by fresh words: the lower bits stay whose they are.
    tied = SecureRandom().coins(np.full(DRAWS, 2.0**-55), np.arange(DRAWS, dtype=np.uint64) % 2048)
    assert stats.binomtest(int(tied.sum()), DRAWS, 0.25).pvalue > ALARM


class ConstantRandom(SecureRandom):
    """A stream that repeats one word, for the corners."""

    word = 0

    def words(self, count: int, **room: Any) -> np.ndarray:
        return np.full(count, self.word, dtype=np.uint64)


@pytest.mark.parametrize("word", [1, 0x1041, 1 << 63 | 1, 2**64 - 1])
@pytest.mark.parametrize("draw", ["uniforms", "exponentials", "gumbels"])
def test_no_word_gives_the_ends_of_the_interval(draw: str, word: int) -> None:
    rng = ConstantRandom()
    rng.word = word
    value = getattr(rng, draw)(1)[0]
    assert math.isfinite(value)
    if draw != "gumbels":
        assert value > 0.0
    if draw == "uniforms":
        assert value < 1.0


def test_exponentials_follow_their_law_and_are_never_zero_or_infinite() -> None:
    sample = SecureRandom().exponentials(DRAWS)
    assert np.all((sample > 0) & np.isfinite(sample))
    assert stats.kstest(sample, "expon").pvalue > ALARM
    lags = sample - 1.0
    for lag in (1, 2, 64):
        assert abs(np.mean(lags[lag:] * lags[:-lag])) < 5.0 / np.sqrt(DRAWS)


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_the_exponential_test_rejects_a_tenth_less_and_more(wrong: float) -> None:
    sample = SecureRandom().exponentials(DRAWS)
    assert stats.kstest(wrong * sample, "expon").pvalue < ALARM


def test_exponentials_near_zero_are_uniform_below_2_to_the_minus_30() -> None:
    class NearZero(SecureRandom):
        calls = 0

        def words(self, count: int, **room: Any) -> np.ndarray:
            words = super().words(count, **room)
            self.calls += 1
            if self.calls % 2:  # no halving, and a fraction below 2^-6 ...
                return words >> np.uint64(12) << np.uint64(12) | np.uint64(1)
            return words >> np.uint64(24) << np.uint64(24)  # ... by another 2^-24

    sample = NearZero().exponentials(DRAWS // 10) * 2.0**31
    assert sample.min() > 0.0 and sample.max() < 1.0 + 1e-9
    assert stats.kstest(sample, "uniform").pvalue > ALARM
    # A 53-bit uniform would leave 2^22 values below 2^-31: dozens of pairs of equals here.
    assert np.unique(sample).size == sample.size


def test_exponentials_far_out_forget_how_far_they_came() -> None:
    # The first words say "six halvings and more", the next ones "another 40 and more".
    class FarOut(SecureRandom):
        calls = 0

        def words(self, count: int, **room: Any) -> np.ndarray:
            words = super().words(count, **room)
            self.calls += 1
            if self.calls % 2:  # ... and a fraction that is settled in the same word
                return words >> np.uint64(7) << np.uint64(7) | np.uint64(1 << 6)
            return words >> np.uint64(40) << np.uint64(40)

    sample = FarOut().exponentials(30_000) - 46 * math.log(2.0)
    halvings = np.floor(sample / math.log(2.0) + 1e-9).astype(int)
    assert halvings.min() == 0
    counts = np.bincount(np.minimum(halvings, 20), minlength=21)
    pmf = np.append(2.0 ** -np.arange(1.0, 21.0), 2.0**-20)
    assert counts_p(counts, pmf) > ALARM


def test_gumbels_follow_their_law() -> None:
    sample = SecureRandom().gumbels(DRAWS)
    assert np.all(np.isfinite(sample))
    assert stats.kstest(sample, "gumbel_r").pvalue > ALARM
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * sample, "gumbel_r").pvalue < ALARM


def test_equal_insecure_seeds_give_equal_streams_and_others_differ() -> None:
    def draws(seed: int) -> list[float]:
        rng = SecureRandom(insecure_seed=seed)
        return [*rng.words(3).tolist(), *rng.exponentials(3), *rng.uniforms(3)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)
    assert draws(0) != draws(2**200)


def test_an_insecure_stream_is_aes_in_counter_mode_under_the_seeds_hash() -> None:
    block = Cipher(algorithms.AES(hashlib.sha256(b"12").digest()), modes.ECB()).encryptor()
    expected = block.update(bytes(16)) + block.update(bytes(15) + b"\x01")
    assert SecureRandom(insecure_seed=12).words(4).tobytes() == expected


def test_a_stream_says_what_keyed_it_and_never_the_seed() -> None:
    secure, seeded = SecureRandom(), SecureRandom(insecure_seed=987654321)
    assert not secure.insecure and seeded.insecure
    assert secure.kind == SecureRandom.SECURE_KIND
    assert seeded.kind == "insecure: AES-256-CTR keyed by a seed"
    assert "987654321" not in seeded.kind + repr(seeded) + str(seeded)


def test_the_product_s_streams_are_keyed_by_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What keys them in the suite is the suite's; nothing of the product names it."""
    assert system_key.__module__ == SecureRandom.__module__
    assert len({system_key() for _ in range(100)}) == 100
    monkeypatch.setattr("secrets.token_bytes", lambda count: bytes(count))
    assert system_key() == bytes(32)
    use_keys(system_key)
    zeros = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor().update(bytes(8))
    assert SecureRandom().words(1).tobytes() == zeros


def test_draws_of_the_suite_are_those_of_their_names() -> None:
    def drawn(name: str) -> list[int]:
        use_keys(keys_named(name))
        return [int(SecureRandom().words(1)[0]) for _ in range(3)]

    assert drawn("one") == drawn("one")
    assert len({*drawn("one"), *drawn("another")}) == 6


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_that_is_no_natural_number_is_refused_without_repeating_it(seed: object) -> None:
    with pytest.raises(ValueError, match="insecure_seed") as refused:
        SecureRandom(insecure_seed=seed)  # type: ignore[arg-type]  # what is tested
    assert repr(seed) not in str(refused.value)


def _first_word(rng: SecureRandom) -> float:
    return float(rng.words(1)[0])


def _first_exponential(rng: SecureRandom) -> float:
    return float(rng.exponentials(1)[0])


def _put(draw: Callable[[SecureRandom], Any], rng: SecureRandom, into: SimpleQueue[Any]) -> None:
    into.put(draw(rng))


@pytest.mark.parametrize("draw", [_first_word, _first_exponential])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_draw_different_noise(draw: Callable[[SecureRandom], float]) -> None:
    rng = SecureRandom()
    rng.words(1)  # keyed before the fork: the children must not go on with this key
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=_put, args=(draw, rng, queue)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert len({queue.get(), queue.get(), draw(rng)}) == 3


def test_no_predictable_generator_is_used_where_privacy_depends_on_it() -> None:
    root = Path(__file__).resolve().parents[2]
    forbidden = (
        r"np\.random|numpy\.random|default_rng|RandomState|import random|from random"
        r"|random\.(random|sample|choice|shuffle|seed|Random)\("
        r"|torch\.(rand|randn|randint|normal|bernoulli|multinomial|manual_seed|Generator)"
        r"|\.(normal|uniform|exponential|bernoulli)_\("
    )
    places = [
        place
        for place in ("fl_dp/mechanisms", "fl_dp/accounting", "strategies")
        if (root / place).is_dir()
    ]
    assert len(places) == 3
    found = subprocess.run(
        ["grep", "-rnE", forbidden, *places, "--include=*.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1, found.stdout
