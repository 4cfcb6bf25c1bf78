"""Terms of one sum: all that its clients and its committee have to agree on, and its rules.

Their hash T goes into every mask and key: a client that was told other terms hides its values
from everybody. `SharedNoise` checks rules R1 and R2. Rule R3 is here: nobody stands alone in the
ring. A node that is asked against a rule answers with `Refused`.
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
"""Why a node refuses. The server is told nothing else."""


class Refused(Exception):
    """A request that a node does not answer.

    Attributes:
        code: The reason in one word, which may travel to the server. The text is for the node's
            owner. Neither depends on data.
    """

    def __init__(self, code: RefusalCode, text: str) -> None:
        """State the reason; the text says what was wrong, and what would be right."""
        super().__init__(text)
        self.code: RefusalCode = code


MOST_NUMBERS = 2**63 - 1  # a database's integers
_MOST_INDICES = 2**32 - 1
_LARGEST_SIZE = 2**40
_LONGEST = 500_000  # characters: ten thousand indices, and a thousand segments


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """Public terms of one sum. Clients and members are named by their indices in the directory.

    Attributes:
        run: Flower's run id.
        number: The sum's number, from 1. It grows within a run and is never used twice.
        purpose: Type of the Flower message that asks for the sum.
        directory: Hash of the directory, in hex.
        content: Digest of everything else that the node is sent, in hex.
        cohort: The clients, ascending.
        committee: The members, ascending. The p-th one, from 0, holds shares for x = p + 1.
        threshold: Number of members who can open together.
        least: Fewest repliers with which the sum is opened.
        degree: Neighbours of a client, even; all others from `len(cohort) - 1` on.
        colluding: Nodes that may reveal what they added, and may lie.
        cross_check: Whether members agree on one set of repliers before they open.
        segments: Segments of the coordinates, in order.
        bits: Each coordinate is summed modulo 2^bits; 1 to 32.
        noise_scale: Scale of one node's noise, in grid steps, at least 2.
        sampling_rate: Rate at which each unit's coin at its node decides its part. None: all take
            part.
        reply_after: Seconds from message to answer, where coins are secret. None: no fixed time.
        promised: Honest clients in any sum that could be opened, as the plan promises; 0: no
            promise.
        rotated: Whether values are rotated before they are put on the grid, as narrow words need
            it. The sum's number determines the rotation: no message carries it.
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
            ValueError: A field is out of range, or the integer rules R1 and R2 do not hold.
        """
        require_integers(0, MOST_RUNS, run=self.run)
        require_integers(1, MOST_NUMBERS, number=self.number)
        require_name(purpose=self.purpose)
        hex_bytes(self.directory, KEY_BYTES, "directory")
        hex_bytes(self.content, KEY_BYTES, "content")
        require_ascending(_MOST_INDICES, cohort=self.cohort, committee=self.committee)
        require_integers(1, MOST_SHARES, committee=len(self.committee), threshold=self.threshold)
        require_integers(0, _MOST_INDICES, least=self.least, colluding=self.colluding)
        require_integers(2, _MOST_INDICES, degree=self.degree)
        if not self.complete and self.degree % 2:
            raise ValueError(f"degree must be even, half of it on each side, got {self.degree}")
        for name in ("cross_check", "rotated"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {value!r:.50}")
        names = [segment.name for segment in self.segments]
        if not names or len(set(names)) < len(names):
            raise ValueError("segments must be at least one, each of another name")
        require_integers(1, MOST_BITS, bits=self.bits)
        _ = self.share  # checks the noise itself
        if self.sampling_rate is not None:
            require_rate(sampling_rate=self.sampling_rate)
        if self.reply_after is not None:
            require_positive(reply_after=self.reply_after)
        require_integers(0, _MOST_INDICES, promised=self.promised)
        certain = self.noise.honest_shares(server_lies=True)  # checks R1 and R2, too
        if certain < self.promised:
            raise ValueError(
                f"a sum of {certain} clients that do not collude could be opened, and the terms "
                f"promise {self.promised}"
            )

    @cached_property
    def share(self) -> NoiseShare:
        """A client's share: its values with noise."""
        return NoiseShare(
            segments=self.segments, noise_scale=self.noise_scale, rotated=self.rotated
        )

    @property
    def noise(self) -> SharedNoise:
        """The sum's numbers of nodes, with rules R1 and R2."""
        return self.noise_of(self.colluding)

    def noise_of(self, colluding: int) -> SharedNoise:
        """The same for another number of colluding nodes.

        Raises:
            ValueError: The rules do not hold then.
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
        """The canonical text: sorted keys, no spaces, floats as `float.hex()`."""
        return self._text

    @cached_property
    def _text(self) -> str:
        """The text, which nodes store with every sum; 2 ms for ten thousand clients."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        document["segments"] = [_segment_to_list(segment) for segment in self.segments]
        for name in _FLOATS:
            if document[name] is not None:
                document[name] = float(document[name]).hex()
        return canonical(document)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read terms.

        Raises:
            ValueError: The text is not, letter by letter, what `to_json` writes of valid terms.
        """
        names = [field.name for field in fields(cls)]
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
        # One meaning has one text: T is the text's hash, and members compare hashes.
        if terms.to_json() != text:
            raise ValueError("terms must be canonical JSON: sorted keys, no spaces, float.hex()")
        return terms

    @cached_property
    def hash(self) -> bytes:
        """T, 32 bytes: the hash of the canonical text."""
        return digest("terms", self.to_json().encode())

    @cached_property
    def size(self) -> int:
        """Number of coordinates."""
        return sum(segment.size for segment in self.segments)

    @property
    def complete(self) -> bool:
        """Whether each client is a neighbour of all others."""
        return self.degree >= len(self.cohort) - 1

    @cached_property
    def _ring(self) -> list[int]:
        """The cohort in an order that can't be known before the terms are fixed."""
        return sorted(self.cohort, key=lambda client: digest("ring", self.hash, client))

    @cached_property
    def neighbours(self) -> Mapping[int, tuple[int, ...]]:
        """By client, the clients that it shares masks with, ascending."""
        ring = self.cohort if self.complete else self._ring
        return _Neighbours(ring, self.degree)

    def signers(self, directory: Directory, signatures: Mapping[int, bytes], text: bytes) -> int:
        """Number of committee members who signed a text, such as a view."""
        count = 0
        for member, signature in signatures.items():
            if member in self.committee:
                count += is_signed(directory.entries[member].identity, signature, text)
        return count

    def too_thin(self, online: Set[int], noise: SharedNoise | None = None) -> bool:
        """Rule R3: tell whether lies about these repliers could cut a client off in the ring.

        Two arcs of `degree / 2` clients cut the ring in two. Members who are lied to may believe
        their clients gone. So the arcs need more repliers than lies can remove. A node that
        assumes more colluding nodes gives its own `noise`; None: the terms'.
        """
        if self.complete:
            return False
        assumed = self.noise if noise is None else noise
        half, n = self.degree // 2, len(self.cohort)
        replied = np.array([client in online for client in self._ring], dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(np.concatenate([replied, replied]))])
        arc = before[half : half + n] - before[:n]  # repliers in the arc that starts here
        # Arcs that start half to n - half further on have no client in common with this one.
        apart = np.lib.stride_tricks.sliding_window_view(
            np.concatenate([arc, arc]), n - 2 * half + 1
        )
        fewest = int((arc + apart.min(axis=1)[half : half + n]).min())
        honest, colluding = assumed.honest_members, assumed.colluding
        # Integers: in floats 1 <= (1 - 5/6) * 6 is false.
        return fewest * honest <= colluding * honest + assumed.lies * (self.degree - colluding)


class _Neighbours(Mapping[int, tuple[int, ...]]):
    """Neighbours by client, computed on demand: a client asks for its own alone."""

    def __init__(self, ring: Sequence[int], degree: int) -> None:
        """Take the clients in order; neighbours are at most `degree / 2` steps apart."""
        self._ring, self._half = ring, min(degree // 2, len(ring))
        self._complete = degree >= len(ring) - 1
        self._positions = {client: position for position, client in enumerate(ring)}
        self._cache: dict[int, tuple[int, ...]] = {}

    def __getitem__(self, client: int) -> tuple[int, ...]:
        if client not in self._cache:
            position, ring, half = self._positions[client], self._ring, self._half
            if self._complete:
                return (*ring[:position], *ring[position + 1 :])  # not cached: that would be n^2
            before = [ring[(position - step) % len(ring)] for step in range(1, half + 1)]
            after = [ring[(position + step) % len(ring)] for step in range(1, half + 1)]
            self._cache[client] = tuple(sorted(before + after))
        return self._cache[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ring)

    def __len__(self) -> int:
        return len(self._ring)


_FLOATS = ("noise_scale", "sampling_rate", "reply_after")


def _segment_to_list(segment: Segment) -> list[str | int]:
    numbers = (segment.scale, segment.cap, segment.clipping_norm)
    return [segment.name, segment.size, *(float(number).hex() for number in numbers)]


def _segment_from_list(parts: Any) -> Segment:
    if not isinstance(parts, list) or len(parts) != 5:
        raise ValueError("a segment is [name, size, scale, cap, clipping norm]")
    name, size, *numbers = parts
    require_name(name=name)
    require_integers(0, _LARGEST_SIZE, size=size)
    return Segment(name, size, *(float_of(number, "a segment's number") for number in numbers))


_RESERVED = 0.25  # share of the time that noise and masks have
_LEAST_RESERVE = 1.0  # seconds
# Seconds per million coordinates: some four times what they take on a slow processor.
_RESERVE_A_MILLION = 0.5


def work_ends(reply_after: float) -> float:
    """Seconds after which a node's work must be done; a later node sends nothing."""
    return (1.0 - _RESERVED) * reply_after


def require_time(reply_after: float, size: int) -> None:
    """Check that `reply_after` leaves time for noise and masks after a node's own work.

    It is in seconds from message to answer; the sum has `size` coordinates.

    Raises:
        ValueError: It leaves too little.
    """
    least = (_LEAST_RESERVE + _RESERVE_A_MILLION * size * 1e-6) / _RESERVED
    if reply_after < least:
        raise OptionError(
            f"secure_sum.reply_after of {reply_after:g} s is too little for noise and masks "
            f"of {size} coordinates, which would show whose coins came up: at least {least:.3g} s",
            option="secure_sum.reply_after",
        )
