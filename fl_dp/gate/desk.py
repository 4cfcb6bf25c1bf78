"""The desk: the Fleet API as the site's SuperNode gets it, with one message at a time.

It has neither the node's key nor the owner's policy or ledger, and calls nobody but its gate.
Whoever calls it is untrusted, so nobody has to sign. What it answers is the gate's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .flower_wire import (
    CALLS,
    NO_MESSAGE,
    Bounds,
    ObjectTree,
    bounds_of_reply,
    contents_by_id,
    ids_in,
    message_in,
)
from .frames import Frame, FrameKind

logger = logging.getLogger("flwr.fl_dp.client")

_OF_A_CALL = 8 << 20  # bytes: an array travels in pieces of 5 MB
_OF_AN_ID = 100  # bytes of one in a tree


class DeskAnswer(NamedTuple):
    """A response.

    Attributes:
        status: HTTP's.
        body: Protobuf; empty for an error.
    """

    status: int
    body: bytes = b""


@dataclass(kw_only=True)
class _Open:
    """The message that the app may have.

    Attributes:
        number: The gate's, of its offer.
        message: Protobuf, without content.
        tree: Ids of its objects.
        contents: Bytes of its objects, by id.
        once: Whether no second SuperNode gets it.
        bounds: Bounds of a reply, to which the gate keeps again.
        taken: Whether the SuperNode has it.
        reply: The reply's tree, once it is announced.
        wanted: Ids of the reply's objects.
        arrived: Those that have come.
        size: Bytes that have come.
    """

    number: int
    message: Any
    tree: ObjectTree
    contents: dict[str, bytes]
    once: bool
    bounds: Bounds
    taken: bool = False
    reply: ObjectTree | None = None
    wanted: set[str] = field(default_factory=set)
    arrived: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class Desk:
    """Answers of the Fleet API. No method waits."""

    def __init__(self, hand_on: Callable[[int, list[bytes]], None]) -> None:
        """Store the function that takes a whole reply, with the offer's number, to the gate."""
        self._hand_on, self._lock = hand_on, threading.Lock()
        self._node_id = 0
        self._runs: dict[int, list[bytes]] = {}
        self._open: _Open | None = None
        self._holds_one_back = False  # the SuperNode waits for an app that nobody waits for
        self._answers: dict[str, Callable[[Any], dict[str, Any] | bytes]] = {
            "register-node": self._register_node,
            "activate-node": self._activate_node,
            "send-node-heartbeat": self._heartbeat,
            "pull-messages": self._pull_messages,
            "pull-object": self._pull_object,
            "get-run": self._get_run,
            "get-fab": self._get_fab,
            "push-messages": self._push_messages,
            "push-object": self._push_object,
        }
        self._says_nothing = {"deactivate-node", "unregister-node", "confirm-message-received"}

    def take(self, frame: Frame) -> None:
        """Take what the gate sends."""
        with self._lock:
            match frame.kind:
                case FrameKind.NODE:
                    self._node_id = frame.number
                case FrameKind.RUN:
                    self._runs[frame.number] = frame.pieces
                case FrameKind.OVER:
                    self._close()
                case FrameKind.OFFER | FrameKind.OFFER_ONCE:
                    self._offer(frame)

    @property
    def longest_call(self) -> int:
        """Bytes that a call may have now."""
        with self._lock:
            bounds = NO_MESSAGE if self._open is None else self._open.bounds
        return _OF_A_CALL + _OF_AN_ID * bounds.objects

    def has_news(self) -> bool:
        """Whether a SuperNode that asks for a message gets one."""
        with self._lock:
            return self._open is not None and not self._open.taken

    def answer(self, name: str, body: bytes) -> DeskAnswer:
        """The response to one call, by the last part of its path.

        404: the desk does not speak it. 400: it means nothing now. 401 makes a SuperNode end
        itself, whose app never came back: its supervisor starts another one.
        """
        if name in self._says_nothing:
            return DeskAnswer(200, b"")
        if name not in self._answers or not self._node_id:
            return DeskAnswer(404)
        try:
            with self._lock:
                response = self._answers[name](CALLS[name].request.FromString(body))
        except PermissionError:
            return DeskAnswer(401)
        except Exception as error:  # of an untrusted caller
            logger.info("a call %s is refused: %r", name, error)
            return DeskAnswer(400)
        if isinstance(response, bytes):
            return DeskAnswer(200, response)
        return DeskAnswer(200, CALLS[name].response(**response).SerializeToString())

    def _offer(self, frame: Frame) -> None:
        shell, tree, *contents = frame.pieces
        root, by_id = ObjectTree.FromString(tree), contents_by_id(contents)
        self._open = _Open(
            number=frame.number,
            message=message_in(shell),
            tree=root,
            contents=by_id,
            once=frame.kind is FrameKind.OFFER_ONCE,
            bounds=bounds_of_reply(root.object_id, by_id),
        )

    def _close(self) -> None:
        if self._open is not None:
            self._holds_one_back = self._open.taken
        self._open = None

    def _present(self) -> _Open:
        if self._open is None:
            raise ValueError("no message is open")
        return self._open

    def _register_node(self, asked: Any) -> dict[str, Any]:
        return {"node_id": self._node_id}

    def _activate_node(self, asked: Any) -> dict[str, Any]:
        self._holds_one_back = False
        if self._open is not None and not self._open.once:
            self._open.taken, self._open.reply = False, None  # another SuperNode may have it
        return {"node_id": self._node_id}

    def _heartbeat(self, asked: Any) -> dict[str, Any]:
        if self._holds_one_back:
            raise PermissionError("its app never came back")
        return {"success": True}

    def _pull_messages(self, asked: Any) -> dict[str, Any]:
        if self._open is None or self._open.taken:
            return {}
        self._open.taken = True
        return {"messages_list": [self._open.message], "message_object_trees": [self._open.tree]}

    def _pull_object(self, asked: Any) -> dict[str, Any]:
        content = self._present().contents[asked.object_id]
        return {"object_found": True, "object_available": True, "object_content": content}

    def _get_run(self, asked: Any) -> bytes:
        return self._runs[asked.run_id][0]

    def _get_fab(self, asked: Any) -> bytes:
        return self._runs[asked.run_id][1]

    def _push_messages(self, asked: Any) -> dict[str, Any]:
        present = self._present()
        [message], [tree] = asked.messages_list, asked.message_object_trees
        is_spare = message.metadata.reply_to_message_id != present.tree.object_id
        if is_spare or present.reply is not None:
            if present.reply is None and not present.once:
                # Flower's SuperNode has taken it for the reply, and asks for the next message.
                present.taken = False
            raise ValueError("a message that answers nothing is dropped")
        present.wanted = ids_in(tree, present.bounds.objects)
        present.reply, present.arrived, present.size = tree, {}, 0
        return {"objects_to_push": sorted(present.wanted), "session_id": tree.object_id}

    def _push_object(self, asked: Any) -> dict[str, Any]:
        present = self._present()
        if present.reply is None or asked.session_id != present.reply.object_id:
            raise ValueError("an object of no present reply")
        if asked.object_id not in present.wanted:
            raise ValueError("an object that the reply does not have")
        present.size += len(asked.object_content)
        fits = present.size <= present.bounds.size
        present.arrived[asked.object_id] = asked.object_content if fits else b""
        if present.arrived.keys() == present.wanted:
            self._open = None
            tree = present.reply.SerializeToString()
            self._hand_on(present.number, [tree, *present.arrived.values()])
        return {"stored": True}
