"""Kinds of plans: what each charges, refuses and says, and a kind of one's own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from flat_plans import calibrated_plan, flat_plan

from fl_dp import PrivacyLedger
from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    OwnRatesSampling,
    PoissonGaussianEvent,
    PoissonSampling,
    PrivacyBudget,
    PrivacyEvent,
    VisibleSampling,
    freeze,
)
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import (
    AdaptiveClipping,
    Clipping,
    FixedClipping,
    PerLayerClipping,
)
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent
from fl_dp.option_errors import IncompatibleOptions, OptionError, require_compatible
from fl_dp.plan import (
    Banded,
    BufferedPlan,
    CentralPlan,
    CorrelatedPlan,
    DistributedPlan,
    DistributedRecordsPlan,
    GroupedPlan,
    LocalPlan,
    Plan,
    SecureSum,
    plan_from_dict,
)
from fl_dp.plan.as_json import KINDS
from fl_dp.plan.exclusions import EXCLUSIONS, TrainingOptions
from fl_dp.plan.fields import plan_of
from fl_dp.statement.of_clients import promise_in_words

BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-4)
COINS = PoissonSampling(sampling_rate=0.5)
SEEN = VisibleSampling(cohort=10)
HALF = FixedClipping(norm=0.5)
OF_ALL: dict[str, Any] = dict(budget=BUDGET, rounds=4, num_clients=100)

CENTRAL = CentralPlan(**OF_ALL, sampling=COINS, clipping=HALF, noise_multiplier=3.0)
CORRELATED = CorrelatedPlan(
    **OF_ALL,
    sampling=VisibleSampling(cohort=10, separation=2),
    correlation=Banded.optimal(rounds=4, bands=2),
    clipping=HALF,
    noise_multiplier=3.0,
)
BUFFERED = BufferedPlan(
    **OF_ALL, sampling=BufferedSampling(cohort=10), clipping=HALF, noise_multiplier=3.0
)
GROUPED = GroupedPlan(
    **OF_ALL,
    sampling=OwnRatesSampling.at(0.5, budgets=(2.0, 8.0), shares=(0.5, 0.5)),
    clipping=HALF,
    noise_multiplier=3.0,
)
LOCAL = LocalPlan(**OF_ALL, clipping=HALF, scheme="laplace", noise_multiplier=3.0)
DISTRIBUTED = DistributedPlan(
    **OF_ALL, secure_sum=SecureSum(bits=20), clipping=HALF, noise_multiplier=3.0
)
RECORDS = DistributedRecordsPlan(
    **OF_ALL | {"num_clients": 10},
    secure_sum=SecureSum(reply_after=5.0, bits=20),
    num_records=100,
    max_records=50,
    sampling=COINS,
    clipping=HALF,
    noise_multiplier=3.0,
)
EACH = [CENTRAL, CORRELATED, BUFFERED, GROUPED, LOCAL, DISTRIBUTED, RECORDS]
IN_FULL = GaussianEvent(noise_multiplier=3.0)
AMPLIFIED = PoissonGaussianEvent(noise_multiplier=3.0, sampling_rate=0.5)


def by_kind(plan: Plan) -> str:
    return plan.kind


# Each kind ----------------------------------------------------------------------------------------


def test_there_is_an_example_of_every_kind() -> None:
    assert [plan.kind for plan in EACH] == list(KINDS)


@pytest.mark.parametrize(
    ("plan", "event", "rounds"),
    [
        (CENTRAL, AMPLIFIED, 4),
        (CORRELATED, IN_FULL, 2),  # of four rounds, as each client rests for one
        (BUFFERED, IN_FULL, 4),
        (GROUPED, AMPLIFIED, 4),
        (LOCAL, LaplaceEvent(noise_multiplier=3.0), 4),
        (DISTRIBUTED, IN_FULL, 4),
        (RECORDS, AMPLIFIED, 4),
    ],
)
def test_a_kind_charges_its_rounds(plan: Plan, event: PrivacyEvent, rounds: int) -> None:
    assert freeze([(plan.event_of(1), rounds)]) == plan.history == ((event, rounds),)


@pytest.mark.parametrize("plan", EACH, ids=by_kind)
def test_a_kind_finds_noise_that_spends_its_budget_and_no_more(plan: Plan) -> None:
    if isinstance(plan, DistributedPlan | DistributedRecordsPlan):
        plan = replace(plan, secure_sum=replace(plan.secure_sum, bits=32))
    calibrated = plan.calibrated()
    assert 0.995 * 8.0 <= calibrated.epsilon().best <= 8.0
    gate = calibrated.filter()
    for event, count in calibrated.history:
        for _ in range(count):
            assert not gate.would_exceed(event)
            gate.spend(event)
    assert gate.would_exceed(calibrated.event_of(1))


@pytest.mark.parametrize("plan", EACH, ids=by_kind)
def test_a_kind_is_read_as_it_was_written(plan: Plan) -> None:
    written = json.loads(json.dumps(plan.to_dict()))
    assert written["kind"] == plan.kind
    assert plan_from_dict(written) == plan


@pytest.mark.parametrize(
    ("plan", "place", "unit", "adversary", "trusted"),
    [
        (CENTRAL, "at the server", "client", "does not see who took part", "the coins and the"),
        (CORRELATED, "at the server", "client", "sees who took part", "stays in its memory"),
        (BUFFERED, "at the server", "client", "sees who took part", "the server, with the clients"),
        (GROUPED, "at the server", "client", "does not see who", "the coins and the noise"),
        (LOCAL, "at each client", "client", "the server itself", "nobody with an update"),
        (DISTRIBUTED, "in shares at the nodes", "client", "opens only sums", "its share of noise"),
        (RECORDS, "in shares at the nodes", "record", "opens only sums", "its records and their"),
    ],
)
def test_a_kind_says_where_noise_is_added_and_who_is_trusted(
    plan: Plan, place: str, unit: str, adversary: str, trusted: str
) -> None:
    promise = promise_in_words(plan)
    assert (plan.noise_location, plan.unit) == (place, unit)
    assert adversary in promise["adversary"]
    assert trusted in promise["trusted"]


def test_what_the_server_could_do_is_left_out_where_it_is_not_trusted() -> None:
    for plan in EACH:
        another_app = any("sends another app" in sentence for sentence in plan.not_covered)
        assert another_app != plan.trusts_server


# What a kind can't have, it has no field for ------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "missing"),
    [
        (CENTRAL, "correlation scheme secure_sum"),
        (CORRELATED, "schedule coins_at_nodes"),
        (BUFFERED, "schedule units_per_node total_weight unit"),
        (GROUPED, "schedule units_per_node total_weight unit"),
        (LOCAL, "metrics total_weight units_per_node coins_at_nodes correlation"),
        (DISTRIBUTED, "correlation total_weight unit"),
        (RECORDS, "metrics total_weight correlation"),
    ],
    ids=[plan.kind for plan in EACH],
)
def test_a_kind_has_no_field_for_what_it_can_not_be(plan: Plan, missing: str) -> None:
    given = {field.name: getattr(plan, field.name) for field in fields(plan)}
    assert plan_of(type(plan), given) == plan
    for name in missing.split():
        with pytest.raises(IncompatibleOptions, match=f"{name} means nothing.*: leave it out"):
            plan_of(type(plan), given | {name: 1})
        with pytest.raises(TypeError, match=name):
            type(plan)(**given | {name: 1})


@pytest.mark.parametrize(
    ("plan", "law"),
    [
        (CENTRAL, BUFFERED.sampling),
        (CENTRAL, GROUPED.sampling),
        (CENTRAL, CyclicSampling(groups=2, inside=COINS)),
        (CORRELATED, COINS),
        (CORRELATED, FixedSizeSampling(cohort=10)),
        (BUFFERED, SEEN),
        (GROUPED, COINS),
        (DISTRIBUTED, FixedSizeSampling(cohort=10)),
        (DISTRIBUTED, CyclicSampling(groups=2, inside=COINS)),
        (LOCAL, FixedSizeSampling(cohort=10)),
        (RECORDS, SEEN),
    ],
)
def test_a_kind_refuses_a_law_that_it_is_not_charged_by(plan: Any, law: Any) -> None:
    with pytest.raises(IncompatibleOptions, match=rf"a {plan.kind} plan has cohorts by \w+"):
        replace(plan, sampling=law)


def test_no_more_bands_than_rounds_lie_between_two_of_a_client() -> None:
    """Else two of its participations would meet in one release, which no event charges for."""
    with pytest.raises(OptionError, match="use at most 2"):
        replace(CORRELATED, correlation=Banded.optimal(rounds=4, bands=3))


@pytest.mark.parametrize("plan", [LOCAL, RECORDS], ids=by_kind)
@pytest.mark.parametrize("rule", [AdaptiveClipping(), PerLayerClipping(norms=(1.0, 2.0))])
def test_one_fixed_norm_is_changed_to_another_one_alone(plan: Plan, rule: Clipping) -> None:
    assert plan.with_clipping(FixedClipping(norm=0.25)).clipping_norm == 0.25
    with pytest.raises(OptionError, match=f"a {plan.kind} plan clips to one fixed norm"):
        plan.with_clipping(rule)


@pytest.mark.parametrize("law", [PoissonSampling(sampling_rate=1.0), SEEN])
def test_a_clients_message_is_charged_in_full_by_its_scheme(
    law: PoissonSampling | VisibleSampling,
) -> None:
    assert replace(LOCAL, sampling=law).event_of(1) == LaplaceEvent(noise_multiplier=3.0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"budget": replace(BUDGET, epsilon=7.0)}, "must be the largest of the budgets"),
        ({"sampling": GROUPED.sampling}, "nothing is amplified"),
    ],
)
def test_groups_whose_clients_add_noise_take_part_in_every_round(
    changes: dict[str, Any], why: str
) -> None:
    everybody = OwnRatesSampling.at(1.0, budgets=(2.0, 8.0), shares=(0.5, 0.5))
    plan = replace(LOCAL, sampling=everybody)
    assert len(plan.own_epsilons()) == 2
    with pytest.raises(ValueError, match=why):
        replace(plan, **changes)


@pytest.mark.parametrize("reported", ["utility", "weight_cap"])
def test_only_clients_that_trust_nobody_report_nothing(reported: str) -> None:
    told: dict[str, Any] = {"utility": "loss", "weight_cap": 100.0}
    asked = {reported: told[reported]}
    for plan in EACH:
        require_compatible(EXCLUSIONS, TrainingOptions(plan=plan))
    for plan in (LOCAL, DISTRIBUTED):
        with pytest.raises(IncompatibleOptions, match="tell it nothing beside their update"):
            require_compatible(EXCLUSIONS, TrainingOptions(plan=plan, **asked))
    require_compatible(EXCLUSIONS, TrainingOptions(plan=CENTRAL, **asked))


@pytest.mark.parametrize(
    ("plan", "beside"),
    [
        (replace(CENTRAL, coins_at_nodes=True), {"draws_cohorts": True}),
        (RECORDS, {"dp_sgd": True}),
    ],
    ids=["nodes that flip the coins ask no selection", "a sum is a step of DP-SGD already"],
)
def test_what_no_settings_compose_is_refused_beside_a_plan(
    plan: Plan, beside: dict[str, Any]
) -> None:
    require_compatible(EXCLUSIONS, TrainingOptions(plan=plan))
    with pytest.raises(IncompatibleOptions):
        require_compatible(EXCLUSIONS, TrainingOptions(plan=plan, **beside))


# Drafts -------------------------------------------------------------------------------------------


def test_a_draft_is_checked_at_once_and_finished_as_a_plan() -> None:
    given: Any = dict(rounds=4, num_clients=100, sampling_rate=0.5, clipping_norm=1.0)
    draft = flat_plan(BUDGET, **given)
    plan = calibrated_plan(BUDGET, **given)
    assert draft.is_draft
    assert not plan.is_draft
    assert replace(draft, noise_multiplier=plan.noise_multiplier) == plan
    with pytest.raises(IncompatibleOptions, match="nothing is amplified"):
        flat_plan(BUDGET, **given | {"client_scheme": "gaussian"})


def test_nothing_is_charged_to_or_released_by_a_draft(tmp_path: Path) -> None:
    draft = replace(CENTRAL, noise_multiplier=math.nan)
    alone = replace(draft, rounds=0, other_releases=freeze([(IN_FULL, 1)]))
    uses: list[Callable[[], object]] = [
        lambda: draft.history,
        lambda: draft.filter(),
        lambda: draft.event_of(1),
        lambda: PrivacyLedger.open(tmp_path / "ledger.db", draft),
        lambda: PrivacyLedger.open(tmp_path / "ledger.db", alone),
    ]
    for use in uses:
        with pytest.raises(OptionError, match="a draft without its noise_multiplier"):
            use()


def test_many_clients_are_refused_by_the_noise_that_is_found_not_by_a_draft_s() -> None:
    """At multiplier 1 a sum of 20 million clients is not exact; at 4 or more it is."""
    few = PrivacyBudget(epsilon=0.1, delta=1e-9)
    given: Any = dict(rounds=10, num_clients=20_000_000, sampling_rate=0.1, clipping_norm=1.0)
    plan = calibrated_plan(few, **given)
    assert plan.noise_multiplier > 4.0
    assert plan.bundle(plan.noise_multiplier).max_units >= 20_000_000
    with pytest.raises(ValueError, match="too small to sum 20000000 clients exactly"):
        calibrated_plan(PrivacyBudget(epsilon=8.0, delta=1e-9), **given)


def test_a_kind_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind 'shares' is unknown.*central, correlated"):
        plan_from_dict(CENTRAL.to_dict() | {"kind": "shares"})
