"""Receipts of a run: what a node's data were charged in it, signed by the node.

A receipt names a point of the node's ledger, what the run had spent there, and, where the server
told it, a point of the server's ledger and the hash of its statement. An auditor with the node's
public key can check it; with the ledger at hand, that the ledger still holds what was signed.

A server keeps less: a *sealed head*. It is the node's point of its ledger, which only the node
itself can open, as entries and hashes could show when it was used and confirm guesses of its data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from fl_dp.accounting.events import history_to_list
from fl_dp.secagg import Identity
from fl_dp.secagg.key_pairs import KEY_BYTES, SIGNATURE_BYTES, is_signed
from fl_dp.secagg.texts import (
    canonical,
    digest,
    fields_of,
    frame,
    hex_bytes,
    object_of,
    require_integers,
)

from .anchors import LedgerAnchor
from .node import NodeLedger

_MOST = 2**63 - 1
_MOST_RUNS = 2**64 - 1
_HASH_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class ServerHead:
    """A point of the server's ledger, as the server told it.

    Attributes:
        entries: How many entries it had.
        hash: The last one's hash, in hex.
        statement: Hash of the privacy statement of that point (`statement_hash`), in hex.
    """

    entries: int
    hash: str
    statement: str

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read it from JSON text.

        Raises:
            ValueError: If it is anything else.
        """
        return cls.of(object_of(text, list(cls.__dataclass_fields__), "heads of a server's ledger"))

    @classmethod
    def of(cls, fields: Any) -> Self:
        """Read what `asdict` wrote.

        Raises:
            ValueError: If it is anything else.
        """
        given = fields_of(fields, list(cls.__dataclass_fields__), "heads of a server's ledger")
        require_integers(1, _MOST, entries=given["entries"])
        hex_bytes(given["hash"], _HASH_BYTES, "hash")
        hex_bytes(given["statement"], _HASH_BYTES, "statement")
        return cls(**given)

    @property
    def anchor(self) -> LedgerAnchor:
        """The point."""
        return LedgerAnchor(entries=self.entries, hash=self.hash)


def statement_hash(statement: Mapping[str, Any]) -> str:
    """Return the hash of a privacy statement of clients, in hex.

    Neither the form of its file matters nor what it says of records inside clients, which is no
    part of the server's ledger.
    """
    said = {key: value for key, value in statement.items() if key != "records"}
    return digest("privacy statement", json.dumps(said, sort_keys=True).encode()).hex()


@dataclass(frozen=True, kw_only=True)
class RunReceipt:
    """A node's signed word on one run. Its fields are plain JSON values.

    Attributes:
        run: Flower's id of the run.
        identity: The node's public key, in hex.
        entries: Entries of the node's ledger when it was signed.
        hash: The last one's hash, in hex.
        spent: What the run was charged: app, purpose, unit and name of the data, answers, releases.
        server: What the server told of its own ledger; None: nothing.
        signature: Over all the rest, in hex.
    """

    run: int
    identity: str
    entries: int
    hash: str
    spent: list[dict[str, Any]]
    server: ServerHead | None = None
    signature: str = ""

    @classmethod
    def of(
        cls, ledger: NodeLedger, identity: Identity, run: int, server: ServerHead | None = None
    ) -> Self:
        """Sign what a ledger, as last read, knows of a run."""
        unsigned = cls(
            run=run,
            identity=identity.public.hex(),
            entries=ledger.anchor.entries,
            hash=ledger.anchor.hash,
            spent=_spent(ledger, run),
            server=server,
        )
        return replace(unsigned, signature=identity.sign(unsigned._signed_text()).hex())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; nothing is checked but its form.

        Raises:
            ValueError: If it is anything else.
        """
        fields = object_of(text, list(cls.__dataclass_fields__), "receipts of a run")
        require_integers(0, _MOST_RUNS, run=fields["run"])
        require_integers(1, _MOST, entries=fields["entries"])
        hex_bytes(fields["identity"], KEY_BYTES, "identity")
        hex_bytes(fields["hash"], _HASH_BYTES, "hash")
        hex_bytes(fields["signature"], SIGNATURE_BYTES, "signature")
        if not isinstance(fields["spent"], list):
            raise ValueError("spent must be a list")
        server = fields.pop("server")
        return cls(**fields, server=None if server is None else ServerHead.of(server))

    def to_json(self) -> str:
        """Return it as JSON text, for a person to read, too."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @property
    def anchor(self) -> LedgerAnchor:
        """The point of the node's ledger."""
        return LedgerAnchor(entries=self.entries, hash=self.hash)

    def signature_findings(self, key: bytes) -> list[str]:
        """Return what is wrong with who signed it, nothing if `key` did.

        Args:
            key: The public key of the node that it should be of.
        """
        if bytes.fromhex(self.identity) != key:
            return [f"it is of the key {self.identity}, and the node's is {key.hex()}"]
        if not is_signed(key, bytes.fromhex(self.signature), self._signed_text()):
            return ["its signature does not fit: something in it was changed after it was signed"]
        return []

    def ledger_findings(self, ledger: NodeLedger) -> list[str]:
        """Return what a node's ledger, as last read, denies of it; nothing if all agrees."""
        known = len(ledger.entries)
        if known < self.entries:
            return [
                f"the ledger has {known} entries and the receipt is of {self.entries}: it is "
                "another ledger, an older copy, or its end was cut off"
            ]
        if ledger.entries[self.entries - 1].hash != self.hash:
            return [
                f"entry {self.entries} of the ledger has another hash than the receipt: it is "
                "another ledger, or one that was put back and went another way"
            ]
        if _spent(ledger.as_of(self.entries), self.run) != self.spent:
            return [f"the ledger has charged something else to run {self.run} than it says"]
        return []

    def _signed_text(self) -> bytes:
        said = {key: value for key, value in asdict(self).items() if key != "signature"}
        return frame("receipt of a run", canonical(said).encode())


@dataclass(frozen=True, kw_only=True)
class SealedHead:
    """A point of a node's ledger that the server keeps and only the node can open.

    Attributes:
        run: Flower's id of the run at whose end it was given.
        identity: The node's public key, in hex.
        seal: A code of the point under a key that only the node has, in hex.
        signature: Over all the rest, in hex.
    """

    run: int
    identity: str
    seal: str
    signature: str = ""

    @classmethod
    def of(cls, anchor: LedgerAnchor, identity: Identity, run: int) -> Self:
        """Seal a point."""
        seal = _seal(anchor, identity)
        unsigned = cls(run=run, identity=identity.public.hex(), seal=seal)
        return replace(unsigned, signature=identity.sign(unsigned._signed_text()).hex())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: If it is anything else, or its own key has not signed it.
        """
        fields = object_of(text, list(cls.__dataclass_fields__), "sealed heads")
        require_integers(0, _MOST_RUNS, run=fields["run"])
        hex_bytes(fields["identity"], KEY_BYTES, "identity")
        hex_bytes(fields["seal"], _HASH_BYTES, "seal")
        hex_bytes(fields["signature"], SIGNATURE_BYTES, "signature")
        sealed = cls(**fields)
        key = bytes.fromhex(sealed.identity)
        if not is_signed(key, bytes.fromhex(sealed.signature), sealed._signed_text()):
            raise ValueError("the signature of the sealed head does not fit: it was changed")
        return sealed

    def to_json(self) -> str:
        """Return it as JSON text."""
        return canonical(asdict(self))

    def place_in(self, ledger: NodeLedger, identity: Identity) -> int | None:
        """Return after how many entries the ledger was at this point; None if it never was."""
        for entry in reversed(ledger.entries):
            anchor = LedgerAnchor(entries=entry.sequence, hash=entry.hash)
            if _seal(anchor, identity) == self.seal:
                return entry.sequence
        return None

    def _signed_text(self) -> bytes:
        said = {key: value for key, value in asdict(self).items() if key != "signature"}
        return frame("sealed head", canonical(said).encode())


def _seal(anchor: LedgerAnchor, identity: Identity) -> str:
    return identity.sealed("head", anchor.entries, anchor.hash.encode()).hex()


def _spent(ledger: NodeLedger, run: int) -> list[dict[str, Any]]:
    """Return what a run was charged, as plain JSON values."""
    return [
        {
            "app": use.app,
            "purpose": use.purpose,
            "unit": each.unit,
            "data": each.source,
            "answers": each.charges,
            "releases": history_to_list(each.history),
        }
        for each in ledger.uses
        if (use := each.use) is not None and use.run == run
    ]
