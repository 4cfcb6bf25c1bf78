"""Plans whose units are records on nodes: DP-SGD on the union, without anybody who collects it."""

from __future__ import annotations

from typing import Any

import pytest
from flat_plans import calibrated_plan, noised_plan
from scipy import stats

from fl_dp import Plan
from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    PoissonSampling,
    PrivacyBudget,
    calibrate_noise_multiplier,
)
from fl_dp.mechanisms.noise_share import MOST_UNITS
from fl_dp.plan import SecureSum, SharedNoisePlan
from fl_dp.plan.hosting import Hosting

pytestmark = pytest.mark.slow

BUDGET = PrivacyBudget(epsilon=3.0, delta=1e-5)
RECORDS, RATE = 60_000, 0.03


def given(**changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = dict(
        rounds=100,
        num_clients=RECORDS,
        nodes=10,
        units_per_node=RECORDS,
        unit="record",
        coins_at_nodes=True,
        sampling_rate=RATE,
        clipping_norm=1.0,
        secure_sum=SecureSum(reply_after=10.0, max_parameters=10**6),
    )
    return options | changes


def planned(**changes: Any) -> SharedNoisePlan:
    plan = noised_plan(1.0, delta=1e-5, **given(**changes))
    assert isinstance(plan, SharedNoisePlan)
    return plan


def test_the_noise_is_that_of_central_dp_sgd_on_the_union() -> None:
    """But for what the plan keeps back for the sums' own distance from Gaussians."""
    across = calibrated_plan(BUDGET, **given())
    central = calibrate_noise_multiplier(
        BUDGET.epsilon, BUDGET.delta, sampling_rate=RATE, rounds=100
    )
    assert across.noise_multiplier == pytest.approx(central, rel=1e-3)
    assert across.noise_multiplier >= central
    assert across.denominator == RATE * RECORDS


def test_a_record_is_charged_for_its_own_gradient_and_no_more() -> None:
    plan = planned()
    (event,) = {event for event, _ in plan.history}
    assert event == PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=RATE)
    one_client = planned(
        nodes=None,
        unit=None,
        units_per_node=RECORDS // 10,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    assert one_client.epsilon().best > 1.2 * plan.epsilon().best


def test_the_noise_is_shared_by_nodes_and_the_grid_is_for_a_batch() -> None:
    noise = planned().noise
    assert (noise.nodes, noise.shares.cohort, noise.honest_shares) == (10, 10, 8)
    # Were the grid for all records that a node may have, 16 bits would be too few.
    shared = planned().shared_bundle(1.0, size=1000)
    assert shared.bits == 16
    assert shared.noise_scale > 2.0


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("hosted", [1, 20, 1000, 60_000])
def test_more_records_than_the_grid_is_for_are_as_rare_as_said(rate: float, hosted: int) -> None:
    hosting = Hosting(max_units=hosted, coins_at_nodes=True, nodes=5)
    most = hosting.most_drawn(PoissonSampling(sampling_rate=rate))
    assert stats.binom.sf(most, hosted, rate) < 1e-8
    assert most <= hosted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"secure_sum": None}, "nodes means nothing where noise is added at the server"),
        (
            {
                "sampling_rate": None,
                "sampling": PoissonSampling(sampling_rate=1.0, participation_cap=2),
            },
            "nobody counts their rounds: leave participation_cap=2 out",
        ),
        ({"secure_sum": SecureSum()}, "reply_after"),
        ({"units_per_node": 10}, "can't hold the num_records=60000"),
        ({"nodes": 2}, "at least 3 nodes"),
    ],
)
def test_what_gradients_of_records_do_not_have_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        planned(**changes)


def of_many(multiplier: float, hosted: int, **changes: Any) -> Plan:
    """Plan for ten nodes that may have many more records than all of them have together."""
    options = given(
        num_clients=1000,
        sampling_rate=1e-4,
        units_per_node=hosted,
        secure_sum=SecureSum(reply_after=10.0, max_parameters=10**6, bits=32),
    )
    return noised_plan(multiplier, delta=1e-5, **options | changes)


def test_no_node_may_have_more_records_than_it_sums_as_exactly_as_they_are_charged() -> None:
    """Its work would fail in every round, each of which stays charged, or round more than said."""
    most = 1 << 21  # at multiplier .25
    plan = of_many(0.25, most)
    assert plan.bundle(0.25).max_units == most
    with pytest.raises(ValueError, match=r"2097153 units of one node exactly: use at least 0\.50"):
        of_many(0.25, most + 1)
    assert of_many(8.0, MOST_UNITS).bundle(8.0).max_units > MOST_UNITS
    with pytest.raises(ValueError, match=r"max_records=4194305: .* max_records=4194304 or"):
        of_many(8.0, MOST_UNITS + 1)


def test_all_records_in_every_round_need_no_clock() -> None:
    """There is no coin that the time of an answer could show; a failure shows at every rate."""
    plan = planned(sampling_rate=1.0, secure_sum=SecureSum(bits=21))
    with pytest.raises(ValueError, match="reply_after"):
        planned(secure_sum=SecureSum(bits=21))
    for each in (plan, planned()):
        assert any("failed or was late, or" in told for told in each.not_covered)
