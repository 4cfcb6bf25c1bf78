"""Keys of a training whose sums are secure: who may take part, and how nodes get to know it."""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Message, MessageType, RecordDict

from fl_dp.accounting import SharedNoise
from fl_dp.accounting.shared_noise import usual_colluding
from fl_dp.plan import Plan
from fl_dp.protocol.secure_sum import (
    DIRECTORY_ACTION,
    DONE_ACTION,
    KEY_ACTION,
    text_of,
    text_to_content,
)
from fl_dp.secagg import Directory, OpenSum, Roster, SecureSumFailed
from fl_dp.secagg.directory import Entry

from ..exchange import Ask
from ..rehearsal import RehearsalFailed, meaning_of

logger = logging.getLogger("flwr.fl_dp")

_SECONDS = 60.0  # Flower reports a node that is gone after about as many
_RUN_BITS = 62  # Flower's records hold signed integers of 64 bits
_APART = "give each node a dp-unit-name, and a ledger in a folder, of its own"


class SecureSums:
    """The directory of one training: which node has which keys, and stands at which place.

    Privacy: nodes check the directory themselves; this end only collects and hands it out.

    Attributes:
        run: A random number that names the training to its nodes; keys are made for it.
        directory: Everybody's entries; None before the first set-up.
    """

    def __init__(self, roster: Roster | None = None) -> None:
        """Start a training.

        Args:
            roster: The nodes that their owners know of; None: any node.
        """
        self._roster = roster
        self._begin()
        # By identity: new keys bring nobody back.
        self._left_out: dict[bytes, str] = {}
        self._doubts: Counter[bytes] = Counter()
        self._sits_out: Counter[bytes] = Counter()
        self._silent: set[int] = set()
        self._waited = 0.0

    def _begin(self) -> None:
        """Begin a run: to nodes, one that has ended does not go on."""
        self.run = secrets.randbits(_RUN_BITS)
        self.directory: Directory | None = None
        self._place_of: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._let_back: set[int] = set()
        self._late: dict[bytes, str] = {}

    def set_up(self, nodes: Iterable[int], ask: Ask, *, timeout: float = _SECONDS) -> None:
        """Let nodes that are not known yet make their keys, and everybody know them.

        Two short messages a node, and none where everybody is known and has confirmed the keys.

        Args:
            nodes: Flower's ids.
            ask: For the exchange.
            timeout: Seconds to wait for each of the two answers.
        """
        asked_for = set(nodes)
        if new := sorted(asked_for - set(self._place_of)):
            epoch = 0 if self.directory is None else self.directory.epoch + 1
            asked = json.dumps({"run": self.run, "epoch": epoch})
            entries: dict[int, Entry] = {}
            for node, content in self._ask(KEY_ACTION, new, asked, ask, timeout):
                try:
                    entries[node] = Entry.from_json(text_of(content))
                except ValueError:
                    logger.warning("A node's answer with its key can't be read: it takes no part")
            self._take_in(entries, epoch)
            self._hand_out(self._place_of, ask, timeout)
        elif asked_for - self._confirmed:  # busy or away when it was handed out
            self._hand_out(asked_for, ask, timeout)

    def let_back(self, node: int) -> None:
        """Ask a node for its key again before the next sum, once: it may have lost its own."""
        if node not in self._let_back and self._place_of.pop(node, None) is not None:
            self._let_back.add(node)
            self._confirmed.discard(node)

    def note_late(self, node: int) -> None:
        """Ask a node nothing more: its work was not done in time, and it refuses the whole run."""
        if (place := self._place_of.get(node)) is not None:
            entry = self.known.entries[place]
            self._late[entry.identity] = entry.name

    def forget(self, ask: Ask) -> None:
        """Let nodes delete the keys of the training; a node that misses this deletes them later.

        What comes next is another run to them, with other keys.

        Args:
            ask: For the exchange.
        """
        nodes = sorted(self._place_of)
        told = {
            "run": self.run,
            "left_out": [each.hex() for each in {*self._left_out, *self._doubts}],
        }
        for _ in self._ask(DONE_ACTION, nodes, json.dumps(told), ask, _SECONDS):
            pass
        self._begin()

    def places(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the place of each node that has confirmed the directory."""
        return {node: self._place_of[node] for node in nodes if node in self._confirmed}

    def allowed(self, nodes: Iterable[int], least: int) -> list[int]:
        """Return the nodes that may be asked for the next sum.

        Those that lied, or were late, are left out of all sums of the training. Those that may have
        lied, or about whom members may have, sit out the next ones, the most doubtful first, as far
        as `least` are left without them. What decides are messages of the protocol alone, and
        everybody may see it; but whether a node is late can depend on its data.
        """
        out = {*self._left_out, *self._late}
        allowed = [node for node in nodes if self._identity_of(node) not in out]
        doubtful = [node for node in allowed if self._sits_out[self._identity_of(node)]]
        doubtful.sort(key=lambda node: -self._doubts[self._identity_of(node)])
        resting = doubtful[: max(0, len(allowed) - least)]
        return [node for node in allowed if node not in resting]

    def excludes_liars(self, nodes: Iterable[int], least: int) -> bool:
        """Tell whether some of the nodes of a sum that failed will sit out the next one for it."""
        punctual = [node for node in nodes if self._identity_of(node) not in self._late]
        return len(self.allowed(punctual, least)) < len(punctual)

    def require_left(self, nodes: Iterable[int], least: int) -> None:
        """Check, before a sum is charged, that those left out don't keep it from opening.

        Raises:
            SecureSumFailed: If fewer than `least` nodes are left without them.
        """
        there = list(nodes)
        left = len(self.allowed(there, least))
        if left < len(there) and left < least:
            lied, late = (
                ", ".join(f"'{name}'" for name in sorted(out.values()))
                for out in (self._left_out, self._late)
            )
            why = f"sent what can't be opened ({lied})" if lied else ""
            if late:
                why += f"{' or ' if why else ''}were not done in time ({late}; raise reply_after)"
            raise SecureSumFailed(
                f"{len(there) - left} of {len(there)} nodes {why}, and a sum needs {least}: train "
                "without them, or lower `least` of the secure sum"
            )

    def _identity_of(self, node: int) -> bytes:
        """Return a node's identity; empty while it has no keys."""
        place = self._place_of.get(node)
        return b"" if place is None else self.known.entries[place].identity

    def require_enough(self, nodes: Sequence[int], least: int) -> None:
        """Check, before anything is charged, that a sum over some nodes could be opened.

        Raises:
            RehearsalFailed: If fewer than `least` of them have keys.
        """
        known = len(self.places(self.allowed(nodes, least)))
        if known < least:
            why = "their logs say why"
            if silent := len(self._silent.intersection(nodes)):
                why = (
                    f"{silent} did not answer within {self._waited:.0f} s, for which a busy or "
                    "slow machine needs a longer roster_timeout"
                )
            raise RehearsalFailed(
                f"{known} of {len(nodes)} nodes have keys for secure sums, and a sum needs "
                f"{least}: {why}; nothing was charged"
            )

    def node_at(self, place: int) -> int | None:
        """Return the node at a place, None if it is gone."""
        return next((node for node, at in self._place_of.items() if at == place), None)

    def committee(self, size: int) -> tuple[int, ...]:
        """Return the places of the committee, which every node finds for itself.

        Raises:
            SecureSumFailed: If nobody was set up.
        """
        return self.known.committee(size, self._roster)

    def require_committee(self, planned: SharedNoise) -> None:
        """Refuse a committee for which the plan's threshold is too high, or its noise too little.

        Raises:
            SecureSumFailed: With what to write instead.
        """
        members = len(self.committee(planned.committee))
        if not planned.threshold <= members <= planned.committee:
            raise SecureSumFailed(
                f"the committee has {members} members, and the plan is for {planned.committee}, "
                f"of whom {planned.threshold} open a sum: write "
                f"SecureSum(committee={members}) (privacy.secure_sum.committee of fl-dp run)"
            )

    def leave_out(self, ended: OpenSum) -> None:
        """Leave those out of later sums whose messages could not be opened."""
        entries, blame = self.known.entries, ended.blame()
        self._sits_out -= Counter(set(self._sits_out))  # one sum less for each
        for place in sorted(blame.members):
            logger.warning(
                "'%s' answered as a committee member with what is wrong: the others have to do",
                entries[place].name,
            )
        for place in sorted(blame.clients):
            identity, name = entries[place].identity, entries[place].name
            if identity not in self._left_out:
                self._left_out[identity] = name
                logger.warning(
                    "'%s' sent what can't be opened: it takes no further part in this training",
                    name,
                )
        for place in sorted(blame.undecided):
            identity, name = entries[place].identity, entries[place].name
            # Longer each time: who lies again and again costs ever fewer sums.
            self._sits_out[identity] = 2 ** self._doubts[identity]
            self._doubts[identity] += 1
            logger.warning(
                "What '%s' sent did not open, by its own fault or by that of committee members: "
                "it sits out the next %d sums",
                name,
                self._sits_out[identity],
            )

    @property
    def known(self) -> Directory:
        """The directory.

        Raises:
            SecureSumFailed: If nobody was set up.
        """
        if self.directory is None:
            raise SecureSumFailed("no node answered with a key for secure sums")
        return self.directory

    def _take_in(self, entries: Mapping[int, Entry], epoch: int) -> None:
        """Put new entries into the directory; who comes back with its keys keeps its place.

        An entry that nodes would refuse is left out: with it, they would refuse everybody's.
        """
        held = () if self.directory is None else self.directory.entries
        places = {_keys_of(each): place for place, each in enumerate(held)}
        identity_of = {each.name: each.identity for each in held}
        name_of = {each.identity: each.name for each in held}
        fresh: dict[int, Entry] = {}
        back: dict[int, int] = {}
        for node, entry in sorted(entries.items()):
            known = places.get(_keys_of(entry))
            problem = self._problem(entry, epoch)
            if known in back.values() or _keys_of(entry) in map(_keys_of, fresh.values()):
                problem = f"another node answered with the keys of '{entry.name}' too; {_APART}"
            elif (
                identity_of.get(entry.name, entry.identity) != entry.identity
                or name_of.get(entry.identity, entry.name) != entry.name
            ):
                problem = f"'{entry.name}' or its identity is another node's; {_APART}"
            if problem:
                logger.warning("A node takes no part in secure sums: %s", problem)
            elif known is not None:
                back[node] = known
            else:
                fresh[node] = entry
                identity_of[entry.name], name_of[entry.identity] = entry.identity, entry.name
        if fresh and self.directory is None:
            roster_hash = "" if self._roster is None else self._roster.hash
            self.directory = Directory.first(self.run, fresh.values(), roster_hash=roster_hash)
        elif fresh and self.directory is not None:
            self.directory = self.directory.extended(fresh.values())
        if self.directory is None:
            return
        if fresh:
            self._confirmed = set()
        at = {_keys_of(each): place for place, each in enumerate(self.directory.entries)}
        for node, place in (back | {node: at[_keys_of(e)] for node, e in fresh.items()}).items():
            # A node that came back has another id at Flower.
            self._place_of = {n: p for n, p in self._place_of.items() if p != place}
            self._place_of[node] = place
        self._confirmed &= set(self._place_of)

    def _problem(self, entry: Entry, epoch: int) -> str | None:
        """Return why every node would refuse a directory with this entry; None: none would."""
        if entry.epoch != epoch:
            return f"the entry of '{entry.name}' is not of epoch {epoch}"
        if self._roster is not None and not self._roster.allows(entry.name, entry.identity):
            return f"'{entry.name}' is not in the roster with that key"
        try:
            entry.check(self.run)
        except ValueError as error:
            return str(error)
        return None

    def _hand_out(self, nodes: Iterable[int], ask: Ask, timeout: float) -> None:
        if self.directory is None:
            return
        told, unserved = self.directory.to_json(), sorted(set(nodes) - self._confirmed)
        for node, content in self._ask(DIRECTORY_ACTION, unserved, told, ask, timeout):
            try:
                accepted = text_of(content)
            except ValueError:
                continue
            if accepted == self.directory.hash.hex():
                self._confirmed.add(node)
        if left := len(self._place_of) - len(self._confirmed):
            logger.warning("%d nodes did not accept the directory of keys: see their logs", left)

    def _ask(
        self, action: str, nodes: Sequence[int], text: str, ask: Ask, timeout: float
    ) -> Iterable[tuple[int, RecordDict]]:
        """Send one text to nodes and yield each first answer that is no error."""
        content, kind = text_to_content(text), f"{MessageType.QUERY}.{action}"
        messages = [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
        left = set(nodes)
        self._silent.update(nodes)
        self._waited = timeout
        for reply in ask(messages, timeout):
            node = reply.metadata.src_node_id
            self._silent.discard(node)
            if reply.has_error():
                meaning = meaning_of(reply.error)
                known = "see its log" if meaning is None else meaning.text
                logger.warning("A node did not answer '%s': %s", action, known)
            elif node in left:
                left.discard(node)
                yield node, reply.content
            if not left:
                return


def secure_sums_of(plan: Plan, roster: Roster | None) -> SecureSums | None:
    """Return who keeps the keys of secure sums, None where the plan has none.

    Raises:
        ValueError: If a roster is given and the plan supposes none, or the other way round.
    """
    noise = plan.noise
    supposed = noise is not None and noise.secure_sum.roster
    if supposed != (roster is not None):
        has = "supposes" if supposed else "does not suppose"
        raise ValueError(
            f"the plan {has} that nodes know each other's keys from a roster "
            f"(SecureSum(roster=...)), and secure_roster is "
            f"{'left out' if roster is None else 'given'}: change one of them"
        )
    if noise is None:
        return None
    if roster is not None:
        _warn_of_more_colluding(noise.shares, len(roster.members))
    return SecureSums(roster)


def _warn_of_more_colluding(planned: SharedNoise, known: int) -> None:
    """Say where nodes will charge themselves for more noise than the plan, and so stop sooner."""
    usual = usual_colluding(known)
    if 0 < planned.colluding < usual:  # nobody colludes: then owners had to write it, too
        logger.warning(
            "The roster names %d nodes, of whom nodes suppose that %d collude, and the plan %d: "
            "they charge themselves more, and send noise alone when their budget ends. Write "
            "SecureSum(colluding=%d), which is privacy.secure_sum.colluding of fl-dp run, or let "
            "owners write dp-secagg-colluding=%d",
            known,
            usual,
            planned.colluding,
            usual,
            planned.colluding,
        )


def _keys_of(entry: Entry) -> tuple[str, bytes, bytes]:
    """Return what an entry says but for its epoch."""
    return entry.name, entry.identity, entry.run_key
