"""Terms of one sum: all that its clients and the committee have to agree on, and its rules.

Their hash goes into every mask and key: a client that was told anything else hides its values from
everybody. Rules R1 and R2 are integers of `SharedNoise`; R3, that no client stands alone in the
ring, is here.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from fl_dp.accounting.shared_noise import SharedNoise


@dataclass(frozen=True)
class Segment:
    """A stretch of a sum's coordinates.

    Attributes:
        name: What it holds, for instance `updates`.
        size: Coordinates.
        scale: Grid steps a unit.
        cap: Largest entry of one node, in steps.
        clipping_norm: L2 norm of one unit, in its own units.
    """

    name: str
    size: int
    scale: float
    cap: float
    clipping_norm: float


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """Public terms of one sum.

    Attributes:
        run: Flower's run id.
        number: Of the sum: grows within a run, and is never used twice.
        purpose: Type of the Flower message that asks for it.
        directory: Hash of the directory, in hex.
        content: Digest of everything else that the node is sent, in hex.
        cohort: Places of the clients, ascending.
        committee: Places of the members, ascending; the p-th of them holds shares for x = p + 1.
        threshold: Members who can open together.
        least: Fewest repliers that the sum is opened with.
        degree: Neighbours of a client, even; from `len(cohort) - 1` on everybody.
        colluding: Nodes that may show what they added, and lie.
        cross_check: Whether members agree on one set of repliers before they open.
        segments: Of the coordinates, in order.
        bits: Each coordinate is summed modulo 2^bits; 1 to 32.
        noise_scale: Of one node's noise, in grid steps, at least 2; 0: an exact total.
        sampling_rate: With which each unit flips a coin at its node; None: all take part.
        reply_after: Seconds from message to answer; None: when it is ready.
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

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, floats as `float.hex()`."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read terms.

        Raises:
            ValueError: If the text is not what `to_json` writes of valid terms.
        """
        raise NotImplementedError

    @cached_property
    def hash(self) -> bytes:
        """T, 32 bytes: of the text."""
        raise NotImplementedError

    @property
    def noise(self) -> SharedNoise:
        """Who takes part, and rules R1 and R2."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Coordinates of the sum."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        raise NotImplementedError

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        """Places that a client shares masks with, ascending, by its place."""
        raise NotImplementedError

    def too_thin(self, online: Set[int], noise: SharedNoise | None = None) -> bool:
        """Rule R3: tell whether lies about these repliers could cut a client off in the ring.

        Args:
            online: Places of the repliers.
            noise: How many may collude, where a node assumes more than the terms.
        """
        raise NotImplementedError
