"""Asks of a buffer in the ledger: on disk before they are sent, and never two at once."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from trainings import plan_of

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.ledger import LedgerCorrupted
from fl_dp.ledger.entries import next_entry
from fl_dp.ledger.state import ParticipationCapReached, SeparationBroken

NAMES = [f"ward-{number}" for number in range(6)]


def plan(*, size: int = 2, cap: int | None = 4, rounds: int = 9) -> Plan:
    return plan_of(
        6,
        rounds=rounds,
        sampling=BufferedSampling(cohort=size, participation_cap=cap),
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_an_ask_counts_and_a_contribution_belongs_to_the_index_where_it_is_folded(
    place: Path,
) -> None:
    with PrivacyLedger.open(place, plan()) as ledger:
        first = ledger.reserve(round=1, index=0)
        ledger.ask(NAMES[:3])
        assert ledger.participations == dict.fromkeys(NAMES[:3], 1)
        assert ledger.last_index == {} and ledger.asked == dict.fromkeys(NAMES[:3], 0)
        ledger.fold(NAMES[:2])
        ledger.commit(first)
        ledger.reserve(round=2, index=1)
        ledger.fold(NAMES[2:3])  # asked at 0
        assert ledger.last_index == {NAMES[0]: 0, NAMES[1]: 0, NAMES[2]: 1}
        assert ledger.asked == {} and ledger.next_index() == 2
        assert [fields["index"] for fields in of_kind(ledger, "reserve")] == [0, 1]
    with PrivacyLedger.read(place) as read:
        assert read.last_index == {NAMES[0]: 0, NAMES[1]: 0, NAMES[2]: 1}


def of_kind(ledger: PrivacyLedger, kind: str) -> list[dict[str, object]]:
    return [entry.fields for entry in ledger.entries if entry.kind == kind]


def test_what_may_not_be_asked_or_added_is_not_written(place: Path) -> None:
    with PrivacyLedger.open(place, plan(cap=3)) as ledger:
        with pytest.raises(ValueError, match="no index is open"):
            ledger.ask(NAMES[:1])
        with pytest.raises(ValueError, match="name units when they are asked"):
            ledger.reserve(round=1, participants=NAMES[:1])
        opened = ledger.reserve(round=1)
        ledger.ask(NAMES[:4])
        written = len(ledger.entries)
        wrong_asks = (
            (NAMES[:1], "have not answered; the first is ward-0"),
            ([NAMES[5]] * 2, "ward-5 is named twice"),
            (["a\nb"], "printable"),
        )
        for units, match in wrong_asks:
            with pytest.raises(ValueError, match=match):
                ledger.ask(units)
        wrong_answers = (
            (NAMES[4:5], "not asked for"),
            ([NAMES[0]] * 2, "named twice"),
            (NAMES[:3], "buffer of 2 has 0 contributions: 3"),
        )
        for units, match in wrong_answers:
            with pytest.raises(ValueError, match=match):
                ledger.fold(units)
        assert len(ledger.entries) == written
        ledger.fold(NAMES[:2])
        with pytest.raises(ValueError, match="buffer of 2 has 2 contributions: 1 more"):
            ledger.fold(NAMES[2:3])
        with pytest.raises(SeparationBroken, match="at index 0"):
            ledger.ask(NAMES[:1])
        ledger.commit(opened)
        with pytest.raises(ValueError, match="no index is open"):
            ledger.fold(NAMES[2:3])


def test_asks_that_nobody_answers_use_up_the_cap(place: Path) -> None:
    for _ in range(2):
        with PrivacyLedger.open(place, plan(cap=3)) as ledger:
            ledger.reserve(round=1)
            ledger.ask(NAMES[:1])
    with PrivacyLedger.open(place, plan(cap=3)) as ledger:
        ledger.reserve(round=1)
        ledger.ask(NAMES[:1])
        ledger.fold(NAMES[:1])
        ledger.reserve(round=1)
        with pytest.raises(ParticipationCapReached, match="3 times already"):
            ledger.ask(NAMES[:1])


def test_a_restart_gives_up_what_is_under_way_and_the_old_process_can_add_nothing(
    place: Path,
) -> None:
    with PrivacyLedger.open(place, plan()) as old:
        for index in range(2):
            old.reserve(round=index + 1)
        old.ask(NAMES[:1])
        with PrivacyLedger.open(place, plan()) as new:
            # It may have been added to the index that was open.
            assert new.asked == {} and new.last_index == {NAMES[0]: 1}
            with pytest.raises(ValueError, match="opened again since"):
                old.fold(NAMES[:1])
            new.reserve(round=3)
            new.ask(NAMES[:1])


@pytest.mark.parametrize("kind", ["ask", "fold"])
def test_an_entry_that_can_not_stand_there_is_a_corrupted_ledger(place: Path, kind: str) -> None:
    with PrivacyLedger.open(place, plan()) as ledger:
        ledger.reserve(round=1)
        if kind == "fold":
            ledger.ask(NAMES[:1])
        wrong = {"kind": kind, "training": "training", "run": "x", "index": 5, "units": NAMES[:1]}
        entry = next_entry(ledger.entries[-1], wrong)
        with ledger._store.transaction() as connection:
            ledger._store.append(connection, entry)
    with pytest.raises(LedgerCorrupted, match="its index is 5 and the open one was 0"):
        PrivacyLedger.read(place)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_arrives_whenever_contributions_are_apart_and_capped(
    tmp_path: Path, seed: int
) -> None:
    """Random asks, arrivals and kills: what was written decides, and a model of it agrees."""
    dice = random.Random(seed)
    cap = dice.choice([2, 4])
    promised = plan(cap=cap, rounds=12, size=1)
    folded: dict[str, list[int]] = defaultdict(list)
    asks: dict[str, int] = defaultdict(int)
    restarts = 0
    ledger = PrivacyLedger.open(tmp_path / "ledger.db", promised)
    for _ in range(90):
        match dice.randrange(6):
            case 0 if ledger.next_index() < 12:
                ledger.reserve(round=ledger.next_index() + 1)
            case 1 if restarts < 3 and ledger.asked:  # killed anywhere
                restarts += 1
                ledger.close()
                ledger = PrivacyLedger.open(tmp_path / "ledger.db", promised)
            case 2 | 3:
                try:
                    ledger.fold([name := dice.choice([*ledger.asked, *NAMES[:1]])])
                except ValueError:
                    continue
                folded[name].append(ledger.next_index() - 1)
            case _:
                try:
                    ledger.ask([name := dice.choice(NAMES)])
                except (ValueError, ParticipationCapReached):
                    continue
                asks[name] += 1
    assert sum(map(len, folded.values())) > 0 and max(asks.values()) <= cap
    for indices in folded.values():
        gaps = [after - before for before, after in pairwise(indices)]
        assert len(indices) <= cap and all(gap >= 1 for gap in gaps)
    # The charge covers whoever was in most releases.
    charged = sum(count for _, count in ledger.history)
    assert max(map(len, folded.values())) <= charged
    ledger.close()
