"""The server's side of one sum: fold messages, ask the committee, and take the masks away.

>>> opening = OpenSum(terms, directory)
>>> opening.fold(client, message)  # each reply
>>> opening.require_openable()
>>> opening.answer(member, node.open(terms.to_json(), *opening.question(member)))
>>> if opening.enough: opening.release()

`client` and `member` are indices of entries in the directory.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .client import COMMITMENT_BYTES, MaskedMessage, commitment, sign_of
from .directory import Directory
from .key_pairs import is_signed
from .masks import SEED_BYTES, add_masks, unpack, word_dtype
from .member import Opened, lost_neighbours, needed_of, view_text
from .shares import combine, interpolate
from .terms import Refused, SumTerms

_MOST_SUBSETS = 1000  # tried where members lie; a try is a fraction of a ms
_CERTAIN = 14.0  # expected successes; exp(-14) < 1e-6 is the chance that none of the tries succeeds


class SecureSumFailed(RuntimeError):
    """A sum that could not be opened: nothing was released, and everything stays charged."""


class OpeningQuestion(NamedTuple):
    """A question to a member besides the terms, in the order of `SecureNode.open`.

    Attributes:
        online: The repliers, ascending.
        labels: Their messages' labels, by client.
        bundles: What this member opens of each replier's bundle (`needed_of`), by client.
    """

    online: tuple[int, ...]
    labels: dict[int, bytes]
    bundles: dict[int, bytes]


class Blame(NamedTuple):
    """Nodes that a sum has shown to lie, if at most max(1, colluding) nodes lie.

    Attributes:
        clients: Those with wrong commitments or shares, whatever members say.
        members: Those who answered wrongly, whatever clients sent them.
        undecided: Clients whose seeds did not open, perhaps because members are gone or lie.
    """

    clients: frozenset[int]
    members: frozenset[int]
    undecided: frozenset[int]


class _Head(NamedTuple):
    """The parts of a message that the server stores after adding its values."""

    label: bytes
    bundles: list[bytes]
    commitments: bytes


class OpenSum:
    """One sum at the server."""

    def __init__(self, terms: SumTerms, directory: Directory | None = None) -> None:
        """Start without replies."""
        self.terms, self.directory = terms, directory
        self.view_signatures: dict[int, bytes] = {}
        self._misanswered: set[int] = set()  # members whose answers no client can have spoilt
        self._total = np.zeros(terms.size, word_dtype(terms.bits))
        self._heads: dict[int, _Head] = {}
        self._points: dict[int, dict[int, bytes]] = {}  # shares of a replier's seeds, by x
        self._unreadable: dict[int, set[int]] = {}  # members who can't read a replier's bundle
        self._seeds: dict[int, tuple[bytes, ...]] = {}
        self._fitted: dict[int, tuple[int, ...]] = {}  # x of the shares that gave its seeds
        self._needed: dict[int, list[tuple[int, int | None]]] = {}
        self._asked, self._answered, self._fresh = False, set[int](), False
        self._good: tuple[int, ...] = ()  # x of the members whose shares fitted last

    # Replies.

    @property
    def online(self) -> tuple[int, ...]:
        """The repliers so far, ascending."""
        if self._asked:
            return self._fixed
        return tuple(sorted(self._heads))

    @cached_property
    def _fixed(self) -> tuple[int, ...]:
        """The repliers from the first question on."""
        return tuple(sorted(self._heads))

    @property
    def labels(self) -> dict[int, bytes]:
        """The messages' labels so far, by client."""
        return {client: self._heads[client].label for client in self.online}

    def fold(self, client: int, message: MaskedMessage) -> None:
        """Add a client's message.

        Raises:
            Refused: `terms`, if the client is not in the cohort or the message has the wrong form.
                `stale`, if it is the client's second one, or members were asked already.
        """
        if client not in self.terms.cohort:
            raise Refused("terms", f"client {client} is not in the cohort")
        if self._asked or client in self._heads:
            raise Refused("stale", f"client {client} replied before, or too late")
        if not message.fits(self.terms, client):
            raise Refused("terms", f"the message of client {client} has the wrong form")
        self._total += unpack(message.masked, self.terms.bits, self.terms.size)
        self._heads[client] = _Head(message.label, message.bundles, message.commitments)

    def require_openable(self) -> None:
        """Check, before a member is asked, that members may open these repliers' sum.

        Raises:
            SecureSumFailed: Too few replied, or lies could cut a client off in the ring (rule R3).
        """
        if len(self._heads) < self.terms.least:
            raise SecureSumFailed(
                f"{len(self._heads)} of {len(self.terms.cohort)} clients replied, "
                f"{self.terms.least} are needed"
            )
        if self.terms.too_thin(self._heads.keys()):
            raise SecureSumFailed(
                f"the {len(self._heads)} clients that replied leave gaps in the ring: raise degree "
                f"({self.terms.degree})"
            )

    # The committee.

    @cached_property
    def view(self) -> bytes:
        """The text that members sign: who replied with what. It ends the folding of messages."""
        self._asked = True
        return view_text(self.terms, self.online, self.labels)

    def question(self, member: int) -> OpeningQuestion:
        """Return what to ask a member. It ends the folding of messages.

        Raises:
            ValueError: The member is not in the committee.
        """
        self._asked = True
        position = self.terms.committee.index(member)
        bundles = {
            client: needed_of(self._heads[client].bundles[position], self._indices[client])
            for client in self.online
        }
        return OpeningQuestion(self.online, self.labels, bundles)

    def sign(self, member: int, signature: bytes) -> None:
        """Store a member's signature of the view, for the cross-check, unless it is wrong."""
        if self.directory is None or member not in self.terms.committee:
            return
        if is_signed(self.directory.entries[member].identity, signature, self.view):
            self.view_signatures[member] = signature
        else:
            self._misanswered.add(member)

    @property
    def has_quorum(self) -> bool:
        """Whether enough members signed the view."""
        return len(self.view_signatures) >= self.terms.threshold

    def answer(self, member: int, opened: Opened) -> None:
        """Store a member's answer. A second one, or one from outside the committee, is ignored."""
        if member not in self.terms.committee or member in self._answered:
            return
        self._answered.add(member)
        self._asked = self._fresh = True
        for client in self._heads.keys() & set(opened.unreadable):
            self._unreadable.setdefault(client, set()).add(member)
        x = self.terms.committee.index(member) + 1
        for client in self.online:
            share = opened.shares.get(client)
            if share is None:
                continue
            if len(share) == SEED_BYTES * len(self._seeds_to_open(client)):
                self._points.setdefault(client, {})[x] = share
            else:
                self._misanswered.add(member)

    @property
    def enough(self) -> bool:
        """Whether all seeds that `release` needs are open and match their commitments."""
        if len(self._answered) < self.terms.threshold:
            return False
        if self._fresh:  # else nothing has changed since the last look
            self._fresh = False
            for client in self.online:
                if client not in self._seeds and not self._open_seeds(client):
                    break
        return len(self._seeds) == len(self._heads)

    @cached_property
    def _indices(self) -> dict[int, list[int]]:
        """Indices of the seeds to open, by client; fixed from the first question on."""
        return {
            client: [index for index, _ in self._seeds_to_open(client)] for client in self._heads
        }

    def _seeds_to_open(self, client: int) -> list[tuple[int, int | None]]:
        """Index and neighbour of the seeds to open; the self seed has no neighbour."""
        if not self._needed:  # fixed from the first question on
            alive = frozenset(self._heads)
            for replier in alive:
                lost = lost_neighbours(self.terms, replier, alive)
                self._needed[replier] = [(0, None), *lost]
        return self._needed[client]

    def _open_seeds(self, client: int, *, without: Set[int] = frozenset()) -> bool:
        """Combine a replier's seeds from shares, and store them if they fit its commitments."""
        points = self._shares_of(client, without)
        for attempt, xs in enumerate(self._subsets(points)):
            if (seeds := self._matching(client, xs)) is not None:
                self._seeds[client], self._good, self._fitted[client] = seeds, xs, xs
                return True
            if attempt == 0 and not _outliers(points, xs):
                return False  # all lie on one polynomial, so every subset gives the same seeds
        return False

    def _matching(self, client: int, xs: tuple[int, ...]) -> tuple[bytes, ...] | None:
        """The seeds that some shares give, if they match the replier's commitments."""
        seeds = _seeds(self._points[client], xs)
        commitments = self._heads[client].commitments
        for seed, (index, _) in zip(seeds, self._seeds_to_open(client), strict=True):
            committed = commitments[COMMITMENT_BYTES * index : COMMITMENT_BYTES * (index + 1)]
            if commitment(seed, self.terms, client) != committed:
                return None
        return seeds

    def _subsets(self, points: Mapping[int, bytes]) -> Iterator[tuple[int, ...]]:
        """Subsets of `threshold` points; those that fitted last come first."""
        threshold = self.terms.threshold
        if len(points) < threshold:
            return
        xs = sorted(points, key=lambda x: (x not in self._good, x))
        if math.comb(len(xs), threshold) <= _MOST_SUBSETS:
            yield from itertools.combinations(xs, threshold)
            return
        yield tuple(xs[:threshold])
        for _ in range(_MOST_SUBSETS):
            # No secret hangs on this choice.
            yield tuple(sorted(secrets.SystemRandom().sample(xs, threshold)))

    # Who lied.

    def blame(self) -> Blame:
        """Return the nodes that lied, as far as counting shows, once no more answers come.

        A wrong share is its client's lie or its member's. At most max(1, colluding) nodes lie: a
        member is blamed for wrong shares of more clients than may lie, and a client likewise. An
        honest client's shares open unless too many members are gone or lie.
        """
        if len(self._answered) < self.terms.threshold:
            return Blame(frozenset(), frozenset(), frozenset())
        most = max(1, self.terms.colluding)
        members = set(self._misanswered)
        for _ in range(2):  # once more without the members that the first look has found
            closed = {client for client in self.online if not self._opens(client, without=members)}
            wrong = {client: self._wrong_about(client) for client in self.online}
            accusations = Counter(itertools.chain.from_iterable(wrong.values()))
            members |= {member for member, times in accusations.items() if times > most}
        clients = {client for client in wrong if len(wrong[client] - members) > most}
        clients |= {client for client in closed if self._must_lie(client, members, most)}
        undecided = closed - clients if self._seeds else ()  # where none opens, members are why
        return Blame(frozenset(clients), frozenset(members), frozenset(undecided))

    def _opens(self, client: int, *, without: Set[int]) -> bool:
        return client in self._seeds or self._open_seeds(client, without=without)

    def _shares_of(self, client: int, without: Set[int]) -> dict[int, bytes]:
        """A replier's shares by x, except those from the members `without`."""
        points = self._points.get(client, {}).items()
        return {x: share for x, share in points if self.terms.committee[x - 1] not in without}

    def _wrong_about(self, client: int) -> set[int]:
        """The members who can't read a replier's bundle, or whose share is wrong."""
        members = set(self._unreadable.get(client, set()))
        if client in self._fitted:
            outliers = _outliers(self._points[client], self._fitted[client])
            members |= {self.terms.committee[x - 1] for x in outliers}
        return members

    def _must_lie(self, client: int, members: Set[int], most: int) -> bool:
        """Tell whether a replier lies whose shares don't open: an honest one's would.

        `members` lie for certain; at most `most` nodes lie.
        """
        points, threshold = self._shares_of(client, members), self.terms.threshold
        unreadable = self._unreadable.get(client, set()) - members
        lies = max(0, most - len(members)) - len(unreadable)  # among the shares
        if lies < 0:
            return True
        if len(points) - lies < threshold:
            return False
        # A random subset holds no lie with probability C(n - lies, t) / C(n, t).
        subsets = math.comb(len(points), threshold)
        right = math.comb(len(points) - lies, threshold)  # of them, at least
        agree = not _outliers(points, tuple(sorted(points)[:threshold]))
        return agree or subsets <= _MOST_SUBSETS or _CERTAIN * subsets <= _MOST_SUBSETS * right

    # The end.

    def release(self) -> NDArray[np.int64]:
        """The sum over the repliers, modulo 2^bits around zero, shape `(terms.size,)`.

        Raises:
            SecureSumFailed: Seeds are missing: too few members answered, or one lied.
        """
        if not self.enough:
            raise SecureSumFailed(
                f"{len(self._answered)} of {len(self.terms.committee)} members answered, "
                f"{self.terms.threshold} are needed; the seeds of "
                f"{len(self._heads) - len(self._seeds)} clients can't be opened"
            )
        # Pair masks of two repliers cancel. Own masks and pair masks with the lost remain.
        total = self._total.copy()
        masks = []
        for client, seeds in self._seeds.items():
            for (_, other), seed in zip(self._seeds_to_open(client), seeds, strict=True):
                sign = 1 if other is None else sign_of(client, other)
                masks.append((seed, -sign))
        add_masks(total, masks)
        return centred_words(total, self.terms.bits)


def _seeds(points: Mapping[int, bytes], xs: tuple[int, ...]) -> tuple[bytes, ...]:
    joined = combine({x: points[x] for x in xs})
    starts = range(0, len(joined), SEED_BYTES)
    return tuple(joined[start : start + SEED_BYTES] for start in starts)


def _outliers(points: Mapping[int, bytes], xs: tuple[int, ...]) -> set[int]:
    """The x of points off the polynomial through those at `xs`."""
    fitted = {x: points[x] for x in xs}
    return {x for x in points if x not in fitted and interpolate(fitted, x) != points[x]}


def centred_words(words: NDArray[np.integer], bits: int) -> NDArray[np.int64]:
    """The low bits of each word as an integer in [-2^(bits - 1), 2^(bits - 1))."""
    half = 1 << (bits - 1)
    return ((words.astype(np.int64) + half) & (2 * half - 1)) - half
