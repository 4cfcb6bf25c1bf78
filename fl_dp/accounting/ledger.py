"""The durable record of what was spent, written before it is spent.

One append-only, hash-chained table in SQLite. A round is *reserved* on disk before anyone is
sampled and *committed* after its release. A crash in between leaves it spent: whether the model got
out is then unknown, so the answer is yes. Records are only ever added, never changed; what is spent
is replayed from them whenever the ledger is opened, and before every reservation, so that two
processes with one ledger can't spend the same budget twice.

    >>> with PrivacyLedger.open("ledger.db", plan) as ledger:
    ...     reservation = ledger.reserve(round=1)  # on disk; raises PrivacyBudgetExhausted
    ...     ...                                    # sample, train, add noise, release
    ...     ledger.commit(reservation)
"""

from __future__ import annotations

import platform
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from fl_dp.mechanisms import SecureRandom

from .bounds import SEARCH_INTERVAL, EpsilonBounds, epsilon, pld_epsilon
from .budget import PrivacyBudgetExhausted
from .events import PoissonGaussianEvent
from .plan import PrivacyPlan, affordable_rounds
from .records import SCHEMA, LedgerCorrupted, LedgerRecord, next_record, verify_chain

_METADATA = sa.MetaData()
_TABLE = sa.Table(
    "records",
    _METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
_EVENT_KIND = "poisson-gaussian"
_RECORDED_LIBRARIES = ("fl-dp", "flwr", "dp-accounting", "numpy", "cryptography")


class PlanMismatch(ValueError):
    """A ledger was opened with another plan than the one that it was started with."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A round that is on disk as spent and may now be run, once."""

    sequence: int
    round: int


class PrivacyLedger:
    """What one plan has spent. Open it with `open` (to train) or `read` (to look)."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Use `open` or `read` instead."""
        self.path = path
        self._engine = _sqlite_engine(path, writable=writable)
        self._run_id = uuid.uuid4().hex
        self._certified: Counter[PoissonGaussianEvent] = Counter()
        self._records: list[LedgerRecord] = []
        self._unsaved: list[LedgerRecord] = []
        self._plan: PrivacyPlan | None = None
        self._history: Counter[PoissonGaussianEvent] = Counter()
        self._attempts: Counter[int] = Counter()
        self._committed: set[int] = set()

    @classmethod
    def open(cls, path: str | Path, plan: PrivacyPlan, *, run_id: str | None = None) -> Self:
        """Open the ledger of `plan` to spend from, creating it if there is none.

        Args:
            path: The SQLite file. Keep it as long as the promise is to hold.
            plan: What will be released; must equal the plan that the ledger was started with.
            run_id: A name for this opening in the records; a random one by default.

        Raises:
            PlanMismatch: With every difference named.
            LedgerCorrupted: If a record does not match the chain.
            FileNotFoundError: If the folder does not exist.
        """
        path = Path(path).expanduser().resolve()
        if not path.parent.is_dir():
            raise FileNotFoundError(f"no folder {path.parent} to keep the privacy ledger in")
        ledger = cls(path, writable=True)
        if run_id is not None:
            ledger._run_id = run_id
        try:
            with ledger._transaction(create=True) as connection:
                if ledger._plan is None:
                    opening = {"kind": "plan", "schema": SCHEMA, "plan": plan.to_dict()}
                    ledger._append(connection, opening)
                else:
                    _require_same_plan(ledger._plan, plan)
                ledger._append(connection, ledger._run_fields(plan))
        except Exception:
            ledger.close()
            raise
        return ledger

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Open a ledger to look at it; nothing can be spent or changed.

        Raises:
            FileNotFoundError: If there is no such file.
            LedgerCorrupted: If it is not a ledger or a record does not match the chain.
        """
        path = Path(path).expanduser().resolve()
        if not path.is_file():
            raise FileNotFoundError(f"no ledger at {path}")
        ledger = cls(path, writable=False)
        try:
            with ledger._transaction():
                if ledger._plan is None:
                    raise LedgerCorrupted(f"{path} holds no plan")
        except Exception:
            ledger.close()
            raise
        return ledger

    @property
    def plan(self) -> PrivacyPlan:
        """The plan that the ledger was started with."""
        assert self._plan is not None  # both ways to open a ledger see to it
        return self._plan

    @property
    def records(self) -> tuple[LedgerRecord, ...]:
        """Every record, as last read."""
        return tuple(self._records)

    @property
    def rounds_spent(self) -> int:
        """Rounds that were reserved, whether or not they were committed."""
        return self._history.total()

    @property
    def rounds_committed(self) -> int:
        """Rounds whose release is known to have happened."""
        return len(self._committed)

    def epsilon(self) -> EpsilonBounds:
        """Return what every reserved round spends together, at the plan's delta."""
        return epsilon(
            self._history,
            self.plan.budget.delta,
            neighboring_relation=self.plan.neighboring_relation,
        )

    def running_epsilon(self) -> float:
        """Return a PLD bound that is coarser and quick enough to ask for after every round.

        Nothing was ever reserved beyond the budget, so the budget bounds it too.
        """
        coarse = pld_epsilon(
            self._history,
            self.plan.budget.delta,
            neighboring_relation=self.plan.neighboring_relation,
            interval=SEARCH_INTERVAL,
        )
        return min(coarse, self.plan.budget.epsilon)

    def reserve(self, *, round: int) -> Reservation:
        """Write one round to disk as spent, before anything of it happens.

        Args:
            round: Its number in the training, from 1. A second attempt is charged again.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing is written.
        """
        event = self.plan.event
        with self._transaction() as connection:
            if not self._affordable(event):
                raise PrivacyBudgetExhausted(
                    f"round {round} would exceed epsilon {self.plan.budget.epsilon:.4g} at delta "
                    f"{self.plan.budget.delta:.3g}: {self.rounds_spent} rounds are spent"
                )
            record = self._append(
                connection,
                {
                    "kind": "reserve",
                    "run": self._run_id,
                    "round": round,
                    "attempt": self._attempts[round] + 1,
                    "event": _EVENT_KIND,
                    "noise_multiplier": event.noise_multiplier,
                    "sampling_rate": event.sampling_rate,
                    "time": _now(),
                },
            )
        return Reservation(sequence=record.sequence, round=round)

    def commit(self, reservation: Reservation) -> None:
        """Note that the reserved round's release has happened.

        Raises:
            ValueError: If it was committed before or is not a reservation of this ledger.
        """
        with self._transaction() as connection:
            if reservation.sequence in self._committed:
                raise ValueError(f"round {reservation.round} was committed before")
            self._append(
                connection, {"kind": "commit", "reserved": reservation.sequence, "time": _now()}
            )

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; what was reserved stays spent."""
        self.close()

    def _affordable(self, event: PoissonGaussianEvent) -> bool:
        """Whether one more `event` fits; whole stretches are certified at once, so it is cheap.

        Epsilon only grows with more releases: once a longer history is known to fit, so does
        every history inside it.
        """
        wanted = self._history + Counter({event: 1})
        if wanted <= self._certified:
            return True
        further = affordable_rounds(
            self._history,
            event,
            self.plan.budget,
            at_most=max(1, self.plan.rounds - self._history[event]),
            neighboring_relation=self.plan.neighboring_relation,
        )
        self._certified = self._history + Counter({event: further})
        return further > 0

    @contextmanager
    def _transaction(self, *, create: bool = False) -> Iterator[sa.Connection]:
        """Hold the file's lock, with every record of it replayed; all or nothing is written."""
        self._unsaved = []
        try:
            with self._engine.begin() as connection:
                if create:
                    _METADATA.create_all(connection)
                self._catch_up(connection)
                yield connection
        except sa.exc.DatabaseError as error:
            raise LedgerCorrupted(f"{self.path} can't be read or written: {error.orig}") from error
        for record in self._unsaved:  # only now is it on disk
            self._replay(record)

    def _catch_up(self, connection: sa.Connection) -> None:
        """Read, verify and replay the records that were added since the last look."""
        known = len(self._records)
        rows = connection.execute(
            sa.select(_TABLE).where(_TABLE.c.sequence > known).order_by(_TABLE.c.sequence)
        )
        fresh = [LedgerRecord(sequence=s, payload=p, hash=h) for s, p, h in rows]
        verify_chain(fresh, self._records[-1] if self._records else None)
        for record in fresh:
            self._replay(record)

    def _append(self, connection: sa.Connection, fields: dict[str, Any]) -> LedgerRecord:
        written = self._unsaved or self._records
        record = next_record(written[-1] if written else None, fields)
        connection.execute(
            sa.insert(_TABLE).values(
                sequence=record.sequence, payload=record.payload, hash=record.hash
            )
        )
        self._unsaved.append(record)
        return record

    def _replay(self, record: LedgerRecord) -> None:
        """Take in one verified record."""
        fields = record.fields
        match record.kind:
            case "plan" if record.sequence == 1 and fields["schema"] == SCHEMA:
                self._plan = PrivacyPlan.from_dict(fields["plan"])
            case "run":
                pass
            case "reserve" if fields["event"] == _EVENT_KIND:
                event = PoissonGaussianEvent(
                    noise_multiplier=fields["noise_multiplier"],
                    sampling_rate=fields["sampling_rate"],
                )
                self._history[event] += 1
                self._attempts[fields["round"]] += 1
            case "commit":
                self._committed.add(fields["reserved"])
            case _:
                # Failing closed: an unknown record may be a charge that this version can't read.
                raise LedgerCorrupted(
                    f"record {record.sequence} of kind '{record.kind}' is unknown to this version"
                )
        self._records.append(record)

    def _run_fields(self, plan: PrivacyPlan) -> dict[str, Any]:
        return {
            "kind": "run",
            "run": self._run_id,
            "unit": "client",
            "sampling": "poisson",
            "sensitivity": plan.clipping_norm,
            "noise_std": plan.mechanism.noise_std,
            "denominator": plan.denominator,
            "grid": plan.mechanism.grid,
            "randomness": SecureRandom.kind,
            "versions": library_versions(),
            "time": _now(),
        }


def library_versions() -> dict[str, str]:
    """Return the installed versions of what a privacy number depends on."""
    versions = {"python": platform.python_version()}
    for name in _RECORDED_LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _require_same_plan(ledger: PrivacyPlan, wanted: PrivacyPlan) -> None:
    theirs, ours = ledger.to_dict(), wanted.to_dict()
    differences = [
        f"{name} is {ours[name]} here and {theirs[name]} in the ledger"
        for name in ours
        if ours[name] != theirs[name]
    ]
    if differences:
        raise PlanMismatch(
            "this ledger belongs to another plan: "
            + "; ".join(differences)
            + ". Train with the ledger's plan, or start a new ledger: its spending adds up with "
            "this one's if the clients are the same"
        )


def _sqlite_engine(path: Path, *, writable: bool) -> sa.Engine:
    mode = "rwc" if writable else "ro"
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: _connect(path, mode),
        poolclass=sa.pool.NullPool,
    )

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # Takes the write lock before the replay, so that nobody can reserve in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writable else "BEGIN")

    return engine


def _connect(path: Path, mode: str) -> Any:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=60.0, isolation_level=None
    )
    # EXTRA also syncs the folder: a reservation survives a power cut right after it.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
