"""A client's one message to a sum: masked values, and shares of its seeds for the committee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .terms import SumTerms


@dataclass(frozen=True)
class MaskedMessage:
    """All that a client sends for a sum.

    Attributes:
        masked: Packed values, masked; `packed_bytes(bits, size)` bytes.
        bundles: For each member in order, shares of the seeds, encrypted.
        commitments: To the self seed and each pair seed, 16 bytes each.
    """

    masked: bytes
    bundles: list[bytes]
    commitments: bytes

    @property
    def label(self) -> bytes:
        """Hash of the masked values, 32 bytes, which bundles are bound to."""
        raise NotImplementedError


class Participation:
    """A client's part in one sum, from its mark to its message. Usable once.

    Attributes:
        terms: Of the sum.
        place: The client's.
    """

    def __init__(
        self,
        terms: SumTerms,
        place: int,
        root: Callable[[int], bytes],
        sent: Callable[[bytes], None],
    ) -> None:
        """Start, after the mark is on disk.

        Args:
            terms: Of the sum.
            place: The client's.
            root: Secret that the client shares with a place.
            sent: Is given the message's label before it leaves.
        """
        self.terms, self.place = terms, place
        self._root, self._sent = root, sent

    def message(self, values: NDArray[np.int64]) -> MaskedMessage:
        """Mask and share.

        Args:
            values: What to add, with its noise, in grid steps, shape `(terms.size,)`.

        Raises:
            RuntimeError: If it was called before.
            ValueError: If the shape or dtype is another.
        """
        raise NotImplementedError
