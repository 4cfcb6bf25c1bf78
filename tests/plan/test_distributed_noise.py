"""Plans whose noise is in shares under a secure sum: numbers, refusals, and how a round is encoded.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flat_plans import calibrated_plan, noised_plan

from fl_dp import Plan
from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    PoissonGaussianEvent,
    PrivacyBudget,
    VisibleSampling,
    epsilon,
)
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.accounting.shared_noise import shared_noise_multiplier, shared_noise_slack
from fl_dp.mechanisms import (
    AdaptiveClipping,
    GaussianBundle,
    PerLayerClipping,
    ScalarMetric,
    SecureRandom,
)
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import IncompatibleOptions
from fl_dp.plan import SecureSum, SharedNoisePlan, plan_from_dict
from fl_dp.plan.exclusions import TrainingOptions
from fl_dp.plan.shared_bundle import WordSize
from fl_dp.secagg.masks import packed_bytes

BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-5)
ROSTER = SecureSum(roster=True, max_parameters=10**6)
COINS = {"units_per_node": 10, "coins_at_nodes": True, "sampling_rate": 0.1}


def planned(secure_sum: SecureSum = ROSTER, **changes: Any) -> SharedNoisePlan:
    given: dict[str, Any] = dict(
        rounds=10, num_clients=100, sampling_rate=1.0, clipping_norm=2.0, secure_sum=secure_sum
    )
    given |= changes
    if "sampling" in changes:
        del given["sampling_rate"]
    plan = noised_plan(1.5, delta=1e-5, **given)
    assert isinstance(plan, SharedNoisePlan)
    return plan


def asked(**beside: Any) -> TrainingOptions:
    return TrainingOptions(plan=planned(), **beside)


@pytest.mark.parametrize(
    ("nodes", "members", "threshold", "least", "colluding", "degree", "shares"),
    [
        (5, 5, 4, 5, 1, 6, 4),
        (10, 10, 8, 9, 1, 10, 8),
        (20, 20, 16, 18, 2, 20, 16),
        (100, 40, 32, 90, 5, 20, 83),
        (1000, 60, 48, 900, 10, 40, 859),
    ],
)
def test_the_defaults_are_the_published_table(
    nodes: int,
    members: int,
    threshold: int,
    least: int,
    colluding: int,
    degree: int,
    shares: int,
) -> None:
    noise = ROSTER.noise(nodes)
    found = (noise.committee, noise.threshold, noise.least, noise.colluding)
    assert found == (members, threshold, least, colluding)
    assert ROSTER.neighbours(nodes) == degree
    assert noise.honest_shares(server_lies=True) == shares


def test_more_drop_outs_take_more_neighbours() -> None:
    assert SecureSum(least=70).neighbours(100) == 40


def share_scale(nodes: int, multiplier: float, bits: int, cap: float) -> float | None:
    noise = ROSTER.noise(nodes)
    words = WordSize(
        noise=noise,
        shares=noise.honest_shares(server_lies=True),
        units_in_sum=1,
        bits=bits,
        element_cap=cap,
    )
    bundle = GaussianBundle(noise_multiplier=multiplier, clipping_norms=(1.0,))
    try:
        return words.fit(bundle, 7).noise_scale
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("nodes", "multiplier", "least_bits", "scales"),
    [
        (10, 0.5, (9, 8, 7), (400, 831)),
        (10, 1.0, (8, 8, 7), (612, 1010)),
        (10, 4.0, (8, 7, 7), (1010, 1210)),
        (100, 0.5, (13, 12, 10), (17, 61)),
        (100, 1.0, (12, 11, 9), (33, 106)),
        (100, 4.0, (11, 10, 9), (106, 239)),
        (1000, 0.5, (18, 16, 14), None),
        (1000, 1.0, (17, 15, 13), (None, 4.3)),
        (1000, 4.0, (15, 14, 12), (4.3, 16)),
    ],
)
def test_the_bits_that_sums_need_are_golden(
    nodes: int,
    multiplier: float,
    least_bits: tuple[int, int, int],
    scales: tuple[float | None, float] | None,
) -> None:
    for cap, least in zip((1.0, 0.25, 0.05), least_bits, strict=True):
        assert share_scale(nodes, multiplier, least, cap) is not None
        assert share_scale(nodes, multiplier, least - 1, cap) is None
    for cap, scale in zip((1.0, 0.25), scales or (None, None), strict=True):
        if scale is not None:
            assert share_scale(nodes, multiplier, 16, cap) == pytest.approx(scale, rel=0.03)


@pytest.mark.parametrize(
    ("scale", "by_renyi", "exact"),
    [(2.94, 4.7355, 4.3838), (11.9, 4.7289, 4.3776), (47.7, 4.7285, 4.3772)],
)
def test_few_bits_cost_next_to_nothing(scale: float, by_renyi: float, exact: float) -> None:
    # One round of 100 nodes at multiplier 1, delta 1e-5; where the distributed discrete Gaussian
    # with rounding costs 30.21, 7.433 and 4.928 (Kairouz et al. 2021).
    multiplier = shared_noise_multiplier(scale, 10.0 * scale, 100)
    history = ((GaussianEvent(noise_multiplier=multiplier), 1),)
    assert epsilon(history, 1e-5).best == pytest.approx(exact, abs=2e-4)
    relation = NeighboringRelation.ZERO_OUT
    assert renyi_epsilon(history, 1e-5, relation) == pytest.approx(by_renyi, abs=2e-4)


def test_silos_of_many_records_are_never_cut() -> None:
    # 10 silos of 205 records in a batch, multiplier 2: 11 steps of noise in 16 bits.
    scale = share_scale(10, 2.0, 16, 205.0)
    assert scale == pytest.approx(11.0, rel=0.05)


@pytest.mark.parametrize(("nodes", "least"), [(10, 8), (28, 8), (29, 9), (100, 9), (1000, 11)])
@pytest.mark.parametrize("units", [1, 20, 1437])
def test_narrow_sums_have_the_noise_that_is_charged_and_never_wrap(
    nodes: int, least: int, units: int
) -> None:
    noise = ROSTER.noise(nodes)
    bundle = GaussianBundle(
        noise_multiplier=1.0, clipping_norms=(1.0,), count_noise_std=2.0 + 0.05 * nodes * units
    )
    for bits in range(5, 17):
        words = WordSize(noise=noise, shares=7, units_in_sum=units, bits=bits, element_cap=None)
        try:
            shared = words.fit(bundle, 650)
        except ValueError:
            assert bits < least  # where the words hold little more than the noise
            continue
        assert bits >= least or units == 1  # what one unit can reach may fit fewer
        share = shared.share
        assert shared.bits == bits and share.fits(nodes, bits)
        assert share.noise_scale >= 2.0
        charged = shared_noise_multiplier(share.noise_scale, share.sensitivity, 7)
        assert charged == pytest.approx(1.0, rel=1e-9)
    # Without `bits` nothing is rotated, and no number is another than before.
    words = replace(words, bits=None)
    if nodes <= 100:
        assert not words.fit(bundle, 650).share.rotated


def test_words_of_half_the_bits_are_half_the_bytes() -> None:
    sizes = []
    for bits in (16, 8):
        plan = planned(SecureSum(bits=bits, roster=True), num_clients=10, units_per_node=1)
        sizes.append(packed_bytes(bits, plan.shared_bundle(1.5, size=100_000).share.size))
    assert sizes[0] == 2 * sizes[1]


def test_the_multiplier_of_the_terms_is_the_one_that_is_charged() -> None:
    metrics = (ScalarMetric(name="loss", low=0.0, high=5.0),)
    for changes in (
        {},
        {"metrics": metrics},
        {"clipping_norm": None, "clipping": AdaptiveClipping(norm=0.1)},
        {"clipping_norm": None, "clipping": PerLayerClipping(norms=(1.0, 2.0))},
        {"units_per_node": 5},
        COINS | {"secure_sum": SecureSum(reply_after=5.0)},
        {"metrics": metrics, "secure_sum": SecureSum(bits=9)},
    ):
        plan = planned(**changes)
        shared = plan.shared_bundle(plan.noise_multiplier, size=50)
        of_terms = shared_noise_multiplier(
            shared.noise_scale, shared.share.sensitivity, plan.noise.honest_shares
        )
        assert of_terms == pytest.approx(plan.noise_multiplier, rel=1e-12)
        assert shared.share.fits(plan.noise.nodes, shared.bits)
        names = ("updates", *plan.bundle(1.5).scalar_names)
        assert tuple(segment.name for segment in shared.segments) == names


def test_each_sum_has_the_noise_of_the_central_bundle() -> None:
    metrics = (ScalarMetric(name="loss", low=0.0, high=5.0),)
    plan = planned(metrics=metrics)
    shared = plan.shared_bundle(1.5, size=50)
    mechanisms = (shared.bundle.updates, *shared.bundle.scalar_mechanisms)
    whole = shared.noise_scale * math.sqrt(plan.noise.honest_shares)
    for segment, mechanism in zip(shared.segments, mechanisms, strict=True):
        # The channel's variance, 2.25 of 100,000 here, and nothing else.
        assert whole / segment.scale == pytest.approx(mechanism.noise_std, rel=1e-4)


def test_a_round_of_shares_is_read_as_the_sum_with_its_noise() -> None:
    plan, rng, size = planned(), SecureRandom(), 20_000
    shared = plan.shared_bundle(1.5, size=size)
    updates = np.linspace(-1.0, 1.0, size) * 2.0 / math.sqrt(size)
    nodes = plan.noise.nodes
    total = sum(shared.encode(updates, [1.0], rng) for _ in range(nodes))
    found, (count,) = shared.decode(np.asarray(total))
    std = math.sqrt(nodes) * shared.noise_scale / shared.segments[0].scale
    apart = found - nodes * updates
    assert np.std(apart) == pytest.approx(std, rel=5.0 / math.sqrt(2 * size))
    assert abs(np.mean(apart)) < 5.0 * std / math.sqrt(size)
    assert (
        abs(count - nodes)
        < 6.0 * math.sqrt(nodes / 83) * shared.bundle.scalar_mechanisms[0].noise_std
    )


def test_everybody_is_charged_in_full_and_coins_at_nodes_amplify() -> None:
    everybody = planned().event_of(1)
    assert everybody == PoissonGaussianEvent(noise_multiplier=1.5, sampling_rate=1.0)
    coins = planned(SecureSum(reply_after=5.0), **COINS)
    assert coins.event_of(1) == PoissonGaussianEvent(noise_multiplier=1.5, sampling_rate=0.1)
    assert coins.noise.nodes == 10
    seen = planned(sampling=VisibleSampling(cohort=30))
    assert seen.event_of(1) == GaussianEvent(noise_multiplier=1.5)
    assert seen.noise.nodes == 30


def test_without_a_roster_only_a_server_that_follows_the_protocol_is_covered() -> None:
    assert planned(ROSTER).noise.honest_shares == 83
    assert planned(SecureSum()).noise.honest_shares == 85


def test_the_budget_pays_for_the_slack_too() -> None:
    plan = calibrated_plan(
        BUDGET, rounds=10, num_clients=100, sampling_rate=1.0, clipping_norm=1.0, secure_sum=ROSTER
    )
    assert isinstance(plan, SharedNoisePlan)
    slack = plan.noise.slack
    # Twice the rounds: a failed sum may be asked for again.
    assert slack == shared_noise_slack(20, 10**6, 100)
    assert plan.event_budget.epsilon == 8.0 - 2.0 * slack
    assert plan.event_budget.delta == pytest.approx(1e-5 * math.exp(-slack), rel=1e-12)
    bare = epsilon(plan.history, plan.event_budget.delta)
    assert plan.epsilon().best == bare.best + 2.0 * slack <= 8.0
    assert plan.tight_epsilon(plan.history) == pytest.approx(plan.epsilon().best, rel=1e-9)
    assert plan.epsilon(()).best == 0.0
    central = calibrated_plan(
        BUDGET, rounds=10, num_clients=100, sampling_rate=1.0, clipping_norm=1.0
    )
    assert central.noise_multiplier < plan.noise_multiplier < 1.001 * central.noise_multiplier


def test_more_sums_than_were_accounted_are_refused_whatever_the_budget() -> None:
    gate = noised_plan(
        1.5,
        delta=1e-5,
        max_epsilon=500.0,
        rounds=3,
        num_clients=100,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=ROSTER,
    ).filter()
    event = GaussianEvent(noise_multiplier=1.5)
    for _ in range(6):
        assert not gate.would_exceed(event)
        gate.spend(event)
    assert gate.would_exceed(event)


def test_a_plan_survives_its_own_json() -> None:
    plan = planned(SecureSum(least=80, bits=20, roster=True, max_parameters=1000))
    written = json.loads(json.dumps(plan.to_dict()))
    assert plan_from_dict(written) == plan
    assert written["slack"] == plan.slack > 0.0
    for another in (0.0, 0.9 * plan.slack, math.nan):  # an auditor would find too small an epsilon
        with pytest.raises(ValueError, match=r"its slack is .*, and that of the plan is"):
            plan_from_dict(written | {"slack": another})
    with pytest.raises(ValueError, match="its slack is"):
        plan_from_dict({name: value for name, value in written.items() if name != "slack"})


def test_a_schedule_moves_the_grid_with_the_noise() -> None:
    plan = planned(schedule=NoiseSchedule(name="linear"))
    scales = {plan.shared_bundle(z, size=5).noise_scale for z in plan.noise_multipliers}
    assert len(scales) == len(set(plan.noise_multipliers)) > 1


@pytest.mark.parametrize(
    ("changes", "instead"),
    [
        ({"sampling_rate": 0.5}, "coins_at_nodes=True or sampling_rate=1, or"),
        (
            {"neighboring_relation": NeighboringRelation.ADD_OR_REMOVE_ONE},
            "write neighboring_relation=zero-out",
        ),
        (
            {"participation_cap": 3},
            "charges every round to everybody: leave participation_cap=3 out",
        ),
        (
            {"sampling": VisibleSampling(cohort=50), "units_per_node": 2},
            "or have one unit a node",
        ),
        (COINS, r"secure_sum\.reply_after=\.\.\."),
    ],
)
def test_what_a_secure_sum_excludes_is_refused(changes: dict[str, Any], instead: str) -> None:
    with pytest.raises(IncompatibleOptions, match=instead):
        planned(**changes)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"bits": 8}, r"write secure_sum\.bits=9"),
        ({"bits": 8, "element_cap": 0.25}, r"write secure_sum\.bits=10"),
        ({"degree": 7}, "degree must be even"),
        ({"least": 1}, r"least must lie in \[2"),
        ({"threshold": 20}, r"threshold must lie in \[23"),
        ({"committee": 101}, "more than the 100 nodes"),
        ({"least": 40, "colluding": 30}, "cross_check=True"),
        ({"reply_after": 3.9}, "at least 4 s"),
        ({"max_parameters": 10**10}, r"secure_sum\.max_parameters=\.\.\."),
    ],
)
def test_a_secure_sum_that_hides_too_little_is_refused(
    options: dict[str, Any], instead: str
) -> None:
    with pytest.raises(ValueError, match=instead):
        planned(SecureSum(**options))


def test_two_nodes_hide_nothing_from_each_other() -> None:
    with pytest.raises(ValueError, match="at least 3 nodes, got 2"):
        planned(num_clients=2)


def test_a_model_larger_than_was_accounted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"write secure_sum\.max_parameters=1000001"):
        planned().shared_bundle(1.5, size=10**6 + 1)


def test_bits_are_checked_for_the_noise_that_was_found() -> None:
    # 11 bits are too few for 100 nodes at the multiplier 1 that a search begins with.
    options = SecureSum(bits=11, element_cap=1.0, max_parameters=10**6)
    plan = calibrated_plan(
        PrivacyBudget(epsilon=1.0, delta=1e-5),
        rounds=10,
        num_clients=100,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=options,
    )
    assert isinstance(plan, SharedNoisePlan)
    assert plan.noise_multiplier > 4.0
    assert plan.noise.secure_sum == options
    assert plan.shared_bundle(plan.noise_multiplier, size=5).bits == 11


def test_other_releases_are_sums_whose_own_error_is_charged_too() -> None:
    mean = GaussianEvent(noise_multiplier=20.0)
    plan = planned(other_releases=[(mean, 5)])
    assert plan.noise.slack == shared_noise_slack(2 * (10 + 5), 10**6, 100)
    gate = plan.filter()
    for _ in range(2 * (10 + 5)):
        gate.spend(mean)
    assert gate.would_exceed(mean)  # however small it is


@pytest.mark.parametrize(
    ("secure_sum", "colluding"),
    [
        (ROSTER, 5),  # of all 100: a server that lies chooses the cohort
        (replace(ROSTER, roster=False), 1),
        (replace(ROSTER, colluding=2), 2),
    ],
)
def test_all_who_collude_may_be_in_a_cohort_that_a_lying_server_chooses(
    secure_sum: SecureSum, colluding: int
) -> None:
    plan = planned(secure_sum, sampling=VisibleSampling(cohort=10))
    assert plan.noise.shares.colluding == colluding


def test_a_cohort_that_those_who_collude_could_fill_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cohorts of at least 7, got 6"):
        planned(sampling=VisibleSampling(cohort=6))
    assert planned(sampling=VisibleSampling(cohort=7)).noise.honest_shares == 2


@pytest.mark.parametrize(
    ("hosting", "why"),
    [
        ({"units_per_node": 5, "sampling_rate": 0.5}, "leaving one out moves the next one in"),
        ({"coins_at_nodes": True, "sampling_rate": 0.5}, "leaving one out moves the next one in"),
        (
            {
                "units_per_node": 5,
                "coins_at_nodes": True,
                "sampling_rate": 1.0,
                "nodes": 20,
                "unit": "record",
                "secure_sum": SecureSum(),
            },
            "takes its share of the noise with it",
        ),
    ],
    ids=["units", "coins", "records"],
)
def test_add_or_remove_one_beside_a_cap_is_refused(hosting: dict[str, Any], why: str) -> None:
    """A node takes its first units: leaving one out moves the next one in, two norms for one."""

    def plan_with(relation: NeighboringRelation) -> Plan:
        return noised_plan(
            2.0,
            delta=1e-5,
            rounds=10,
            num_clients=100,
            clipping_norm=1.0,
            contribution_check=False,
            neighboring_relation=relation,
            **hosting,
        )

    assert plan_with(NeighboringRelation.ZERO_OUT).rounds == 10
    with pytest.raises(ValueError, match=why):
        plan_with(NeighboringRelation.ADD_OR_REMOVE_ONE)
