"""The server's side of one sum: fold messages, ask the committee, and take the masks away.

>>> opening = OpenSum(terms, directory)
>>> opening.fold(place, message)  # each reply
>>> opening.require_openable()
>>> opening.answer(member, node.open(terms.to_json(), *opening.question(member)))
>>> if opening.enough: opening.release()
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

_MOST_SUBSETS = 1000  # of shares that are tried where members lie; a try is a fraction of a ms
_CERTAIN = 14.0  # tries, over their chance, after which one has succeeded but for 1e-6


class SecureSumFailed(RuntimeError):
    """A sum that could not be opened: nothing was released, and everything stays charged."""


class Question(NamedTuple):
    """What a member is asked besides the terms, in the order of `SecureNode.open`.

    Attributes:
        online: Places of the repliers, ascending.
        labels: Of their messages, by place.
        bundles: For this member, by place, of each what it opens (`needed_of`).
    """

    online: tuple[int, ...]
    labels: dict[int, bytes]
    bundles: dict[int, bytes]


class Blame(NamedTuple):
    """Nodes that a sum has shown to lie, if at most max(1, colluding) nodes lie.

    Attributes:
        clients: Places whose commitments or shares are wrong, whatever members say.
        members: Places who answered wrongly, whatever clients sent them.
        undecided: Clients whose seeds did not open, though members who are gone or lie may be why.
    """

    clients: frozenset[int]
    members: frozenset[int]
    undecided: frozenset[int]


class _Head(NamedTuple):
    """What the server keeps of a message whose values were added."""

    label: bytes
    bundles: list[bytes]
    commitments: bytes


class OpenSum:
    """One sum at the server.

    Attributes:
        terms: Of the sum.
        view_signatures: Of members who signed the view, by place.
    """

    def __init__(self, terms: SumTerms, directory: Directory | None = None) -> None:
        """Start without any reply.

        Args:
            terms: Of the sum.
            directory: Whose identities view signatures are checked with; None: there is no
                cross-check.
        """
        self.terms, self.directory = terms, directory
        self.view_signatures: dict[int, bytes] = {}
        self._misanswered: set[int] = set()  # members whose answers no client can have spoilt
        self._total = np.zeros(terms.size, word_dtype(terms.bits))
        self._heads: dict[int, _Head] = {}
        self._points: dict[int, dict[int, bytes]] = {}  # shares of a replier's seeds, by x
        self._unreadable: dict[int, set[int]] = {}  # members who can't read a replier's bundle
        self._seeds: dict[int, tuple[bytes, ...]] = {}
        self._fitted: dict[int, tuple[int, ...]] = {}  # x of the shares that a replier's are of
        self._needed: dict[int, list[tuple[int, int | None]]] = {}
        self._asked, self._answered, self._fresh = False, set[int](), False
        self._good: tuple[int, ...] = ()  # x of members whose shares fitted last

    # Replies.

    @property
    def online(self) -> tuple[int, ...]:
        """Places of the repliers so far, ascending."""
        return self._fixed if self._asked else tuple(sorted(self._heads))

    @cached_property
    def _fixed(self) -> tuple[int, ...]:
        """The repliers from the first question on."""
        return tuple(sorted(self._heads))

    @property
    def labels(self) -> dict[int, bytes]:
        """Labels of the messages so far, by place."""
        return {place: self._heads[place].label for place in self.online}

    def fold(self, place: int, message: MaskedMessage) -> None:
        """Add a client's message.

        Raises:
            Refused: `terms`, for a stranger's message or one of the wrong form; `stale`, for a
                second one, or one after members were asked.
        """
        if place not in self.terms.cohort:
            raise Refused("terms", f"place {place} is not in the cohort")
        if self._asked or place in self._heads:
            raise Refused("stale", f"place {place} replied before, or too late")
        if not message.fits(self.terms, place):
            raise Refused("terms", f"the message of place {place} has the wrong form")
        self._total += unpack(message.masked, self.terms.bits, self.terms.size)
        self._heads[place] = _Head(message.label, message.bundles, message.commitments)

    def require_openable(self) -> None:
        """Check, before a member is asked, that members may open the sum of these repliers.

        Raises:
            SecureSumFailed: If too few replied, or the ring is too thin.
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
        """The text that members sign: who replied with what. From here on no message is folded."""
        self._asked = True
        return view_text(self.terms, self.online, self.labels)

    def question(self, member: int) -> Question:
        """Return what to ask a member, by its place. From here on no message is folded.

        Raises:
            ValueError: If the place is not in the committee.
        """
        self._asked = True
        at = self.terms.committee.index(member)
        bundles = {
            place: needed_of(self._heads[place].bundles[at], self._indices[place])
            for place in self.online
        }
        return Question(self.online, self.labels, bundles)

    def sign(self, member: int, signature: bytes) -> None:
        """Take in a member's signature of the view, for the cross-check, unless it is wrong."""
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
        """Take in a member's answer; a second one, or a stranger's, is left out."""
        if member not in self.terms.committee or member in self._answered:
            return
        self._answered.add(member)
        self._asked = self._fresh = True
        for place in self._heads.keys() & set(opened.unreadable):
            self._unreadable.setdefault(place, set()).add(member)
        x = self.terms.committee.index(member) + 1
        for place in self.online:
            share = opened.shares.get(place)
            if share is None:
                continue
            if len(share) == SEED_BYTES * len(self._wanted(place)):
                self._points.setdefault(place, {})[x] = share
            else:
                self._misanswered.add(member)

    @property
    def enough(self) -> bool:
        """Whether all seeds that `release` needs are open and match their commitments."""
        if len(self._answered) < self.terms.threshold:
            return False
        if self._fresh:  # else nothing has changed since the last look
            self._fresh = False
            for place in self.online:
                if place not in self._seeds and not self._open_seeds(place):
                    break
        return len(self._seeds) == len(self._heads)

    @cached_property
    def _indices(self) -> dict[int, list[int]]:
        """Of the seeds to open, by place; fixed from the first question on."""
        return {place: [at for at, _ in self._wanted(place)] for place in self._heads}

    def _wanted(self, place: int) -> list[tuple[int, int | None]]:
        """Return index and neighbour of the seeds to open; the self seed has no neighbour."""
        if not self._needed:  # fixed from the first question on
            alive = frozenset(self._heads)
            self._needed = {
                each: [(0, None), *lost_neighbours(self.terms, each, alive)] for each in alive
            }
        return self._needed[place]

    def _open_seeds(self, place: int, *, without: Set[int] = frozenset()) -> bool:
        """Put a replier's seeds together from shares that fit its commitments, if there are."""
        points = self._shares_of(place, without)
        for attempt, xs in enumerate(self._subsets(points)):
            if (seeds := self._matching(place, xs)) is not None:
                self._seeds[place], self._good, self._fitted[place] = seeds, xs, xs
                return True
            if attempt == 0 and not _off(points, xs):
                return False  # all are of one polynomial, so that no other subset has another
        return False

    def _matching(self, place: int, xs: tuple[int, ...]) -> tuple[bytes, ...] | None:
        """Return the seeds that some shares give, if they are what the replier committed to."""
        points, commitments = self._points[place], self._heads[place].commitments
        seeds = _seeds(points, xs)
        wanted = [
            commitments[COMMITMENT_BYTES * at : COMMITMENT_BYTES * (at + 1)]
            for at, _ in self._wanted(place)
        ]
        found = [commitment(seed, self.terms, place) for seed in seeds]
        return seeds if found == wanted else None

    def _subsets(self, points: Mapping[int, bytes]) -> Iterator[tuple[int, ...]]:
        """Yield subsets of as many points as the threshold, those that fitted last first."""
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

        A share that is off may be the lie of its client or of its member. But of more clients than
        may lie one is honest, and so is one of more members. And so many shares of an honest client
        are right that it opens, unless too many members are gone or lie.
        """
        if len(self._answered) < self.terms.threshold:
            return Blame(frozenset(), frozenset(), frozenset())
        most = max(1, self.terms.colluding)
        members = set(self._misanswered)
        for _ in range(2):  # once more without the members that the first look has found
            closed = {each for each in self.online if not self._opens(each, without=members)}
            off = {place: self._wrong_about(place) for place in self.online}
            told = Counter(member for lied in off.values() for member in lied)
            members |= {member for member, times in told.items() if times > most}
        clients = {place for place in off if len(off[place] - members) > most}
        clients |= {place for place in closed if self._must_lie(place, members, most)}
        undecided = closed - clients if self._seeds else ()  # where none opens, members are why
        return Blame(frozenset(clients), frozenset(members), frozenset(undecided))

    def _opens(self, place: int, *, without: Set[int]) -> bool:
        return place in self._seeds or self._open_seeds(place, without=without)

    def _shares_of(self, place: int, without: Set[int]) -> dict[int, bytes]:
        """Return a replier's shares by x, but for those of some members."""
        points = self._points.get(place, {}).items()
        return {x: share for x, share in points if self.terms.committee[x - 1] not in without}

    def _wrong_about(self, place: int) -> set[int]:
        """Return the members who can't read a replier's bundle, or whose share is off."""
        fitted = self._fitted.get(place)
        off = set() if fitted is None else _off(self._points[place], fitted)
        return {self.terms.committee[x - 1] for x in off} | self._unreadable.get(place, set())

    def _must_lie(self, place: int, members: Set[int], most: int) -> bool:
        """Tell whether a replier's shares, which don't open, would if it were honest.

        Args:
            place: The replier's.
            members: Who lie for certain.
            most: Nodes that may lie in all.
        """
        points, threshold = self._shares_of(place, members), self.terms.threshold
        unreadable = self._unreadable.get(place, set()) - members
        lies = max(0, most - len(members)) - len(unreadable)  # among the shares
        if lies < 0:
            return True
        if len(points) - lies < threshold:
            return False
        # A random subset holds no lie with probability C(n - lies, t) / C(n, t).
        subsets = math.comb(len(points), threshold)
        right = math.comb(len(points) - lies, threshold)  # of them, at least
        agree = not _off(points, tuple(sorted(points)[:threshold]))
        return agree or subsets <= _MOST_SUBSETS or _CERTAIN * subsets <= _MOST_SUBSETS * right

    # The end.

    def release(self) -> NDArray[np.int64]:
        """Return the sum over the repliers, modulo 2^bits around zero, shape `(terms.size,)`.

        Raises:
            SecureSumFailed: If seeds are missing: too few members answered, or one lied.
        """
        if not self.enough:
            raise SecureSumFailed(
                f"{len(self._answered)} of {len(self.terms.committee)} members answered, "
                f"{self.terms.threshold} are needed; the seeds of "
                f"{len(self._heads) - len(self._seeds)} clients can't be opened"
            )
        # Pair masks of two repliers cancel: left are own masks, and pair masks with the lost.
        total = self._total.copy()
        masks = [
            (seed, -1 if other is None else -sign_of(place, other))
            for place, seeds in self._seeds.items()
            for (_, other), seed in zip(self._wanted(place), seeds, strict=True)
        ]
        add_masks(total, masks)
        return centred_words(total, self.terms.bits)


def _seeds(points: Mapping[int, bytes], xs: tuple[int, ...]) -> tuple[bytes, ...]:
    joined = combine({x: points[x] for x in xs})
    return tuple(joined[at : at + SEED_BYTES] for at in range(0, len(joined), SEED_BYTES))


def _off(points: Mapping[int, bytes], xs: tuple[int, ...]) -> set[int]:
    """Return the points that are not on the polynomial through some of them."""
    fitted = {x: points[x] for x in xs}
    return {x for x in points if x not in fitted and interpolate(fitted, x) != points[x]}


def centred_words(words: NDArray[np.integer], bits: int) -> NDArray[np.int64]:
    """Return the low bits of each word as an integer in [-2^(bits - 1), 2^(bits - 1))."""
    half = 1 << (bits - 1)
    return ((words.astype(np.int64) + half) & (2 * half - 1)) - half
