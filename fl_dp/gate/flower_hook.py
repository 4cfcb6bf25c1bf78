"""The one hook into Flower's SuperNode: the connection by which everything leaves.

Flower's main loop gets eight values from `_init_connection` and reaches the server by them alone.
Content leaves by `send` and `push_object`. The gate wraps the connection. All parts of Flower that
this needs are imported and checked here. At the start an untested version, or another form, is
refused.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from itertools import islice
from typing import Any, NamedTuple, Protocol

import flwr
from flwr.app import Array, Message, RecordDict

from fl_dp.protocol.flower_compat import give_id
from fl_dp.protocol.flower_versions import TESTED, FlowerChanged, parts_of_flower

# Relies on: the module whose main loop opens the connection by this name, messages that are trees
# of objects named by their SHA-256, and functions that convert them. Moved: read the main loop
# again, and check whether anything leaves by another way.
with parts_of_flower():
    from flwr.app.message.message import make_message, remove_content_from_message
    from flwr.common.config import get_fused_config_from_fab
    from flwr.proto.message_pb2 import ObjectTree as ObjectTree
    from flwr.supercore.fab import Fab as Fab
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_body,
        get_object_head_values_from_object_content,
        get_object_id,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        pull_objects,
        push_object_contents_from_iterable,
    )
    from flwr.supercore.run import Run as Run
    from flwr.supernode import start_client_internal as supernode
    from flwr.supernode.cli import flower_supernode

_PARAMETERS = (
    "server_address",
    "insecure",
    "root_certificates",
    "authentication_keys",
    "max_retries",
    "max_wait_time",
)
_OPENS, _PUSHES, _BELOW = "_init_connection", "_push_messages", "http_request_response"
_MOST_OBJECTS = 1_000_000  # of one message: an array is cut into pieces of 5 MB
_MOST_BYTES = 1 << 34  # of one message that the server sends
_DEEPEST = 8  # message, content, record, array and piece are 5


class Connection(NamedTuple):
    """All functions between a SuperNode and the server, in the order of Flower's main loop."""

    node_id: int
    receive: Callable[[], tuple[Message, ObjectTree] | None]
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]]
    get_run: Callable[[int], Run]
    get_fab: Callable[[str, int], Fab]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm_message_received: Callable[[int, str], None]


class Wrapped(Protocol):
    """The layer between Flower's main loop and a connection."""

    def functions(self) -> Connection:
        """The functions that the loop gets instead of the connection."""

    def dropped_a_spare(self) -> bool:
        """Tell, once, whether a spare message was dropped and the app's reply is still to come."""


class Parts(NamedTuple):
    """A message as it travels.

    Attributes:
        shell: The message without its content.
        tree: Ids of its objects.
        contents: Bytes of each object, by id.
    """

    shell: Message
    tree: ObjectTree
    contents: dict[str, bytes]


def supernode_behind_gate(wrap: Callable[[Connection], Wrapped]) -> Callable[[], None]:
    """`flower-supernode`'s main, whose connection a gate wraps.

    Raises:
        FlowerChanged: The hook was not tested with this Flower.
    """
    require_known_flower()
    opened, pushes = supernode._init_connection, supernode._push_messages
    present: list[Wrapped] = []

    @contextmanager
    def gated(*args: Any, **options: Any) -> Iterator[Connection]:
        with opened(*args, **options) as connection:
            present[:] = [wrap(checked_connection(connection))]
            yield present[0].functions()

    def pushed_to_the_reply(*args: Any, **options: Any) -> None:
        # The loop mistakes a spare message of an earlier app for the reply, and continues.
        pushes(*args, **options)
        while present[0].dropped_a_spare():
            pushes(*args, **options)

    # Flower has no hook for either.
    supernode._init_connection = gated
    supernode._push_messages = pushed_to_the_reply
    return flower_supernode


def require_known_flower() -> None:
    """Check that this Flower's main loop reaches the server by its hook alone.

    Raises:
        FlowerChanged: The version was not tested, or the loop has another form.
    """
    version = flwr.__version__
    if ".".join(version.split(".")[:2]) not in TESTED or "dev" in version:
        raise FlowerChanged("a SuperNode that the gate was tested with")
    # A replacement by another package, such as a second gate, has another form.
    parameters = tuple(inspect.signature(getattr(supernode, _OPENS)).parameters)
    if parameters != _PARAMETERS:
        raise FlowerChanged(f"{_OPENS} with the options {', '.join(_PARAMETERS)}")
    names = supernode.start_client_internal.__code__.co_names
    if _OPENS not in names or _BELOW in names:
        raise FlowerChanged(f"a main loop that reaches the server by {_OPENS} alone")
    if _PUSHES not in names:
        raise FlowerChanged(f"a main loop that sends what apps send by {_PUSHES}")


def checked_connection(connection: object) -> Connection:
    """The values of Flower's `_init_connection` by name.

    Raises:
        FlowerChanged: They are not a number and seven functions.
    """
    if not isinstance(connection, tuple) or len(connection) != len(Connection._fields):
        raise FlowerChanged("a connection of eight parts")
    named = Connection(*connection)
    if not isinstance(named.node_id, int) or not all(map(callable, named[1:])):
        raise FlowerChanged("a connection of a number and seven functions")
    return named


def ids_in(tree: ObjectTree, most: int = _MOST_OBJECTS) -> set[str]:
    """Ids of a tree's objects.

    Raises:
        ValueError: There are more than `most`.
    """
    nodes = list(islice(iterate_object_tree(tree), most + 1))
    if len(nodes) > most:
        raise ValueError(f"a message of more than {most:,} objects")
    return {node.object_id for node in nodes}


def pulled(shell: Message, tree: ObjectTree, pull: Callable[[str], bytes]) -> Message:
    """Fetch a message's objects and return the message with its content.

    The SuperNode uses the shell's metadata, and the app those of the content's root: they must
    agree. `shell` and `tree` are as in `Parts`, from the server; `pull` fetches one object.

    Raises:
        ValueError: It is too large, an object does not match its id, or the metadata differ.
    """
    arrived, lock = [0], threading.Lock()  # several threads pull

    def counted(object_id: str) -> bytes:
        content = pull(object_id)
        with lock:
            arrived[0] += len(content)
            if arrived[0] > _MOST_BYTES:
                raise ValueError(f"a message of more than {_MOST_BYTES:,} bytes")
        return content

    contents = pull_objects(list(ids_in(tree)), counted)
    if any(get_object_id(content) != object_id for object_id, content in contents.items()):
        raise ValueError("an object is not what its id says")
    message = inflated(tree, contents)
    for name in ("run_id", "message_type", "src_node_id", "dst_node_id", "reply_to_message_id"):
        if getattr(message.metadata, name) != getattr(shell.metadata, name):
            raise ValueError(f"the message has two values of {name}")
    if not message.has_content():
        raise ValueError("the message has no content")
    give_id(message, shell.metadata.message_id)
    return message


def inflated_size(root: str, contents: Mapping[str, bytes]) -> int:
    """Bytes of objects once inflated; `root` is the id of the one that holds all others.

    An array names its pieces by their index in a list, and may name one a million times.

    Raises:
        ValueError: They are nested more deeply than those of a message. Hostile bytes may make
            Flower raise other errors.
    """
    sizes: dict[str, int] = {}

    def size_of(object_id: str, depth: int) -> int:
        if depth > _DEEPEST:
            raise ValueError(f"objects are nested more than {_DEEPEST} deep")
        if object_id not in sizes:
            content = contents[object_id]
            kind, children, _ = get_object_head_values_from_object_content(content)
            parts = [size_of(child, depth + 1) for child in children]
            if kind == Array.__qualname__:
                indices = json.loads(get_object_body(content, Array))["arraychunk_ids"]
                parts = [parts[index] for index in indices]
            sizes[object_id] = len(content) + sum(parts)
        return sizes[object_id]

    return size_of(root, 1)


def inflated(tree: ObjectTree, contents: dict[str, bytes], most: int = _MOST_BYTES) -> Message:
    """The message that objects make up, of at most `most` bytes once inflated.

    Raises:
        ValueError: They are no message, or it is larger. Hostile bytes may make Flower raise other
            errors.
    """
    if inflated_size(tree.object_id, contents) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    message = inflate_object_from_contents(tree.object_id, dict(contents))
    if not isinstance(message, Message):
        raise ValueError("the objects are no message")
    return message


def config_of_run(bundle: bytes, run: Run) -> dict[str, Any]:
    """The configuration that the SuperNode gives an app besides its messages."""
    return dict(get_fused_config_from_fab(bundle, run))


def handed_to_app(asked: Message, content: RecordDict) -> Parts:
    """A message with the same metadata and another content, as the app gets it."""
    return parts_of(make_message(copy(asked.metadata), content))


def parts_of(message: Message) -> Parts:
    """A message as it travels, with the id that follows from its content."""
    give_id(message, message.object_id)
    with no_object_id_recompute():
        tree = get_object_tree(message)
        objects = get_all_nested_objects(message)
        contents = {object_id: part.deflate() for object_id, part in objects.items()}
    if message.has_content():
        message = remove_content_from_message(message)
    return Parts(shell=message, tree=tree, contents=contents)


def push(contents: Iterable[tuple[str, bytes]], push_object: Callable[[str, bytes], None]) -> None:
    """Send objects, several at once."""
    push_object_contents_from_iterable(contents, push_object)
