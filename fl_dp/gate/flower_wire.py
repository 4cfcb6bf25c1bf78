"""What a gate speaks with Flower: the calls of its Fleet API, and messages as trees of objects.

A SuperNode reaches its SuperLink by POSTs of protobuf alone, which Flower's own description lists.
All parts of Flower that a gate needs besides the documented ones are imported here. Whether they
fit is tried at the start, with a message: no list of versions says it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fl_dp import clock
from fl_dp.protocol.flower_compat import be_in_a_run, give_id
from fl_dp.protocol.flower_versions import FlowerChanged, parts_of_flower

# Relies on: the calls of `Fleet` and their fields, messages that are trees of objects named by
# their SHA-256, and functions that convert them. Moved: import from there what does the same.
with parts_of_flower():
    from flwr.app.message.message import make_message, remove_content_from_message
    from flwr.common.config import get_fused_config_from_fab
    from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
    from flwr.proto.fleet_pb2 import DESCRIPTOR
    from flwr.proto.message_pb2 import ObjectTree as ObjectTree
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
        ObjectUnavailableError,
        inflate_object_from_contents,
        pull_objects,
        push_object_contents_from_iterable,
    )
    from google.protobuf.message_factory import (  # type: ignore[import-untyped]  # has no stubs
        GetMessageClass,
    )

FLEET = "/v1/fleet/"
"""Start of the path of each call."""

MEDIA_TYPE = "application/protobuf"
"""Media type of requests and responses."""

_MOST_OBJECTS = 1_000_000  # of one message: an array is cut into pieces of 5 MB
_MOST_BYTES = 1 << 34  # of one message that the server sends
_WIDER = 8  # times the bytes of a model: float64 for float16, and as much again
_SLACK = 1 << 20  # bytes in addition
_MOST_MORE = 1_000  # objects of a reply in addition to those of its message
_LONG = 86_400.0  # seconds that an app is told: the gate has times of its own
_DEEPEST = 8  # message, content, record, array and piece are 5
_SPOKEN = {
    "register-node": (("public_key",), ("node_id",)),
    "activate-node": (("public_key", "heartbeat_interval"), ("node_id",)),
    "deactivate-node": (("node_id",), ()),
    "unregister-node": (("node_id",), ()),
    "send-node-heartbeat": (("node", "heartbeat_interval"), ("success",)),
    "pull-messages": (("node",), ("messages_list", "message_object_trees")),
    "push-messages": (
        ("node", "messages_list", "message_object_trees", "clientapp_runtime_list"),
        ("objects_to_push", "session_id"),
    ),
    "get-run": (("node", "run_id"), ("run",)),
    "get-fab": (("node", "hash_str", "run_id"), ("fab",)),
    "push-object": (
        ("node", "run_id", "object_id", "object_content", "session_id"),
        ("stored",),
    ),
    "pull-object": (
        ("node", "run_id", "object_id"),
        ("object_found", "object_available", "object_content"),
    ),
    "confirm-message-received": (("node", "run_id", "message_object_id"), ()),
}
"""Fields of the request and the response of each call that a gate makes, and its desk answers."""


class Call(NamedTuple):
    """One call of the Fleet API: classes of protobuf."""

    request: Any
    response: Any


CALLS = {
    re.sub("(?<=.)([A-Z])", r"-\1", method.name).lower(): Call(
        GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    )
    for method in DESCRIPTOR.services_by_name["Fleet"].methods
}
"""Calls of the Fleet API that this Flower knows, by the last part of their paths."""


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


def ids_in(tree: ObjectTree, most: int = _MOST_OBJECTS) -> set[str]:
    """Ids of a tree's objects.

    Raises:
        ValueError: There are more than `most`.
    """
    nodes = list(islice(iterate_object_tree(tree), most + 1))
    if len(nodes) > most:
        raise ValueError(f"a message of more than {most:,} objects")
    return {node.object_id for node in nodes}


def pulled(tree: ObjectTree, pull: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """Fetch a message's objects, by their ids; wait for those that are still on their way.

    Args:
        tree: Ids of the objects, from the server.
        pull: Fetches one object. None: the SuperLink does not have it yet.

    Raises:
        ValueError: They are too many or too large, or an object does not match its id.
    """
    arrived, lock = [0], threading.Lock()  # several threads pull

    def counted(object_id: str) -> bytes:
        content = pull(object_id)
        if content is None:
            raise ObjectUnavailableError(object_id)  # then it is pulled again
        with lock:
            arrived[0] += len(content)
            if arrived[0] > _MOST_BYTES:
                raise ValueError(f"a message of more than {_MOST_BYTES:,} bytes")
        return content

    contents = pull_objects(list(ids_in(tree)), counted)
    if any(get_object_id(content) != object_id for object_id, content in contents.items()):
        raise ValueError("an object is not what its id says")
    return contents


def message_of(parts: Parts) -> Message:
    """The message that the server sent, with its content.

    The gate acts on the shell's metadata, and the app sees those of the content's root: they must
    agree.

    Raises:
        ValueError: They don't, or the objects are no message.
    """
    message = inflated(parts.tree, parts.contents)
    for name in ("run_id", "message_type", "src_node_id", "dst_node_id", "reply_to_message_id"):
        if getattr(message.metadata, name) != getattr(parts.shell.metadata, name):
            raise ValueError(f"the message has two values of {name}")
    if not message.has_content():
        raise ValueError("the message has no content")
    give_id(message, parts.shell.metadata.message_id)
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


class Bounds(NamedTuple):
    """Bounds of what an app may reply.

    Attributes:
        size: Bytes, inflated.
        objects: How many.
    """

    size: int
    objects: int


def bounds_of_reply(root: str, contents: Mapping[str, bytes]) -> Bounds:
    """Bounds above which a reply is no model of a message, whose objects these are."""
    # Pieces of the model that are alike travel once, and those of the reply may differ.
    size = _WIDER * inflated_size(root, contents) + _SLACK
    return Bounds(size=size, objects=len(contents) + _MOST_MORE)


NO_MESSAGE = Bounds(size=_SLACK, objects=_MOST_MORE)
"""Bounds where no message is open."""


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


def config_of_run(bundle: bytes, run: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration that the SuperNode gives an app besides its messages.

    `run` is protobuf.

    Returns:
        All of it, and the part that the server set.
    """
    run = run_from_proto(run)
    return dict(get_fused_config_from_fab(bundle, run)), dict(run.override_config)


def contents_by_id(contents: Iterable[bytes]) -> dict[str, bytes]:
    """Objects by their ids, which follow from their bytes."""
    return {get_object_id(content): content for content in contents}


def shell_of(message: Any) -> Message:
    """The message of protobuf, which has no content."""
    return message_from_proto(message)


def message_in(content: bytes) -> Any:
    """A message without content, protobuf, of its bytes."""
    message = CALLS["pull-messages"].response().messages_list.add()
    message.ParseFromString(content)
    return message


def in_protobuf(shell: Message) -> Any:
    """A message without content as it travels."""
    return message_to_proto(shell)


def handed_to_app(asked: Message, content: RecordDict, *, bare: bool) -> Parts:
    """A message with the same metadata and another content, as the app gets it.

    `bare`: of the metadata that the server chose the app gets no texts and no times.
    """
    metadata = copy(asked.metadata)
    if bare:
        metadata.__dict__["_group_id"] = ""
        metadata.__dict__["_created_at"], metadata.ttl = clock.date(), _LONG
    return parts_of(make_message(metadata, content))


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


def require_fitting_flower() -> None:
    """Check that this Flower has each call that a gate makes, and messages of the known form.

    Raises:
        FlowerChanged: It does not.
    """
    for name, fields in _SPOKEN.items():
        if name not in CALLS:
            raise FlowerChanged(f"the call {name} of its Fleet API")
        for message, needed in zip(CALLS[name], fields, strict=True):
            if lacking := set(needed) - set(message.DESCRIPTOR.fields_by_name):
                raise FlowerChanged(f"{sorted(lacking)[0]} in the call {name} of its Fleet API")
    be_in_a_run()
    values = np.arange(3.0)
    content = RecordDict({"arrays": ArrayRecord({"w": Array(values)})})
    try:
        parts = parts_of(Message(content, dst_node_id=1, message_type="train"))
        contents = pulled(parts.tree, parts.contents.__getitem__)
        message = message_of(Parts(shell_of(in_protobuf(parts.shell)), parts.tree, contents))
        same = (message.content.array_records["arrays"]["w"].numpy() == values).all()
    except Exception as error:  # whatever another form makes Flower raise
        raise FlowerChanged(f"messages as trees of objects: {error!r}") from error
    if not same:
        raise FlowerChanged("messages that come back as they were")
