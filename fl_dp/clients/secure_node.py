"""A node's keys and memory for secure sums, and the messages about them alone.

On a real SuperNode both lie beside the ledger: `secagg-identity.pem`, which its owner backs up,
and `secagg.db`, which nobody may restore from a backup. In Flower's simulation, which protects
nobody, they lie under the user's home while the run lasts. Flower's own `Context` would not do: of
two messages that a simulated node answers at once, one state is lost.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.documents import parsed_object
from fl_dp.files import private_file, private_folder
from fl_dp.protocol.secure_sum_messages import (
    DIRECTORY_ACTION,
    DONE_ACTION,
    KEY_ACTION,
    OPEN_ACTION,
    VIEW_ACTION,
    MemberQuestion,
    opened_to_content,
    signature_to_content,
    text_of,
    text_to_content,
    told_digest,
)
from fl_dp.secagg import Identity, Refused, Roster, SecureNode, SQLiteStore
from fl_dp.secagg.directory import MOST_ENTRIES

from .owner.mod_host import present_host
from .owner.node_config import NodeConfig
from .owner.node_privacy import NodePrivacy, in_simulation, simulated_run_folder

logger = logging.getLogger("flwr.fl_dp.client")

IDENTITY_FILE = "secagg-identity.pem"
"""A node's signing key, beside its ledger."""

STORE_FILE = "secagg.db"
_LONGEST_IDENTITY, _ROOM = 70, 1000  # characters


@contextmanager
def secure_node(context: Context) -> Iterator[SecureNode]:
    """Open a node's keys and memory for the block.

    Raises:
        ValueError: A real node has no folder for them, or its files are invalid.
        Refused: `stale`, if its memory is an older copy.
    """
    owner = NodeConfig.of(context.node_config)
    folder, colluding = keys_folder(context), owner.secagg_colluding
    roster = None if owner.secagg_roster is None else Roster.read(Path(owner.secagg_roster))
    if colluding is None and roster is None:
        colluding = 0
    with open_store(context) as store:
        identity = Identity.load_or_create(folder / IDENTITY_FILE)
        with nullcontext() if in_simulation() else _witnessed(store, context):
            node = SecureNode(
                identity,
                store,
                name=owner.node_name or identity.public.hex()[:16],
                roster=roster,
                least_sum=owner.secagg_min_sum,
                colluding=colluding,
                shared_context=told_digest(context.run_config, present_host().bundle_hash()),
            )
            yield node


@contextmanager
def open_store(context: Context) -> Iterator[SQLiteStore]:
    """Open a node's memory for the block."""
    store = SQLiteStore(keys_folder(context) / STORE_FILE, durable=not in_simulation())
    try:
        yield store
    finally:
        store.close()


@contextmanager
def at_work(folder: Path, run: int) -> Iterator[None]:
    """Lock a node's work on a message of a Flower run for the block.

    The lock ends with its process, so whoever gets it knows that no work is in progress.

    Raises:
        Refused: `busy`, if another message is worked on.
    """
    file = folder / f"secagg-work-{run}.lock"
    while True:
        private_file(file)
        descriptor = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_open_as(descriptor, file):
                break
        except BlockingIOError:
            os.close(descriptor)
            raise Refused("busy", "an earlier message of this run is still worked on") from None
        os.close(descriptor)  # the last holder has removed the file meanwhile
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _is_open_as(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def keys_folder(context: Context) -> Path:
    """The folder of a node's keys, real or simulated.

    Raises:
        ValueError: A real node has none.
    """
    if in_simulation():
        return _simulated_folder(context)
    return secure_folder(NodeConfig.of(context.node_config))


@contextmanager
def _witnessed(store: SQLiteStore, context: Context) -> Iterator[None]:
    """Compare a store's marks with the node's ledger, and note new ones there.

    That happens before an answer leaves, whatever becomes of the message.

    Raises:
        Refused: `stale`, if the store is an older copy.
        LedgerCorrupted: The ledger was altered, or put back to an older state.
        LedgerUnavailable: The ledger or its witness can't be read or written.
    """
    # Imported here, as it needs SciPy, and not every node has a ledger.
    from fl_dp.ledger import NodeLedger
    from fl_dp.ledger.node import Marks

    node = NodePrivacy.from_context(context, {})
    # The ledger first: another process may add a mark in between.
    name = store.taken.store
    noted = NodeLedger.marks_of_store(node.required_ledger, name)
    before = store.taken
    if noted is not None:
        differs = before.marks == noted.count and before.last != noted.last
        if before.marks < noted.count or differs:
            raise Refused(
                "stale",
                f"{STORE_FILE} has {before.marks} marks and the ledger knows of {noted.count}: an "
                "older copy has forgotten what it answered. Move it away, and the node makes new "
                "keys",
            )
    try:
        yield
    finally:
        after = store.taken
        if after.marks > before.marks:
            with node.open_ledger() as ledger:
                ledger.note_marks(name, Marks(count=after.marks, last=after.last))


def _simulated_folder(context: Context) -> Path:
    run = simulated_run_folder(context)
    folder = run / f"secagg-{context.node_id}"
    private_folder(folder)
    return folder


def secure_folder(owner: NodeConfig) -> Path:
    """The folder of a real node's keys: its ledger's.

    Raises:
        ValueError: The node has no ledger in a file.
    """
    if owner.ledger_path is None or "://" in owner.ledger_path:
        raise ValueError(
            "a node keeps its keys for secure sums beside its ledger, which must be a file: start "
            "the SuperNode with --node-config 'dp-ledger-path=\"/data/ledger.db\"'"
        )
    folder = Path(owner.ledger_path).parent
    private_folder(folder)
    return folder


def secure_node_handlers() -> dict[str, ClientAppCallable]:
    """The handlers of secure sums' QUERY messages, by action."""
    return {
        KEY_ACTION: _key,
        DIRECTORY_ACTION: _directory,
        VIEW_ACTION: _view,
        OPEN_ACTION: _open,
        DONE_ACTION: _done,
    }


def _key(message: Message, context: Context) -> Message:
    asked = _asked(message)
    with secure_node(context) as node:
        entry = node.entry(int(asked["run"]), epoch=int(asked["epoch"]))
    return Message(text_to_content(json.dumps(entry.to_dict())), reply_to=message)


def _asked(message: Message) -> dict[str, Any]:
    """The content of a message about a run; its longest part are identities of nodes."""
    longest = _LONGEST_IDENTITY * MOST_ENTRIES + _ROOM
    return parsed_object(text_of(message.content), "question about a run", longest=longest)


def _directory(message: Message, context: Context) -> Message:
    with secure_node(context) as node:
        directory = node.read_directory(text_of(message.content))
        answer = node.accept(directory).hex()
    return Message(text_to_content(answer), reply_to=message)


def _view(message: Message, context: Context) -> Message:
    asked = MemberQuestion.from_content(message.content)
    with secure_node(context) as node:
        signature = node.view(asked.terms, asked.online, asked.labels)
    return Message(signature_to_content(signature), reply_to=message)


def _open(message: Message, context: Context) -> Message:
    asked = MemberQuestion.from_content(message.content)
    with secure_node(context) as node:
        opened = node.open(asked.terms, asked.online, asked.labels, asked.bundles, asked.quorum)
    return Message(opened_to_content(opened), reply_to=message)


def _done(message: Message, context: Context) -> Message:
    asked = _asked(message)
    run = int(asked["run"])
    with secure_node(context) as node:
        if node.identity.public.hex() in asked.get("left_out", ()):
            logger.warning(
                "the server left this node out of sums of run %d: what it sent did not open",
                run,
            )
        node.forget(run)
    if in_simulation():
        folder = _simulated_folder(context)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # the last node that is done finds the run's folder empty
            folder.parent.rmdir()
    return Message(text_to_content("done"), reply_to=message)
