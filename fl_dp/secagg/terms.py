"""Terms of one sum: all that its clients and the committee have to agree on, and its rules.

Their hash T goes into every mask and key: a client that was told anything else hides its values
from everybody. Rules R1 and R2 are integers of `SharedNoise`; R3, that nobody stands alone in the
ring, is here. A node that is asked against them answers with `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from fl_dp.accounting.shared_noise import SharedNoise
from fl_dp.mechanisms import NoiseShare, Segment
from fl_dp.option_errors import OptionError, require_positive, require_rate

from .directory import MOST_RUNS, Directory
from .key_pairs import KEY_BYTES, is_signed
from .masks import MOST_BITS
from .shares import MOST_SHARES
from .texts import (
    canonical,
    digest,
    float_of,
    hex_bytes,
    object_of,
    require_ascending,
    require_integers,
    require_name,
)

RefusalCode = Literal[
    "stale", "terms", "directory", "policy", "view", "thin", "quorum", "budget", "late", "busy"
]
"""Why a node refuses: all that the server is told."""


class Refused(Exception):
    """A request that a node does not answer.

    Attributes:
        code: Why, in one word that may travel. The text is for the node's owner; neither depends on
            data.
    """

    def __init__(self, code: RefusalCode, text: str) -> None:
        """Say why.

        Args:
            code: See `RefusalCode`.
            text: What was wrong, and what would be right.
        """
        super().__init__(text)
        self.code: RefusalCode = code


MOST_NUMBERS = 2**63 - 1  # a database's integers
_MOST_PLACES = 2**32 - 1
_LARGEST_SIZE = 2**40
_LONGEST = 500_000  # characters: ten thousand places, and a thousand segments


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """Public terms of one sum.

    Attributes:
        run: Flower's run id.
        number: Of the sum, from 1: grows within a run, and is never used twice.
        purpose: Type of the Flower message that asks for it.
        directory: Hash of the directory, in hex.
        content: Digest of everything else that the node is sent, in hex.
        cohort: Places of the clients, ascending.
        committee: Places of the members, ascending; the p-th of them holds shares for x = p + 1.
        threshold: Members who can open together.
        least: Fewest repliers that the sum is opened with.
        degree: Neighbours of a client, even; from `len(cohort) - 1` on all others.
        colluding: Nodes that may show what they added, and lie.
        cross_check: Whether members agree on one set of repliers before they open.
        segments: Of the coordinates, in order.
        bits: Each coordinate is summed modulo 2^bits; 1 to 32.
        noise_scale: Of one node's noise, in grid steps, at least 2.
        sampling_rate: With which each unit flips a coin at its node; None: all take part.
        reply_after: Seconds from message to answer, where coins are secret; None: when it is ready.
        promised: Clients that do not collude in any sum that could be opened, by the plan; 0: it
            promises none.
        rotated: Whether values are rotated before they are put on the grid, as narrow words need
            it. How follows from their number: nobody is told a rotation.
    """

    run: int
    number: int
    purpose: str
    directory: str
    content: str
    cohort: tuple[int, ...]
    committee: tuple[int, ...]
    threshold: int
    least: int
    degree: int
    colluding: int
    cross_check: bool
    segments: tuple[Segment, ...]
    bits: int
    noise_scale: float
    sampling_rate: float | None = None
    reply_after: float | None = None
    promised: int = 0
    rotated: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range, or the integer rules R1 and R2 do not hold.
        """
        require_integers(0, MOST_RUNS, run=self.run)
        require_integers(1, MOST_NUMBERS, number=self.number)
        require_name(purpose=self.purpose)
        hex_bytes(self.directory, KEY_BYTES, "directory")
        hex_bytes(self.content, KEY_BYTES, "content")
        require_ascending(_MOST_PLACES, cohort=self.cohort, committee=self.committee)
        require_integers(1, MOST_SHARES, committee=len(self.committee), threshold=self.threshold)
        require_integers(0, _MOST_PLACES, least=self.least, colluding=self.colluding)
        require_integers(2, _MOST_PLACES, degree=self.degree)
        if not self.complete and self.degree % 2:
            raise ValueError(f"degree must be even, half of it on each side, got {self.degree}")
        for name in ("cross_check", "rotated"):
            if not isinstance(given := getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {given!r:.50}")
        names = [each.name for each in self.segments]
        if not names or len(set(names)) < len(names):
            raise ValueError("segments must be at least one, each of another name")
        require_integers(1, MOST_BITS, bits=self.bits)
        _ = self.share  # checks the noise itself
        if self.sampling_rate is not None:
            require_rate(sampling_rate=self.sampling_rate)
        if self.reply_after is not None:
            require_positive(reply_after=self.reply_after)
        require_integers(0, _MOST_PLACES, promised=self.promised)
        certain = self.noise.honest_shares(server_lies=True)  # checks R1 and R2, too
        if certain < self.promised:
            raise ValueError(
                f"a sum of {certain} clients that do not collude could be opened, and the terms "
                f"promise {self.promised}"
            )

    @cached_property
    def share(self) -> NoiseShare:
        """What a client adds: its values with noise."""
        return NoiseShare(
            segments=self.segments, noise_scale=self.noise_scale, rotated=self.rotated
        )

    @property
    def noise(self) -> SharedNoise:
        """Who takes part, with rules R1 and R2."""
        return self.noise_of(self.colluding)

    def noise_of(self, colluding: int) -> SharedNoise:
        """Return the same for another count of nodes that may collude.

        Raises:
            ValueError: If the rules do not hold then.
        """
        return SharedNoise(
            cohort=len(self.cohort),
            least=self.least,
            colluding=colluding,
            committee=len(self.committee),
            threshold=self.threshold,
            cross_check=self.cross_check,
        )

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, floats as `float.hex()`."""
        return self._text

    @cached_property
    def _text(self) -> str:
        """The text, which nodes keep with every sum: 2 ms at ten thousand clients."""
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        document["segments"] = [_segment_to_list(each) for each in self.segments]
        for name in _FLOATS:
            if document[name] is not None:
                document[name] = float(document[name]).hex()
        return canonical(document)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read terms.

        Raises:
            ValueError: If the text is not, letter by letter, what `to_json` writes of valid terms.
        """
        names = [each.name for each in fields(cls)]
        document = object_of(text, names, "terms", longest=_LONGEST)
        for name in ("cohort", "committee", "segments"):
            if not isinstance(document[name], list):
                raise ValueError(f"{name} must be a list")
        for name in ("cohort", "committee"):
            document[name] = tuple(document[name])
        document["segments"] = tuple(map(_segment_from_list, document["segments"]))
        for name in _FLOATS:
            if document[name] is not None or name == "noise_scale":
                document[name] = float_of(document[name], name)
        terms = cls(**document)
        # One text for one meaning: T is of the text, and members compare hashes.
        if terms.to_json() != text:
            raise ValueError("terms must be canonical JSON: sorted keys, no spaces, float.hex()")
        return terms

    @cached_property
    def hash(self) -> bytes:
        """T, 32 bytes: of the canonical text."""
        return digest("terms", self.to_json().encode())

    @cached_property
    def size(self) -> int:
        """Coordinates of the sum."""
        return sum(each.size for each in self.segments)

    @property
    def complete(self) -> bool:
        """Whether each client is a neighbour of all others."""
        return self.degree >= len(self.cohort) - 1

    @cached_property
    def _ring(self) -> list[int]:
        """The cohort in an order that can't be known before the terms are fixed."""
        return sorted(self.cohort, key=lambda place: digest("ring", self.hash, place))

    @cached_property
    def neighbours(self) -> Mapping[int, tuple[int, ...]]:
        """Places that a client shares masks with, ascending, by its place."""
        return _Neighbours(self.cohort if self.complete else self._ring, self.degree)

    def signers(self, directory: Directory, signatures: Mapping[int, bytes], said: bytes) -> int:
        """Return how many members of the committee signed a text, such as a view."""
        return sum(
            place in self.committee and is_signed(directory.entries[place].identity, signed, said)
            for place, signed in signatures.items()
        )

    def too_thin(self, online: Set[int], noise: SharedNoise | None = None) -> bool:
        """Rule R3: tell whether lies about these repliers could cut a client off in the ring.

        Two arcs of `degree / 2` places cut the ring in two. Members who are lied to may be told
        that those in them are gone; the rule wants more repliers there than lies can take away.

        Args:
            online: Places of the repliers.
            noise: How many may collude, where a node assumes more than the terms.
        """
        if self.complete:
            return False
        assumed = self.noise if noise is None else noise
        half, n = self.degree // 2, len(self.cohort)
        replied = np.array([place in online for place in self._ring], dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(np.concatenate([replied, replied]))])
        arc = before[half : half + n] - before[:n]  # repliers in the arc that starts here
        # Arcs that start half to n - half further on have no place in common with this one.
        apart = np.lib.stride_tricks.sliding_window_view(
            np.concatenate([arc, arc]), n - 2 * half + 1
        )
        fewest = int((arc + apart.min(axis=1)[half : half + n]).min())
        honest, colluding = assumed.honest_members, assumed.colluding
        # Integers: in floats 1 <= (1 - 5/6) * 6 is false.
        return fewest * honest <= colluding * honest + assumed.lies * (self.degree - colluding)


class _Neighbours(Mapping[int, tuple[int, ...]]):
    """Neighbours by place, found when they are asked for: a client asks for its own alone."""

    def __init__(self, ring: Sequence[int], degree: int) -> None:
        """Take the places in order, each `degree / 2` steps from its last neighbours."""
        self._ring, self._half = ring, min(degree // 2, len(ring))
        self._complete = degree >= len(ring) - 1
        self._at = {place: at for at, place in enumerate(ring)}
        self._found: dict[int, tuple[int, ...]] = {}

    def __getitem__(self, place: int) -> tuple[int, ...]:
        if place not in self._found:
            at, ring, half = self._at[place], self._ring, self._half
            if self._complete:
                return (*ring[:at], *ring[at + 1 :])  # kept, they would be n^2
            steps = (step for step in range(-half, half + 1) if step)
            self._found[place] = tuple(sorted(ring[(at + step) % len(ring)] for step in steps))
        return self._found[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ring)

    def __len__(self) -> int:
        return len(self._ring)


_FLOATS = ("noise_scale", "sampling_rate", "reply_after")


def _segment_to_list(segment: Segment) -> list[str | int]:
    numbers = (segment.scale, segment.cap, segment.clipping_norm)
    return [segment.name, segment.size, *(float(each).hex() for each in numbers)]


def _segment_from_list(parts: Any) -> Segment:
    if not isinstance(parts, list) or len(parts) != 5:
        raise ValueError("a segment is [name, size, scale, cap, clipping norm]")
    name, size, *numbers = parts
    require_name(name=name)
    require_integers(0, _LARGEST_SIZE, size=size)
    return Segment(name, size, *(float_of(each, "a segment's number") for each in numbers))


_RESERVED = 0.25  # of the time
_LEAST_RESERVE = 1.0  # seconds
# Some four times what they take on a slow processor.
_RESERVE_A_MILLION = 0.5


def work_ends(reply_after: float) -> float:
    """Return the seconds after which a node's work must be done, or the node sends nothing."""
    return (1.0 - _RESERVED) * reply_after


def require_time(reply_after: float, size: int) -> None:
    """Check that noise and masks are done by then, whatever a node did before.

    Args:
        reply_after: Seconds.
        size: Coordinates of the sum.

    Raises:
        ValueError: If not.
    """
    least = (_LEAST_RESERVE + _RESERVE_A_MILLION * size * 1e-6) / _RESERVED
    if reply_after < least:
        raise OptionError(
            f"secure_sum.reply_after of {reply_after:g} s is too little for noise and masks "
            f"of {size} coordinates, which would show whose coins came up: at least {least:.3g} s"
        )
