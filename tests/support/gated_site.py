"""A site behind a gate, in this process: a server's connection, Flower's main loop, and an app."""

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
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from node_charges import charges_of

from fl_dp.gate.connection import GatedConnection
from fl_dp.gate.flower_hook import Connection, Fab, ObjectTree, Parts, Run, inflated, parts_of
from fl_dp.gate.gate import Gate
from fl_dp.protocol.flower_compat import be_in_a_run, give_id

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
        lies: Bytes served in place of an object.
        overrides: Configuration of the run, besides its bundle's.
        fab_id: The app's name, as the server says it.
        fab_version: Its version, as the server says it.
        before_taking: Called with each answer before anything of it is taken.
    """

    fab: bytes = field(default_factory=bundle)
    waiting: list[Parts] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    lies: dict[str, bytes] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    fab_id: str = "hospital/heart"
    fab_version: str = "1.4.0"
    before_taking: Callable[[Message], None] = lambda shell: None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.pushed: dict[str, tuple[Message, ObjectTree, float, dict[str, bytes]]] = {}

    def ask(self, kind: str, content: dict[str, Any], *, timeout: float | None = None) -> str:
        """Queue a message that is waited for as long, and return its id."""
        be_in_a_run(RUN)
        message = Message(RecordDict(content), dst_node_id=NODE, message_type=kind, ttl=timeout)
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
    ) -> str:
        """Queue a message as FedAvg sends it."""
        arrays = ArrayRecord({name: Array(np.asarray(values)) for name, values in model.items()})
        content = {"arrays": arrays, "config": ConfigRecord(config or {"lr": 0.1})}
        return self.ask("train", content, timeout=timeout)

    def connection(self) -> Connection:
        return Connection(
            NODE,
            self._receive,
            self._send,
            self._get_run,
            lambda fab_hash, run: Fab(fab_hash, self.fab, {}),
            lambda run, object_id: self.lies.get(object_id, self.objects[object_id]),
            self._push,
            lambda run, message_id: self.confirmed.append(message_id),
        )

    def _receive(self) -> tuple[Message, ObjectTree] | None:
        if not self.waiting:
            return None
        parts = self.waiting.pop(0)
        return parts.shell, parts.tree

    def _get_run(self, run_id: int) -> Run:
        run = Run.create_empty(run_id)
        run.fab_hash = hashlib.sha256(self.fab).hexdigest()
        run.fab_id, run.fab_version = self.fab_id, self.fab_version
        run.override_config = dict(self.overrides)
        return run

    def _send(self, shell: Message, tree: ObjectTree, runtime: float) -> tuple[set[str], str]:
        self.before_taking(shell)
        session = f"session {len(self.pushed)}"
        self.pushed[session] = shell, tree, runtime, {}
        return all_ids(tree), session

    def _push(self, run: int, session: str, object_id: str, content: bytes) -> None:
        shell, tree, runtime, contents = self.pushed[session]
        with self._lock:  # several threads push at once
            contents[object_id] = content
            if contents.keys() != all_ids(tree):
                return
            self.arrived.append(
                Arrived(
                    message=inflated(tree, contents),
                    shell=shell,
                    sizes=sorted(map(len, contents.values())),
                    runtime=runtime,
                )
            )


def all_ids(tree: ObjectTree) -> set[str]:
    """The ids of a tree, as a server reads it."""
    return {tree.object_id}.union(*(all_ids(child) for child in tree.children))


class Site:
    """A SuperNode behind a gate with an app, and the server that it has joined.

    Attributes:
        server: What the site answers to.
        seen: Messages that the app got.
        abandoned: How often the gate has ended the SuperNode.
        gate: Judges what the site gets and sends.
    """

    def __init__(self, folder: Path, app: App, **policy: Any) -> None:
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
        self.app, self.server, self.seen = app, Server(), list[Message]()
        self.abandoned = 0
        self.gate = Gate(self.file)
        self.gated = GatedConnection(self.gate, self.server.connection(), self._abandon)
        self.connection = self.gated.functions()

    def _abandon(self) -> None:
        self.abandoned += 1

    def rewrite(self, **changed: Any) -> None:
        """Change lines of the policy; None leaves one out."""
        self._policy |= changed
        written = {key: value for key, value in self._policy.items() if value is not None}
        self.file.write_text(yaml.safe_dump(written))

    def step(self) -> None:
        """Do what Flower's main loop does with one message, if any."""
        connection = self.connection
        got = connection.receive()
        if got is None:
            return
        shell, tree = got
        run = shell.metadata.run_id
        connection.get_fab(connection.get_run(run).fab_hash, run)
        contents = {
            object_id: connection.pull_object(run, object_id) for object_id in all_ids(tree)
        }
        connection.confirm_message_received(run, shell.metadata.message_id)
        message = inflated(tree, contents)
        message.metadata.__dict__["_message_id"] = shell.metadata.message_id
        self.seen.append(message)
        for reply in self.app(message):
            self.send(reply)

    def send(self, reply: Message | Parts) -> None:
        """Do what Flower's main loop does with an app's reply."""
        parts = reply if isinstance(reply, Parts) else parts_of(reply)
        ids, session = self.connection.send(parts.shell, parts.tree, 3.25)
        run = parts.shell.metadata.run_id
        for object_id in sorted(ids):
            self.connection.push_object(run, session, object_id, parts.contents[object_id])

    def answers(self, model: dict[str, Any], rounds: int = 1) -> list[Arrived]:
        """Train, and return all that has arrived."""
        for _ in range(rounds):
            self.server.train(model)
            self.step()
        self.step()  # which ends what the app has left open
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
        here.step()  # which ends what the app has left open
        answer = here.server.arrived[-1].message
        give_id(message, asked)
        content = answer.error if answer.has_error() else answer.content
        return Message(content, reply_to=message)


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
