"""`fl-dp ledger --verify-receipt`: a node's receipt, compared with the ledger that it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl_dp.app.run_folder import RunFolder
from fl_dp.clients.run_receipts import IDENTITY_FILE
from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger
from fl_dp.ledger.run_receipt import RunReceipt, SealedHead, ServerHead, statement_hash
from fl_dp.secagg import Identity
from fl_dp.secagg.key_pairs import KEY_BYTES
from fl_dp.secagg.texts import hex_bytes
from fl_dp.statement import privacy_statement, read_statement

from .shown_ledger import ShownLedger


def verify_receipt(
    location: str, file: Path, *, key: str | None, check: Path | None
) -> ShownLedger:
    """Check a receipt against a node's ledger, or against that of the server that it names.

    Args:
        location: The ledger's file or URL, or the folder of a run.
        file: The receipt, or a server's `node-heads.json`.
        key: The node's public key in hex; None: that of the identity beside the node's ledger.
        check: A privacy statement to compare with; None: the one beside the server's ledger.

    Raises:
        LedgerCorrupted: If something does not agree, one line each.
        OSError: If a file can't be read.
        ValueError: If the receipt is none, or nobody says whose it should be.
    """
    folder = RunFolder(Path(location))
    place = str(folder.ledger) if Path(location).is_dir() else location
    text = file.read_text(encoding="utf-8")
    of_node = NodeLedger.is_one(place)
    if of_node and '"seal"' in text:
        return _verify_heads(place, file, text)
    receipt = _read(file, text)
    found = receipt.signature_findings(_key(place, key))
    said: list[str] = []
    if of_node:
        with NodeLedger.read(place) as ledger:
            found += receipt.ledger_findings(ledger)
        said.append(f"the ledger holds its {receipt.entries} entries and what they charged")
    else:
        if receipt.server is None:
            raise ValueError(
                f"{file} says nothing of a server's ledger, and {location} is one: name the node's"
            )
        found += _server_findings(place, receipt.server, check)
        said += [f"the ledger holds the {receipt.server.entries} entries that the server told"]
        said += ["the statement of that point is the one whose hash the server told"]
    if found:
        raise LedgerCorrupted("\n".join(f"{file}: {each}" for each in found))
    answers = sum(int(each["answers"]) for each in receipt.spent)
    return ShownLedger(
        document={
            "verified": True,
            "run": receipt.run,
            "key": receipt.identity,
            "answers": answers,
        },
        lines=[
            f"Receipt of run {receipt.run}: {answers} answers were charged",
            f"Signed by {receipt.identity}",
            *(f"Verified: {each}" for each in said),
        ],
    )


def _read(file: Path, text: str) -> RunReceipt:
    try:
        return RunReceipt.from_json(text)
    except ValueError as error:
        raise ValueError(f"{file} is no receipt of a run: {error}") from error


def _key(place: str, key: str | None) -> bytes:
    """Return the public key that a receipt should be of."""
    if key is not None:
        return hex_bytes(key.lower(), KEY_BYTES, "--key")
    identity = Path(place).parent / IDENTITY_FILE
    if not identity.is_file():  # loading would make one
        raise ValueError(
            f"whose receipt is it? There is no {IDENTITY_FILE} beside the ledger: write the node's "
            "public key, --key HEX (it stands in the roster, and `fl-dp secagg identity` tells it)"
        )
    return Identity.load_or_create(identity).public


def _server_findings(place: str, told: ServerHead, check: Path | None) -> list[str]:
    with SpentLedger.read(place) as ledger:
        ledger.require_holds(told.anchor, of="the receipt")
        earlier = ledger.as_of(told.entries)
        statements: list[dict[str, Any]] = [privacy_statement(earlier).to_dict()]
    beside = RunFolder(Path(place).parent).statement if check is None else check
    if check is not None or beside.is_file():
        stated = read_statement(beside)
        # A later statement of the same ledger is another one; the ledger itself is compared.
        if check is not None or stated.get("ledger_entries") == told.entries:
            statements = [stated]
    if told.statement not in map(statement_hash, statements):
        return ["the server told the hash of another statement than the one of that point"]
    return []


def _verify_heads(place: str, file: Path, text: str) -> ShownLedger:
    """Look for the newest of a server's sealed heads of this node in the node's ledger."""
    identity_file = Path(place).parent / IDENTITY_FILE
    if not identity_file.is_file():
        raise ValueError(
            f"only the node can open a sealed head: put its {IDENTITY_FILE} beside {place}"
        )
    identity = Identity.load_or_create(identity_file)
    given = json.loads(text)
    documents = [given] if "seal" in given else list(given.values())
    mine = [
        sealed
        for each in documents
        if (sealed := SealedHead.from_json(json.dumps(each))).identity == identity.public.hex()
    ]
    if not mine:
        raise LedgerCorrupted(f"{file}: no head in it is of the key {identity.public.hex()}")
    with NodeLedger.read(place) as ledger:
        places = {sealed.run: sealed.place_in(ledger, identity) for sealed in mine}
        known = len(ledger.entries)
    missing = [run for run, found in places.items() if found is None]
    if missing:
        raise LedgerCorrupted(
            f"{file}: after run {missing[0]} this ledger had a head that it does not hold: it is "
            "another ledger, or an older copy that was put back. Put the complete one back"
        )
    lines = [
        f"Verified: after run {run} the ledger had {at} of its {known} entries"
        for run, at in places.items()
    ]
    return ShownLedger(document={"verified": True, "heads": places}, lines=[*lines])
