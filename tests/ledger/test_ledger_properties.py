"""Whatever happens to a ledger: no byte changes unseen, and no order of events overspends."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from flat_plans import calibrated_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_files import fresh_path

from fl_dp import PrivacyLedger
from fl_dp.accounting import (
    NoiseSchedule,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
)
from fl_dp.accounting.events import freeze
from fl_dp.ledger import LedgerCorrupted
from fl_dp.ledger.state import Reservation
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent, LaplaceEvent

BUDGET = PrivacyBudget(epsilon=3.0, delta=1e-3)
RELEASES = (
    LaplaceEvent(noise_multiplier=5.0),
    GaussianEvent(noise_multiplier=4.0),
    ExponentialEvent(epsilon=0.1),
)
SIZES: dict[str, Any] = {"clipping_norm": 1.0, "num_clients": 200}
PLAN = replace(
    calibrated_plan(
        BUDGET,
        rounds=5,
        sampling_rate=0.25,
        schedule=NoiseSchedule(name="step"),
        other_releases={RELEASES[0]: 1},
        **SIZES,
    ),
    other_releases=freeze([(event, 1) for event in RELEASES]),
)


@pytest.fixture(scope="module")
def spent_ledger() -> Iterator[bytes]:
    with fresh_path() as path:
        with PrivacyLedger.open(path, PLAN) as ledger:
            ledger.commit(ledger.reserve_release("means", RELEASES[0]))
            for number in (1, 2, 3):
                ledger.commit(ledger.reserve(round=number))
        yield path.read_bytes()


@settings(max_examples=300)
@given(data=st.data())
def test_changing_any_byte_of_any_entry_is_detected(
    spent_ledger: bytes, data: st.DataObject
) -> None:
    with fresh_path() as path:
        path.write_bytes(spent_ledger)
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT sequence, payload, hash FROM entries").fetchall()
            assert len(rows) == 10
            sequence, payload, digest = data.draw(st.sampled_from(rows))
            column = data.draw(st.sampled_from(["payload", "hash", "sequence"]))
            if column == "sequence":
                taken = {row[0] for row in rows}
                value = data.draw(st.integers(-(2**63), 2**63 - 1).filter(lambda n: n not in taken))
                connection.execute(
                    "UPDATE entries SET sequence = ? WHERE sequence = ?", (value, sequence)
                )
            else:
                text = bytearray((payload if column == "payload" else digest).encode())
                place = data.draw(st.integers(0, len(text) - 1))
                text[place] = data.draw(st.integers(0, 255).filter(lambda b: b != text[place]))
                connection.execute(
                    f"UPDATE entries SET {column} = CAST(? AS TEXT) WHERE sequence = ?",
                    (bytes(text), sequence),
                )
            connection.commit()
        with pytest.raises(LedgerCorrupted):
            PrivacyLedger.read(path)
        with pytest.raises(LedgerCorrupted):
            PrivacyLedger.open(path, PLAN)


@settings(max_examples=30)
@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("reserve"), st.integers(1, 5)),
            st.tuples(st.just("release"), st.integers(0, len(RELEASES) - 1)),
            st.tuples(st.just("commit"), st.just(0)),
            st.tuples(st.just("crash"), st.just(0)),
        ),
        max_size=16,
    )
)
def test_no_order_of_attempts_releases_and_crashes_overspends(
    actions: list[tuple[str, int]],
) -> None:
    spent, committed = 0, 0
    waiting: list[tuple[Reservation, list[PrivacyEvent]]] = []
    declared, made = dict(PLAN.other_releases), Counter[PrivacyEvent]()
    with fresh_path() as path:
        ledger = PrivacyLedger.open(path, PLAN)
        for action, which in actions:
            event = PLAN.event_of(which) if action == "reserve" else RELEASES[which % len(RELEASES)]
            refused = ledger.would_exceed(event)
            if action == "release":  # made as often as declared
                refused = refused or made[event] >= declared[event]
            before = ledger.entries
            try:
                if action == "reserve":
                    waiting.append((ledger.reserve(round=which), []))
                elif action == "release":
                    waiting.append((ledger.reserve_release("statistics", event), [event]))
            except PrivacyBudgetExhausted:
                assert refused
                assert ledger.entries == before
            else:
                if action in ("reserve", "release"):
                    assert not refused
                    spent += 1
            if action == "commit" and waiting:
                reservation, others = waiting.pop()
                ledger.commit(reservation)
                made.update(others)
                committed += 1
            if action == "crash":
                waiting = []
                ledger = PrivacyLedger.open(path, PLAN)  # the old one is never closed
            kinds = [entry.kind for entry in ledger.entries]
            assert (kinds.count("reserve"), kinds.count("commit")) == (spent, committed)
            assert sum(count for _, count in ledger.history) == spent
            assert ledger.running_epsilon() <= BUDGET.epsilon
        live, replayed = ledger.epsilon(), PrivacyLedger.read(path).epsilon()
        assert live.best <= BUDGET.epsilon
        assert live.by_name.keys() == replayed.by_name.keys()
        for name, value in live.by_name.items():
            assert replayed.by_name[name] == pytest.approx(value, rel=1e-12, abs=1e-12)
