"""`Words`: counts at hashed coordinates."""

from __future__ import annotations

import math
import zlib

import torch

from fl_dp.tasks.datasets.texts import padded
from fl_dp.tasks.features import Encoder, Words

WIDTH = 101


def counted(*texts: str) -> torch.Tensor:
    vectors: torch.Tensor = Words(WIDTH)(torch.from_numpy(padded(texts, 40)).float())
    return vectors


def coordinates(**terms: float) -> list[float]:
    """Return the vector of terms, `_` for the blank of a pair, at signed hashes."""
    vector = [0.0] * WIDTH
    for term, value in terms.items():
        code = zlib.crc32(term.replace("_", " ").encode())
        vector[code % WIDTH] += value if code >= 2**31 else -value
    return vector


def test_words_and_pairs_are_counted_by_the_logarithm() -> None:
    often = 1 + math.log(2)
    expected = coordinates(so=often, bad=1, so_so=1, so_bad=1)
    torch.testing.assert_close(counted("So so BAD")[0], torch.tensor(expected))
    assert torch.equal(counted("", " ", "so bad")[:2], torch.zeros(2, WIDTH))


def test_a_text_is_a_vector_of_norm_one_whatever_else_is_encoded() -> None:
    encoder = Encoder(Words(WIDTH))
    texts = padded(["good", "bad film!", "", "good"], 40)
    vectors = encoder(texts)
    assert [round(float(norm), 6) for norm in (vectors**2).sum(axis=1)] == [1, 1, 0, 1]
    assert (encoder(texts[1:2]) == vectors[1:2]).all()
    assert encoder.width((40,)) == WIDTH
