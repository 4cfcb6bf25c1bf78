"""Units that rest or take turns: index, group and last participation, in the ledger alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flat_plans import noised_plan
from trainings import plan_of

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import (
    CyclicSampling,
    PoissonSampling,
    PrivacyBudgetExhausted,
    VisibleSampling,
)
from fl_dp.ledger import LedgerCorrupted
from fl_dp.ledger.state import ParticipationCapReached, SeparationBroken
from fl_dp.plan import Banded

GROUPS = 4
ROUNDS = 10
NAMES = [f"ward-{number}" for number in range(6)]
CYCLIC = plan_of(
    6,
    rounds=ROUNDS,
    sampling=CyclicSampling(groups=GROUPS, inside=PoissonSampling(sampling_rate=0.5)),
    correlation=Banded(coefficients=(4096, 2000)),
)
SPACED = plan_of(
    6,
    rounds=ROUNDS,
    sampling=VisibleSampling(cohort=2, separation=3),
    correlation=Banded(coefficients=(4096, 2000, 1000)),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def entries(ledger: PrivacyLedger, kind: str) -> list[dict[str, Any]]:
    return [entry.fields for entry in ledger.entries if entry.kind == kind]


# --- Groups ---------------------------------------------------------------------------------------


def test_units_are_dealt_in_the_order_of_their_names_once_and_for_good(place: Path) -> None:
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        assert ledger.assign(reversed(NAMES[:5])) == dict(zip(NAMES, [0, 1, 2, 3, 0], strict=False))
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        groups = ledger.assign(NAMES)  # the sixth comes later: to a smallest group
        assert [groups[name] for name in NAMES] == [0, 1, 2, 3, 0, 1]
        assert ledger.assign(NAMES[2:3]) == groups
        assert len(entries(ledger, "assign")) == 2  # in the open, and not twice


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([*NAMES, "ward-1b"], "second name"),
        (["ward-1", "ward-1"], "repeat"),
        (["ward\n1"], "printable"),
    ],
)
def test_a_unit_under_a_second_name_gets_no_second_place(
    place: Path, names: list[str], reason: str
) -> None:
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        with pytest.raises(ValueError, match=reason):
            ledger.assign(names)
        assert ledger.group_of == {}
        assert not entries(ledger, "assign")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"kind": "assign", "run": "x", "groups": {"ward-0": 1}}, "for the whole training"),
        ({"kind": "assign", "run": "x", "groups": {"ward-9": GROUPS}}, "no group 4"),
    ],
)
def test_a_changed_group_can_not_be_read(place: Path, entry: dict[str, Any], reason: str) -> None:
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        ledger.assign(NAMES)
        with pytest.raises(LedgerCorrupted, match=reason), ledger._transaction() as opened:
            ledger._append(opened, entry | {"training": "training"})
    with pytest.raises(LedgerCorrupted, match=reason):
        PrivacyLedger.open(place, CYCLIC)


# --- The index ------------------------------------------------------------------------------------


def test_a_burnt_index_keeps_its_number_and_its_group(place: Path) -> None:
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        ledger.commit(ledger.reserve(round=1, index=0))
        ledger.reserve(round=2, index=1)  # and then the process dies
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        assert ledger.next_index() == 2
        assert ledger.reserve(round=2, index=2).index == 2
        reserved = entries(ledger, "reserve")
    assert [(each["round"], each["index"], each["group"]) for each in reserved] == [
        (1, 0, 0),
        (2, 1, 1),
        (2, 2, 2),
    ]
    assert not any("participants" in each for each in reserved)


@pytest.mark.parametrize(("field", "wrong"), [("index", 3), ("group", 0)])
def test_an_index_of_another_group_can_not_be_read(place: Path, field: str, wrong: int) -> None:
    with PrivacyLedger.open(place, CYCLIC) as ledger:
        ledger.reserve(round=1)
        fields = entries(ledger, "reserve")[0] | {"index": 1, "group": 1} | {field: wrong}
        with pytest.raises(LedgerCorrupted), ledger._transaction() as opened:
            ledger._append(opened, fields)


def test_a_round_that_was_prepared_for_an_index_gets_no_other(place: Path) -> None:
    with PrivacyLedger.open(place, CYCLIC) as mine, PrivacyLedger.open(place, CYCLIC) as other:
        index = mine.next_index()
        other.reserve(round=1, index=index)
        with pytest.raises(ValueError, match="another process"):
            mine.reserve(round=1, index=index)
        assert mine.rounds_spent == 1


def test_the_cohort_of_a_group_is_never_written(place: Path) -> None:
    with PrivacyLedger.open(place, CYCLIC) as ledger, pytest.raises(ValueError, match="secret"):
        ledger.reserve(round=1, participants=NAMES[:1])


# --- Separation -----------------------------------------------------------------------------------


def test_a_participant_that_has_not_rested_is_refused_over_a_restart(place: Path) -> None:
    with PrivacyLedger.open(place, SPACED) as ledger:
        ledger.reserve(round=1, participants=NAMES[:2])  # nobody answers: it counts all the same
        ledger.reserve(round=2, participants=NAMES[2:4])
    with PrivacyLedger.open(place, SPACED) as ledger:
        assert ledger.last_index == {"ward-0": 0, "ward-1": 0, "ward-2": 1, "ward-3": 1}
        with pytest.raises(SeparationBroken, match="ward-1, at index 0"):
            ledger.reserve(round=2, participants=["ward-1", "ward-5"])
        assert ledger.rounds_spent == 2
        ledger.reserve(round=3, participants=NAMES[4:])
        ledger.reserve(round=4, participants=NAMES[:2])  # exactly three indices later
        assert ledger.counts["ward-0"] == 2


def test_a_separation_needs_participants(place: Path) -> None:
    with (
        PrivacyLedger.open(place, SPACED) as ledger,
        pytest.raises(ValueError, match="name its participants"),
    ):
        ledger.reserve(round=1)


def test_a_cap_holds_beside_a_separation(place: Path) -> None:
    plan = plan_of(6, rounds=ROUNDS, sampling=SPACED.sampling, participation_cap=1)
    with PrivacyLedger.open(place, plan) as ledger:
        for number in range(1, 4):
            ledger.reserve(round=number, participants=NAMES[2 * number - 2 : 2 * number])
        with pytest.raises(ParticipationCapReached):
            ledger.reserve(round=4, participants=NAMES[:1])


# --- The charge -----------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [CYCLIC, SPACED], ids=["cyclic", "spaced"])
def test_each_turn_is_charged_once_and_the_last_entry_equals_the_plan(
    place: Path, plan: Plan
) -> None:
    apart = plan.sampling.least_separation
    with PrivacyLedger.open(place, plan) as ledger:
        for index in range(ROUNDS):
            pair = [NAMES[2 * (index % 3)], NAMES[2 * (index % 3) + 1]]
            ledger.reserve(round=index + 1, participants=pair if plan is SPACED else None)
            [(event, count)] = ledger.history
            assert count == -(-(index + 1) // apart)
            assert event == plan.event_at(plan.noise_multiplier)
        assert ledger.history == plan.history
        assert ledger.epsilon() == plan.epsilon()
    assert plan.charged_rounds == {4: 3, 3: 4}[apart]  # of 10 rounds


def test_indices_beyond_the_plan_are_refused_where_they_would_charge_more(place: Path) -> None:
    # Burnt indices take the places that are left in the last turn, and then the budget is spent.
    tight = noised_plan(
        2.0,
        delta=1e-6,
        rounds=ROUNDS,
        num_clients=6,
        sampling=CYCLIC.sampling,
        correlation=Banded(coefficients=(4096, 2000)),
        clipping_norm=1.0,
        contribution_check=False,
    )
    with PrivacyLedger.open(place, tight) as ledger:
        for _ in range(12):
            ledger.reserve(round=1)
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.reserve(round=1)
