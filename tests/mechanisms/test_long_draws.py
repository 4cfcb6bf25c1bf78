"""Draws of many numbers, part by part: independent, and none that was rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from laws import ALARM
from numpy.typing import NDArray
from scipy import stats

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.buckets import REST_BITS, SLOT_BITS
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.mechanisms.grid import IntegerLaw
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.mechanisms.laplace import DiscreteLaplace
from fl_dp.mechanisms.randomness import PART

SIZE = 3 * PART + 5000
SCALE = 1.3 * 2.0**30
CENTRES = np.linspace(-1e9, 1e9, SIZE)

Draw = Callable[[SecureRandom], np.ndarray]

DRAWS: dict[str, Draw] = {
    "gaussian": lambda rng: DiscreteGaussian(SCALE).sample(SIZE, rng),
    "gaussian around centres": lambda rng: DiscreteGaussian(SCALE).sample_around(CENTRES, rng),
    "laplace": lambda rng: DiscreteLaplace(SCALE).sample(SIZE, rng),
    "exponential": lambda rng: GridExponentialMechanism(
        noise_multiplier=1.0, clipping_norm=1.0
    ).privatize(CENTRES, rng),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_parts_of_a_draw_are_independent(name: str) -> None:
    drawn = DRAWS[name](SecureRandom()) - DRAWS[name](SecureRandom())
    for lag in (1, PART, SIZE // 2):
        correlation = np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]
        assert 2 * stats.norm.sf(abs(correlation) * (SIZE - lag) ** 0.5) > ALARM
        assert not (drawn[lag:] == drawn[:-lag]).all()


class EachThirdRejected(IntegerLaw):
    """0 and 1 as often, from proposals of 0, 1 and 2."""

    def _propose(self, out: NDArray[np.int64], rng: SecureRandom) -> NDArray[np.intp]:
        out[...] = rng.words(out.size) % np.uint64(3)
        return np.flatnonzero(out == 2)


@pytest.mark.parametrize("size", [0, 1, 2, PART, SIZE])
def test_what_was_rejected_is_drawn_again_until_it_is_accepted(size: int) -> None:
    drawn = EachThirdRejected(1.0).sample(size, SecureRandom())
    assert drawn.size == size
    assert set(drawn) <= {0, 1}
    if size > 2:
        assert stats.binomtest(int(drawn.sum()), size, 0.5).pvalue > ALARM


@pytest.mark.parametrize("law", [DiscreteGaussian(40.0), DiscreteLaplace(3.0)])
def test_the_bucket_of_a_slot_of_many_is_where_further_bits_point(law: Any) -> None:
    # The first slot has the whole left tail: its bits alone say nothing of the bucket.
    buckets = law.centred.buckets if isinstance(law, DiscreteGaussian) else law._buckets
    further = np.linspace(0.0, 2.0**64, 2000, endpoint=False).astype(np.uint64)

    class FirstSlot(SecureRandom):
        calls = 0

        def words(self, count: int, **room: Any) -> np.ndarray:
            self.calls += 1
            return (further * 0, further, further * 0)[self.calls - 1]

    proposed = np.empty(further.size, np.int64)
    buckets.propose(proposed, FirstSlot(), lambda value, bucket, draws: np.ones(value.size))
    positions = further >> np.uint64(SLOT_BITS)
    assert int(positions.max()) < 1 << int(REST_BITS)
    expected = np.searchsorted(buckets.ends, positions, side="right")
    assert np.unique(expected).size > 3
    np.testing.assert_array_equal(proposed, buckets.low[expected])
