"""The words of ChaCha20 are those of RFC 8439 and of OpenSSL, whichever way makes them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from counted_operators import counted
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fl_dp.accelerator import chacha
from fl_dp.accelerator.chacha import START, by_operators, key_stream, write_start
from fl_dp.mechanisms import SecureRandom

CPU = torch.device("cpu")


def start_of(key: bytes, *, counter: int = 0, nonce: bytes = bytes(12)) -> torch.Tensor:
    start = torch.empty(START, dtype=torch.int32)
    write_start(start, key, counter=counter, nonce=nonce)
    return start


def openssl(key: bytes, size: int, *, counter: int = 0, nonce: bytes = bytes(12)) -> bytes:
    begin = counter.to_bytes(4, "little") + nonce
    return Cipher(algorithms.ChaCha20(key, begin), None).encryptor().update(bytes(size))


def test_blocks_are_the_rfc_s() -> None:
    # RFC 8439, A.1: vectors 1, 2 and 4.
    zero = by_operators(start_of(bytes(32)), 2).numpy().tobytes().hex()
    assert zero == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    fourth = start_of(bytes([0, 255]) + bytes(30), counter=2)
    assert by_operators(fourth, 1).numpy().tobytes().hex() == (
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"
    )


@pytest.mark.parametrize("words", [1, 7, 8, 9, 1000, 8 * 8192, 8 * 8192 + 1, 300_001])
def test_words_are_openssl_s(words: int) -> None:
    key = os.urandom(32)
    assert key_stream(start_of(key), words).numpy().tobytes() == openssl(key, 8 * words)


@pytest.mark.parametrize("counter", [1, 2**31 - 3, 2**32 - 70])
def test_counters_and_nonces_are_openssl_s(counter: int) -> None:
    key, nonce = os.urandom(32), os.urandom(12)
    made = by_operators(start_of(key, counter=counter, nonce=nonce), 64)
    expected = openssl(key, 64 * 64, counter=counter, nonce=nonce)
    assert made.numpy().tobytes() == expected


def test_operators_do_not_depend_on_the_length() -> None:
    start = start_of(os.urandom(32))
    key_stream(start, 1)  # compares a block first
    counts = []
    for words in (8, 8 * 8192):
        with counted() as run:
            key_stream(start, words)
        assert not run.waits and not run.copies
        counts.append(run.total)
    assert counts[0] == counts[1] <= 570, counts


def test_each_process_compares_a_block_before_its_first_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(start: torch.Tensor, blocks: int) -> torch.Tensor:
        return by_operators(start, blocks) + 1

    monkeypatch.setattr(chacha, "_ways", lambda device: iter([wrong]))
    key_stream(start_of(bytes(32)), 8)  # this process has compared
    monkeypatch.setattr(os, "getpid", lambda: -2)
    with pytest.raises(RuntimeError, match="does not give the block of RFC 8439"):
        key_stream(start_of(bytes(32)), 8)


def test_a_way_that_fails_or_is_wrong_leaves_the_operators(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(start: torch.Tensor, blocks: int) -> torch.Tensor:
        raise OSError("no compiler")

    def wrong(start: torch.Tensor, blocks: int) -> torch.Tensor:
        return torch.zeros(blocks, START, dtype=torch.int32)

    monkeypatch.setattr(chacha, "_ways", lambda device: iter([failing, wrong, by_operators]))
    assert chacha._checked_way(CPU, -3) is by_operators
    assert "failing can't run on cpu" in caplog.text
    assert "wrong gives wrong words" in caplog.text


def test_no_work_array_keeps_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the memory that a stream works in, the result alone has anything left."""
    made: list[torch.Tensor] = []
    empty = torch.empty

    def noted(*size: int, **options: object) -> torch.Tensor:
        made.append(empty(*size, **options))  # type: ignore[call-overload]  # any of torch's own
        return made[-1]

    monkeypatch.setattr(torch, "empty", noted)
    by_operators(start_of(os.urandom(32)), 100)
    start, out, *work = made
    assert start.count_nonzero() and out.count_nonzero() and work
    assert not any(each.count_nonzero() for each in work)


@pytest.mark.parametrize(("key", "nonce"), [(31, 12), (33, 12), (32, 8)])
def test_another_length_of_key_or_nonce_is_refused(key: int, nonce: int) -> None:
    with pytest.raises(ValueError, match="a key has 32 bytes and a nonce 12"):
        start_of(bytes(key), nonce=bytes(nonce))


def test_a_key_ends() -> None:
    with pytest.raises(ValueError, match="use more keys"):
        key_stream(start_of(bytes(32)), 8 * 2**31 + 1)


def test_keys_are_the_system_s_or_the_seed_s() -> None:
    secure = SecureRandom()
    assert len({bytes(secure.key()) for _ in range(100)}) == 100
    first, second = (SecureRandom(insecure_seed=3) for _ in range(2))
    assert first.key() == second.key()
    assert first.key() == second.key() != SecureRandom(insecure_seed=4).key()
    assert len(secure.key()) == len(first.key()) == 32


INTERPRETED = """
import os
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from fl_dp.accelerator import chacha
from fl_dp.accelerator.chacha_triton import by_one_kernel
assert chacha._gives_the_block(by_one_kernel, torch.device("cpu"))
for blocks in (0, 1, 2, 127, 128, 129, 600):
    key = os.urandom(32)
    start = torch.empty(16, dtype=torch.int32)
    chacha.write_start(start, key)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    expected = stream.update(bytes(64 * blocks))
    assert by_one_kernel(start, blocks).numpy().tobytes() == expected, blocks
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton comes with PyTorch's build for CUDA, which is not installed here",
)
def test_the_kernel_gives_openssl_s_words_in_triton_s_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here")
def test_a_gpu_gives_the_words_of_the_cpu() -> None:
    key = os.urandom(32)
    for way in chacha._ways(torch.device("cuda")):
        for blocks in (1, 129, 100_000):
            made = way(start_of(key).cuda(), blocks).cpu()
            np.testing.assert_array_equal(made.numpy(), by_operators(start_of(key), blocks).numpy())
