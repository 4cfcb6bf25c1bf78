"""A node's side of secure sums: what it checks, remembers and answers.

>>> node = SecureNode(identity, SQLiteStore(path), name="clinic-a", roster=roster)
>>> node.entry(run, epoch=0)  # to the server, who sends the directory of all
>>> node.accept(directory)
>>> part = node.begin(text, content=content, purpose="train")  # marked: it can't happen again
>>> part.message(values)
>>> node.open(text, online, labels, bundles)  # as a member, once a sum
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .client import Participation
from .keys import Directory, Entry, Identity, Roster
from .member import Opened
from .store import NodeStore


class SecureNode:
    """A node of secure sums. All that it has to remember is in its store."""

    def __init__(
        self,
        identity: Identity,
        store: NodeStore,
        *,
        name: str,
        roster: Roster | None = None,
        least_sum: int = 2,
        colluding: int = 0,
        receipts: int = 0,
        exact: frozenset[str] = frozenset(),
    ) -> None:
        """Set up.

        Args:
            identity: The node's.
            store: Keeps run keys, directories and marks.
            name: Under which others know the node.
            roster: Nodes that the owner knows; None: a name keeps the identity first seen with it.
            least_sum: Fewest clients that do not collude in any sum that could be opened.
            colluding: Nodes that the owner thinks may collude; the terms' count if that is larger.
            receipts: Sums without a receipt after which the node refuses; 0: never.
            exact: Purposes whose totals it adds to without noise.

        Raises:
            ValueError: If a number is out of range.
        """
        self.identity, self.store, self.name, self.roster = identity, store, name, roster
        self.least_sum, self.colluding = least_sum, colluding
        self.receipts, self.exact = receipts, exact

    def entry(self, run: int, *, epoch: int = 0) -> Entry:
        """Return the node's entry for a run's directory; its run key is stored first.

        Args:
            run: Flower's run id.
            epoch: Of the directory that it is to stand in.
        """
        raise NotImplementedError

    def accept(self, directory: Directory) -> bytes:
        """Check a run's directory, keep it, and return its hash.

        Raises:
            Refused: `directory`, if it is not signed, holds a stranger, a key twice, or another key
                than this node's, or is no continuation of the one before.
        """
        raise NotImplementedError

    def begin(self, text: str, *, content: str, purpose: str) -> Participation:
        """Check terms as a client, and mark the sum as taken part in.

        Whatever happens after it, the sum counts.

        Args:
            text: The terms, as received.
            content: Digest in hex of everything else that was received.
            purpose: Type of the message.

        Raises:
            Refused: `terms`, `directory`, `policy` or `stale`.
        """
        raise NotImplementedError

    def view(self, text: str, online: Sequence[int], labels: Mapping[int, bytes]) -> bytes:
        """Sign, as a member, who replied to a sum, for the cross-check; only ever one view a sum.

        Args:
            text: The terms, as received.
            online: Places of the repliers, ascending.
            labels: Of their messages, by place, 32 bytes each.

        Raises:
            Refused: `terms`, `directory`, `policy`, `stale`, `view` or `thin`.
        """
        raise NotImplementedError

    def open(
        self,
        text: str,
        online: Sequence[int],
        labels: Mapping[int, bytes],
        bundles: Mapping[int, bytes],
        quorum: Mapping[int, bytes] | None = None,
    ) -> Opened:
        """Open, as a member, the shares that unmask the repliers' sum; once a sum.

        Args:
            text: The terms, as received.
            online: Places of the repliers, ascending.
            labels: Of their messages, by place, 32 bytes each.
            bundles: For this member, by the replier's place.
            quorum: With the cross-check: signatures of this view, by member's place.

        Raises:
            Refused: `terms`, `directory`, `policy`, `stale`, `view`, `thin` or `quorum`.
        """
        raise NotImplementedError

    def check_receipt(self, run: int, text: str) -> None:
        """Check a receipt: this node's message is in the one sum that could be opened.

        Args:
            run: Flower's run id.
            text: Of `Receipt.to_json`.

        Raises:
            Refused: `view`, if it is none.
        """
        raise NotImplementedError

    def unreceipted(self, run: int) -> int:
        """Return how many sums the node took part in since the last receipt."""
        raise NotImplementedError

    def forget(self, run: int) -> None:
        """Delete a run's key, directory and marks: what was sent in it can't be opened any more."""
        raise NotImplementedError
