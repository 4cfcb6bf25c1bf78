"""Kinds of noise: what each is charged as, excludes and says, and a place for one more."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fl_dp.plan.arguments import (
    NOISE_KINDS,
    PlanArguments,
    hosting_of,
    noise_of,
    release_of,
    sampling_of,
)
from fl_dp.plan.calibrated import calibrated_noise
from fl_dp.plan.noise import CentralNoise, ClientNoise, Noise
from flat_plans import calibrated_plan, flat_plan

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import (
    NeighboringRelation,
    PoissonSampling,
    PrivacyBudget,
    PrivacyEvent,
    Sampling,
    VisibleSampling,
)
from fl_dp.accounting.gaussian_formulas import gaussian_noise_multiplier
from fl_dp.mechanisms import AdaptiveClipping, FixedClipping, PerLayerClipping, ScalarMetric
from fl_dp.mechanisms.events import GaussianEvent, LaplaceEvent
from fl_dp.option_errors import Exclusion, IncompatibleOptions, require_compatible
from fl_dp.plan import plan_from_dict
from fl_dp.plan.exclusions import EXCLUSIONS
from fl_dp.plan.hosting import Hosting
from fl_dp.plan.release import Release
from fl_dp.statement import privacy_statement

BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-4)
EVERYBODY = PoissonSampling(sampling_rate=1.0)
LOSS = ScalarMetric(name="loss", low=0.0, high=5.0)


def plan_with(of: Noise, **changes: Any) -> Plan:
    fields: dict[str, Any] = dict(
        budget=BUDGET,
        rounds=4,
        num_clients=100,
        sampling=EVERYBODY,
        release=Release(clipping=FixedClipping(norm=0.5)),
    )
    return Plan(**(fields | changes), noise=of)


@dataclass(frozen=True, kw_only=True)
class NoiseInShares(Noise):
    """A share of the noise from each client, as under a secure sum.

    Attributes:
        least: The fewest clients whose shares are in a sum.
    """

    kind: ClassVar[str] = "shares"
    place: ClassVar[str] = "in shares at the clients"
    exclusions = (
        Exclusion(
            options=("sampling",),
            when=lambda asked: not asked.sampling.visible,
            why="the size of a sum shows a secret cohort",
            instead="write {sampling_rate=1}",
        ),
        Exclusion(
            options=("neighboring_relation",),
            when=lambda asked: asked.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE,
            why="who leaves takes a share of the noise along",
            instead="write {neighboring_relation=zero-out}",
        ),
    )
    least: int

    def event(
        self, multiplier: float, *, sampling: Sampling, num_clients: int, release: Release
    ) -> PrivacyEvent:
        return GaussianEvent(noise_multiplier=multiplier * self.least**0.5)

    def adversary(self, *, unit: str, sampling: Sampling) -> str:
        return "is the server, which sees sums alone"

    def trusted(self, *, hosting: Hosting, sampling: Sampling) -> str:
        return f"{self.least} clients, to add their shares"

    def mechanism(self, release: Release) -> str:
        return "Gaussian, in shares"


# One more kind ------------------------------------------------------------------------------------


def test_a_new_kind_of_noise_is_charged_and_calibrated_by_its_own_event() -> None:
    plan = plan_with(NoiseInShares(multiplier=2.0, least=16))
    assert plan.history == ((GaussianEvent(noise_multiplier=8.0), 4),)
    calibrated = calibrated_noise(plan.noise, plan.planned_releases).multiplier
    # Four Gaussians are one of half the multiplier; sixteen shares of one are four.
    assert calibrated == pytest.approx(gaussian_noise_multiplier(8.0, 1e-4) * 2 / 4, rel=1e-4)


def test_a_new_kind_of_noise_refuses_what_it_can_not_do() -> None:
    with pytest.raises(ValueError, match="shows a secret cohort"):
        plan_with(
            NoiseInShares(multiplier=2.0, least=16), sampling=PoissonSampling(sampling_rate=0.5)
        )
    with pytest.raises(ValueError, match="takes a share of the noise along"):
        plan_with(
            NoiseInShares(multiplier=2.0, least=16),
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )


def test_a_new_kind_of_noise_goes_through_the_ledger_into_the_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOISE_KINDS, "shares", NoiseInShares)
    plan = plan_with(NoiseInShares(multiplier=2.0, least=16))
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        statement = privacy_statement(ledger)
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.plan == plan
        assert ledger.history == ((GaussianEvent(noise_multiplier=8.0), 1),)
    told = json.dumps(statement, default=str)
    for words in ("which sees sums alone", "to add their shares", "Gaussian, in shares"):
        assert words in told


def test_a_kind_that_this_version_does_not_know_is_refused() -> None:
    fields = plan_with(NoiseInShares(multiplier=2.0, least=16)).to_dict()
    with pytest.raises(ValueError, match=r"kind 'shares' is unknown.*central, client"):
        plan_from_dict(fields)


# What a kind can't have, it has no field for ------------------------------------------------------


def test_noise_at_the_clients_has_no_correlation() -> None:
    with pytest.raises(TypeError, match="correlation"):
        ClientNoise(multiplier=1.0, scheme="gaussian", correlation=None)  # type: ignore[call-arg]  # refused


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"release": Release(clipping=FixedClipping(norm=1.0), metrics=(LOSS,))},
            "need noise at the server",
        ),
        ({"release": Release(clipping=AdaptiveClipping())}, "need noise at the server"),
        (
            {"release": Release(clipping=PerLayerClipping(norms=(1.0, 2.0)))},
            "need noise at the server",
        ),
        ({"hosting": Hosting(units_per_node=2)}, "clips them for noise at the server"),
        ({"hosting": Hosting(coins_at_nodes=True)}, "clips them for noise at the server"),
        ({"sampling": PoissonSampling(sampling_rate=0.5)}, "nothing is amplified"),
    ],
)
def test_noise_at_the_clients_refuses_what_needs_the_server(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(IncompatibleOptions, match=why):
        plan_with(ClientNoise(multiplier=1.0, scheme="laplace"), **changes)
    plan_with(CentralNoise(multiplier=1.0), **changes)  # and the server refuses none of it


def test_a_client_s_message_is_charged_in_full_by_its_scheme() -> None:
    plan = plan_with(
        ClientNoise(multiplier=3.0, scheme="laplace"), sampling=VisibleSampling(cohort=10)
    )
    assert plan.event_of(1) == LaplaceEvent(noise_multiplier=3.0)


@pytest.mark.parametrize("reported", ["loss", "records"])
def test_only_clients_that_trust_nobody_report_nothing(reported: str) -> None:
    seen = VisibleSampling(cohort=10)
    alone = plan_with(ClientNoise(multiplier=3.0, scheme="gaussian"), sampling=seen)
    with pytest.raises(IncompatibleOptions, match=f"in the clear, here utility={reported}"):
        require_compatible(EXCLUSIONS, alone.asked(utility=reported))
    require_compatible(EXCLUSIONS, alone.asked(utility=None))
    trusting = plan_with(CentralNoise(multiplier=1.0), sampling=seen)
    require_compatible(EXCLUSIONS, trusting.asked(utility=reported))


# Flat keywords ------------------------------------------------------------------------------------


def test_flat_keywords_go_to_the_objects_that_own_them() -> None:
    given: PlanArguments = {
        "rounds": 4,
        "num_clients": 100,
        "sampling_rate": 1.0,
        "clipping_norm": 0.5,
        "client_scheme": "gaussian",
        "contribution_check": False,
        "unit": "client",
    }
    assert sampling_of(given) == EVERYBODY
    assert noise_of(given, 2.0) == ClientNoise(multiplier=2.0, scheme="gaussian")
    assert release_of(given) == Release(clipping=FixedClipping(norm=0.5), contribution_check=False)
    assert hosting_of(given) == Hosting()


def test_what_is_left_out_is_what_the_objects_leave_out() -> None:
    given: PlanArguments = {"rounds": 4, "num_clients": 100, "clipping_norm": 0.5}
    assert noise_of(given, 2.0) == CentralNoise(multiplier=2.0)
    assert release_of(given) == Release(clipping=FixedClipping(norm=0.5))
    assert hosting_of(given) == Hosting()


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match=r"Plan needs num_clients: write num_clients=\.\.\."):
        calibrated_plan(BUDGET, rounds=4, sampling_rate=1.0)  # type: ignore[call-arg]  # that is it


def test_no_two_objects_have_a_field_of_one_name() -> None:
    """A flat keyword would stand for two things."""
    owners = (Plan, Release, Hosting, CentralNoise)
    names = [name for owner in owners for name in owner.__dataclass_fields__]
    assert len(set(names)) == len(names)


def test_a_draft_is_checked_at_once_and_finished_as_a_plan() -> None:
    given: Any = dict(rounds=4, num_clients=100, sampling_rate=0.5, clipping_norm=1.0)
    draft = flat_plan(BUDGET, **given)
    plan = calibrated_plan(BUDGET, **given)
    assert replace(draft, noise=plan.noise) == plan
    with pytest.raises(IncompatibleOptions, match="nothing is amplified"):
        flat_plan(BUDGET, **given | {"client_scheme": "gaussian"})


def test_many_clients_are_refused_by_the_noise_that_is_found_not_by_a_draft_s() -> None:
    """At multiplier 1 a sum of 20 million clients is not exact; at 4 or more it is."""
    few = PrivacyBudget(epsilon=0.1, delta=1e-9)
    given: Any = dict(rounds=10, num_clients=20_000_000, sampling_rate=0.1, clipping_norm=1.0)
    plan = calibrated_plan(few, **given)
    assert plan.noise_multiplier > 4.0
    assert plan.bundle(plan.noise_multiplier).max_units >= 20_000_000
    with pytest.raises(ValueError, match="too small to sum 20000000 clients exactly"):
        calibrated_plan(PrivacyBudget(epsilon=8.0, delta=1e-9), **given)
