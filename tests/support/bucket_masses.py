"""What tables of buckets say, read off word by word."""

from __future__ import annotations

import numpy as np

from fl_dp.mechanisms.buckets import Buckets


def table_masses(buckets: Buckets) -> np.ndarray:
    """The probability of each bucket, from the words that lead to it.

    A slot either has one bucket for all of its 2^50 words, or asks for the exact ends.
    """
    ends = [0, *map(int, buckets.ends), 1 << 64]
    mass = [0] * (len(ends) - 1)
    width = (1 << 64) // buckets.bucket.size
    for slot, bucket in enumerate(buckets.bucket.tolist()):
        begin, end = slot * width, (slot + 1) * width
        if not buckets.torn[slot]:
            mass[bucket] += width
            continue
        while begin < end:
            until = min(end, ends[bucket + 1])
            mass[bucket] += until - begin
            begin, bucket = until, bucket + 1
    assert sum(mass) == 1 << 64
    return np.array([weight / 2**64 for weight in mass])
