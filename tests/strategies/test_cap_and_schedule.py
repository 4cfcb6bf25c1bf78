"""A participation cap under noise that changes: rounds of a client add up by what each costs it."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from flat_plans import calibrated_plan
from local_grid import answer_with_update
from trainings import record, train

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NoiseSchedule, VisibleSampling
from fl_dp.ledger.state import ParticipationCapReached
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.statement.markdown import statement_markdown
from fl_dp.statement.of_clients import privacy_statement

ROUNDS, CAP, DELTA, EPSILON = 8, 2, 1e-3, 4.0


def planned(name: str = "seed_rule", **other: Any) -> Plan:
    given: dict[str, Any] = {
        "rounds": ROUNDS,
        "num_clients": 6,
        "sampling": VisibleSampling(cohort=3),
        "participation_cap": CAP,
        "clipping_norm": 1.0,
        "schedule": NoiseSchedule(name=name, floor=0.25),
    }
    return calibrated_plan(PrivacyBudget(epsilon=EPSILON, delta=DELTA), **given | other)


PLAN = planned()
SHARES = [PLAN.cap_share(multiplier) for multiplier in PLAN.noise_multipliers]


def truly_spent(rounds: tuple[int, ...], of: Plan = PLAN) -> float:
    """What a client that takes part in these rounds spends, by dp-accounting itself."""
    accountant = PLDAccountant()
    for round in rounds:
        accountant.compose(GaussianDpEvent(of.noise_multipliers[round]))
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize("name", ["seed_rule", "linear"])  # the least noise first, or last
def test_the_charge_is_a_cap_of_rounds_with_the_least_noise(name: str) -> None:
    plan = planned(name)
    assert plan.history == ((GaussianEvent(noise_multiplier=plan.noise_multiplier), CAP),)
    assert min(plan.noise_multipliers) == plan.noise_multiplier
    assert 0.999 * EPSILON < plan.epsilon().best <= EPSILON


def test_no_rounds_that_fit_the_cap_spend_more_than_the_budget_and_others_do() -> None:
    fitting = [
        rounds
        for size in range(1, ROUNDS + 1)
        for rounds in combinations(range(ROUNDS), size)
        if sum(SHARES[each] for each in rounds) <= CAP
    ]
    assert max(map(len, fitting)) > CAP  # what more noise is good for
    # The dearest of each share: all others of it cost the same or less.
    dearest = sorted(fitting, key=lambda rounds: -sum(SHARES[each] for each in rounds))[:4]
    assert max(map(truly_spent, dearest)) <= EPSILON * (1.0 + 1e-4)
    # The power of this test: one round more than fits is too much.
    first = dearest[0]
    more = next(each for each in range(ROUNDS) if each not in first)
    assert truly_spent((*first, more)) > 1.02 * EPSILON


def test_the_ledger_adds_up_what_rounds_cost_a_client_over_restarts(tmp_path: Path) -> None:
    place, taken = tmp_path / "ledger.db", 0.0
    for number in range(ROUNDS, 0, -1):  # from the most noise to the least
        share = SHARES[number - 1]
        with PrivacyLedger.open(place, PLAN) as ledger:
            if taken + share > CAP:
                with pytest.raises(ParticipationCapReached):
                    ledger.reserve(round=number, participants=["a"])
                break
            ledger.reserve(round=number, participants=["a"])
            taken += share
    else:
        pytest.fail("no round was too much")
    with PrivacyLedger.open(place, PLAN) as ledger:
        assert ledger.participations["a"] > CAP
        ledger.reserve(round=1, participants=["b"])  # another client has all of its cap
        assert ledger.epsilon().best <= EPSILON


@pytest.mark.parametrize("name", ["seed_rule", "linear", "cosine"])
def test_a_training_keeps_every_client_within_its_cap_and_says_so(
    tmp_path: Path, name: str
) -> None:
    plan = planned(name)
    answer = answer_with_update([{"w": np.full(4, 0.1)}] * 6)
    train(tmp_path, plan, answer, record(w=np.zeros(4)))
    (place,) = tmp_path.glob("*.db")
    with PrivacyLedger.read(place) as ledger:
        entries = [entry.fields for entry in ledger.entries if entry.kind == "reserve"]
        taken: dict[str, float] = defaultdict(float)
        for fields in entries:
            for unit in fields["participants"]:
                taken[unit] += fields["noise_multiplier"] ** -2
        assert max(taken.values()) <= CAP * plan.noise_multiplier**-2 * (1.0 + 1e-9)
        statement = privacy_statement(ledger)
    assert statement.best_epsilon <= EPSILON
    assert statement.releases == ((GaussianEvent(noise_multiplier=plan.noise_multiplier), CAP),)
    page = statement_markdown(statement)
    assert "2 rounds of the least noise are charged in full" in page
    # A schedule that spends early has them all at their caps while its noise is the least.
    changed = len(set(statement.noise_multipliers)) > 1
    assert changed == (name != "seed_rule")
    assert ("cost what 2 of the least noise cost" in page) == changed
