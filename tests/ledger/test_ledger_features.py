"""What a ledger charges under each kind of plan, and what it refuses to read."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from flat_plans import calibrated_plan, noised_plan

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    PoissonGaussianEvent,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    bounds,
    epsilon,
    filters,
)
from fl_dp.accounting.calibration import affordable_rounds
from fl_dp.accounting.events import TruncatedPoissonGaussianEvent
from fl_dp.ledger import LedgerCorrupted
from fl_dp.ledger.entries import SCHEMA, LedgerEntry, next_entry
from fl_dp.ledger.state import ParticipationCapReached
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)
from fl_dp.plan import plan_from_dict
from fl_dp.statement import privacy_statement

BUDGET = PrivacyBudget(epsilon=4.0, delta=1e-3)
SIZES: dict[str, Any] = {"clipping_norm": 1.0, "num_clients": 200}
PLAN = noised_plan(1.0, delta=1e-3, rounds=5, sampling_rate=0.25, **SIZES)


def of_budget(noise_multiplier: float, **more: Any) -> Plan:
    """A plan that needs all of the budget, whose noise was calibrated once."""
    sizes: dict[str, Any] = {"sampling_rate": 0.25, "max_epsilon": BUDGET.epsilon, **SIZES}
    return noised_plan(noise_multiplier, delta=BUDGET.delta, **sizes, **more)


SCHEDULED = of_budget(
    0.7932,
    rounds=8,
    schedule=NoiseSchedule(name="linear", levels=3),
)
CAPPED = calibrated_plan(BUDGET, rounds=6, sampling_rate=1.0, participation_cap=2, **SIZES)
DECLARED: dict[PrivacyEvent, int] = {
    LaplaceEvent(noise_multiplier=5.0): 1,
    ExponentialEvent(epsilon=0.2, draws=2): 1,
    GaussianEvent(noise_multiplier=8.0): 2,
}
WITH_RELEASES = of_budget(0.789, rounds=4, other_releases=DECLARED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


ACCOUNT = {"name": "ledger.db", "delta": 0.1, "cap": None}
FIRST = {
    "kind": "plan",
    "schema": SCHEMA,
    "account": ACCOUNT,
    "training": "training",
    "plan": PLAN.to_dict(),
}


def forge(path: Path, *entries: dict[str, Any]) -> None:
    """Add entries whose chain is right, as whoever can write the file is able to."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT sequence, payload, hash FROM entries ORDER BY sequence")
        last = [LedgerEntry(sequence=s, payload=p, hash=h) for s, p, h in rows][-1]
        for fields in entries:
            last = next_entry(last, {"training": "training", **fields})
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)", (last.sequence, last.payload, last.hash)
            )
        connection.commit()


def assert_refused(path: Path, why: str) -> None:
    """Check that a ledger is neither read nor opened."""
    with pytest.raises(LedgerCorrupted, match=why):
        PrivacyLedger.read(path)
    with pytest.raises(LedgerCorrupted, match=why):
        PrivacyLedger.open(path, PLAN)


def test_each_round_of_a_schedule_is_recorded_at_its_own_noise(path: Path) -> None:
    assert len(set(SCHEDULED.noise_multipliers)) == 3
    with PrivacyLedger.open(path, SCHEDULED) as ledger:
        made = [ledger.reserve(round=number).noise_multiplier for number in range(1, 9)]
        assert tuple(made) == ledger.noise_multipliers == SCHEDULED.noise_multipliers
        live = ledger.epsilon()
    replayed = PrivacyLedger.read(path)
    assert replayed.noise_multipliers == SCHEDULED.noise_multipliers
    assert replayed.history == SCHEDULED.history
    for name, value in live.by_name.items():
        assert replayed.epsilon().by_name[name] == pytest.approx(value, rel=1e-12)
    assert live.best <= BUDGET.epsilon


def test_a_round_of_a_schedule_is_charged_for_what_it_is_not_when_it_is(path: Path) -> None:
    with PrivacyLedger.open(path, SCHEDULED) as ledger:
        for number in (8, 1, 1):
            ledger.reserve(round=number)
        z = SCHEDULED.noise_multipliers
        assert ledger.noise_multipliers == (z[7], z[0], z[0])


def test_a_round_that_was_not_planned_is_refused(path: Path) -> None:
    with PrivacyLedger.open(path, SCHEDULED) as ledger:
        before = ledger.entries
        with pytest.raises(ValueError, match="round 0 is not in the plan"):
            ledger.reserve(round=0)
        assert ledger.entries == before


def test_another_attempt_is_charged_again(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        once = ledger.reserve(round=1)
        twice = ledger.reserve(round=1)
        ledger.commit(twice)
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 1)
        assert ledger.history == ((PLAN.event_of(1), 2),)
        ledger.commit(once)  # late, but it did happen
        assert ledger.rounds_committed == 2
    assert [r.fields["attempt"] for r in PrivacyLedger.read(path).entries[2:4]] == [1, 2]


def test_under_a_cap_each_unit_is_charged_for_its_own_rounds(path: Path) -> None:
    with PrivacyLedger.open(path, CAPPED) as ledger:
        once = GaussianEvent(noise_multiplier=CAPPED.noise_multiplier)
        ledger.reserve(round=1, participants=["a", "b"])
        assert ledger.history == ((once, 1),)  # before the cap is reached, for every round
        ledger.reserve(round=2, participants=["b", 3])
        before = ledger.entries
        with pytest.raises(ParticipationCapReached, match=r"1 of the participants .* first is b"):
            ledger.reserve(round=3, participants=["b", "c"])
        assert ledger.entries == before
        for number in (3, 4, 5, 6):  # more rounds than the cap, each with others
            ledger.commit(ledger.reserve(round=number, participants=[f"{number}x", f"{number}y"]))
        assert ledger.participations["b"] == 2
        assert ledger.participations["3"] == 1
        assert ledger.rounds_spent == 6
        assert ledger.history == ((once, 2),)
        live = ledger.epsilon()
        assert live == epsilon({once: 2}, BUDGET.delta)
        assert live.best == pytest.approx(BUDGET.epsilon, rel=1e-3)
        assert live.best <= BUDGET.epsilon
    with PrivacyLedger.open(path, CAPPED) as ledger:  # and the counts come back
        assert ledger.participations["b"] == 2
        assert ledger.epsilon() == live
        with pytest.raises(ParticipationCapReached):
            ledger.reserve(round=6, participants=["b"])


def test_under_a_cap_what_else_is_released_is_charged_to_everybody(path: Path) -> None:
    plan = calibrated_plan(
        BUDGET,
        rounds=6,
        sampling_rate=1.0,
        participation_cap=2,
        other_releases={LaplaceEvent(noise_multiplier=5.0): 1},
        **SIZES,
    )
    with PrivacyLedger.open(path, plan) as ledger:
        for number in (1, 2, 3):
            ledger.reserve(round=number, participants=[number])
        ledger.reserve_release("means", LaplaceEvent(noise_multiplier=5.0))
        with pytest.raises(PrivacyBudgetExhausted, match="'again' would exceed"):
            ledger.reserve_release("again", LaplaceEvent(noise_multiplier=5.0))
        ledger.reserve(round=4, participants=[4])
        assert dict(ledger.history) == dict(plan.history)
        assert ledger.epsilon().best <= BUDGET.epsilon


def test_under_a_cap_participants_must_be_named_once_each(path: Path) -> None:
    with PrivacyLedger.open(path, CAPPED) as ledger:
        before = ledger.entries
        with pytest.raises(ValueError, match="has to name participants"):
            ledger.reserve(round=1)
        with pytest.raises(ValueError, match="participants repeat"):
            ledger.reserve(round=1, participants=[7, "7"])
        assert ledger.entries == before


def test_the_participants_of_a_poisson_sample_are_never_written(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        with pytest.raises(ValueError, match="secret"):
            ledger.reserve(round=1, participants=["a"])
        ledger.reserve(round=1)
        assert ledger.participations == {}
    assert not any("participants" in entry.fields for entry in PrivacyLedger.read(path).entries)


def test_declared_releases_leave_room_for_all_rounds(path: Path) -> None:
    with PrivacyLedger.open(path, WITH_RELEASES) as ledger:
        for event, count in DECLARED.items():
            for _ in range(count):
                ledger.commit(ledger.reserve_release("statistics", event))
        assert ledger.rounds_spent == ledger.rounds_committed == 0
        for number in range(1, 5):
            ledger.commit(ledger.reserve(round=number))
        assert ledger.rounds_committed == 4
        assert ledger.history == WITH_RELEASES.history
        assert ledger.epsilon().best <= BUDGET.epsilon
        before = ledger.entries
        for event in DECLARED:
            assert ledger.would_exceed(event)
            with pytest.raises(PrivacyBudgetExhausted, match="'one more' would exceed epsilon 4"):
                ledger.reserve_release("one more", event)
        assert ledger.entries == before
        live = ledger.epsilon()
    assert PrivacyLedger.read(path).epsilon() == live


def test_a_declared_plan_takes_no_release_that_was_chosen_on_the_way(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        ledger.reserve(round=1)
        before = ledger.entries
        with pytest.raises(ValueError, match="'means' is not among the plan's other_releases"):
            ledger.reserve_release("means", GaussianEvent(noise_multiplier=3.0))
        assert ledger.entries == before


MEANS = GaussianEvent(noise_multiplier=3.0)
WITH_MEANS = of_budget(0.8338, rounds=5, other_releases={MEANS: 1})


def test_a_repeated_release_fits_only_instead_of_rounds(path: Path) -> None:
    with PrivacyLedger.open(path, WITH_MEANS) as ledger:
        for _ in range(2):  # the first one crashed, say
            assert ledger.reserve_release("means", MEANS).noise_multiplier == 3.0
        with pytest.raises(PrivacyBudgetExhausted):
            for number in range(1, 6):
                ledger.reserve(round=number)
        assert 1 <= ledger.rounds_spent < 5
        assert dict(ledger.history)[MEANS] == 2
        assert ledger.epsilon().best <= BUDGET.epsilon


@pytest.mark.parametrize("declared", [1, 3])
def test_a_declared_release_is_made_as_often_as_declared_however_much_is_left(
    path: Path, declared: int
) -> None:
    budget = PrivacyBudget(epsilon=50.0, delta=1e-3)
    plan = replace(PLAN, other_releases=((MEANS, declared),), budget=budget)
    with PrivacyLedger.open(path, plan) as ledger:
        for _ in range(declared):
            ledger.commit(ledger.reserve_release("means", MEANS))
    with PrivacyLedger.open(path, plan) as ledger:
        before = ledger.entries
        assert not ledger.would_exceed(MEANS)
        with pytest.raises(PrivacyBudgetExhausted, match=f"other_releases {declared} times"):
            ledger.reserve_release("means", MEANS)
        assert ledger.entries == before
        ledger.reserve(round=1)


def test_until_the_last_round_the_whole_plan_is_promised(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        for number in range(1, 6):
            ledger.commit(ledger.reserve(round=number))
            assert ledger.promise().best == pytest.approx(PLAN.epsilon().best, rel=1e-9)
            statement = privacy_statement(ledger).to_dict()
            so_far = any("epsilon_so_far" in text for text in statement["not_covered"])
            assert so_far == (number < 5)
            assert min(statement["epsilon_so_far"].values()) == ledger.epsilon().best
        assert ledger.promise() == ledger.epsilon()


def test_after_a_repeated_release_the_budget_is_promised(path: Path) -> None:
    """The repetition and the whole plan together would be more, and can't all happen."""
    with PrivacyLedger.open(path, WITH_MEANS) as ledger:
        for _ in range(2):
            ledger.reserve_release("means", MEANS)
        assert ledger.promise().by_name == {"filter": BUDGET.epsilon}


@pytest.mark.parametrize("number", [True, 1.0, 2.5, "1"])
def test_a_round_is_an_integer(path: Path, number: object) -> None:
    with (
        PrivacyLedger.open(path, PLAN) as ledger,
        pytest.raises(ValueError, match="round must be an integer"),
    ):
        ledger.reserve(round=number)  # type: ignore[arg-type]  # that is the test


def test_names_in_the_ledger_can_be_printed(path: Path) -> None:
    with pytest.raises(ValueError, match="printable"):
        PrivacyLedger.open(path, PLAN, run_id="a\x1b[31m")
    with PrivacyLedger.open(path, PLAN) as ledger, pytest.raises(ValueError, match="printable"):
        ledger.reserve_release("two\nlines", GaussianEvent(noise_multiplier=3.0))


def test_only_the_opening_of_a_ledger_has_a_time(path: Path) -> None:
    """The gap between two rounds shows a client that hung, and so that it took part."""
    plan = replace(PLAN, other_releases=((MEANS, 1),))
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.commit(ledger.reserve_release("means", MEANS))
    with PrivacyLedger.read(path) as ledger:
        told = [entry.fields for entry in ledger.entries]
        statement = json.dumps(privacy_statement(ledger).to_dict())
    assert [fields["kind"] for fields in told if clock_times(json.dumps(fields))] == ["run"]
    assert clock_times(statement) == []


def clock_times(text: str) -> list[str]:
    return re.findall(r"T\d\d:\d\d", text)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(noise_multiplier=9.0),
        PoissonGaussianEvent(noise_multiplier=9.0, sampling_rate=0.1),
        TruncatedPoissonGaussianEvent(
            noise_multiplier=9.0, sampling_rate=0.1, num_units=200, max_cohort=50
        ),
        LaplaceEvent(noise_multiplier=20.0),
        ExponentialEvent(epsilon=0.05, draws=2),
        ZcdpEvent(rho=0.001),
    ],
    ids=lambda event: str(event.kind),
)
def test_every_kind_of_release_comes_back_as_it_was_charged(
    path: Path, event: PrivacyEvent
) -> None:
    with PrivacyLedger.open(path, replace(PLAN, other_releases=((event, 1),))) as ledger:
        reservation = ledger.reserve_release("statistics", event)
        ledger.commit(reservation)
        assert reservation.what == "statistics"
        live = ledger.epsilon()
    replayed = PrivacyLedger.read(path)
    assert replayed.history == ((event, 1),)
    assert replayed.epsilon() == live
    assert 0.0 < live.best <= PLAN.budget.epsilon


def test_insecure_randomness_taints_the_ledger_for_good(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN, rng=SecureRandom()) as ledger:
        assert not ledger.insecure
        assert not privacy_statement(ledger).to_dict()["insecure"]
    with PrivacyLedger.open(path, PLAN, rng=SecureRandom(insecure_seed=7)) as ledger:
        assert ledger.insecure
    with PrivacyLedger.open(path, PLAN, rng=SecureRandom()) as ledger:
        assert ledger.insecure
        assert ledger.randomness == {SecureRandom.SECURE_KIND, SecureRandom.INSECURE_KIND}
    statement = privacy_statement(PrivacyLedger.read(path)).to_dict()
    assert statement["insecure"]
    assert statement["not_covered"][0].startswith("ANYTHING")
    assert not any("7" in r.fields.get("randomness", "") for r in PrivacyLedger.read(path).entries)


def test_a_run_records_what_its_privacy_rests_on(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN, run_id="tuesday") as ledger:
        ledger.reserve(round=1)
    plan, run, reserve = (entry.fields for entry in PrivacyLedger.read(path).entries)
    assert plan_from_dict(plan["plan"]) == PLAN
    assert run["run"] == reserve["run"] == "tuesday"
    assert (run["unit"], run["sampling"], run["sensitivity"]) == ("client", "poisson", 1.0)
    assert (run["denominator"], run["randomness"]) == (50.0, SecureRandom.SECURE_KIND)
    assert {"python", "fl-dp", "dp-accounting", "numpy"} <= set(run["versions"])
    assert (reserve["event"], reserve["round"], reserve["attempt"]) == ("poisson-gaussian", 1, 1)
    assert (reserve["noise_multiplier"], reserve["sampling_rate"]) == (1.0, 0.25)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kind": "refund"}, "kind 'refund' is unknown"),
        ({"kind": "reserve", "event": "skellam", "what": "x"}, "'skellam' is unknown"),
        ({"kind": "reserve", "event": "gaussian", "what": "x"}, "no 'noise_multiplier'"),
        ({"kind": "reserve", "event": "gaussian", "noise_multiplier": -1.0}, "must be positive"),
        ({"kind": "reserve", "event": "gaussian", "noise_multiplier": "x"}, "can't be read"),
        ({"kind": "reserve", "event": "laplace", "noise_multiplier": [1]}, "can't be read"),
        ({"kind": "commit", "reserved": 2}, "no reservation"),
        ({"kind": "commit", "reserved": 99}, "no reservation"),
        ({"kind": "commit"}, "no 'reserved'"),
        ({"kind": "plan", "schema": SCHEMA, "plan": PLAN.to_dict()}, "of one account"),
        ({"no": "kind"}, "no 'kind'"),
    ],
)
def test_an_entry_that_this_version_can_not_read_is_refused(
    path: Path, fields: dict[str, Any], why: str
) -> None:
    """It may be a charge of a later version, and is on nobody's word nothing."""
    PrivacyLedger.open(path, PLAN).close()
    open_since = PrivacyLedger.open(path, PLAN)
    forge(path, fields)
    assert_refused(path, why)
    with pytest.raises(LedgerCorrupted, match=why):
        open_since.reserve(round=1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kind": "run", "randomness": SecureRandom.SECURE_KIND}, "starts with its first plan"),
        ({"kind": "plan", "schema": 5, "plan": PLAN.to_dict()}, "schema 5.*start a new ledger"),
        ({"kind": "plan", "schema": 12, "plan": PLAN.to_dict()}, "schema 12.*start a new ledger"),
        ({"kind": "plan", "schema": SCHEMA, "plan": PLAN.to_dict()}, "it has no 'account'"),
        (FIRST | {"plan": PLAN.to_dict() | {"x": 1}}, "can't be read"),
        (FIRST | {"plan": {}}, "can't be read"),
        (FIRST | {"account": ACCOUNT | {"delta": 2.0}}, "delta must lie in"),
        (FIRST | {"account": ACCOUNT | {"cap": 0.5}}, r"whose cap is epsilon 0\.5"),
        (FIRST | {"account": ACCOUNT | {"delta": 1e-9}}, "is more than the 1e-09 left"),
    ],
)
def test_a_ledger_that_starts_otherwise_is_refused(
    path: Path, fields: dict[str, Any], why: str
) -> None:
    entry = next_entry(None, fields)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE entries (sequence INTEGER PRIMARY KEY, payload, hash)")
        connection.execute("INSERT INTO entries VALUES (1, ?, ?)", (entry.payload, entry.hash))
        connection.commit()
    assert_refused(path, why)


def test_a_neighbouring_relation_is_part_of_the_plan_and_its_price(path: Path) -> None:
    plan = calibrated_plan(
        BUDGET,
        rounds=3,
        sampling_rate=1.0,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        **SIZES,
    )
    with PrivacyLedger.open(path, plan) as ledger:
        for number in (1, 2, 3):
            ledger.reserve(round=number)
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.reserve(round=3)
        assert ledger.epsilon().best == pytest.approx(BUDGET.epsilon, rel=1e-3)
        zero_out = epsilon(ledger.history, BUDGET.delta)
        assert zero_out.best < 0.6 * ledger.epsilon().best


def test_no_distribution_is_computed_at_round_two_thousand(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = noised_plan(1.0, delta=1e-3, rounds=4_000, sampling_rate=0.01, **SIZES)
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        first, commit = (entry.fields for entry in ledger.entries[-2:])
    pairs = (
        ({**first, "round": number}, {**commit, "reserved": 2 * number + 1})
        for number in range(2, 2_001)
    )
    forge(path, *chain.from_iterable(pairs))
    with PrivacyLedger.open(path, plan) as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2_000, 2_000)
        assert not ledger.would_exceed(plan.event_of(2_001))  # warms up

        def computed(*_: object, **__: object) -> float:
            raise AssertionError("a distribution was asked for")

        for module, name in (
            (filters, "tight_epsilon"),
            (filters, "affordable_rounds"),
            (bounds, "distribution_epsilon"),
        ):
            monkeypatch.setattr(module, name, computed)
        for number in range(2_001, 2_021):
            assert not ledger.would_exceed(plan.event_of(number))
            ledger.commit(ledger.reserve(round=number))
        monkeypatch.undo()
        assert ledger.epsilon().pld <= plan.budget.epsilon


def test_an_extra_attempt_at_a_constant_plan_is_certified_in_stretches(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what was declared, too, a round costs no distribution of its own."""
    asked = []
    find = affordable_rounds

    def counted(*args: Any, **named: Any) -> int:
        asked.append(args)
        return find(*args, **named)

    monkeypatch.setattr(filters, "affordable_rounds", counted)
    plan = replace(PLAN, rounds=30, budget=PrivacyBudget(epsilon=3.0, delta=1e-3))  # pays for fewer
    with PrivacyLedger.open(path, plan) as ledger, pytest.raises(PrivacyBudgetExhausted):
        for number in range(1, 31):
            ledger.reserve(round=number)
    assert 3 < ledger.rounds_spent < 30
    assert len(asked) <= 3
    assert (
        ledger.epsilon().best
        <= 3.0
        < epsilon({PLAN.event_of(1): ledger.rounds_spent + 1}, 1e-3).pld
    )
