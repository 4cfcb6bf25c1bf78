"""Who the people of an account are, as digests that confirm no guess.

    >>> population = Population(source="/srv/patients", rows=fingerprint, clients=dealt)
    >>> PrivacyLedger.open("patients.db", plan, population=population)

Two data sets are the same people if they share a source, or all of their rows: a copy under another
path is found by its rows, and changed data by their source. A client is identified by its rows, so
rows that are dealt anew make other clients, whose records are the common unit; natural clients stay
who they are.

A plain digest would confirm a guess of the data. So an account has HMACs alone, and their key is in
a file beside the ledger, for its owner and no auditor.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from fl_dp.files import private_folder, written_whole

from .entries import LedgerUnavailable

NATURAL = "natural"
"""How clients are made that stay who they are: by the data's own names, or as real nodes."""

_KEY_BYTES = 32
_SUFFIX = ".key"


@dataclass(frozen=True, kw_only=True)
class Population:
    """A training's people, as the caller knows them; never written as it is.

    Attributes:
        source: Name of the data's origin, which stays when they change, such as a folder; None:
            they have none.
        rows: A fingerprint of all rows, whatever their order and place; None: unknown.
        clients: A fingerprint of how rows are at clients, or `NATURAL`. None: the caller says that
            they are the account's.
        public: Whether the data are public, as their makers published them; noted when an account
            is made, and never changed by a training.
    """

    source: str | None = None
    rows: str | None = None
    clients: str | None = None
    public: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: Nothing says who they are.
        """
        if self.source is None and self.rows is None:
            raise ValueError("a population needs a source or a fingerprint of its rows")

    def keyed(self, key: bytes) -> AccountPeople:
        """Return the digests that an account keeps."""
        return AccountPeople(
            source=_keyed(key, "source", self.source),
            rows=_keyed(key, "rows", self.rows),
            public=self.public,
        )

    def keyed_clients(self, key: bytes) -> str | None:
        """Return the digest of its clients that an entry keeps."""
        return _keyed(key, "clients", self.clients)


@dataclass(frozen=True, kw_only=True)
class AccountPeople:
    """The people of an account, as it keeps them.

    Attributes:
        source: Keyed digest of the source; None: there is none.
        rows: Keyed digest of all rows; None: unknown.
        public: Whether the data were declared public when the account was made.
    """

    source: str | None
    rows: str | None
    public: bool

    def are(self, others: AccountPeople) -> bool:
        """Tell whether two populations are the same people."""
        pairs = ((self.source, others.source), (self.rows, others.rows))
        return any(one is not None and one == other for one, other in pairs)


def key_file(location: str | Path) -> Path:
    """Return where an account's key lies: beside its file, or for a database in `~/.fl-dp/keys`."""
    if "://" not in str(location):
        return Path(f"{location}{_SUFFIX}")
    name = hashlib.sha256(str(location).rpartition("@")[2].encode()).hexdigest()[:32]
    return Path.home() / ".fl-dp" / "keys" / f"{name}{_SUFFIX}"


def made_key(location: str | Path) -> bytes:
    """Return the key of an account that is made now, from its file, which is written if absent.

    Raises:
        LedgerUnavailable: It can't be read or written.
    """
    file = key_file(location)
    if not file.exists():
        try:
            if not file.parent.exists():
                private_folder(file.parent)
            with written_whole(file) as unfinished:
                unfinished.write_bytes(secrets.token_bytes(_KEY_BYTES))
        except OSError as error:
            raise LedgerUnavailable(
                f"the account's key {file} can't be written: {error}"
            ) from error
    return read_key(location)


def read_key(location: str | Path) -> bytes:
    """Return an account's key.

    Raises:
        LedgerUnavailable: It is missing or damaged.
    """
    file = key_file(location)
    try:
        key = file.read_bytes()
    except OSError as error:
        raise LedgerUnavailable(
            f"the account's key {file} can't be read ({error.strerror}), so nobody can tell "
            "whether a training is of the same people: put it back beside the ledger"
        ) from error
    if len(key) != _KEY_BYTES:
        raise LedgerUnavailable(f"{file} is no key of an account: put the one of its ledger back")
    return key


def digests_of(population: Population, location: str | Path) -> tuple[AccountPeople, str | None]:
    """Return a population and its clients by an account's key. Raises as `read_key`."""
    key = read_key(location)
    return population.keyed(key), population.keyed_clients(key)


def _keyed(key: bytes, kind: str, value: str | None) -> str | None:
    if value is None:
        return None
    return hmac.new(key, f"{kind}\n{value}".encode(), hashlib.sha256).hexdigest()
