"""An excerpt of a large directory: the committee's entries, and who has checked the whole of it.

A client of a large federation need not read ten thousand entries. It checks those of the committee,
whom it gives shares to, and that more of them than may collude have signed that they hold and have
checked the whole. The keys of its neighbours come with each sum. It binds them into the shares'
encryption: a member, who holds the whole, can't read what a client who was told others has sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

from .directory import MOST_EPOCHS, MOST_RUNS, Directory, Entry
from .key_pairs import KEY_BYTES, SIGNATURE_BYTES, is_signed
from .roster import Roster
from .texts import (
    canonical,
    digest,
    frame,
    hex_bytes,
    object_of,
    require_ascending,
    require_integers,
)

_MOST_PLACES = 2**32 - 1
_KEYS = ("directory", "entries", "epoch", "nodes", "run", "vouchers")


class Near(NamedTuple):
    """A client's place, and its neighbours' public run keys, as the server tells them.

    Attributes:
        place: The client's.
        keys: Of its neighbours in ascending order of places, 32 bytes each.
    """

    place: int
    keys: bytes


def near_digest(keys: bytes) -> bytes:
    """Return what a client's shares are bound to: its neighbours' run keys, by place ascending."""
    return digest("near", keys)


def near_of(directory: Directory, place: int, neighbours: tuple[int, ...]) -> Near:
    """Return what a client at a place has to know of its neighbours."""
    return Near(place, b"".join(directory.entries[other].run_key for other in neighbours))


def whole_text(directory: bytes, epoch: int, nodes: int, run: int, roster_hash: str) -> bytes:
    """Return what a member signs once it has checked a whole directory against its roster."""
    return frame("whole", directory, epoch, nodes, run, roster_hash.encode())


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The part of a directory that a client checks who is no member.

    Attributes:
        run: Flower's run id.
        epoch: Of the directory.
        nodes: Entries of the whole that count.
        hash: Of the whole, 32 bytes.
        entries: Those of the committee, by place ascending.
        vouchers: Members' signatures of `whole_text`, by place.
    """

    run: int
    epoch: int
    nodes: int
    hash: bytes
    entries: Mapping[int, Entry]
    vouchers: Mapping[int, bytes]

    @classmethod
    def of(
        cls, directory: Directory, committee: tuple[int, ...], vouchers: Mapping[int, bytes]
    ) -> Self:
        """Return the excerpt for those who are not in a committee."""
        return cls(
            run=directory.run,
            epoch=directory.epoch,
            nodes=len(directory.current),
            hash=directory.hash,
            entries={place: directory.entries[place] for place in committee},
            vouchers={each: vouchers[each] for each in committee if each in vouchers},
        )

    def check(self) -> None:
        """Check what needs no secret and no roster.

        Raises:
            ValueError: If an entry is not signed, two are of one node, or a run key is none.
        """
        listed = list(self.entries.values())
        for what, values in (
            ("name", {each.name for each in listed}),
            ("identity", {each.identity for each in listed}),
            ("run key", {each.run_key for each in listed}),
        ):
            # Shares for one node in two places would be two shares for it.
            if len(values) < len(listed):
                raise ValueError(f"a {what} stands in the committee twice")
        for each in listed:
            _check_entry(each, self.run)

    def strangers(self, roster: Roster) -> list[str]:
        """Return what in it is not of an owner's roster; nothing if all is."""
        found = [
            f"'{entry.name}' is not in the roster with that key"
            for entry in self.entries.values()
            if not roster.allows(entry.name, entry.identity)
        ]
        if roster.chosen and not roster.chosen.issuperset(
            entry.identity for entry in self.entries.values()
        ):
            found.append("the committee is not of those whom the roster chose")
        return found if self.is_vouched(roster, 0) else [*found, "no member vouches for the rest"]

    def is_vouched(self, roster: Roster, colluding: int) -> bool:
        """Tell whether more members than may collude have checked the whole against this roster.

        One of them is honest then, and what it has found holds for everybody.
        """
        said = whole_text(self.hash, self.epoch, self.nodes, self.run, roster.hash)
        good = 0
        for place, signature in self.vouchers.items():
            good += is_signed(self.entries[place].identity, signature, said)
            if good > colluding:
                return True
        return False

    def to_json(self) -> str:
        """Return it as JSON text."""
        return canonical(
            {
                "run": self.run,
                "epoch": self.epoch,
                "nodes": self.nodes,
                "directory": self.hash.hex(),
                "entries": [[place, each.to_dict()] for place, each in self.entries.items()],
                "vouchers": [[place, each.hex()] for place, each in self.vouchers.items()],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; `check` it before it is used.

        Raises:
            ValueError: If it is anything else.
        """
        fields = object_of(text, _KEYS, "excerpts of a directory")
        require_integers(0, MOST_RUNS, run=fields["run"])
        require_integers(0, MOST_EPOCHS, epoch=fields["epoch"])
        require_integers(0, _MOST_PLACES, nodes=fields["nodes"])
        for name in ("entries", "vouchers"):
            pairs = fields[name]
            if not isinstance(pairs, list) or not all(
                isinstance(pair, list) and len(pair) == 2 for pair in pairs
            ):
                raise ValueError(f"{name} must be a list of pairs")
            require_ascending(_MOST_PLACES, **{name: [place for place, _ in pairs]})
        entries = {place: Entry.from_dict(each) for place, each in fields["entries"]}
        if not entries.keys() >= {place for place, _ in fields["vouchers"]}:
            raise ValueError("vouchers must be of members")
        return cls(
            run=fields["run"],
            epoch=fields["epoch"],
            nodes=fields["nodes"],
            hash=hex_bytes(fields["directory"], KEY_BYTES, "directory"),
            entries=entries,
            vouchers={
                place: hex_bytes(each, SIGNATURE_BYTES, "vouchers")
                for place, each in fields["vouchers"]
            },
        )


@lru_cache(maxsize=256)  # nodes of one process have the same members
def _check_entry(entry: Entry, run: int) -> None:
    entry.check(run)


def directory_from_json(text: str) -> Directory | Excerpt:
    """Read a directory or an excerpt of one, whichever it is.

    Raises:
        ValueError: If it is neither.
    """
    # Only a directory has a hash of the roster; in a text, quotes are escaped.
    kind: type[Directory] | type[Excerpt] = Directory if '"roster_hash":' in text else Excerpt
    return kind.from_json(text)
