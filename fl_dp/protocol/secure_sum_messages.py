"""Messages of a secure sum, as Flower's records: the one place that knows how they travel.

query.fl_dp_secagg_key        a node's entry in the directory, with its key of the run
query.fl_dp_secagg_directory  all nodes' entries; the node answers with their hash
train (any kind)              with the sum's terms; the node answers with its masked values
query.fl_dp_secagg_view       only with a cross-check: who replied, for a member to sign
query.fl_dp_secagg_open       who replied, for a member to open their seeds' shares
query.fl_dp_secagg_done       the run's keys may be deleted
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fl_dp.secagg.client import MaskedMessage
from fl_dp.secagg.directory import MOST_ENTRIES
from fl_dp.secagg.member import Opened
from fl_dp.secagg.texts import digest
from fl_dp.updates import RefusedUpdate

SECURE_SUM_KEY = "fl-dp-secure-sum"
"""Name of the ConfigRecord with the terms of a sum."""

SUM_KEY = "fl-dp-sum"
"""Config key of a message that is no training: the JSON text of its `SumInstruction`."""

_MOST_VALUES = 100_000  # in one hashed record
_HEADER = 1024  # bytes of a NumPy file before its values, at most

KEY_ACTION = "fl_dp_secagg_key"
DIRECTORY_ACTION = "fl_dp_secagg_directory"
VIEW_ACTION = "fl_dp_secagg_view"
OPEN_ACTION = "fl_dp_secagg_open"
DONE_ACTION = "fl_dp_secagg_done"
"""Actions of QUERY messages (`query.<action>`)."""

SECURE_SUM_ACTIONS = (KEY_ACTION, DIRECTORY_ACTION, VIEW_ACTION, OPEN_ACTION, DONE_ACTION)

_Config: TypeAlias = dict[str, Any]

_TERMS = "terms"
_MASKED, _BUNDLES, _COMMITMENTS = "masked", "bundles", "commitments"
_ONLINE, _LABELS = "online", "labels"
_MEMBERS, _SIGNATURES, _SIGNATURE = "members", "signatures", "signature"
_REPLIERS, _SHARES, _UNREADABLE = "places", "shares", "unreadable"


def content_digest(content: RecordDict) -> str:
    """Digest, in hexadecimal, of a message's content without its terms.

    It includes all that a client trains from: a learning rate of 0 for all but one client singles
    it out just as another model does (Pasquini et al. 2022, "Eluding Secure Aggregation").
    """
    parts: list[bytes] = []
    for name in sorted(set(content) - {SECURE_SUM_KEY}):
        record = content[name]
        parts += [name.encode(), type(record).__name__.encode()]
        if isinstance(record, ArrayRecord):
            parts.append(digest("arrays", *_of_arrays(record)))
        else:
            parts.append(digest("values", *_of_values(record)))
    return digest("content", *parts).hex()


def told_digest(run_config: Mapping[str, Any], bundle_hash: str | None) -> bytes:
    """Digest of what reaches a node besides messages: a run's configuration and its app.

    `bundle_hash` is None where nothing but the app itself could tell.
    """
    app = [] if bundle_hash is None else [b"bundle", bundle_hash.encode()]
    return digest("told", *_of_values(run_config), *app)


def _of_arrays(record: ArrayRecord) -> Iterable[bytes]:
    # In the record's order, by which a client reads them.
    for name, array in record.items():
        shape = json.dumps([int(side) for side in array.shape])
        about = (name, str(array.dtype), str(array.stype), shape)
        yield from (text.encode() for text in about)
        yield hashlib.sha256(array.data).digest()


def _of_values(record: Mapping[str, Any]) -> Iterable[bytes]:
    if len(record) > _MOST_VALUES:
        raise ValueError(f"{len(record)} values in a record are more than {_MOST_VALUES}")
    # Sorted: Protocol Buffers keep no order of a map.
    for key in sorted(record):
        value = record[key]
        items, form = (value, b"list") if isinstance(value, list) else ([value], b"one")
        yield from (key.encode(), form)
        yield digest("value", *itertools.chain.from_iterable(map(_of_value, items)))


def _of_value(value: Any) -> tuple[bytes, bytes]:
    if isinstance(value, bytes):
        return b"bytes", value
    text = value.hex() if isinstance(value, float) else str(value)
    return type(value).__name__.encode(), text.encode()


def with_terms(content: RecordDict, terms: str) -> RecordDict:
    """A message's content with its sum's terms."""
    return RecordDict(dict(content) | {SECURE_SUM_KEY: ConfigRecord({_TERMS: terms})})


def terms_in(content: RecordDict) -> str | None:
    """Text of the terms in a message; None if it belongs to no sum.

    Raises:
        ValueError: The record is malformed. Ignoring it would remove the protection.
    """
    if SECURE_SUM_KEY not in content:
        return None
    record = content[SECURE_SUM_KEY]
    text = record.get(_TERMS) if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        raise ValueError(f"the record '{SECURE_SUM_KEY}' has no text of terms")
    return text


def without_terms(content: RecordDict) -> RecordDict:
    """A message's content without a sum's terms."""
    return RecordDict({name: content[name] for name in content if name != SECURE_SUM_KEY})


def masked_to_content(message: MaskedMessage) -> RecordDict:
    """A client's reply as a message's content."""
    # An array, as it travels in chunks; bytes in a ConfigRecord travel in one piece.
    masked = Array(np.frombuffer(message.masked, np.uint8))
    rest: _Config = {_BUNDLES: list(message.bundles), _COMMITMENTS: message.commitments}
    return RecordDict({_MASKED: ArrayRecord({_MASKED: masked}), _BUNDLES: ConfigRecord(rest)})


def masked_of(content: RecordDict, *, longest: int) -> MaskedMessage:
    """Read a client's reply, of at most `longest` bytes of masked values, by the terms.

    Raises:
        RefusedUpdate: The content is no masked message.
    """
    try:
        array = content.array_records[_MASKED][_MASKED]
        if len(array.data) > longest + _HEADER:
            raise ValueError
        masked = array.numpy()
        rest = content.config_records[_BUNDLES]
        bundles, commitments = rest[_BUNDLES], rest[_COMMITMENTS]
    except Exception:
        raise RefusedUpdate("it is no masked message") from None
    is_list = isinstance(bundles, list) and all(isinstance(bundle, bytes) for bundle in bundles)
    if not is_list or not isinstance(commitments, bytes):
        raise RefusedUpdate("it is no masked message")
    if not isinstance(masked, np.ndarray) or masked.dtype != np.uint8 or masked.ndim != 1:
        raise RefusedUpdate("its masked values are no bytes")
    return MaskedMessage(
        masked=masked.tobytes(), bundles=cast(list[bytes], bundles), commitments=commitments
    )


@dataclass(frozen=True, kw_only=True)
class MemberQuestion:
    """The question to a member: to sign who replied, or to open their seeds' shares.

    Attributes:
        terms: The sum's terms, as text.
        online: Indices of the clients whose messages are summed, ascending.
        labels: Their messages' labels, by client.
        bundles: Their bundles for this member, by client; empty if it only has to sign.
        quorum: Signatures of the same view, by member; empty without a cross-check.
    """

    terms: str
    online: tuple[int, ...]
    labels: Mapping[int, bytes]
    bundles: Mapping[int, bytes]
    quorum: Mapping[int, bytes]

    def to_content(self) -> RecordDict:
        """The question as a message's content."""
        config: _Config = {
            _TERMS: self.terms,
            _ONLINE: list(self.online),
            _LABELS: [self.labels[client] for client in self.online],
            _BUNDLES: [self.bundles[client] for client in self.online if self.bundles],
            _MEMBERS: list(self.quorum),
            _SIGNATURES: list(self.quorum.values()),
        }
        return RecordDict({"config": ConfigRecord(config)})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read a question.

        Raises:
            ValueError: It is none.
        """
        config = _only_config(content)
        text = config.get(_TERMS)
        if not isinstance(text, str):
            raise ValueError("the question has no terms")
        online, blobs = _integers(config, _ONLINE), _blobs(config, _BUNDLES)
        quorum = zip(_integers(config, _MEMBERS), _blobs(config, _SIGNATURES), strict=True)
        labels = dict(zip(online, _blobs(config, _LABELS), strict=True))
        bundles = {}
        if blobs:
            bundles = dict(zip(online, blobs, strict=True))
        return cls(terms=text, online=online, labels=labels, bundles=bundles, quorum=dict(quorum))


def signature_to_content(signature: bytes) -> RecordDict:
    """A member's answer to a question for its signature."""
    return RecordDict({"config": ConfigRecord({_SIGNATURE: signature})})


def member_signature(content: RecordDict) -> bytes:
    """Read a member's signature.

    Raises:
        ValueError: There is none.
    """
    signature = _only_config(content).get(_SIGNATURE)
    if not isinstance(signature, bytes):
        raise ValueError("the answer has no signature")
    return signature


def opened_to_content(opened: Opened) -> RecordDict:
    """A member's opened shares as a message's content."""
    config: _Config = {
        _REPLIERS: list(opened.shares),
        _SHARES: list(opened.shares.values()),
        _UNREADABLE: list(opened.unreadable),
    }
    return RecordDict({"config": ConfigRecord(config)})


def opened_of(content: RecordDict) -> Opened:
    """Read what `opened_to_content` wrote.

    Raises:
        ValueError: It is anything else.
    """
    config = _only_config(content)
    shares = zip(_integers(config, _REPLIERS), _blobs(config, _SHARES), strict=True)
    return Opened(
        shares=dict(shares),
        unreadable=_integers(config, _UNREADABLE),
    )


def text_to_content(text: str) -> RecordDict:
    """One text, such as a directory, as a message's content."""
    return RecordDict({"config": ConfigRecord({_TERMS: text})})


def text_of(content: RecordDict) -> str:
    """Read what `text_to_content` wrote.

    Raises:
        ValueError: There is no text.
    """
    text = _only_config(content).get(_TERMS)
    if not isinstance(text, str):
        raise ValueError("the message has no text")
    return text


def _only_config(content: RecordDict) -> ConfigRecord:
    records: Sequence[ConfigRecord] = list(content.config_records.values())
    if len(records) != 1:
        raise ValueError(f"expected exactly one ConfigRecord in the message, got {len(records)}")
    return records[0]


def _integers(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    return tuple(_list(config, key, int))


def _blobs(config: Mapping[str, Any], key: str) -> tuple[bytes, ...]:
    return tuple(_list(config, key, bytes))


def _list(config: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    values = config.get(key)
    if isinstance(values, list) and len(values) > MOST_ENTRIES:
        raise ValueError(f"'{key}' has {len(values)} values, and no sum more than {MOST_ENTRIES}")
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ValueError(f"'{key}' is no list of {kind.__name__}")
    return values
