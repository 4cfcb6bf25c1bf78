"""A gated connection: Flower's eight functions, with the owner's gate between them and the server.

Incoming messages are fetched whole, checked and paid for before Flower gets them. All objects of a
reply are taken and none is sent on; the gate's own answer leaves by the real functions.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Error, Message

from fl_dp.clients.owner.running_app import RunningApp
from fl_dp.protocol.flower_compat import ErrorCode, bundle_name_and_version
from fl_dp.user_code import Contained

from .exchange import Exchange
from .flower_hook import (
    Connection,
    Fab,
    ObjectTree,
    Parts,
    Run,
    config_of_run,
    handed_to_app,
    ids_in,
    inflated,
    inflated_size,
    parts_of,
    pulled,
    push,
)
from .gate import Gate
from .judged_run import JudgedRun

logger = logging.getLogger("flwr.fl_dp.client")

_WIDER = 8  # times the bytes of a model: float64 for float16, and as much again
_SLACK = 1 << 20  # bytes in addition
_MOST_MORE = 1_000  # objects of a reply in addition to those of the message


@dataclass(kw_only=True)
class _Reply:
    """The app's reply, as far as it has arrived.

    Attributes:
        tree: Ids of its objects.
        ids: The same as a set.
        limit: Bytes above which it is no model of this message.
        contents: Bytes of each object that arrived.
        size: Bytes that arrived.
    """

    tree: ObjectTree
    ids: set[str]
    limit: int
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0

    def message(self) -> Message | None:
        """The reply; None: it can't be read."""
        with Contained("the app's reply can't be read") as attempt:
            if self.size > self.limit:
                raise ValueError(f"it is larger than {self.limit:,} bytes")
            return inflated(self.tree, self.contents, self.limit)
        assert attempt.failure is not None
        return None


@dataclass(kw_only=True)
class _Passed:
    """A message that the app has.

    Attributes:
        exchange: It ends with the message's answer.
        server_id: The message's id at the server.
        parts: What Flower has of it.
    """

    exchange: Exchange
    server_id: str
    parts: Parts


class GatedConnection:
    """One SuperNode's connection. Flower works on one message at a time."""

    def __init__(self, gate: Gate, real: Connection, abandon: Callable[[], None]) -> None:
        """Stand before a connection."""
        self._gate, self._real, self._abandon = gate, real, abandon
        self._passed: _Passed | None = None
        self._dropped_a_spare = False
        self._replies: dict[str, _Reply] = {}  # by the gate's own session
        self._runs: dict[int, JudgedRun] = {}  # as first received
        self._lock = threading.Lock()  # Flower pushes from several threads

    def functions(self) -> Connection:
        """The functions that Flower gets instead of its own connection."""
        return Connection(
            node_id=self._real.node_id,
            receive=self.receive,
            send=self.send,
            get_run=self.get_run,
            get_fab=self.get_fab,
            pull_object=self.pull_object,
            push_object=self.push_object,
            confirm_message_received=self.confirm,
        )

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The next message that the app may have, after all others were answered."""
        if self._passed is not None:  # Flower has given up on it
            self._end(None)
        received = self._real.receive()
        if received is None:
            return None
        shell, tree = received
        run, server_id = shell.metadata.run_id, shell.metadata.message_id
        try:
            asked = pulled(shell, tree, lambda object_id: self._real.pull_object(run, object_id))
            judged = self._judged(run)
        except Exception:  # hostile bytes may make Flower raise anything
            logger.exception("a message can't be read, and is refused")
            refused = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "unreadable")
            self._real.confirm_message_received(run, server_id)
            self._release(Message(refused, reply_to=shell))
            return None
        confirmed = False

        def release(answer: Message) -> None:
            if not confirmed:
                self._real.confirm_message_received(run, server_id)
            # Made again at the moment it leaves, as a message says when it was made.
            content = answer.error if answer.has_error() else answer.content
            self._release(Message(content, reply_to=asked))
            for work in ruling.once_sent:
                work()

        ruling = self._gate.judge(asked, judged)
        exchange = Exchange(
            ruling.answer, release, answer_after=ruling.answer_after, abandon=self._abandon
        )
        for_app = exchange.begin()
        if for_app is None:
            return None
        confirmed = True  # by Flower, once it has all objects
        parts = handed_to_app(asked, for_app.content)
        self._passed = _Passed(exchange=exchange, server_id=server_id, parts=parts)
        return parts.shell, parts.tree

    def confirm(self, run_id: int, message_id: str) -> None:
        """Confirm a message by the id that the server knows."""
        passed = self._passed
        if passed is not None and message_id == passed.parts.tree.object_id:
            message_id = passed.server_id
        self._real.confirm_message_received(run_id, message_id)

    def pull_object(self, run_id: int, object_id: str) -> bytes:
        """An object of the message that the app may have, and no other."""
        if self._passed is None or object_id not in self._passed.parts.contents:
            raise KeyError(f"no object {object_id:.80} of the present message")
        return self._passed.parts.contents[object_id]

    def send(
        self, message: Message, tree: ObjectTree, clientapp_runtime: float
    ) -> tuple[set[str], str]:
        """Ask for all objects of a reply, and send nothing of it."""
        passed = self._passed
        answers = message.metadata.reply_to_message_id
        if passed is None or self._replies or answers != passed.parts.tree.object_id:
            logger.error("an app sent a message that answers nothing, and it is dropped")
            self._dropped_a_spare = True
            return set(), ""
        asked = passed.parts.contents
        try:
            ids = ids_in(tree, len(asked) + _MOST_MORE)
        except (ValueError, RecursionError):
            logger.exception("the app's reply can't be read")
            self._end(None)
            return set(), ""
        # Pieces of the model that are alike travel once, and those of the reply may differ.
        limit = _WIDER * inflated_size(passed.parts.tree.object_id, asked) + _SLACK
        session = secrets.token_hex(8)
        self._replies[session] = _Reply(tree=tree, ids=ids, limit=limit)
        return set(ids), session

    def dropped_a_spare(self) -> bool:
        """Tell, once, whether a spare message was dropped and the app's reply is still to come.

        An app that continues after its reply can send more while another one works.
        """
        dropped, self._dropped_a_spare = self._dropped_a_spare, False
        return dropped and self._passed is not None

    def push_object(self, run_id: int, session: str, object_id: str, content: bytes) -> None:
        """Take an object of a reply; with the last one the gate's answer leaves."""
        with self._lock:
            reply = self._replies[session]
            reply.size += len(content or b"")
            if reply.size > reply.limit:
                content = b""
            reply.contents[object_id] = content
            if reply.contents.keys() != reply.ids:
                return
            del self._replies[session]
        self._end(reply.message())

    def get_run(self, run_id: int) -> Run:
        """A run, with the app that the gate has judged."""
        run = self._real.get_run(run_id)
        judged = self._require_same(run_id, run.fab_hash)
        if run.override_config != judged.overrides:
            raise PermissionError(f"the server has changed the configuration of run {run_id}")
        # The app's process finds the folder of its code by these, so they are the bundle's own.
        run.fab_id, run.fab_version = judged.app.name, judged.app.version
        return run

    def get_fab(self, fab_hash: str, run_id: int) -> Fab:
        """A run's bundle, the one that the gate has judged."""
        fab = self._real.get_fab(fab_hash, run_id)
        self._require_same(run_id, hashlib.sha256(fab.content).hexdigest())
        return fab

    def _require_same(self, run_id: int, fab_hash: str) -> JudgedRun:
        """The judged run; another app is refused."""
        judged = self._runs.get(run_id)
        if judged is None or judged.app.fab_hash != fab_hash:
            raise PermissionError(f"the server has changed the app of run {run_id}")
        return judged

    def _judged(self, run_id: int) -> JudgedRun:
        """A run with the bundle's own name, version and hash.

        Raises:
            ValueError: The bundle can't be read, or is not what the run names.
        """
        if run_id not in self._runs:
            run = self._real.get_run(run_id)
            fab = self._real.get_fab(run.fab_hash, run_id)
            fab_hash = hashlib.sha256(fab.content).hexdigest()
            if fab_hash != run.fab_hash:
                raise ValueError("the app's bundle has another hash than the run names")
            name, version = bundle_name_and_version(fab.content)
            if not (name + version).isprintable():
                raise ValueError("the app's name can't be printed")
            self._runs[run_id] = JudgedRun(
                app=RunningApp(name=name, version=version, fab_hash=fab_hash),
                config=config_of_run(fab.content, run),
                overrides=run.override_config,
            )
        return self._runs[run_id]

    def _end(self, reply: Message | None) -> None:
        passed = self._passed
        assert passed is not None  # callers have checked
        self._replies.clear()
        passed.exchange.end(reply)
        self._passed = None

    def _release(self, answer: Message) -> None:
        run = answer.metadata.run_id
        parts = parts_of(answer)
        # 0.0 instead of the time that the app took, which depends on data.
        wanted, session = self._real.send(parts.shell, parts.tree, 0.0)
        push(
            [item for item in parts.contents.items() if item[0] in wanted],
            lambda object_id, content: self._real.push_object(run, session, object_id, content),
        )
