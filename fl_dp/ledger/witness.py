"""Witnesses: a second place that notes how far a ledger has come, after each entry.

An older copy that is put back verifies like the newest, but lacks what was spent since. A witness,
on another disk or in another database, shows this at opening. It holds no name and no charge, only
the number of entries and the last hash.

    >>> witness = witness_at("/mnt/second-disk/witness/site-a.heads")
    >>> with PrivacyLedger.open("ledger.db", plan, witness=witness) as ledger:
    ...     ...  # every entry is witnessed before anything is released

An adversary who can write both places can still put both back. A file that the system only lets
grow (an append-only attribute, a write-once share) or a database with another owner prevents that.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from fl_dp.codec import decode_text, encode, encode_text
from fl_dp.files import private_file

from .anchors import LedgerAnchor
from .entries import LedgerCorrupted, LedgerUnavailable
from .store import postgresql_engine

_METADATA = sa.MetaData()
_TABLE = sa.Table(
    "ledger_heads",
    _METADATA,
    sa.Column("entries", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("hash", sa.String(64), nullable=False),
)


class Witness(ABC):
    """A second place that notes how far one ledger has come.

    Attributes:
        location: The file or database, without a password.
    """

    location: str

    @abstractmethod
    def anchors(self) -> list[LedgerAnchor]:
        """Return all noted anchors, none before the ledger's first entry.

        Raises:
            LedgerCorrupted: The file or table is no witness.
            LedgerUnavailable: It can't be read.
        """

    @abstractmethod
    def note(self, anchor: LedgerAnchor, hash_at: Callable[[int], str]) -> LedgerAnchor:
        """Note an anchor that the ledger has reached, unless a later one is noted.

        It is on disk when this returns. Nobody else reads or writes meanwhile: of two copies that
        reach a point together, one is refused, even if both wrote the same entry.

        Args:
            anchor: Noted once, by the process that wrote the entry.
            hash_at: Returns an entry's hash by its number, up to there.

        Returns:
            The furthest anchor, which another process may have noted before.

        Raises:
            LedgerCorrupted: Another process noted that anchor, or the ledger lacks the furthest
                one noted before.
            LedgerUnavailable: It can't be read or written.
        """

    def _furthest(
        self,
        noted: Sequence[LedgerAnchor],
        reached: LedgerAnchor,
        hash_at: Callable[[int], str],
    ) -> LedgerAnchor:
        """Return the furthest anchor: `reached` itself if it is beyond all noted ones."""
        if not noted:
            return reached
        last = max(noted, key=lambda anchor: anchor.entries)
        if last.entries > reached.entries:
            return last
        # Equal ones, too: a second copy may have written the same, and released it again.
        if last.entries == reached.entries or last.hash != hash_at(last.entries):
            raise LedgerCorrupted(
                f"the witness {self.location} has another copy's entry {last.entries}: two copies "
                "of one ledger are being charged. Stop both, and keep the one that the witness "
                "knows"
            )
        return reached

    def require_apart(self, ledger: Path | None) -> None:
        """Refuse a location that would be put back with the ledger; only a file can be.

        Raises:
            ValueError: It lies in the ledger's own folder.
        """
        del ledger


class FileWitness(Witness):
    """A file that only grows, one line of JSON per entry."""

    def __init__(self, path: Path) -> None:
        """Name the file, by an absolute path on another disk or share than the ledger.

        The first note creates it.
        """
        self._path = path
        self.location = str(path)

    def anchors(self) -> list[LedgerAnchor]:
        """Return the anchors of all lines, in order."""
        # A missing folder is a disk that is not mounted: an empty witness would look the same.
        if not self._path.parent.is_dir():
            raise self._unavailable("its folder is not there; is its disk mounted?")
        try:
            return self._read(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(str(error)) from error

    def _read(self, content: bytes) -> list[LedgerAnchor]:
        """Return the anchors of all lines."""
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise self._unavailable(str(error)) from error
        # A line that a power cut tore has no end; then the ledger is ahead, which does no harm.
        lines = [line for line in text.splitlines() if line.endswith("}")]
        try:
            return [decode_text(LedgerAnchor, line) for line in lines]
        except ValueError as error:
            raise LedgerCorrupted(f"{self.location} is no witness of a ledger: {error}") from error

    def note(self, anchor: LedgerAnchor, hash_at: Callable[[int], str]) -> LedgerAnchor:
        """Add a line, unless another process of the same ledger has."""
        try:
            private_file(self._path)
            # Opened to read and to append: an append-only file allows no more.
            with self._path.open("a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed, or the process ends
                file.seek(0)
                noted = self._read(file.read())
                furthest = self._furthest(noted, anchor, hash_at)
                if furthest is anchor:
                    # One write, with a line break on both sides: a torn line stays by itself.
                    file.write(f"\n{encode_text(anchor)}\n".encode())
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._unavailable(str(error)) from error
        return furthest

    def require_apart(self, ledger: Path | None) -> None:
        """Refuse the ledger's own folder."""
        if ledger is not None and self._path.resolve().parent == ledger.resolve().parent:
            raise ValueError(
                f"the witness {self.location} lies in the ledger's own folder, and whoever puts an "
                "older copy of that folder back puts the witness back too: name a file on another "
                "disk"
            )

    def _unavailable(self, reason: str) -> LedgerUnavailable:
        return LedgerUnavailable(_cannot_witness(self.location, reason))


class TableWitness(Witness):
    """A table `ledger_heads` in a PostgreSQL database, one ledger per database or schema."""

    def __init__(self, url: str) -> None:
        """Name the database, for example `postgresql+psycopg://user@host/database`.

        Raises:
            ValueError: It is another kind of database.
        """
        self._engine, self.location = postgresql_engine(url, writable=True)

    def anchors(self) -> list[LedgerAnchor]:
        """Return the anchors of all rows, in order."""
        try:
            with self._engine.begin() as connection:
                if not sa.inspect(connection).has_table(_TABLE.name):
                    return []  # no table is made: an auditor may have the right to read alone
                rows = connection.execute(sa.select(_TABLE).order_by(_TABLE.c.entries)).all()
        except sa.exc.DBAPIError as error:
            raise self._unavailable(error) from error
        return [LedgerAnchor(entries=entries, hash=hash) for entries, hash in rows]

    def note(self, anchor: LedgerAnchor, hash_at: Callable[[int], str]) -> LedgerAnchor:
        """Add a row, unless another process of the same ledger has."""
        try:
            with self._engine.begin() as connection:
                _METADATA.create_all(connection)
                last = sa.select(_TABLE).order_by(_TABLE.c.entries.desc()).limit(1)
                noted = [
                    LedgerAnchor(entries=entries, hash=hash)
                    for entries, hash in connection.execute(last)
                ]
                furthest = self._furthest(noted, anchor, hash_at)
                if furthest is anchor:
                    connection.execute(sa.insert(_TABLE).values(encode(anchor)))
        except sa.exc.DBAPIError as error:
            raise self._unavailable(error) from error
        return furthest

    def _unavailable(self, error: sa.exc.DBAPIError) -> LedgerUnavailable:
        reason = " ".join(str(error.orig).split())
        return LedgerUnavailable(_cannot_witness(self.location, reason))


def witness_at(location: str | Path) -> Witness:
    """Return the witness at an absolute path or a PostgreSQL URL.

    A URL looks like `postgresql+psycopg://user@host/database`.

    Raises:
        ValueError: The path is relative, or the URL is of another database.
    """
    if isinstance(location, str) and location.startswith("sqlite"):
        raise ValueError(
            f"a ledger's witness in a file is no database, got '{location}': write its path alone"
        )
    if isinstance(location, str) and "://" in location:
        return TableWitness(location)
    path = Path(location).expanduser()
    if not path.is_absolute():
        raise ValueError(
            f"the place of a ledger's witness must be absolute, got '{location}': write "
            "/mnt/second-disk/witness/site-a.heads, or postgresql+psycopg://user@host/database"
        )
    return FileWitness(path)


def _cannot_witness(location: str, reason: str) -> str:
    return (
        f"the ledger's witness {location} can't be read or written: {reason}. Nothing is released "
        "without it: mend that, then continue with the same ledger"
    )
