"""A gate as the SuperLink sees it: the node, which has its key and makes each call itself.

Nothing here knows the site's SuperNode. A call is made again for as long as nobody answers.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

from fl_dp import clock

from .figures import GateFigures
from .flower_wire import (
    CALLS,
    FLEET,
    MEDIA_TYPE,
    in_protobuf,
    parts_of,
    pulled,
    push,
    shell_of,
)
from .superlink_signs import LinkLost as LinkLost
from .superlink_signs import NotReached as NotReached
from .superlink_signs import connection_to, http_answer

logger = logging.getLogger("flwr.fl_dp.client")

HEARTBEAT = 30.0
"""Seconds within which the SuperLink hears of the node, as it is told."""

Post = Callable[[str, bytes], bytes]
"""Makes one call, by the last part of its path, with a request's bytes."""

_AGAIN = 3.0  # seconds until a call is made again
_BUSY = (502, 503, 504)
_UNKNOWN_NODE = 401


class LinkRefused(Exception):
    """The SuperLink refuses a call."""


class NodeKey:
    """The key of a node, which signs the time of each call.

    Attributes:
        public: The public half, as PEM.
        is_own: Whether it was made here, so that the node registers itself.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Read a private key, PEM or OpenSSH's; None: make one.

        Raises:
            OSError: The file can't be read.
            ValueError: It has no such key.
        """
        self.is_own = file is None
        self._key: Any = ec.generate_private_key(ec.SECP384R1())
        if file is not None:
            text = file.read_bytes()
            of_ssh = b"BEGIN OPENSSH" in text
            load = (
                serialization.load_ssh_private_key if of_ssh else serialization.load_pem_private_key
            )
            self._key = load(text, None)
            if not isinstance(self._key, ec.EllipticCurvePrivateKey):
                raise ValueError(f"{file} is no key of an elliptic curve, as nodes have")
        self.public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def headers(self) -> dict[str, str]:
        """What authenticates a call now."""
        stamp = datetime.fromtimestamp(clock.date(), UTC).isoformat()
        signature = self._key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "flwr-public-key": b64encode(self.public).decode(),
            "flwr-timestamp": stamp,
            "flwr-signature": b64encode(signature).decode(),
        }


class SignedPost:
    """Calls over HTTP, from several threads, each signed.

    Attributes:
        figures: What answers told of the SuperLink.
    """

    def __init__(
        self,
        address: str,
        key: NodeKey,
        trust: ssl.SSLContext | None,
        figures: GateFigures | None = None,
    ) -> None:
        """Call the SuperLink at `host:port`; `trust` None: without TLS."""
        self._address, self._key, self._trust = address, key, trust
        self._idle: list[HTTPConnection] = []
        self.figures = GateFigures() if figures is None else figures

    def __call__(self, name: str, body: bytes) -> bytes:
        """Make one call. What the first answer tells of the SuperLink is logged.

        Raises:
            NotReached: Nobody answers.
            LinkRefused: The SuperLink refuses it.
            LinkLost: It refuses this node, or its certificate is not trusted.
        """
        while self._idle:
            # It may have been closed meanwhile; then the call is made over a new one.
            try:
                return self._called(self._idle.pop(), name, body)
            except (NotReached, IndexError):
                continue
        return self._called(connection_to(self._address, self._trust), name, body)

    def _called(self, connection: HTTPConnection, name: str, body: bytes) -> bytes:
        headers = {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE} | self._key.headers()
        status, content, signs = http_answer(connection, "POST", FLEET + name, body, headers)
        self._idle.append(connection)
        if status in _BUSY:
            raise NotReached(f"status {status}")
        if self.figures.signs is None:
            for line in signs.cautions():
                logger.warning("%s", line)
        self.figures.signs, self.figures.seen = signs, clock.date()
        if status == 200:
            return content
        reason = f"status {status}: {content[:200]!r}"
        if status == _UNKNOWN_NODE:
            signs.require_clock()
            raise LinkLost(
                f"the SuperLink refuses this node ({reason}): register its key there, and compare "
                "the clocks of both machines"
            )
        raise LinkRefused(reason)


class RunOfServer(NamedTuple):
    """A run and its bundle, as the server first answered.

    Attributes:
        run: Response to `get-run`, protobuf.
        fab: Response to `get-fab`, protobuf.
    """

    run: Any
    fab: Any


class Link:
    """All calls of a node.

    Attributes:
        node_id: The node's id at the SuperLink; 0 before it has joined.
    """

    def __init__(self, post: Post, key: NodeKey) -> None:
        """Make calls by `post`; `key` is that of the node."""
        self._post, self._key = post, key
        self.node_id = 0

    def join(self) -> None:
        """Register, if the key is the gate's own, and activate the node.

        Raises:
            LinkRefused: The SuperLink does not let it in.
            LinkLost: It refuses this node, or its certificate is not trusted.
        """
        if self._key.is_own:
            self._call("register-node", public_key=self._key.public)
        try:
            activated = self._call(
                "activate-node", public_key=self._key.public, heartbeat_interval=HEARTBEAT
            )
        except LinkRefused as refused:
            raise LinkRefused(
                f"the SuperLink does not let this node in ({refused}): register its key there; if "
                "it is registered, another process has it, which counts for a minute after its end"
            ) from refused
        self.node_id = activated.node_id

    def leave(self) -> None:
        """Say goodbye, once.

        Raises:
            NotReached, LinkRefused, LinkLost: It was not heard.
        """
        self._once("deactivate-node", node_id=self.node_id)
        if self._key.is_own:
            self._once("unregister-node", node_id=self.node_id)

    def beat(self) -> None:
        """Tell the SuperLink, once, that the node is there.

        Raises:
            NotReached, LinkRefused, LinkLost: It was not heard.
        """
        self._once(
            "send-node-heartbeat", node={"node_id": self.node_id}, heartbeat_interval=HEARTBEAT
        )

    def pull(self) -> tuple[Message, Any] | None:
        """The next message without content, and the tree of its objects; None: there is none."""
        messages = self._call("pull-messages", node=self._node)
        if not messages.messages_list:
            return None
        return shell_of(messages.messages_list[0]), messages.message_object_trees[0]

    def pull_objects(self, run_id: int, tree: Any) -> dict[str, bytes]:
        """A message's objects.

        Raises:
            ValueError: They are not what the tree says, or too many.
        """

        def pull(object_id: str) -> bytes | None:
            response = self._call(
                "pull-object", node=self._node, run_id=run_id, object_id=object_id
            )
            if not response.object_found:
                raise ValueError(f"the SuperLink lacks the object {object_id:.80}")
            return bytes(response.object_content) if response.object_available else None

        return pulled(tree, pull)

    def confirm(self, shell: Message) -> None:
        """Say that a message has arrived whole."""
        self._call(
            "confirm-message-received",
            node=self._node,
            run_id=shell.metadata.run_id,
            message_object_id=shell.metadata.message_id,
        )

    def run(self, run_id: int) -> RunOfServer:
        """A run and its bundle.

        Raises:
            ValueError: The bundle is not what the run names.
        """
        run = self._call("get-run", node=self._node, run_id=run_id)
        fab_hash = run.run.fab_hash
        fab = self._call("get-fab", node=self._node, hash_str=fab_hash, run_id=run_id)
        if hashlib.sha256(fab.fab.content).hexdigest() != fab_hash:
            raise ValueError("the app's bundle has another hash than the run names")
        return RunOfServer(run, fab)

    def push(self, answer: Message) -> None:
        """Send an answer."""
        parts, run_id = parts_of(answer), answer.metadata.run_id
        response = self._call(
            "push-messages",
            node=self._node,
            messages_list=[in_protobuf(parts.shell)],
            message_object_trees=[parts.tree],
            clientapp_runtime_list=[0.0],  # that of the app depends on data
        )

        def push_object(object_id: str, content: bytes) -> None:
            self._call(
                "push-object",
                node=self._node,
                run_id=run_id,
                session_id=response.session_id,
                object_id=object_id,
                object_content=content,
            )

        wanted = set(response.objects_to_push)
        push([item for item in parts.contents.items() if item[0] in wanted], push_object)

    @property
    def _node(self) -> dict[str, int]:
        return {"node_id": self.node_id}

    def _call(self, name: str, **fields: Any) -> Any:
        """Make a call, and again for as long as nobody answers."""
        while True:
            try:
                return self._once(name, **fields)
            except NotReached as error:
                logger.warning("the SuperLink can't be reached (%s): it is tried again", error)
                clock.sleep(_AGAIN)

    def _once(self, name: str, **fields: Any) -> Any:
        call = CALLS[name]
        return call.response.FromString(
            self._post(name, call.request(**fields).SerializeToString())
        )
