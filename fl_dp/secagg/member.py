"""A committee member's one answer to a sum: shares of what unmasks the repliers' sum, once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Opened:
    """A member's answer.

    Attributes:
        shares: For each replier by place: shares of its self seed, then of its pair seeds with
            neighbours who did not reply, in ascending order, 32 bytes each.
        signature: Of the view that it answered for.
        unreadable: Places of repliers whose bundle does not decrypt; left out of `shares`.
    """

    shares: dict[int, bytes]
    signature: bytes
    unreadable: tuple[int, ...] = ()
