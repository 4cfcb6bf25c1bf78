"""The server's side of one sum: fold messages, ask the committee, and take the masks away.

>>> opening = OpenSum(terms)
>>> opening.fold(place, message)  # each reply
>>> opening.require_openable()
>>> opening.answer(member, node.open(terms.to_json(), *opening.question(member)))
>>> if opening.enough: opening.release()
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .client import MaskedMessage
from .keys import Directory
from .member import Opened
from .receipts import Receipt
from .terms import SumTerms


class SecureSumFailed(RuntimeError):
    """A sum that could not be opened: nothing was released, and everything stays charged."""


class Question(NamedTuple):
    """What a member is asked besides the terms.

    Attributes:
        online: Places of the repliers, ascending.
        labels: Of their messages.
        bundles: For this member.
    """

    online: tuple[int, ...]
    labels: dict[int, bytes]
    bundles: dict[int, bytes]


class OpenSum:
    """One sum at the server.

    Attributes:
        terms: Of the sum.
        blamed_clients: Places whose bundles or commitments are wrong.
        blamed_members: Places whose shares are wrong.
        view_signatures: Of members who signed the view, by place.
    """

    def __init__(self, terms: SumTerms, directory: Directory | None = None) -> None:
        """Start without any reply.

        Args:
            terms: Of the sum.
            directory: Whose identities view signatures are checked with; None: unchecked.
        """
        self.terms, self.directory = terms, directory
        self.blamed_clients: set[int] = set()
        self.blamed_members: set[int] = set()
        self.view_signatures: dict[int, bytes] = {}

    @property
    def online(self) -> tuple[int, ...]:
        """Places of the repliers so far, ascending."""
        raise NotImplementedError

    @property
    def labels(self) -> dict[int, bytes]:
        """Labels of the messages so far, by place."""
        raise NotImplementedError

    def fold(self, place: int, message: MaskedMessage) -> None:
        """Add a client's message.

        Raises:
            Refused: `terms`, for a second message, a stranger's, one of the wrong form, or one
                after members were asked.
        """
        raise NotImplementedError

    def require_openable(self) -> None:
        """Check, before anybody is asked, that members may open the sum of these repliers.

        Raises:
            SecureSumFailed: If too few replied, or the ring is too thin.
        """
        raise NotImplementedError

    def question(self, member: int) -> Question:
        """Return what to ask a member, by its place. From here on no message is folded."""
        raise NotImplementedError

    def sign(self, member: int, signature: bytes) -> None:
        """Take in a member's signature of the view, for the cross-check, unless it is wrong."""
        raise NotImplementedError

    @property
    def has_quorum(self) -> bool:
        """Whether enough members signed the view."""
        raise NotImplementedError

    def answer(self, member: int, opened: Opened) -> None:
        """Take in a member's answer; a second one, or a stranger's, is left out."""
        raise NotImplementedError

    @property
    def enough(self) -> bool:
        """Whether all seeds that `release` needs are open and match their commitments."""
        raise NotImplementedError

    def release(self) -> NDArray[np.int64]:
        """Return the sum over the repliers, modulo 2^bits around zero, shape `(terms.size,)`.

        Raises:
            SecureSumFailed: If seeds are missing: too few members answered, or somebody lied.
        """
        raise NotImplementedError

    def receipt_for(self, place: int) -> Receipt:
        """Return the proof for a replier that its message is in the one sum that was opened.

        Raises:
            SecureSumFailed: If too few members signed the view.
            KeyError: If the place did not reply.
        """
        raise NotImplementedError
