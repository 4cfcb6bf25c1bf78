"""The ledger in both databases: written first, replayed, never changed, never overdrawn."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from flat_plans import noised_plan
from ledger_files import kill_when_reserved, race
from postgres_server import PostgresServer
from postgres_server import postgres_server as postgres_server

from fl_dp import PrivacyLedger
from fl_dp.accounting import PoissonSampling, PrivacyBudgetExhausted
from fl_dp.ledger import LedgerCorrupted, LedgerUnavailable, Reservation
from fl_dp.mechanisms import FixedClipping
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import OptionError

PLAN = noised_plan(
    1.0, delta=1e-3, rounds=5, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)
LONG_PLAN = noised_plan(
    4.0, delta=1e-3, rounds=40, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)
ON_POSTGRES = pytest.mark.xdist_group("postgres")


@dataclass(frozen=True)
class Place:
    """Where a ledger lies, and a way to get at its table behind its back."""

    location: str
    connect: Callable[[], Any]
    mark: str

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(statement.replace("?", self.mark), values)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows

    def rows(self) -> list[Any]:
        return self.execute("SELECT sequence, payload, hash FROM entries ORDER BY sequence")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=ON_POSTGRES)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        file = tmp_path / "ledger.db"
        return Place(str(file), lambda: sqlite3.connect(file), "?")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = server.new_database()
    return Place(server.url(database), lambda: server.connect(database), "%s")


@pytest.fixture
def spent(place: Place) -> Place:
    """A place with a ledger of which three rounds are spent."""
    spend(place.location, 3)
    return place


def spend(location: str | Path, rounds: int) -> None:
    with PrivacyLedger.open(location, PLAN) as ledger:
        for number in range(1, rounds + 1):
            ledger.commit(ledger.reserve(round=number))


def test_a_round_is_on_disk_before_reserve_returns(place: Place) -> None:
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        ledger.reserve(round=1)
        assert PrivacyLedger.read(place.location).rounds_spent == 1


def test_the_budget_is_spent_exactly_and_never_exceeded(place: Place) -> None:
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        for number in range(1, 6):
            ledger.commit(ledger.reserve(round=number))
        before = place.rows()
        with pytest.raises(PrivacyBudgetExhausted, match="round 6"):
            ledger.reserve(round=6)
        with pytest.raises(PrivacyBudgetExhausted, match="5 rounds are spent"):
            ledger.reserve(round=5)
        assert place.rows() == before
        assert ledger.epsilon().pld <= PLAN.budget.epsilon
        assert ledger.running_epsilon() <= PLAN.budget.epsilon


def test_what_was_reserved_stays_spent_after_a_restart(place: Place) -> None:
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.reserve(round=2)  # and the process ends here
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 1)
        for number in (2, 3, 4):
            ledger.reserve(round=number)
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.reserve(round=5)
        attempts = [r.fields["attempt"] for r in ledger.entries if r.kind == "reserve"]
        assert attempts == [1, 1, 2, 1, 1]


def test_kill_nine_between_reserve_and_commit_leaves_the_round_spent(place: Place) -> None:
    spend(place.location, 1)
    kill_when_reserved(
        f"""
        import time
        from fl_dp.ledger import PrivacyLedger
        plan = PrivacyLedger.read({place.location!r}).plan
        PrivacyLedger.open({place.location!r}, plan).reserve(round=2)
        print("reserved", flush=True)
        time.sleep(60)
        """
    )
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 1.1),
        ("sampling.sampling_rate", PoissonSampling(sampling_rate=0.2)),
        ("clipping.norm", FixedClipping(norm=2.0)),
        ("units_per_node", 2),
        ("rounds", 6),
        ("num_clients", 100),
        ("other_releases", ((GaussianEvent(noise_multiplier=9.0), 1),)),
    ],
)
def test_another_plan_is_refused_with_the_difference_named(
    spent: Place, field: str, value: Any
) -> None:
    before = spent.rows()
    wrong = f"has another plan: {field} is .* here and .* ledger.* another name="
    with pytest.raises(OptionError, match=wrong):
        PrivacyLedger.open(spent.location, replace(PLAN, **{field.partition(".")[0]: value}))
    assert spent.rows() == before


def test_replay_equals_live_accounting_and_plain_dp_accounting(place: Place) -> None:
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        for number in range(1, 5):
            ledger.reserve(round=number)
        live = ledger.epsilon()
    ledger = PrivacyLedger.read(place.location)
    assert ledger.epsilon() == live

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    reserved = [entry.fields for entry in ledger.entries if entry.kind == "reserve"]
    charges = Counter((each["sampling_rate"], each["noise_multiplier"]) for each in reserved)
    for (rate, noise_multiplier), count in charges.items():
        gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), count)
    assert live.pld == pytest.approx(accountant.get_epsilon(PLAN.budget.delta), rel=1e-6)


def test_changing_any_character_of_any_entry_is_detected(spent: Place) -> None:
    for sequence, payload, digest in spent.rows():
        for column, text in (("payload", payload), ("hash", digest)):
            set_column = f"UPDATE entries SET {column} = ? WHERE sequence = ?"
            for place_in_text in range(sequence % 5, len(text), 97):
                other = "0" if text[place_in_text] != "0" else "1"
                changed = text[:place_in_text] + other + text[place_in_text + 1 :]
                spent.execute(set_column, (changed, sequence))
                with pytest.raises(LedgerCorrupted, match=f"entry {sequence} "):
                    PrivacyLedger.read(spent.location)
            spent.execute(set_column, (text, sequence))
    assert PrivacyLedger.read(spent.location).rounds_spent == 3


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE sequence = 3",
        "UPDATE entries SET sequence = sequence + 100 WHERE sequence > 4",
        "UPDATE entries SET sequence = 0 WHERE sequence = 8",  # the last one
        "UPDATE entries SET sequence = -1 WHERE sequence = 1",
    ],
)
def test_removed_and_moved_entries_are_detected(spent: Place, statement: str) -> None:
    assert len(spent.rows()) == 8
    spent.execute(statement)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.read(spent.location)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.open(spent.location, PLAN)


def test_an_emptied_ledger_can_not_be_read(spent: Place) -> None:
    spent.execute("DELETE FROM entries")
    with pytest.raises(LedgerCorrupted, match="holds no plan"):
        PrivacyLedger.read(spent.location)


def test_a_ledger_that_is_put_back_while_it_is_open_is_not_spent_from(place: Place) -> None:
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        ledger.reserve(round=1)
        place.execute("DELETE FROM entries WHERE sequence = 3")
        with pytest.raises(LedgerCorrupted, match="entry 3 is not the one that it was"):
            ledger.reserve(round=2)
        assert ledger.rounds_spent == 1
        assert len(place.rows()) == 2


def test_a_ledger_opened_to_read_can_not_spend(spent: Place) -> None:
    before = spent.rows()
    with PrivacyLedger.read(spent.location) as ledger:
        with pytest.raises(LedgerUnavailable, match=r"read-?only.*open it to write"):
            ledger.reserve(round=4)
        assert ledger.rounds_spent == 3
    assert spent.rows() == before


def test_a_reader_sees_what_was_spent_when_it_looked(spent: Place) -> None:
    with PrivacyLedger.open(spent.location, PLAN) as ledger:
        reader = PrivacyLedger.read(spent.location)
        ledger.reserve(round=4)
        assert reader.rounds_spent == 3
        assert PrivacyLedger.read(spent.location).rounds_spent == 4


def test_a_round_is_committed_once_and_only_where_it_was_reserved(place: Place) -> None:
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        reservation = ledger.reserve(round=1)
        with pytest.raises(ValueError, match="elsewhere was not reserved"):
            ledger.commit(replace(reservation, what="elsewhere"))
        for sequence in (0, 1, 99):  # nothing, the plan, the future
            with pytest.raises(ValueError, match="was not reserved in this ledger"):
                ledger.commit(replace(reservation, sequence=sequence))
        ledger.commit(reservation)
        with pytest.raises(ValueError, match="committed before"):
            ledger.commit(reservation)
        assert ledger.rounds_committed == 1


def test_a_round_has_an_index_of_its_own_whoever_reserves_it(place: Place) -> None:
    # Noise with memory goes by it: a retried round, a restart and a second server get new ones.
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        first = ledger.reserve(round=1)
        assert (first.index, ledger.reserve(round=1).index) == (0, 1)
        with PrivacyLedger.open(place.location, PLAN) as other:
            assert other.reserve(round=1).index == 2
        with pytest.raises(ValueError, match="was not reserved in this ledger"):
            ledger.commit(replace(first, index=1))
        ledger.commit(first)
    with PrivacyLedger.open(place.location, PLAN) as ledger:
        assert ledger.reserve(round=2).index == 3


def test_two_processes_can_not_spend_the_same_budget_twice(place: Place) -> None:
    PrivacyLedger.open(place.location, LONG_PLAN).close()
    won = race(
        f"""
        from fl_dp.accounting import PrivacyBudgetExhausted
        from fl_dp.ledger import PrivacyLedger
        plan = PrivacyLedger.read({place.location!r}).plan
        with PrivacyLedger.open({place.location!r}, plan) as ledger:
            print("ready", flush=True)
            input()
            count = 0
            try:
                while True:
                    ledger.commit(ledger.reserve(round=count + 1))
                    count += 1
            except PrivacyBudgetExhausted:
                print(count)
        """
    )
    assert sum(won) == LONG_PLAN.rounds
    with PrivacyLedger.read(place.location) as ledger:
        assert ledger.rounds_spent == ledger.rounds_committed == LONG_PLAN.rounds
        attempts = Counter(
            (entry.fields["round"], entry.fields["attempt"])
            for entry in ledger.entries
            if entry.kind == "reserve"
        )
    assert set(attempts.values()) == {1}  # each knew of the other's


def test_threads_can_share_a_ledger_or_open_their_own(place: Place) -> None:
    start = threading.Barrier(4)

    def reserve_some(ledger: PrivacyLedger | None) -> list[Reservation]:
        start.wait()
        if ledger is None:
            ledger = PrivacyLedger.open(place.location, LONG_PLAN)
        return [ledger.reserve(round=number) for number in range(1, 6)]

    with (
        PrivacyLedger.open(place.location, LONG_PLAN) as shared,
        ThreadPoolExecutor(max_workers=4) as pool,
    ):
        made = list(pool.map(reserve_some, [shared, shared, None, None]))
        sequences = {reservation.sequence for some in made for reservation in some}
        assert len(sequences) == 20
        shared.commit(made[3][4])  # which another ledger object reserved
        assert (shared.rounds_spent, shared.rounds_committed) == (20, 1)
    assert PrivacyLedger.read(place.location).rounds_spent == 20


def test_a_new_ledger_that_many_open_at_once_has_one_plan(place: Place) -> None:
    start = threading.Barrier(4)

    def open_it(_: int) -> int:
        start.wait()
        with PrivacyLedger.open(place.location, PLAN) as ledger:
            return len(ledger.entries)

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert sorted(pool.map(open_it, range(4))) == [2, 3, 4, 5]
    kinds = [entry.kind for entry in PrivacyLedger.read(place.location).entries]
    assert kinds == ["plan", "run", "run", "run", "run"]


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not a database at all, but long enough to look like one" * 40)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.read(path)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.open(path, PLAN)
    with pytest.raises(FileNotFoundError):
        PrivacyLedger.read(tmp_path / "none.db")
    with pytest.raises(ValueError, match="no folder"):
        PrivacyLedger.open(tmp_path / "no" / "folder" / "ledger.db", PLAN)


def test_an_sqlite_url_is_the_file_that_it_names(tmp_path: Path) -> None:
    spend(f"sqlite:///{tmp_path / 'ledger.db'}", 2)
    assert PrivacyLedger.read(tmp_path / "ledger.db").rounds_spent == 2
    with pytest.raises(ValueError, match="name a file"):
        PrivacyLedger.open("sqlite://", PLAN)
    with pytest.raises(ValueError, match="SQLite or PostgreSQL, got 'mysql'"):
        PrivacyLedger.open("mysql://user@host/database", PLAN)


def test_what_a_killed_writer_had_half_done_is_undone_for_a_reader(tmp_path: Path) -> None:
    spend(tmp_path / "ledger.db", 3)
    killed = tmp_path / "killed"
    killed.mkdir()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")  # so that it writes to the file before the end
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE entries SET payload = payload || 'half'")
        for sequence in range(100, 200):
            writer.execute("INSERT INTO entries VALUES (?, ?, 'half')", (sequence, "x" * 4096))
        for file in tmp_path.glob("ledger.db*"):
            (killed / file.name).write_bytes(file.read_bytes())
    assert (killed / "ledger.db-journal").stat().st_size > 0
    assert b"half" in (killed / "ledger.db").read_bytes()
    assert PrivacyLedger.read(killed / "ledger.db").rounds_spent == 3


def test_reading_leaves_the_file_as_it_is_even_where_it_may_not_write(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    spend(path, 2)
    before = path.read_bytes()
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert PrivacyLedger.read(path).rounds_spent == 2
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == before


def test_an_older_ledger_is_refused_and_not_begun_anew_beside_its_table(spent: Place) -> None:
    spent.execute("ALTER TABLE entries RENAME TO records")
    for look in (PrivacyLedger.read, lambda location: PrivacyLedger.open(location, PLAN)):
        with pytest.raises(LedgerCorrupted, match=r"older version of fl-dp.*start a new ledger"):
            look(spent.location)
    spent.execute("CREATE TABLE entries (none_was_made INT)")


def test_a_table_of_another_program_is_no_older_ledger(place: Place) -> None:
    place.execute("CREATE TABLE records (title TEXT)")
    spend(place.location, 1)
    assert PrivacyLedger.read(place.location).rounds_spent == 1


@ON_POSTGRES
def test_a_password_is_shown_nowhere(postgres_server: PostgresServer) -> None:
    database = postgres_server.new_database()
    location = postgres_server.url(
        database, user="postgres:hunter2", query="&password=hunter3&sslpassword=hunter4"
    )
    with PrivacyLedger.open(location, PLAN) as ledger:
        assert ledger.location.startswith("postgresql+psycopg://postgres:***@")
        assert database in ledger.location
        assert "hunter" not in ledger.location + "".join(r.payload for r in ledger.entries)
    absent = postgres_server.url("absent", user="postgres:hunter2", query="&password=hunter3")
    with pytest.raises(LedgerUnavailable, match='database "absent" does not exist') as failure:
        PrivacyLedger.read(absent)
    assert "hunter" not in f"{failure.value} {failure.value.__cause__}"


@ON_POSTGRES
def test_each_schema_holds_a_ledger_of_its_own(postgres_server: PostgresServer) -> None:
    database = postgres_server.new_database()
    with closing(postgres_server.connect(database)) as connection:
        for schema in ("ward_a", "ward_b"):
            connection.execute(f"CREATE SCHEMA {schema}")
    a, b, nowhere = (
        postgres_server.url(database, query=f"&options=-csearch_path={schema}")
        for schema in ("ward_a", "ward_b", "nowhere")
    )
    spend(a, 2)
    with PrivacyLedger.open(b, LONG_PLAN) as ledger:  # another plan, and nothing spent
        ledger.reserve(round=1)
    assert PrivacyLedger.read(a).rounds_spent == 2
    assert PrivacyLedger.read(b).rounds_spent == 1
    with pytest.raises(LedgerUnavailable, match="no schema"):
        PrivacyLedger.open(nowhere, PLAN)
    with pytest.raises(LedgerCorrupted, match="does not exist"):
        PrivacyLedger.read(postgres_server.url(database))


@ON_POSTGRES
def test_a_plain_postgresql_url_is_understood(postgres_server: PostgresServer) -> None:
    location = postgres_server.url(postgres_server.new_database())
    spend(location.replace("postgresql+psycopg://", "postgresql://"), 1)
    assert PrivacyLedger.read(location).rounds_spent == 1


@ON_POSTGRES
def test_a_database_whose_defaults_are_lax_or_strict_changes_nothing(
    postgres_server: PostgresServer,
) -> None:
    """Strict isolation would read as of before the lock; lax commits could be lost in a crash."""
    database = postgres_server.new_database()
    with closing(postgres_server.connect(database)) as connection:
        for setting in (
            "default_transaction_isolation = 'serializable'",
            "synchronous_commit = off",
        ):
            connection.execute(f"ALTER DATABASE {database} SET {setting}")
    location = postgres_server.url(database)
    start = threading.Barrier(2)

    def reserve_some(_: int) -> None:
        with PrivacyLedger.open(location, LONG_PLAN) as ledger:
            start.wait()
            for number in range(1, 11):
                ledger.reserve(round=number)

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(reserve_some, range(2)))
    postgres_server.crash()
    assert PrivacyLedger.read(location).rounds_spent == 20


@ON_POSTGRES
def test_a_ledger_goes_on_after_its_server_was_restarted(postgres_server: PostgresServer) -> None:
    location = postgres_server.url(postgres_server.new_database())
    with PrivacyLedger.open(location, PLAN) as ledger:
        reservation = ledger.reserve(round=1)
        postgres_server.crash()
        ledger.commit(reservation)
        ledger.reserve(round=2)
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 1)
