"""The directory of a run: every node's public keys, signed.

Within sums a node is named by its *index*, that of its entry here. A node that is new or has lost
its keys is appended in a new epoch. Earlier entries stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Self

from fl_dp.documents import parsed_object

from .key_pairs import KEY_BYTES, SIGNATURE_BYTES, Identity, RunKey, is_signed
from .roster import Roster
from .texts import (
    canonical,
    digest,
    fields_of,
    frame,
    hex_bytes,
    object_of,
    require_integers,
    require_name,
)

ALL_MEMBERS = 20  # with no more nodes than this, the roster's choice of members is ignored
MOST_RUNS = 2**64 - 1  # Flower's run ids
MOST_EPOCHS = 2**32 - 1
MOST_ENTRIES = 10_000
"""Largest directory. For more than some thousand nodes, sums of sums are planned."""
_LONGEST_ENTRY, _ROOM = 700, 100_000  # characters: of one entry, and spare for long names


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A node in the directory of a run.

    Attributes:
        name: The owner's name for the node, printable, at most 200 characters.
        identity: Public Ed25519 key, 32 bytes.
        run_key: Public X25519 key, 32 bytes.
        signature: The identity's signature over run, epoch, name and both keys, 64 bytes.
        epoch: Epoch of the first directory with this entry.
    """

    name: str
    identity: bytes
    run_key: bytes
    signature: bytes
    epoch: int

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A name, an epoch or the length of a key is out of range.
        """
        require_name(name=self.name)
        require_integers(0, MOST_EPOCHS, epoch=self.epoch)
        for label, value, length in (
            ("identity", self.identity, KEY_BYTES),
            ("run key", self.run_key, KEY_BYTES),
            ("signature", self.signature, SIGNATURE_BYTES),
        ):
            if not isinstance(value, bytes) or len(value) != length:
                raise ValueError(f"the {label} of '{self.name}' must be {length} bytes")

    @classmethod
    def make(cls, run: int, epoch: int, name: str, identity: Identity, key: RunKey) -> Self:
        """A node's own entry, signed."""
        text = _signed_text(run, epoch, name, identity.public, key.public)
        return cls(
            name=name,
            identity=identity.public,
            run_key=key.public,
            signature=identity.sign(text),
            epoch=epoch,
        )

    def is_signed(self, run: int) -> bool:
        """Tell whether it is signed for this run."""
        text = _signed_text(run, self.epoch, self.name, self.identity, self.run_key)
        return is_signed(self.identity, self.signature, text)

    def check(self, run: int) -> None:
        """Check its signature for this run, and that its run key hides something.

        Raises:
            ValueError: One of the two fails.
        """
        if not self.is_signed(run):
            raise ValueError(f"the entry of '{self.name}' is not signed for this run")
        try:
            RunKey.generate().root(self.run_key)
        except ValueError as error:  # of low order: with any other key it gives zero
            raise ValueError(f"the run key of '{self.name}' is no key") from error

    def to_dict(self) -> dict[str, str | int]:
        """Its fields, bytes in hex, as JSON and a ConfigRecord take them."""
        return {
            "name": self.name,
            "identity": self.identity.hex(),
            "run_key": self.run_key.hex(),
            "signature": self.signature.hex(),
            "epoch": self.epoch,
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read JSON text of `to_dict`.

        Raises:
            ValueError: The text is anything else.
        """
        longest = _LONGEST_ENTRY + _ROOM
        return cls.from_dict(parsed_object(text, "entry of a directory", longest=longest))

    @classmethod
    def from_dict(cls, fields: Any) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: The document is anything else.
        """
        keys = ("name", "identity", "run_key", "signature", "epoch")
        fields = fields_of(fields, keys, "entries of a directory")
        return cls(
            name=fields["name"],
            identity=hex_bytes(fields["identity"], KEY_BYTES, "identity"),
            run_key=hex_bytes(fields["run_key"], KEY_BYTES, "run_key"),
            signature=hex_bytes(fields["signature"], SIGNATURE_BYTES, "signature"),
            epoch=fields["epoch"],
        )


def _signed_text(run: int, epoch: int, name: str, identity: bytes, run_key: bytes) -> bytes:
    return frame("entry", run, epoch, name.encode(), identity, run_key)


@dataclass(frozen=True, kw_only=True)
class Directory:
    """Public keys of all nodes in one run.

    Attributes:
        run: Flower's run id.
        epoch: 0, and one more each time that entries are appended.
        roster_hash: Hash of the roster by which nodes are known, in hex. Empty: there is none.
        entries: Those of epoch 0, then those of epoch 1, ...; within an epoch by identity.
    """

    run: int
    epoch: int
    roster_hash: str
    entries: tuple[Entry, ...]

    @classmethod
    def first(cls, run: int, entries: Iterable[Entry], *, roster_hash: str = "") -> Self:
        """The directory of epoch 0, its entries put in order.

        Raises:
            ValueError: As `check`.
        """
        directory = cls(run=run, epoch=0, roster_hash=roster_hash, entries=_in_order(entries))
        directory.check()
        return directory

    def extended(self, entries: Iterable[Entry]) -> Directory:
        """The directory of the next epoch.

        `entries` are that epoch's: nodes that are new or lost their keys.

        Raises:
            ValueError: As `check`.
        """
        directory = Directory(
            run=self.run,
            epoch=self.epoch + 1,
            roster_hash=self.roster_hash,
            entries=self.entries + _in_order(entries),
        )
        directory.check()
        return directory

    @cached_property
    def hash(self) -> bytes:
        """Digest, 32 bytes: equal at all nodes that hold the same directory."""
        parts: list[bytes | int] = [self.run, self.epoch, self.roster_hash.encode()]
        for entry in self.entries:
            parts += [entry.name.encode(), entry.identity, entry.run_key]
            parts += [entry.signature, entry.epoch]
        return digest("directory", *parts)

    @cached_property
    def index_of(self) -> dict[bytes, int]:
        """Each identity's index: that of its last entry, as older keys are lost."""
        return {entry.identity: index for index, entry in enumerate(self.entries)}

    @cached_property
    def current(self) -> tuple[int, ...]:
        """Indices of each identity's last entry, ascending."""
        return tuple(sorted(self.index_of.values()))

    def continues(self, earlier: Directory) -> bool:
        """Tell whether it is `earlier`, or that with entries appended."""
        return (
            self.run == earlier.run
            and self.roster_hash == earlier.roster_hash
            and (self.epoch > earlier.epoch or self == earlier)
            and self.entries[: len(earlier.entries)] == earlier.entries
        )

    def committee(self, size: int, roster: Roster | None = None) -> tuple[int, ...]:
        """Indices of the members, who hold shares, ascending.

        Beyond 20 nodes they are those whom people chose in the roster, if any. Otherwise they are
        all nodes, or the `size` smallest hashes if there are more. Security does not rest on
        chance here: all colluding nodes may be in it.
        """
        many = len(self.current) > ALL_MEMBERS
        if roster is not None and many and roster.chosen:
            chosen = roster.chosen
            return tuple(index for index in self.current if self.entries[index].identity in chosen)
        if len(self.current) <= size:
            return self.current
        return tuple(sorted(self._ranked[:size]))

    @cached_property
    def _ranked(self) -> list[int]:
        """Current indices, in an order that can't be known before the directory is complete."""

        def rank(index: int) -> bytes:
            return digest("committee", self.hash, self.entries[index].identity)

        return sorted(self.current, key=rank)

    def strangers(self, roster: Roster) -> list[str]:
        """An error for each part outside an owner's roster."""
        errors = []
        if self.roster_hash != roster.hash:
            errors.append("the directory is not of this roster")
        for entry in self.entries:
            if not roster.allows(entry.name, entry.identity):
                errors.append(f"'{entry.name}' is not in the roster with that key")
        return errors

    def check(self) -> None:
        """Check all that needs no secret.

        Raises:
            ValueError: An entry is out of order or not signed, two nodes share a name, identity or
                run key, or secrets made with a run key would be public.
        """
        require_integers(0, MOST_RUNS, run=self.run)
        require_integers(0, MOST_EPOCHS, epoch=self.epoch)
        hash_bytes = KEY_BYTES if self.roster_hash else 0
        hex_bytes(self.roster_hash, hash_bytes, "roster_hash")
        if not self.entries or self.entries[-1].epoch != self.epoch:
            raise ValueError(f"no entry is of the directory's epoch, {self.epoch}")
        order = [(entry.epoch, entry.identity) for entry in self.entries]
        if any(one >= following for one, following in pairwise(order)):
            raise ValueError("entries must be in order of epoch and identity, each once")
        if len({entry.run_key for entry in self.entries}) < len(self.entries):
            raise ValueError("a run key stands in the directory twice")
        named = {(entry.name, entry.identity) for entry in self.entries}
        if not len(named) == len({name for name, _ in named}) == len(self.index_of):
            raise ValueError("a name stands for two identities, or an identity for two names")
        _check_keys(self)

    def to_json(self) -> str:
        """Return it as JSON text."""
        return canonical(
            {
                "run": self.run,
                "epoch": self.epoch,
                "roster_hash": self.roster_hash,
                "entries": [entry.to_dict() for entry in self.entries],
            }
        )

    @classmethod
    def from_json(cls, text: str, *, most: int = MOST_ENTRIES) -> Self:
        """Read what `to_json` wrote, with at most `most` entries. Call `check` before its use.

        Raises:
            ValueError: The text is anything else.
        """
        keys = ("run", "epoch", "roster_hash", "entries")
        fields = object_of(text, keys, "directories", longest=_LONGEST_ENTRY * most + _ROOM)
        require_integers(0, MOST_RUNS, run=fields["run"])
        require_integers(0, MOST_EPOCHS, epoch=fields["epoch"])
        if not isinstance(fields["entries"], list) or not isinstance(fields["roster_hash"], str):
            raise ValueError("entries must be a list, and roster_hash a text")
        if len(fields["entries"]) > most:
            raise ValueError(f"entries must be at most {most}, got {len(fields['entries'])}")
        return cls(
            run=fields["run"],
            epoch=fields["epoch"],
            roster_hash=fields["roster_hash"],
            entries=tuple(map(Entry.from_dict, fields["entries"])),
        )


@lru_cache(maxsize=4)  # nodes of one process hold the same directory; 0.2 ms per entry
def _check_keys(directory: Directory) -> None:
    """Check each entry's signature, and that its run key hides something."""
    for entry in directory.entries:
        entry.check(directory.run)


def _in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.identity))
