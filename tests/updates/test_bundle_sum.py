"""One class wires clipped updates to their scalars, at the server and at nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fl_dp.mechanisms import GaussianBundle, ScalarMetric
from fl_dp.updates import BundleSum, RefusedUpdate, VectorLayout

BUNDLE = GaussianBundle(
    noise_multiplier=1.0,
    clipping_norms=(1.0,),
    unclipped_bit=True,
    metrics=(ScalarMetric(name="loss", low=0.0, high=4.0),),
    scalar_noise_std=5.0,
    count_noise_std=5.0,
)
SIZE = 20
UNITS = np.random.default_rng(1).normal(scale=0.3, size=(6, SIZE))
LOSSES = [{"loss": loss} for loss in (0.0, 1.0, 2.0, 3.0, 4.0, math.nan)]


def record(values: Any) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.asarray(values, dtype=np.float64))})


def empty() -> BundleSum:
    return BundleSum(BUNDLE, VectorLayout.of(record(np.zeros(SIZE))), np.zeros(SIZE))


def state(sums: BundleSum) -> list[float]:
    return [*sums.updates.total.tolist(), *sums.scalars.tolist()]


def one_by_one() -> BundleSum:
    sums = empty()
    for unit, measured in zip(UNITS, LOSSES, strict=True):
        sums.add(record(unit), measured)
    return sums


def test_units_added_together_are_those_added_one_by_one() -> None:
    sums = empty()
    sums.add_rows(UNITS, LOSSES)
    assert state(sums) == state(one_by_one())


def test_a_node_s_sums_are_those_of_its_units() -> None:
    node, server = one_by_one(), empty()
    server.add_node(node.updates.steps(), node.scalars.tolist(), max_units=len(UNITS))
    assert state(server) == state(node)


def test_scalars_are_the_count_the_bit_and_the_metric() -> None:
    sums = one_by_one()
    count, bits, losses = sums.scalars * [each.grid for each in BUNDLE.scalar_mechanisms]
    unclipped = sum(np.linalg.norm(unit) <= 1.0 for unit in UNITS)
    assert count == pytest.approx(6.0, abs=1e-6)  # put on a grid, towards zero
    assert bits == pytest.approx(unclipped / 2 - (6 - unclipped) / 2, abs=1e-6)
    assert losses == pytest.approx(0.0, abs=1e-6)  # five around the middle, and one without


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_unit_that_is_not_finite_is_in_no_sum(bad: float) -> None:
    sums = empty()
    assert sums.add(record(np.full(SIZE, bad)), {"loss": 4.0}) == math.inf
    assert sums.add_rows(np.full((1, SIZE), bad), [{"loss": 4.0}]) == [math.inf]
    assert not any(state(sums))


def test_a_unit_of_another_shape_is_in_no_sum() -> None:
    sums = empty()
    with pytest.raises(RefusedUpdate):
        sums.add(record(np.zeros(SIZE + 1)), {"loss": 4.0})
    assert not any(state(sums))


@pytest.mark.parametrize("scalars", [[], [0.0, 0.0], [math.nan, 0.0, 0.0], [1e18, 0.0, 0.0]])
def test_a_node_whose_scalars_can_not_be_is_in_no_sum(scalars: list[float]) -> None:
    sums = empty()
    with pytest.raises(RefusedUpdate, match="scalars are missing or more"):
        sums.add_node(one_by_one().updates.steps(), scalars, max_units=6)
    assert not any(state(sums))


def test_a_node_whose_updates_can_not_be_is_in_no_sum() -> None:
    sums = empty()
    with pytest.raises(RefusedUpdate, match="its norm is more"):
        sums.add_node(record(np.full(SIZE, 2.0**40)), [1.0, 1.0, 1.0], max_units=1)
    assert not any(state(sums))
