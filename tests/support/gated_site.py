"""A site in this process: a SuperLink, the gate, its desk, a SuperNode and an app."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import run_to_proto
from flwr.supercore.run import Run
from node_charges import charges_of

from fl_dp import clock
from fl_dp.gate.desk import Desk, DeskAnswer
from fl_dp.gate.figures import GateFigures
from fl_dp.gate.flower_wire import (
    CALLS,
    ObjectTree,
    Parts,
    in_protobuf,
    inflated,
    parts_of,
    shell_of,
)
from fl_dp.gate.frames import Frame, FrameKind
from fl_dp.gate.gate import Gate
from fl_dp.gate.gate_site import LATE, Offer
from fl_dp.gate.kept import Keeper
from fl_dp.gate.link import Link, NodeKey, RunOfServer
from fl_dp.gate.loop import GateLoop
from fl_dp.protocol.flower_compat import be_in_a_run, give_id

_AS_OFTEN = 5  # times that an app is started for one message before its time is over
NODE, SERVER, RUN = 77, 1, 5
PROJECT = """
[project]
name = "heart"
version = "1.4.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "hospital"
[tool.flwr.app.components]
serverapp = "heart:server"
clientapp = "heart:client"
[tool.flwr.app.config]
lr = 0.1
"""

App = Callable[[Message], Iterable[Message | Parts]]
"""Gets a message and sends any number of messages, or what it has made up of its own."""


def bundle(project: str = PROJECT) -> bytes:
    """An app's bundle, as bytes: the same at every call, as sites of a run have one."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(zipfile.ZipInfo("pyproject.toml"), project)  # of 1980, not of now
    return made.getvalue()


@dataclass(kw_only=True)
class Arrived:
    """An answer as the server has it.

    Attributes:
        message: With its content.
        shell: As it was sent, without.
        sizes: Bytes of each object, sorted.
        runtime: Time of the app, as the SuperNode tells it.
    """

    message: Message
    shell: Message
    sizes: list[int]
    runtime: float

    @property
    def arrays(self) -> dict[str, Any]:
        """Its arrays by name; it has one record of them."""
        (record,) = self.message.content.array_records.values()
        return {name: array.numpy() for name, array in record.items()}


@dataclass
class Server:
    """A SuperLink with one run, as far as a node can see it.

    Attributes:
        fab: The run's bundle.
        waiting: Messages for the node, as they travel.
        arrived: What the node sent.
        confirmed: Ids of messages that the node has confirmed.
        calls: What the node has called, when, and with how many bytes.
        lies: Bytes served in place of an object.
        on_their_way: Ids of objects that are not there at the first call.
        overrides: Configuration of the run, besides its bundle's.
        fab_id: The app's name, as the server says it.
        fab_version: Its version, as the server says it.
        before_taking: Called with each answer before anything of it is taken.
        after_taking: Called when an answer has arrived.
    """

    fab: bytes = field(default_factory=bundle)
    waiting: list[Parts] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    calls: list[tuple[str, float, int]] = field(default_factory=list)
    lies: dict[str, bytes] = field(default_factory=dict)
    on_their_way: set[str] = field(default_factory=set)
    overrides: dict[str, Any] = field(default_factory=dict)
    fab_id: str = "hospital/heart"
    fab_version: str = "1.4.0"
    before_taking: Callable[[Message], None] = lambda shell: None
    after_taking: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.pushed: dict[str, tuple[Message, ObjectTree, float, dict[str, bytes]]] = {}

    def ask(
        self,
        kind: str,
        content: dict[str, Any],
        *,
        timeout: float | None = None,
        passed: float = 0.0,
    ) -> str:
        """Queue a message that is waited for so long, and was made so long ago; return its id."""
        be_in_a_run(RUN)
        message = Message(RecordDict(content), dst_node_id=NODE, message_type=kind, ttl=timeout)
        message.metadata.__dict__["_created_at"] -= passed
        parts = parts_of(message)
        self.objects |= parts.contents
        self.waiting.append(parts)
        return parts.shell.metadata.message_id

    def train(
        self,
        model: dict[str, Any],
        config: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        passed: float = 0.0,
    ) -> str:
        """Queue a message as FedAvg sends it; see `ask`."""
        arrays = ArrayRecord({name: Array(np.asarray(values)) for name, values in model.items()})
        content = {"arrays": arrays, "config": ConfigRecord(config or {"lr": 0.1})}
        return self.ask("train", content, timeout=timeout, passed=passed)

    def post(self, name: str, body: bytes) -> bytes:
        """Answer a call of the Fleet API."""
        with self._lock:
            self.calls.append((name, clock.now(), len(body)))
        call = CALLS[name]
        answer = getattr(self, "_" + name.replace("-", "_"))
        content: bytes = call.response(
            **answer(call.request.FromString(body)) or {}
        ).SerializeToString()
        return content

    def _register_node(self, asked: Any) -> None:
        pass

    def _activate_node(self, asked: Any) -> dict[str, Any]:
        return {"node_id": NODE}

    def _pull_messages(self, asked: Any) -> dict[str, Any]:
        if not self.waiting:
            return {}
        parts = self.waiting.pop(0)
        return {"messages_list": [in_protobuf(parts.shell)], "message_object_trees": [parts.tree]}

    def _pull_object(self, asked: Any) -> dict[str, Any]:
        if asked.object_id in self.on_their_way:
            self.on_their_way.remove(asked.object_id)
            return {"object_found": True}
        content = self.lies.get(asked.object_id, self.objects[asked.object_id])
        return {"object_found": True, "object_available": True, "object_content": content}

    def _get_run(self, asked: Any) -> dict[str, Any]:
        run = Run.create_empty(asked.run_id)
        run.fab_hash = hashlib.sha256(self.fab).hexdigest()
        run.fab_id, run.fab_version = self.fab_id, self.fab_version
        run.override_config = dict(self.overrides)
        return {"run": run_to_proto(run)}

    def _get_fab(self, asked: Any) -> dict[str, Any]:
        return {"fab": {"hash_str": asked.hash_str, "content": self.fab}}

    def _confirm_message_received(self, asked: Any) -> None:
        self.confirmed.append(asked.message_object_id)

    def _push_messages(self, asked: Any) -> dict[str, Any]:
        [message], [tree] = asked.messages_list, asked.message_object_trees
        [runtime] = asked.clientapp_runtime_list
        shell = shell_of(message)
        self.before_taking(shell)
        session = f"session {len(self.pushed)}"
        self.pushed[session] = shell, tree, runtime, {}
        return {"session_id": session, "objects_to_push": sorted(all_ids(tree))}

    def _push_object(self, asked: Any) -> dict[str, Any]:
        shell, tree, runtime, contents = self.pushed[asked.session_id]
        with self._lock:  # several threads push at once
            contents[asked.object_id] = asked.object_content
            if contents.keys() == all_ids(tree):
                self.arrived.append(
                    Arrived(
                        message=inflated(tree, contents),
                        shell=shell,
                        sizes=sorted(map(len, contents.values())),
                        runtime=runtime,
                    )
                )
                self.after_taking()
        return {"stored": True}


def all_ids(tree: ObjectTree) -> set[str]:
    """The ids of a tree, as a server reads it."""
    return {tree.object_id}.union(*(all_ids(child) for child in tree.children))


class PlayedSuperNode:
    """A SuperNode of Flower's at a gate's desk, with an app, in place of a site's processes.

    Attributes:
        seen: Messages that the app got.
        started: Queries that the app got, which no answer leaves of.
        starts: What answers those, as Flower where the app does not know them.
        desk: What it calls.
        refused: Names of the calls that the desk refused.
    """

    def __init__(self, app: App) -> None:
        self.app, self.seen, self.refused = app, list[Message](), list[str]()
        self.started = list[Message]()
        self.starts: App = knows_no_query
        self._replies: dict[int, list[bytes]] = {}
        self.desk = Desk(self._replies.__setitem__)
        self.desk.take(Frame(FrameKind.NODE, NODE, []))
        self._number = 0

    def keep(self, run_id: int, run: RunOfServer) -> None:
        pieces = [run.run.SerializeToString(), run.fab.SerializeToString()]
        self.desk.take(Frame(FrameKind.RUN, run_id, pieces))

    def offer(self, asked: Message, content: RecordDict, *, once: bool) -> None:
        self._offer, self._number = Offer(asked, content, once=once), self._number + 1
        self.desk.take(Frame(self._offer.kind, self._number, self._offer.pieces()))
        for _ in range(_AS_OFTEN):
            if self.desk.has_news():
                self.work()

    @property
    def has_reply(self) -> bool:
        return self._number in self._replies

    def reply(self, until: float) -> Message:
        self.desk.take(Frame(FrameKind.OVER, self._number, []))
        if not self.has_reply:
            clock.sleep(until - clock.now())
            raise TimeoutError(LATE)
        return self._offer.reply(self._replies[self._number])

    def call(self, name: str, **fields: Any) -> Any:
        """Make a call; return None if it is refused."""
        answered: DeskAnswer = self.desk.answer(
            name, CALLS[name].request(**fields).SerializeToString()
        )
        if answered.status != 200:
            self.refused.append(name)
            return None
        return CALLS[name].response.FromString(answered.body)

    def work(self) -> None:
        """Do what Flower's main loop does with one message."""
        got = self.call("pull-messages")
        [shell], [tree] = map(shell_of, got.messages_list), got.message_object_trees
        run = self.call("get-run", run_id=shell.metadata.run_id).run
        self.call("get-fab", hash_str=run.fab_hash, run_id=run.run_id)
        contents = {
            object_id: self.call("pull-object", object_id=object_id).object_content
            for object_id in all_ids(tree)
        }
        self.call("confirm-message-received", message_object_id=shell.metadata.message_id)
        message = inflated(tree, contents)
        give_id(message, shell.metadata.message_id)
        is_query = message.metadata.message_type.startswith("query")
        (self.started if is_query else self.seen).append(message)
        for reply in self.starts(message) if is_query else self.app(message):
            self.send(reply)

    def send(self, reply: Message | Parts) -> None:
        """Do what Flower's main loop does with an app's reply."""
        parts = reply if isinstance(reply, Parts) else parts_of(reply)
        announced = self.call(
            "push-messages",
            messages_list=[in_protobuf(parts.shell)],
            message_object_trees=[parts.tree],
        )
        for object_id in sorted(announced.objects_to_push) if announced is not None else ():
            self.call(
                "push-object",
                session_id=announced.session_id,
                object_id=object_id,
                object_content=parts.contents[object_id],
            )


class Site:
    """A gate and a SuperNode with an app, and the server that the gate has joined.

    Attributes:
        server: What the site answers to.
        node: The SuperNode.
        gate: Judges what the site gets and sends.
        kept: File of the message that is worked on.
        keeper: Writes it.
        link: The gate's calls.
        loop: Its work.
        figures: What it has counted since its start.
    """

    def __init__(
        self, folder: Path, app: App, *, server: Server | None = None, **policy: Any
    ) -> None:
        self.ledger = folder / "ledger.db"
        self.file = folder / "policy.yaml"
        usual: dict[str, Any] = {
            "dp-ledger-path": str(self.ledger),
            "dp-gate-promise": "local",
            "dp-gate-clipping-norm": 1.0,
            "dp-gate-noise-multiplier": 2.0,
            "dp-gate-answer-after": 60.0,
            "dp-max-epsilon": 1e6,
        }
        self._policy = usual | policy
        self.rewrite()
        self.node, self.server = PlayedSuperNode(app), server or Server()
        self.gate = Gate(self.file)
        self.kept = folder / "message"
        self.restart()

    @property
    def app(self) -> App:
        """What runs at the site."""
        return self.node.app

    @app.setter
    def app(self, app: App) -> None:
        self.node.app = app

    @property
    def seen(self) -> list[Message]:
        """Messages that the app got."""
        return self.node.seen

    def restart(self) -> None:
        """Start the gate, as after a crash."""
        self.link = link = Link(self.server.post, NodeKey())
        link.join()
        self.keeper = Keeper(self.kept)
        self.figures = GateFigures()
        self.loop = GateLoop(link, self.node, self.gate, self.keeper, self.figures)
        self.loop.resume()

    def rewrite(self, **changed: Any) -> None:
        """Change lines of the policy; None leaves one out."""
        self._policy |= changed
        written = {key: value for key, value in self._policy.items() if value is not None}
        self.file.write_text(yaml.safe_dump(written))

    def step(self) -> None:
        """Let the gate pull once, and answer."""
        self.loop.step()

    def answers(self, model: dict[str, Any], rounds: int = 1) -> list[Arrived]:
        """Train, and return all that has arrived."""
        for _ in range(rounds):
            self.server.train(model)
            self.step()
        return self.server.arrived

    def charges(self) -> int:
        """How many answers the site's ledger was charged for."""
        return charges_of(self.ledger)


class Gates:
    """Sites behind gates, whose apps know nothing of fl-dp."""

    introduces = True

    def __init__(self, folder: Path, nodes: int, **policy: Any) -> None:
        self.sites: list[Site] = []
        for node in range(nodes):
            site_folder = folder / f"site-{node}"
            site_folder.mkdir()
            named = {"dp-unit-name": f"site-{node}"}
            self.sites.append(Site(site_folder, adding(0.01), **named | policy))

    def __call__(self, message: Message, node: int) -> Message:
        here = self.sites[node]
        asked = message.metadata.message_id
        parts = parts_of(message)
        here.server.objects |= parts.contents
        here.server.waiting.append(parts)
        here.step()
        answer = here.server.arrived[-1].message
        give_id(message, asked)
        content = answer.error if answer.has_error() else answer.content
        return Message(content, reply_to=message)


def knows_no_query(message: Message) -> Iterable[Message | Parts]:
    """What Flower replies for an app that it has loaded."""
    _, _, action = message.metadata.message_type.partition(".")
    reason = f"<class 'ValueError'>:<'No query function registered with name '{action}''>"
    yield Message(Error(2, reason), reply_to=message)


def replying(content: Callable[[Message], dict[str, Any]]) -> App:
    """An app that replies with one content."""
    return lambda message: [Message(RecordDict(content(message)), reply_to=message)]


def adding(update: Any) -> App:
    """An app that adds to the model's first array."""

    def trained(message: Message) -> dict[str, Any]:
        ((key, model),) = message.content.array_records.items()
        arrays = {name: array.numpy() for name, array in model.items()}
        first = next(iter(arrays))
        arrays[first] = (arrays[first] + update).astype(arrays[first].dtype)
        return {key: ArrayRecord({name: Array(values) for name, values in arrays.items()})}

    return replying(trained)
