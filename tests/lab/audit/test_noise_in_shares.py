"""Canaries in sums whose noise comes in shares, by the code that nodes run."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from flat_plans import noised_plan

from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.noise_findings import SIZE_OF_NOISE
from fl_dp.lab.audit.whole_run import WHOLE_RUN
from fl_dp.lab.games.observed_run import Audited, claims_of
from fl_dp.lab.games.played_sums import play_sums, report_of_sums, shares_of, turns_of
from fl_dp.plan import SecureSum, SharedNoisePlan
from fl_dp.plan.shared_bundle import SharedBundle

ROUNDS, NODES, HONEST = 40, 5, 4
Z = 1.5


def plan_of(**given: Any) -> SharedNoisePlan:
    options: dict[str, Any] = {
        "noise_multiplier": Z,
        "rounds": ROUNDS,
        "num_clients": 400,
        "units_per_node": 400 // NODES,
        "coins_at_nodes": True,
        "clipping_norm": 1.0,
        "secure_sum": SecureSum(reply_after=30.0),
        "contribution_check": False,
    }
    plan = noised_plan(delta=1e-5, **options | given)
    assert isinstance(plan, SharedNoisePlan)
    return plan


PLAN = plan_of(sampling_rate=1.0)
CANARIES = Canaries(count=1000, size=4_000, seed=0)


def violated(plan: SharedNoisePlan = PLAN, *, less: float = 1.0) -> set[str]:
    """What `fl-dp audit` says of sums of the nodes that the plan counts on.

    Args:
        less: Noise of each share over that which is charged.
    """
    assert shares_of(plan).honest_shares == HONEST
    shares = [plan.shared_bundle(each, size=CANARIES.size) for each in plan.noise_multipliers]
    shares = [
        replace(each, share=replace(each.share, noise_scale=less * each.noise_scale))
        for each in shares
    ]
    audited = Audited(
        run=play_sums(plan, shares, CANARIES, turns_of(plan, CANARIES.count)),
        canaries=CANARIES,
        sampling=plan.sampling,
        claims=claims_of(plan, plan.history, plan.epsilon().best),
        delta=plan.budget.delta,
    )
    return {each.name for each in audited.findings(alpha=1e-6) if not each.stands}


@pytest.mark.parametrize("plan", [plan_of(sampling_rate=0.25), PLAN], ids=["coins", "all"])
def test_the_audit_of_sums_convicts_nine_tenths_of_the_noise(plan: SharedNoisePlan) -> None:
    assert violated(plan) == set()
    assert violated(plan, less=0.9) == {SIZE_OF_NOISE}
    assert violated(plan, less=0.4) == {SIZE_OF_NOISE, WHOLE_RUN}


def test_more_canaries_than_a_node_can_send_are_refused() -> None:
    (small,) = (PLAN.shared_bundle(Z, size=64),)
    first = small.segments[0]
    cut = replace(small.share, segments=(replace(first, cap=0.1 * first.scale),))
    canaries = Canaries(count=32, size=64, seed=0)
    with pytest.raises(ValueError, match="have fewer --canaries"):
        play_sums(PLAN, [replace(small, share=cut)], canaries, turns_of(PLAN, 32)[:1])


def narrow(size: int, **given: Any) -> tuple[SharedNoisePlan, SharedBundle]:
    """A plan whose words of 8 bits rotate and cut sums, and what a node adds to one."""
    plan = plan_of(
        sampling_rate=1.0, secure_sum=SecureSum(reply_after=30.0, bits=8), rounds=1, **given
    )
    shared = plan.shared_bundle(plan.noise_multipliers[0], size=size)
    assert shared.share.rotated
    return plan, shared


@pytest.mark.parametrize(("seed", "cut"), [(168, True), (0, False)])
def test_canaries_are_refused_where_their_rotated_sum_is_cut(seed: int, cut: bool) -> None:
    # Before it is rotated, the first is short enough and the second too long.
    plan, shared = narrow(650, noise_multiplier=0.2)
    canaries = Canaries(count=201, size=650, seed=seed)
    refused = pytest.raises(ValueError, match="1 times: have fewer --canaries")
    with refused if cut else nullcontext():
        play_sums(plan, [shared], canaries, turns_of(plan, canaries.count))


def test_as_many_canaries_as_fit_are_not_cut_where_sums_are_rotated() -> None:
    # As many as would fit if they were not rotated are cut for some of their directions.
    plan, _ = narrow(100, noise_multiplier=0.6, units_per_node=40)
    report_of_sums(plan, "digits", size=100, alpha=1e-6, seed=26)
    with pytest.raises(ValueError, match="have fewer --canaries"):
        report_of_sums(plan, "digits", size=100, alpha=1e-6, seed=26, count=45)
