"""`features=words`: counts at hashed coordinates."""

from __future__ import annotations

import math
import zlib

import numpy as np

from fl_dp.tasks.datasets.text_bytes import padded
from fl_dp.tasks.datasets.word_counts import word_counts
from fl_dp.tasks.features import Encoder, HashedWords

WIDTH = 101


def test_words_and_signs_are_counted_by_the_logarithm() -> None:
    expected = [0.0] * WIDTH
    for word, value in (("so", 1 + math.log(2)), ("bad", 1.0), ("!", 1 + math.log(3))):
        code = zlib.crc32(word.encode())
        expected[code % WIDTH] += value if code >= 2**31 else -value
    counts = word_counts(["So so BAD!!!", "", " "], WIDTH)
    np.testing.assert_allclose(counts, [expected, [0.0] * WIDTH, [0.0] * WIDTH], rtol=1e-6)


def test_a_text_is_a_vector_of_norm_one_whatever_else_is_encoded() -> None:
    encoder = Encoder(HashedWords(WIDTH))
    texts = padded(["good", "bad film!", "", "good"], 40)
    vectors = encoder(texts)
    assert [round(float(norm), 6) for norm in (vectors**2).sum(axis=1)] == [1, 1, 0, 1]
    assert (encoder(texts[1:2]) == vectors[1:2]).all()
    assert encoder.width((40,)) == WIDTH
