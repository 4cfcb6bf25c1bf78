"""A node's side of secure sums: what it checks, remembers and answers.

    >>> node = SecureNode(identity, SQLiteStore(path), name="clinic-a", roster=roster)
    >>> node.entry(run, epoch=0)  # to the server, who sends the directory of all
    >>> node.accept(directory)
    >>> part = node.begin(text, content=content, purpose="train")  # marked: never twice
    >>> part.message(values)
    >>> node.open(text, online, labels, bundles)  # as a member, once per sum

A mark on disk precedes each answer that could give something away. Numbers of sums only grow: once
a node has answered a sum, that sum and all earlier ones are over for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from fl_dp.accounting.shared_noise import SharedNoise, usual_colluding

from .client import Participation
from .directory import MOST_ENTRIES, MOST_EPOCHS, MOST_RUNS, Directory, Entry
from .key_pairs import Identity, RunKey
from .member import Opened, open_bundles, view_text
from .node_store import Mark, SQLiteStore, stale
from .roster import Roster
from .terms import Refused, SumTerms
from .texts import canonical, digest, require_integers, require_name

KEPT_DAYS = 30.0  # for a run's keys, if no message says that the run is done
_LABEL_BYTES = 32
_MOST_NODES = 2**32 - 1
_KEY, _DIRECTORY = "run-key", "directory"
_PROMISED = "promised"
_IDENTITIES, _LARGEST = "identities", "largest"
_SUM, _VIEW, _OPEN = "sum", "view", "open"  # roles of marks
_MOST_KEYS = 8  # of one node in a run, which may lose its key


class SecureNode:
    """A node of secure sums. Its store holds all that it has to remember."""

    def __init__(
        self,
        identity: Identity,
        store: SQLiteStore,
        *,
        name: str,
        roster: Roster | None = None,
        least_sum: int = 2,
        colluding: int | None = 0,
        shared_context: bytes = b"",
    ) -> None:
        """Set up.

        Args:
            identity: The node's signing key.
            store: Holds run keys, directories and marks.
            name: The name by which others know the node.
            roster: Nodes that the owner knows. None: a name stays with the identity first seen
                with it.
            least_sum: Fewest clients that do not collude in any sum that could be opened.
            colluding: Nodes that the owner thinks may collude; a larger count in the terms
                applies. None: as many as usual for the roster.
            shared_context: Digest of what all nodes were told besides messages. With different
                digests, masks don't cancel.

        Raises:
            ValueError: A number is out of range.
        """
        require_name(name=name)
        require_integers(2, _MOST_NODES, least_sum=least_sum)
        require_integers(0, _MOST_NODES, colluding=colluding or 0)
        self.identity, self.store, self.name, self.roster = identity, store, name, roster
        self.least_sum, self.colluding = least_sum, colluding
        self._shared_context = shared_context
        self._roots: dict[tuple[bytes, bytes, int, int], bytes] = {}
        for run in store.older(KEPT_DAYS):  # a server need not say that a run is done
            self.forget(run)

    # Set-up, once a run.

    def entry(self, run: int, *, epoch: int = 0) -> Entry:
        """The node's entry for a run's directory of that epoch. Its run key is stored first.

        Raises:
            Refused: `directory`, if there can be no such run; then nothing is stored.
        """
        try:
            require_integers(0, MOST_RUNS, run=run)
            require_integers(0, MOST_EPOCHS, epoch=epoch)
        except ValueError as error:
            raise Refused("directory", f"{error}") from error
        if self.store.get(run, _KEY) is None:
            self.store.put(run, _KEY, RunKey.generate().secret)
        return Entry.make(run, epoch, self.name, self.identity, self._run_key(run))

    def read_directory(self, text: str) -> Directory:
        """Read a directory of no more entries than a run can have; `accept` checks it.

        Raises:
            Refused: `directory`, if the text is no directory.
        """
        most = MOST_ENTRIES
        if self.roster is not None:
            most = min(most, _MOST_KEYS * len(self.roster.members))
        try:
            return Directory.from_json(text, most=most)
        except ValueError as error:
            raise Refused("directory", f"{error}") from error

    def accept(self, directory: Directory) -> bytes:
        """Check a run's directory, store it, and return its hash.

        Raises:
            Refused: `directory`, if it is not signed, has an unknown node, a key twice or another
                key of this node, or does not continue the one before.
        """
        self._check_strangers(directory)  # before any signature is verified
        try:
            directory.check()
        except ValueError as error:
            raise Refused("directory", f"{error}") from error
        key = self._run_key(directory.run)
        own_index = directory.index_of.get(self.identity.public)
        if own_index is None:
            raise Refused("directory", "this node is not in the directory")
        entry = directory.entries[own_index]
        if (entry.name, entry.run_key) != (self.name, key.public):
            raise Refused("directory", "the directory has another name or key of this node")
        earlier = self.store.get(directory.run, _DIRECTORY)
        if earlier is not None and not directory.continues(_directory_of(earlier)):
            raise Refused("directory", "the directory does not continue the one before")
        self.store.put(directory.run, _DIRECTORY, directory.to_json().encode())
        if self.roster is None:
            before = self._first_identities()
            after = before | {entry.name: entry.identity.hex() for entry in directory.entries}
            if after != before:
                self.store.put(None, _IDENTITIES, canonical(after).encode())
        return directory.hash

    def _check_strangers(self, directory: Directory) -> None:
        if self.roster is not None:
            if errors := directory.strangers(self.roster):
                raise Refused("directory", errors[0])
            return
        identities = self._first_identities()
        for entry in directory.entries:
            if identities.get(entry.name, entry.identity.hex()) != entry.identity.hex():
                raise Refused("directory", f"'{entry.name}' had another identity before")

    def _first_identities(self) -> dict[str, str]:
        stored = self.store.get(None, _IDENTITIES)
        identities: dict[str, str] = {} if stored is None else json.loads(stored)
        return identities

    def forget(self, run: int) -> None:
        """Delete a run's key, directory and marks. What was sent in it can no longer be opened.

        Its promises stay: a server may go on with a run that it has called done.
        """
        self.store.forget(run)
        self._roots.clear()

    # As a client.

    def begin(self, text: str, *, content: str, purpose: str) -> Participation:
        """Check terms as a client, and mark the sum as taken part in.

        The mark is on disk when this returns, and the sum counts whatever happens next. The order
        is mark, charge, train.

        `text` has the terms as received, `content` is the hex digest of everything else that was
        received, and `purpose` the message's type.

        Raises:
            Refused: `terms`, `directory`, `policy` or `stale`.
        """
        agreed = self._agree(text)
        terms, client = agreed.terms, agreed.own_index
        if terms.content != content:
            raise Refused("terms", "the message is not the one of its terms")
        if terms.purpose != purpose:
            raise Refused("terms", f"the terms are for '{terms.purpose}', not '{purpose}'")
        if client not in terms.cohort:
            raise Refused("terms", "this node is not in the cohort")
        # Members were asked about it: the cut-off is over.
        if terms.number <= max(self.store.last(terms.run, role) for role in (_VIEW, _OPEN)):
            raise stale(terms.number)
        self._mark(terms, _SUM, Mark(terms.hash))
        return Participation(terms, client, agreed.root)

    def largest(self, terms: SumTerms) -> tuple[int, int]:
        """The most coordinates and the largest cohort of any sum, this one included.

        The two bound the accounting's floating-point error over all sums.
        """
        stored = self.store.get(None, _LARGEST)
        size, cohort = (0, 0) if stored is None else json.loads(stored)
        most = max(size, terms.size), max(cohort, len(terms.cohort))
        if most != (size, cohort):
            self.store.put(None, _LARGEST, canonical(list(most)).encode())
        return most

    # As a member of the committee.

    def view(self, text: str, online: Sequence[int], labels: Mapping[int, bytes]) -> bytes:
        """Sign, as a member, who replied to a sum, for the cross-check. A sum has one view.

        Args:
            text: The terms, as received.
            online: The repliers' indices, ascending.
            labels: Their messages' labels, 32 bytes each, by client.

        Raises:
            Refused: `terms`, `directory`, `policy`, `stale`, `view` or `thin`.
        """
        agreed = self._agree(text)
        terms = agreed.terms
        if not terms.cross_check:
            raise Refused("terms", "the terms have no cross-check")
        view = self._check_view(agreed, online, labels)
        if terms.number <= self.store.last(terms.run, _OPEN):
            raise stale(terms.number)
        # A repeated question, for example a message that came twice, has the same answer.
        if self.store.marked(terms.run, _VIEW, terms.number) is None:
            self._mark(terms, _VIEW, _mark_of(terms, view))
        return self.identity.sign(view)

    def open(
        self,
        text: str,
        online: Sequence[int],
        labels: Mapping[int, bytes],
        bundles: Mapping[int, bytes],
        quorum: Mapping[int, bytes] | None = None,
    ) -> Opened:
        """Open, as a member, the shares that unmask the repliers' sum; once per sum.

        `text`, `online` and `labels` are as in `view`. `bundles` has each replier's shares for
        this member, by client. With the cross-check, `quorum` has signatures of this view, by
        member.

        Raises:
            Refused: `terms`, `directory`, `policy`, `stale`, `view`, `thin` or `quorum`.
        """
        agreed = self._agree(text)
        terms = agreed.terms
        view = self._check_view(agreed, online, labels)
        if terms.cross_check:
            signers = terms.signers(agreed.directory, quorum or {}, view)
            if signers < terms.threshold:
                raise Refused(
                    "quorum", f"{signers} members signed this view, {terms.threshold} are needed"
                )
        self._mark(terms, _OPEN, _mark_of(terms, view))
        member = agreed.own_index
        shares, unreadable = open_bundles(terms, member, online, labels, bundles, agreed.root)
        return Opened(shares, unreadable)

    def _check_view(
        self, agreed: _Agreed, online: Sequence[int], labels: Mapping[int, bytes]
    ) -> bytes:
        """The view as members sign it, unless it breaks a rule or another was signed."""
        terms = agreed.terms
        if agreed.own_index not in terms.committee:
            raise Refused("terms", "this node is not in the committee")
        self._check_repliers(terms, online, self._noise(terms))
        wrong_length = any(len(label) != _LABEL_BYTES for label in labels.values())
        if set(labels) != set(online) or wrong_length:
            raise Refused("view", f"labels must be {_LABEL_BYTES} bytes for each replier")
        took_part = self.store.marked(terms.run, _SUM, terms.number)
        if took_part is not None and took_part.terms != terms.hash:
            raise Refused("terms", f"this node took part in sum {terms.number} under other terms")
        view = view_text(terms, online, labels)
        signed = self.store.marked(terms.run, _VIEW, terms.number)
        if signed not in (None, _mark_of(terms, view)):
            raise Refused("view", f"another view of sum {terms.number} was signed")
        return view

    # What every role checks.

    def _agree(self, text: str) -> _Agreed:
        try:
            terms = _terms_of(text)
        except (TypeError, ValueError, OverflowError) as error:
            raise Refused("terms", f"{error}") from error
        directory = self._directory(terms.run)
        if terms.directory != directory.hash.hex():
            raise Refused("directory", "the terms are of another directory")
        current = frozenset(directory.current)
        if not current.issuperset(terms.cohort) or not current.issuperset(terms.committee):
            raise Refused("terms", "cohort and committee must be nodes whose entry is their last")
        # If the directory has a roster that this node lacks, it can't tell who the members are.
        if (self.roster is not None or not directory.roster_hash) and (
            terms.committee != directory.committee(len(terms.committee), self.roster)
        ):
            raise Refused("terms", "the committee is not the one of this directory")
        self._noise(terms)
        self._check_promise(terms)
        own_index = directory.index_of[self.identity.public]
        return _Agreed(self, terms, directory, self._run_key(terms.run), own_index)

    def assumed_colluding(self, terms: SumTerms) -> int:
        """Nodes that may collude: the larger of the terms' and the owner's number."""
        if self.colluding is not None:
            return max(self.colluding, terms.colluding)
        # The whole roster counts: a server that lies would put its accomplices into a cohort so
        # small that fewer were usual.
        listed = 0 if self.roster is None else len(self.roster.members)
        return max(usual_colluding(max(listed, len(terms.cohort))), terms.colluding)

    def _noise(self, terms: SumTerms) -> SharedNoise:
        """The rules with the assumed number of colluding nodes, if they hold."""
        assumed = self.assumed_colluding(terms)
        try:
            noise = terms.noise_of(assumed)
        except ValueError as error:
            raise Refused("policy", f"with {assumed} nodes that may collude: {error}") from error
        hidden = noise.honest_shares(server_lies=True)
        if hidden < self.least_sum:
            raise Refused(
                "policy",
                f"a sum of {hidden} clients that do not collude could be opened, this node wants "
                f"{self.least_sum}",
            )
        return noise

    def _promise(self, run: int) -> tuple[int, int]:
        """The most honest clients that a run has promised, and the most colluding nodes."""
        stored = self.store.get(None, f"{_PROMISED} {run}")
        promised, colluding = (0, 0) if stored is None else json.loads(stored)
        return promised, colluding

    def _check_promise(self, terms: SumTerms) -> None:
        """Refuse a sum that hides a client among fewer than the run has promised before."""
        promised, colluding = self._promise(terms.run)
        # The largest count so far: terms that lower it could hide a smaller sum.
        certain = terms.noise.guaranteed - max(colluding, terms.colluding)
        if certain < promised:
            raise Refused(
                "policy",
                f"a sum of {certain} clients that do not collude could be opened, and this run has "
                f"promised {promised}",
            )

    def _mark(self, terms: SumTerms, role: str, mark: Mark) -> None:
        """Write a mark to disk, and what the run has promised with it."""
        self.store.mark(terms.run, role, terms.number, mark)
        before = self._promise(terms.run)
        most = max(before[0], terms.promised), max(before[1], terms.colluding)
        if most != before:
            self.store.put(None, f"{_PROMISED} {terms.run}", canonical(list(most)).encode())

    def _check_repliers(self, terms: SumTerms, online: Sequence[int], noise: SharedNoise) -> None:
        """Refuse repliers for whom no sum may be opened."""
        alive = frozenset(online)
        if list(online) != sorted(alive) or not alive <= frozenset(terms.cohort):
            raise Refused("view", "repliers must be of the cohort, in ascending order, each once")
        if len(alive) < terms.least:
            raise Refused("view", f"{len(alive)} replied, the terms want {terms.least}")
        if terms.too_thin(alive, noise):
            raise Refused("thin", "too few of some client's neighbours replied")

    def _run_key(self, run: int) -> RunKey:
        secret = self.store.get(run, _KEY)
        if secret is None:
            raise Refused("directory", "this node has no key for that run")
        return RunKey.from_secret(secret)

    def _directory(self, run: int) -> Directory:
        """A run's directory, checked against the roster in force now."""
        stored = self.store.get(run, _DIRECTORY)
        if stored is None:
            raise Refused("directory", "this node has no directory of that run")
        directory = _directory_of(stored)
        # The roster may have changed since: it was pinned, or an identity was struck out.
        self._check_strangers(directory)
        return directory

    def _root_of(self, other_key: bytes, key: RunKey, own_index: int, other: int) -> bytes:
        """The secret that this node shares with another; 61 us the first time."""
        pair = key.public, other_key, own_index, other
        if pair not in self._roots:
            self._roots[pair] = key.root(
                other_key, own_index, other, shared_context=self._shared_context
            )
        return self._roots[pair]


# Terms are public and equal at all nodes: nodes of one process read them once.
@lru_cache(maxsize=8)
def _terms_of(text: str) -> SumTerms:
    return SumTerms.from_json(text)


@lru_cache(maxsize=4)
def _directory_of(text: bytes) -> Directory:
    return Directory.from_json(text.decode())


class _Agreed(NamedTuple):
    """Terms that a node agrees with, and what it needs to answer them."""

    node: SecureNode
    terms: SumTerms
    directory: Directory
    key: RunKey
    own_index: int

    def root(self, other: int) -> bytes:
        """The secret that the node shares with another, by its index."""
        other_key = self.directory.entries[other].run_key
        return self.node._root_of(other_key, self.key, self.own_index, other)


def _mark_of(terms: SumTerms, view: bytes) -> Mark:
    return Mark(terms.hash, digest("marked view", view))
