"""The roster: which names and identities an owner accepts, in a file that the owner keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from fl_dp.files import read_json_object

from .key_pairs import KEY_BYTES
from .texts import digest, fields_of, hex_bytes, require_name


@dataclass(frozen=True, kw_only=True)
class Member:
    """A line of the roster.

    Attributes:
        identity: Public Ed25519 key, 32 bytes.
        committee: Whether people chose it to hold shares.
    """

    name: str
    identity: bytes
    committee: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A field has a wrong type or length.
        """
        require_name(name=self.name)
        if not isinstance(self.identity, bytes) or len(self.identity) != KEY_BYTES:
            raise ValueError(f"the identity of '{self.name}' must be {KEY_BYTES} bytes")
        if not isinstance(self.committee, bool):
            raise ValueError(f"committee of '{self.name}' must be true or false")

    @classmethod
    def from_line(cls, line: Any) -> Self:
        """Read a line of the file.

        Raises:
            ValueError: It is no such line.
        """
        if isinstance(line, dict):
            line = {"committee": False} | line
        fields = fields_of(line, ("name", "identity", "committee"), "lines of a roster")
        identity = hex_bytes(fields["identity"], KEY_BYTES, "identity in a roster")
        return cls(name=fields["name"], identity=identity, committee=fields["committee"])


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The nodes that owners know; each name and each identity stands once."""

    federation: str
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A name or an identity stands twice.
        """
        require_name(federation=self.federation)
        for label, values in (
            ("name", [member.name for member in self.members]),
            ("identity", [member.identity.hex() for member in self.members]),
        ):
            repeated = [value for value, times in Counter(values).items() if times > 1]
            if repeated:
                raise ValueError(f"the {label} {min(repeated)} stands twice in the roster")

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Read `{"federation": ..., "members": [{"name", "identity" (hex), "committee"}]}`.

        Raises:
            OSError: The file can't be read.
            ValueError: It is no roster, or a name or identity stands twice.
        """
        document = read_json_object(file, "roster")
        try:
            fields = fields_of(document, ("federation", "members"), "rosters")
            if not isinstance(fields["members"], list):
                raise ValueError("members must be a list")
            members = tuple(Member.from_line(line) for line in fields["members"])
            return cls(federation=fields["federation"], members=members)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    @cached_property
    def hash(self) -> str:
        """Hash of the content, in hex. The file's order and form do not matter."""
        parts: list[bytes | int] = [self.federation.encode()]
        for member in sorted(self.members, key=lambda member: member.identity):
            parts += [member.name.encode(), member.identity, int(member.committee)]
        return digest("roster", *parts).hex()

    @property
    def chosen(self) -> frozenset[bytes]:
        """Identities that people chose for the committee."""
        return frozenset(member.identity for member in self.members if member.committee)

    def allows(self, name: str, identity: bytes) -> bool:
        """Tell whether name and identity go together."""
        return (name, identity) in self._pairs

    @cached_property
    def _pairs(self) -> frozenset[tuple[str, bytes]]:
        return frozenset((member.name, member.identity) for member in self.members)
