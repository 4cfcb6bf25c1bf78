"""Words hold what nodes send: a thousand million draws at the cap, and no sum wraps around."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flat_plans import noised_plan

from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.secagg.opening import centred_words

NODES, SIZE, ROUNDS, DRAWS = 10, 200_000, 200, 10**9


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_no_sum_of_a_thousand_million_draws_wraps_around() -> None:
    plan = noised_plan(
        1.5,
        delta=1e-5,
        rounds=ROUNDS,
        num_clients=10 * NODES,
        units_per_node=10,
        clipping_norm=1.0,
        secure_sum=SecureSum(max_parameters=SIZE),
        sampling_rate=1.0,
    )
    assert isinstance(plan, DistributedPlan)
    shared, rng = plan.shared_bundle(1.5, size=SIZE), SecureRandom()
    first, *scalars = shared.segments
    # Every node at the largest entry that it may send, up in one half and down in the other.
    signs = np.where(np.arange(SIZE) < SIZE // 2, 1.0, -1.0)
    values = 2.0 * signs * first.cap / first.scale  # cut to the cap
    farthest, sums = 0.0, DRAWS // (NODES * SIZE)
    for _ in range(sums):
        total = np.zeros(shared.share.size, dtype=np.int64)
        for _ in range(NODES):
            total += shared.encode(values, [0.0] * len(scalars), rng)
        assert np.array_equal(centred_words(total, shared.bits), total)
        farthest = max(farthest, float(np.abs(total).max()))
    # The room is used: of 1e8 sums the farthest is 5.7 deviations out, and words hold 8.
    deviation = math.sqrt(NODES) * shared.share.noise_scale
    assert 4.0 < (farthest - NODES * first.cap) / deviation < 6.6
    # Power: with a bit less they wrap.
    assert not np.array_equal(centred_words(total, shared.bits - 1), total)
