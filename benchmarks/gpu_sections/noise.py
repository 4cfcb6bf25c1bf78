"""Noise on the device: words of ChaCha20, the law of the draws, and their time."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy import stats
from side_by_side import Case
from torch import Tensor

from fl_dp.accelerator import chacha
from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.discrete_gaussian import discrete_gaussian

from .bench import Bench, Row
from .timing import if_possible, seconds, timed


def noise(bench: Bench) -> None:
    """Compare ChaCha20's words with OpenSSL's, and draws with their law; time both."""
    ways: dict[str, Callable[[Tensor, int], Tensor]] = {"operators": chacha.by_operators}
    if bench.device.type == "cuda":
        with contextlib.suppress(ImportError):
            from fl_dp.accelerator.chacha_triton import by_one_kernel

            ways = {"one kernel": by_one_kernel} | ways
    for name, way in ways.items():
        if_possible(bench, f"ChaCha20, {name}", partial(words, bench, way))
    for scale in (2.0, 2.0**30):
        name = f"{bench.sizes.draws} draws of a discrete Gaussian of scale {scale:g}"
        if_possible(bench, name, partial(draws, bench, name, scale))


def words(bench: Bench, way: Callable[[Tensor, int], Tensor]) -> Row:
    """Compare the RFC's key and a random one with OpenSSL's, and time as many blocks as draws."""
    blocks = bench.sizes.draws // 8
    for key in (bytes(range(32)), os.urandom(32)):
        start = torch.empty(chacha.START, dtype=torch.int32)
        chacha.write_start(start, key)
        on_device = start.to(bench.device)
        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        expected = cipher.update(bytes(64 * 4097))
        if way(on_device, 4097).cpu().numpy().tobytes() != expected:
            raise RuntimeError("these are not OpenSSL's words")
    times = [seconds(lambda: way(on_device, blocks), bench.device) for _ in range(3)]
    return {"blocks": blocks, "ours_s": statistics.median(times)}


def draws(bench: Bench, name: str, scale: float) -> Row:
    """Time draws on the device beside the host's, and test their law.

    Returns:
        `p`, of the law: of each integer at a small scale, of the normal law at a large one.
        `p_of_wrong` is that of a scale a tenth larger, which has to be next to 0.
    """
    law, source, rng = discrete_gaussian(scale), NoiseSource(bench.device), SecureRandom()
    size = bench.sizes.draws
    case = Case(
        name=name,
        peer="host",
        ours=lambda: source.integers(law, size, rng),
        theirs=lambda: law.sample(size, rng),
    )
    sample = source.integers(law, min(size, 10_000_000), rng).cpu().numpy()
    row = timed(bench, case)
    return row | {"p": law_p(sample, scale), "p_of_wrong": law_p(sample, 1.1 * scale)}


def law_p(sample: NDArray[np.int64], scale: float) -> float:
    """The p-value of draws under the discrete Gaussian of this scale."""
    if scale > 2.0**20:
        return float(stats.kstest(sample / scale, "norm").pvalue)
    most = int(4 * scale)
    support = np.arange(-20 * int(scale), 20 * int(scale) + 1)
    masses = np.exp(-(support**2) / (2 * scale**2))
    masses /= masses.sum()
    counts = np.bincount(np.clip(sample, -most, most) + most, minlength=2 * most + 1)
    clipped = np.clip(support, -most, most) + most
    expected = np.bincount(clipped, weights=masses) * len(sample)
    return float(stats.chisquare(counts, expected).pvalue)
