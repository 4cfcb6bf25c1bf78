"""A gate with its site: the gate's process, the desk's, and that of Flower's own SuperNode.

    SuperLink <-- the node's key --> gate <-- Unix socket --> desk <-- Fleet API --> SuperNode, apps

To the SuperLink the gate is the node. To the SuperNode, which is untrusted as its apps are, the
desk is the SuperLink.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fl_dp import __version__, clock
from fl_dp.clients.owner.node_config import NodeConfig, NodeConfigError
from fl_dp.clients.unfinished_participation import name_of_data

from .description import describe_gate
from .figures import GateFigures
from .flower_wire import require_fitting_flower
from .gate import Gate
from .gate_site import SiteAtSocket
from .kept import Keeper
from .link import HEARTBEAT, Link, LinkLost, LinkRefused, NodeKey, NotReached, SignedPost
from .loop import GateLoop
from .policy import GatePolicy
from .tied import Tied

logger = logging.getLogger("flwr.fl_dp.client")

_AGAIN = 1.0  # seconds until a process that ended is started again


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """How a gate reaches its SuperLink.

    Attributes:
        superlink: `host:port`.
        insecure: Whether without TLS.
        roots: Certificates that are trusted. None: those of this machine.
        key: The node's key. None: the gate makes one, and registers it.
    """

    superlink: str
    insecure: bool
    roots: Path | None
    key: Path | None

    def link(self, figures: GateFigures) -> Link:
        """A link that has not joined yet, and tells `figures` of its SuperLink.

        Raises:
            OSError: A file can't be read.
            ValueError: A file has no key, or no certificate.
        """
        key = NodeKey(self.key)
        trust = None
        if not self.insecure:
            trust = ssl.create_default_context(cafile=self.roots)
        return Link(SignedPost(self.superlink, key, trust, figures), key)


def checked_gate(policy: Path, *, isolated: bool) -> Gate:
    """A gate whose policy and Flower are fit for it. `isolated` is as for `Gate`.

    Raises:
        NodeConfigError: The policy can't be read or is invalid, or its ledger or another file
            would have each message answered by noise alone.
        FlowerChanged: This Flower lacks what a gate needs.
    """
    require_fitting_flower()
    gate = Gate(policy, isolated=isolated)
    if problems := describe_gate(GatePolicy.read(policy)).wrong:
        raise NodeConfigError(f"{policy}: {'; '.join(problems)}")
    return gate


def run_gate(
    gate: Gate,
    link: Link,
    policy: Path,
    desk_socket: Path,
    abandon: Callable[[], None],
    figures: GateFigures,
) -> NoReturn:
    """Join, and answer messages until this process is ended.

    Args:
        gate: Judges messages.
        link: Has not joined.
        policy: The owner's file.
        desk_socket: Unix socket of the gate's, to which the desk connects.
        abandon: Ends a SuperNode whose app was late.
        figures: Counts answers.

    Raises:
        LinkRefused: The SuperLink refuses this node.
        LinkLost: It does so later, or its certificate is not trusted.
        OSError: The socket can't be made.
    """
    link.join()
    logger.info("the node %d has joined, behind its gate of fl-dp %s", link.node_id, __version__)
    site = SiteAtSocket(desk_socket, link.node_id, abandon)
    threading.Thread(target=_beat, args=(link,), name="heartbeat", daemon=True).start()
    loop = GateLoop(link, site, gate, Keeper(_message_file(policy)), figures)
    try:
        loop.resume()
        while True:
            loop.step()
    finally:
        with suppress(NotReached, LinkRefused, LinkLost):
            link.leave()


def _beat(link: Link) -> None:
    while True:
        clock.sleep(HEARTBEAT / 2)
        try:
            link.beat()
        except NotReached as error:
            logger.warning("a heartbeat did not arrive: %s", error)
        except (LinkRefused, LinkLost) as error:
            logger.error("a heartbeat is refused: %s", error)


def _message_file(policy: Path) -> Path:
    """Where the message that is worked on lies: beside the ledger, or in Flower's folder."""
    owner = NodeConfig.of(GatePolicy.read(policy).node_config)
    assert owner.ledger_path is not None  # every promise of a gate needs one
    name = f"message-{name_of_data(owner.source)}"
    if "://" not in owner.ledger_path:
        return Path(f"{owner.ledger_path}.{name}")
    folder = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


class KeptUp:
    """A command that is started again whenever it ends, with all that it left behind killed."""

    def __init__(self, command: Sequence[str], inherited: Sequence[int] = ()) -> None:
        """Start a command, with file descriptors of this process."""
        self._command, self._inherited = command, inherited
        self._child: Tied | None = None
        self._is_over = False
        # In one thread for good: the child gets a signal when that thread ends.
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while not self._is_over:
            self._child = Tied(self._command, start_new_session=True, pass_fds=self._inherited)
            status = self._child.wait()
            self.kill()
            if not self._is_over:
                logger.error("%s ended with status %d: it is started again", self._name, status)
                clock.sleep(_AGAIN)

    @property
    def _name(self) -> str:
        return next(word for word in self._command if "supernode" in word or "desk" in word)

    def kill(self) -> None:
        """Kill it with all of its session; it is started again."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it for good."""
        self._is_over = True
        self.kill()


@contextmanager
def own_site(supernode: Sequence[str], desk: Sequence[str]) -> Iterator[tuple[Path, KeptUp]]:
    """Start a desk and a SuperNode as this user for the block.

    Args:
        supernode: The SuperNode's command, without its SuperLink.
        desk: The desk's command, without its sockets.

    Yields:
        The Unix socket at which the desk expects its gate, and the SuperNode.
    """
    folder = Path(tempfile.mkdtemp(prefix="fl-dp-gate-"))
    try:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(64)
            number = listening.fileno()
            sockets = ("--gate", str(folder / "gate.sock"), "--listening", str(number))
            at_desk = KeptUp([*desk, *sockets], [number])
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            node = KeptUp([*supernode, "--insecure", "--superlink", address])
            try:
                yield folder / "gate.sock", node
            finally:
                node.end()
                at_desk.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
