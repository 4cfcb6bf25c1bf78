"""Keys for a training's secure sums, and the nodes that may take part."""

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
from fl_dp.protocol.secure_sum_messages import (
    DIRECTORY_ACTION,
    DONE_ACTION,
    KEY_ACTION,
    text_of,
    text_to_content,
)
from fl_dp.secagg import Directory, OpenSum, Roster, SecureSumFailed
from fl_dp.secagg.directory import Entry

from ..error_meanings import meaning_of
from ..message_exchange import Ask
from ..node_answers import RehearsalFailed

logger = logging.getLogger("flwr.fl_dp")

_SECONDS = 60.0  # Flower reports a node that is gone after about as many
_RUN_BITS = 62  # Flower's records hold signed integers of 64 bits
_APART = "give each node a dp-unit-name, and a ledger in a folder, of its own"


class SecureSums:
    """One training's directory: each node's keys, and its position among the entries.

    Privacy: nodes check the directory themselves; the server only collects and distributes it.

    Attributes:
        run: A random number that names the training to its nodes; keys are made for it.
        directory: The entries of all nodes; None before the first set-up.
    """

    def __init__(self, roster: Roster | None = None) -> None:
        """Start a training; `roster` has the nodes that owners know, None admits any."""
        self._roster = roster
        self._begin()
        # By identity: new keys bring nobody back.
        self._left_out: dict[bytes, str] = {}
        self._doubts: Counter[bytes] = Counter()
        self._sits_out: Counter[bytes] = Counter()
        self._silent: set[int] = set()
        self._waited = 0.0

    def _begin(self) -> None:
        """Begin a run: for nodes, an ended run does not go on."""
        self.run = secrets.randbits(_RUN_BITS)
        self.directory: Directory | None = None
        self._position_of: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._let_back: set[int] = set()
        self._late: dict[bytes, str] = {}

    def set_up(self, nodes: Iterable[int], ask: Ask, *, timeout: float = _SECONDS) -> None:
        """Let new nodes make their keys, and distribute the directory.

        Two short messages per new node; none if every node has confirmed the directory. `timeout`
        is in seconds, for each of the two answers.
        """
        asked_for = set(nodes)
        if new := sorted(asked_for - set(self._position_of)):
            epoch = 0 if self.directory is None else self.directory.epoch + 1
            text = json.dumps({"run": self.run, "epoch": epoch})
            entries: dict[int, Entry] = {}
            for node, content in self._ask(KEY_ACTION, new, text, ask, timeout):
                try:
                    entries[node] = Entry.from_json(text_of(content))
                except ValueError:
                    logger.warning("A node's answer with its key can't be read: it takes no part")
            self._take_in(entries, epoch)
            self._hand_out(self._position_of, ask, timeout)
        elif asked_for - self._confirmed:  # busy or away when it was handed out
            self._hand_out(asked_for, ask, timeout)

    def prepare(
        self, nodes: Sequence[int], planned: SharedNoise, ask: Ask, *, timeout: float = _SECONDS
    ) -> None:
        """Set up nodes, and check that a sum over them could open. See `set_up`.

        Raises:
            RehearsalFailed: As `require_enough`.
            SecureSumFailed: As `require_committee`.
        """
        self.set_up(nodes, ask, timeout=timeout)
        self.require_enough(nodes, planned.least)
        self.require_committee(planned)

    def let_back(self, node: int) -> None:
        """Ask a node again for its key before the next sum, once: it may have lost its own."""
        if node not in self._let_back and self._position_of.pop(node, None) is not None:
            self._let_back.add(node)
            self._confirmed.discard(node)

    def note_late(self, node: int) -> None:
        """Exclude a node from the run: it did not work in time, and refuses the rest."""
        if (position := self._position_of.get(node)) is not None:
            entry = self.known_directory.entries[position]
            self._late[entry.identity] = entry.name

    def forget(self, ask: Ask) -> None:
        """Let nodes delete the training's keys; a node that misses this deletes them later.

        A later sum belongs to another run, with other keys.
        """
        nodes = sorted(self._position_of)
        identities = {*self._left_out, *self._doubts}
        text = json.dumps(
            {"run": self.run, "left_out": [identity.hex() for identity in identities]}
        )
        for _ in self._ask(DONE_ACTION, nodes, text, ask, _SECONDS):
            pass
        self._begin()

    def positions(self, nodes: Iterable[int]) -> dict[int, int]:
        """Directory position of each node that has confirmed it."""
        return {node: self._position_of[node] for node in nodes if node in self._confirmed}

    def allowed(self, nodes: Iterable[int], least: int) -> list[int]:
        """Nodes that may be asked for the next sum.

        Nodes that lied, or were late, are excluded from all sums of the training. Nodes that may
        have lied, or about whom members may have, sit out the next sums, the most doubtful first,
        as long as `least` nodes are left. Only public messages of the protocol decide; but whether
        a node is late can depend on its data.
        """
        out = {*self._left_out, *self._late}
        allowed = [node for node in nodes if self._identity_of(node) not in out]
        doubtful = [node for node in allowed if self._sits_out[self._identity_of(node)]]
        doubtful.sort(key=lambda node: -self._doubts[self._identity_of(node)])
        resting = doubtful[: max(0, len(allowed) - least)]
        return [node for node in allowed if node not in resting]

    def excludes_liars(self, nodes: Iterable[int], least: int) -> bool:
        """Whether nodes of a failed sum will sit out the next one."""
        punctual = [node for node in nodes if self._identity_of(node) not in self._late]
        return len(self.allowed(punctual, least)) < len(punctual)

    def require_left(self, nodes: Iterable[int], least: int) -> None:
        """Check, before a sum's charge, that it can open without the excluded nodes.

        Raises:
            SecureSumFailed: If fewer than `least` nodes are left.
        """
        asked = list(nodes)
        remaining = len(self.allowed(asked, least))
        if remaining >= min(least, len(asked)):
            return
        reasons: list[str] = []
        if lied := _quoted(self._left_out.values()):
            reasons.append(f"sent what can't be opened ({lied})")
        if late := _quoted(self._late.values()):
            reasons.append(f"were not done in time ({late}; raise reply_after)")
        raise SecureSumFailed(
            f"{len(asked) - remaining} of {len(asked)} nodes {' or '.join(reasons)}, and a sum "
            f"needs {least}: train without them, or lower `least` of the secure sum"
        )

    def _identity_of(self, node: int) -> bytes:
        """A node's identity; empty while it has no keys."""
        position = self._position_of.get(node)
        return b"" if position is None else self.known_directory.entries[position].identity

    def require_enough(self, nodes: Sequence[int], least: int) -> None:
        """Check, before any charge, that a sum over these nodes could open.

        Raises:
            RehearsalFailed: If fewer than `least` have keys.
        """
        able = len(self.positions(self.allowed(nodes, least)))
        if able < least:
            reason = "their logs say why"
            if silent := len(self._silent.intersection(nodes)):
                reason = (
                    f"{silent} did not answer within {self._waited:.0f} s, for which a busy or "
                    "slow machine needs a longer roster_timeout"
                )
            raise RehearsalFailed(
                f"{able} of {len(nodes)} nodes have keys for secure sums, and a sum needs "
                f"{least}: {reason}; nothing was charged"
            )

    def node_at(self, position: int) -> int | None:
        """The node at a directory position, None if it is gone."""
        nodes = {entry: node for node, entry in self._position_of.items()}
        return nodes.get(position)

    def committee(self, size: int) -> tuple[int, ...]:
        """The committee's positions, which every node computes for itself.

        Raises:
            SecureSumFailed: If nobody was set up.
        """
        return self.known_directory.committee(size, self._roster)

    def require_committee(self, planned: SharedNoise) -> None:
        """Refuse a committee of a size that does not suit the plan's threshold and noise.

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
        """Exclude nodes from later sums if their messages could not be opened."""
        entries, blame = self.known_directory.entries, ended.blame()
        self._sits_out -= Counter(set(self._sits_out))  # one sum less for each
        for position in sorted(blame.members):
            logger.warning(
                "'%s' answered as a committee member with what is wrong: the others have to do",
                entries[position].name,
            )
        for position in sorted(blame.clients):
            identity, name = entries[position].identity, entries[position].name
            if identity not in self._left_out:
                self._left_out[identity] = name
                logger.warning(
                    "'%s' sent what can't be opened: it takes no further part in this training",
                    name,
                )
        for position in sorted(blame.undecided):
            identity, name = entries[position].identity, entries[position].name
            # Twice as long each time: a node that lies again and again costs few sums.
            self._sits_out[identity] = 2 ** self._doubts[identity]
            self._doubts[identity] += 1
            logger.warning(
                "What '%s' sent did not open, by its own fault or by that of committee members: "
                "it sits out the next %d sums",
                name,
                self._sits_out[identity],
            )

    @property
    def known_directory(self) -> Directory:
        """The directory.

        Raises:
            SecureSumFailed: If nobody was set up.
        """
        if self.directory is None:
            raise SecureSumFailed("no node answered with a key for secure sums")
        return self.directory

    def _take_in(self, entries: Mapping[int, Entry], epoch: int) -> None:
        """Add new entries to the directory; a node back with its keys keeps its position.

        An entry that nodes would refuse is excluded: they would refuse the whole directory.
        """
        held = () if self.directory is None else self.directory.entries
        position_of = {_keys_of(entry): position for position, entry in enumerate(held)}
        identity_of = {entry.name: entry.identity for entry in held}
        name_of = {entry.identity: entry.name for entry in held}
        fresh: dict[int, Entry] = {}
        back: dict[int, int] = {}
        for node, entry in sorted(entries.items()):
            position = position_of.get(_keys_of(entry))
            problem = self._problem(entry, epoch)
            if position in back.values() or _keys_of(entry) in map(_keys_of, fresh.values()):
                problem = f"another node answered with the keys of '{entry.name}' too; {_APART}"
            elif (
                identity_of.get(entry.name, entry.identity) != entry.identity
                or name_of.get(entry.identity, entry.name) != entry.name
            ):
                problem = f"'{entry.name}' or its identity is another node's; {_APART}"
            if problem:
                logger.warning("A node takes no part in secure sums: %s", problem)
            elif position is not None:
                back[node] = position
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
        entries_now = enumerate(self.directory.entries)
        position_of = {_keys_of(entry): position for position, entry in entries_now}
        back |= {node: position_of[_keys_of(entry)] for node, entry in fresh.items()}
        for node, position in back.items():
            # A node that came back has another id at Flower.
            former = self.node_at(position)
            if former is not None:
                del self._position_of[former]
            self._position_of[node] = position
        self._confirmed &= set(self._position_of)

    def _problem(self, entry: Entry, epoch: int) -> str | None:
        """Why nodes would refuse a directory with this entry; None if none would."""
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
        text, unserved = self.directory.to_json(), sorted(set(nodes) - self._confirmed)
        for node, content in self._ask(DIRECTORY_ACTION, unserved, text, ask, timeout):
            try:
                accepted = text_of(content)
            except ValueError:
                continue
            if accepted == self.directory.hash.hex():
                self._confirmed.add(node)
        if rest := len(self._position_of) - len(self._confirmed):
            logger.warning("%d nodes did not accept the directory of keys: see their logs", rest)

    def _ask(
        self, action: str, nodes: Sequence[int], text: str, ask: Ask, timeout: float
    ) -> Iterable[tuple[int, RecordDict]]:
        """Send nodes one text and yield each first answer without error."""
        content, kind = text_to_content(text), f"{MessageType.QUERY}.{action}"
        messages = [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
        waiting = set(nodes)
        self._silent.update(nodes)
        self._waited = timeout
        for reply in ask(messages, timeout):
            node = reply.metadata.src_node_id
            self._silent.discard(node)
            if reply.has_error():
                meaning = meaning_of(reply.error)
                cause = "see its log" if meaning is None else meaning.text
                logger.warning("A node did not answer '%s': %s", action, cause)
            elif node in waiting:
                waiting.discard(node)
                yield node, reply.content
            if not waiting:
                return


def secure_sums_of(plan: Plan, roster: Roster | None) -> SecureSums | None:
    """Keeper of a training's keys for secure sums; None if the plan has none.

    Raises:
        ValueError: If a roster is given and the plan supposes none, or the other way round.
    """
    noise = plan.noise
    supposed = noise is not None and noise.secure_sum.roster
    if supposed != (roster is not None):
        has = "supposes" if supposed else "does not suppose"
        state = "left out" if roster is None else "given"
        raise ValueError(
            f"the plan {has} that nodes know each other's keys from a roster "
            f"(SecureSum(roster=...)), and secure_roster is {state}: change one of them"
        )
    if noise is None:
        return None
    if roster is not None:
        _warn_of_more_colluding(noise.shares, len(roster.members))
    return SecureSums(roster)


def _warn_of_more_colluding(planned: SharedNoise, members: int) -> None:
    """Warn if nodes will charge themselves for more noise than planned, and so stop sooner."""
    usual = usual_colluding(members)
    if 0 < planned.colluding < usual:  # nobody colludes: then owners had to write it, too
        logger.warning(
            "The roster names %d nodes, of whom nodes suppose that %d collude, and the plan %d: "
            "they charge themselves more, and send noise alone when their budget ends. Write "
            "SecureSum(colluding=%d), which is privacy.secure_sum.colluding of fl-dp run, or let "
            "owners write dp-secagg-colluding=%d",
            members,
            usual,
            planned.colluding,
            usual,
            planned.colluding,
        )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _keys_of(entry: Entry) -> tuple[str, bytes, bytes]:
    """An entry without its epoch."""
    return entry.name, entry.identity, entry.run_key
