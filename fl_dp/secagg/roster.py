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
        name: Of a node.
        identity: Its public Ed25519 key, 32 bytes.
        committee: Whether people chose it to hold shares.
    """

    name: str
    identity: bytes
    committee: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field can't be what it stands for.
        """
        require_name(name=self.name)
        if not isinstance(self.identity, bytes) or len(self.identity) != KEY_BYTES:
            raise ValueError(f"the identity of '{self.name}' must be {KEY_BYTES} bytes")
        if not isinstance(self.committee, bool):
            raise ValueError(f"committee of '{self.name}' must be true or false")

    @classmethod
    def of(cls, line: Any) -> Self:
        """Read a line of the file.

        Raises:
            ValueError: If it is none.
        """
        with_default = {"committee": False} | line if isinstance(line, dict) else line
        fields = fields_of(with_default, ("name", "identity", "committee"), "lines of a roster")
        identity = hex_bytes(fields["identity"], KEY_BYTES, "identity in a roster")
        return cls(name=fields["name"], identity=identity, committee=fields["committee"])


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The nodes that owners know of.

    Attributes:
        federation: A name for it.
        members: Each name and each identity once.
    """

    federation: str
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a name or an identity stands in it twice.
        """
        require_name(federation=self.federation)
        for what, values in (
            ("name", [each.name for each in self.members]),
            ("identity", [each.identity.hex() for each in self.members]),
        ):
            twice = [value for value, times in Counter(values).items() if times > 1]
            if twice:
                raise ValueError(f"the {what} {min(twice)} stands twice in the roster")

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Read `{"federation": ..., "members": [{"name", "identity" (hex), "committee"}]}`.

        Raises:
            OSError: If it can't be read.
            ValueError: If it is no roster, or a name or an identity stands in it twice.
        """
        document = read_json_object(file, "roster")
        try:
            fields = fields_of(document, ("federation", "members"), "rosters")
            if not isinstance(fields["members"], list):
                raise ValueError("members must be a list")
            members = tuple(Member.of(line) for line in fields["members"])
            return cls(federation=fields["federation"], members=members)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    @cached_property
    def hash(self) -> str:
        """Of what it says, in hex: neither the order nor the form of the file matters."""
        parts: list[bytes | int] = [self.federation.encode()]
        for each in sorted(self.members, key=lambda member: member.identity):
            parts += [each.name.encode(), each.identity, int(each.committee)]
        return digest("roster", *parts).hex()

    @property
    def chosen(self) -> frozenset[bytes]:
        """Identities that people chose for the committee."""
        return frozenset(each.identity for each in self.members if each.committee)

    def allows(self, name: str, identity: bytes) -> bool:
        """Tell whether a name goes with an identity."""
        return (name, identity) in self._pairs

    @cached_property
    def _pairs(self) -> frozenset[tuple[str, bytes]]:
        return frozenset((each.name, each.identity) for each in self.members)
