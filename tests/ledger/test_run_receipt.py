"""A node's receipt: its own key signed it, and the ledger holds what it says, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fl_dp import PrivacyBudget, PrivacyLedger, PrivacyPlan
from fl_dp.clients.run_receipts import IDENTITY_FILE
from fl_dp.commands.app import app
from fl_dp.ledger import LedgerAnchor, NodeLedger
from fl_dp.ledger.node import Account, Use
from fl_dp.ledger.run_receipt import RunReceipt, SealedHead, ServerHead, statement_hash
from fl_dp.mechanisms.events import GaussianEvent
from fl_dp.secagg import Identity
from fl_dp.statement import privacy_statement

ACCOUNT = Account(unit="record", source="ward")
EVENT = GaussianEvent(noise_multiplier=20.0)
USE = Use(run=7, purpose="train", app="hospital/heart==1.4.0@3f2a9c01")


def charge(path: Path, use: Use | None = USE) -> None:
    with NodeLedger.open(path) as ledger:
        ledger.charge(
            ACCOUNT, EVENT, budget=PrivacyBudget(epsilon=4.0, delta=1e-5), what="round", use=use
        )


class Node:
    """A node with a ledger, two answers in run 7 and one in run 8."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.file = folder / "ledger.db", folder / "receipt.json"
        for use in (USE, USE, Use(run=8, purpose="train")):
            charge(self.ledger, use)
        self.identity = Identity.load_or_create(folder / IDENTITY_FILE)
        self.sign()

    def sign(self, server: ServerHead | None = None, identity: Identity | None = None) -> None:
        with NodeLedger.read(self.ledger) as ledger:
            receipt = RunReceipt.of(ledger, identity or self.identity, 7, server)
        self.file.write_text(receipt.to_json())

    def change(self, change: Callable[[dict[str, Any]], None]) -> None:
        document = json.loads(self.file.read_text())
        change(document)
        self.file.write_text(json.dumps(document))

    def verify(self, *options: object, ledger: Path | None = None) -> tuple[int, str]:
        words = [str(ledger or self.ledger), "--verify-receipt", str(self.file)]
        result = CliRunner().invoke(app, ["ledger", *words, *map(str, options)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_receipt_says_what_one_run_was_charged_and_verifies(node: Node) -> None:
    receipt = RunReceipt.from_json(node.file.read_text())
    [spent] = receipt.spent
    assert (receipt.run, spent["app"], spent["answers"]) == (7, USE.app, 2)
    assert spent["releases"] == [{"event": "gaussian", "noise_multiplier": 20.0, "count": 2}]
    status, said = node.verify()
    assert status == 0
    assert "2 answers were charged" in said
    assert node.verify("--key", node.identity.public.hex())[0] == 0


def test_a_ledger_that_went_on_still_verifies_it(node: Node) -> None:
    charge(node.ledger)
    assert node.verify()[0] == 0


def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(key, value)


@pytest.mark.parametrize(
    "change",
    [
        put("run", 8),
        put("entries", 3),
        put("hash", "0" * 64),
        put("signature", "0" * 128),
        put("spent", []),
        put("server", {"entries": 1, "hash": "0" * 64, "statement": "0" * 64}),
        lambda document: document["spent"][0].__setitem__("answers", 1),
        lambda document: document["spent"][0].__setitem__("app", "hospital/liver==1.0@00000000"),
        lambda document: document["spent"][0]["releases"][0].__setitem__("count", 1),
    ],
)
def test_whatever_is_changed_in_it_shows(
    node: Node, change: Callable[[dict[str, Any]], None]
) -> None:
    node.change(change)
    status, said = node.verify()
    assert status == 1
    assert "was changed after it was signed" in said


def test_a_receipt_of_another_key_is_none(node: Node) -> None:
    """It is whole, and somebody else's word."""
    stranger = Identity.generate()
    node.sign(identity=stranger)
    status, said = node.verify()
    assert status == 1
    assert f"it is of the key {stranger.public.hex()}" in said
    node.change(put("identity", node.identity.public.hex()))
    assert node.verify()[0] == 1


@pytest.mark.parametrize(
    ("entries", "said"), [(2, "or its end was cut off"), (9, "has another hash")]
)
def test_another_ledger_is_told(node: Node, tmp_path: Path, entries: int, said: str) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "ledger.db"
    for _ in range(entries - 1):
        charge(other)
    status, told = node.verify("--key", node.identity.public.hex(), ledger=other)
    assert status == 1
    assert said in told


def test_a_node_that_signs_what_it_was_not_charged_is_told(node: Node) -> None:
    """The key and the head are right, and the numbers are not the ledger's."""
    with NodeLedger.read(node.ledger) as ledger:
        honest = RunReceipt.of(ledger, node.identity, 7)
        fewer = RunReceipt(
            run=7, identity=honest.identity, entries=honest.entries, hash=honest.hash, spent=[]
        )
        signature = node.identity.sign(fewer._signed_text()).hex()
    node.file.write_text(
        RunReceipt(**(vars(fewer) | {"signature": signature})).to_json()  # a lying node's
    )
    status, said = node.verify()
    assert status == 1
    assert "has charged something else to run 7" in said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 7}', "\x00", '{"seal": 1}'])
def test_what_is_no_receipt_is_said_so(node: Node, text: str) -> None:
    node.file.write_text(text)
    status, said = node.verify()
    assert status in (1, 2)
    assert "error" in said


def test_without_a_key_nobody_knows_whose_it_is(node: Node, tmp_path: Path) -> None:
    (tmp_path / IDENTITY_FILE).unlink()
    status, said = node.verify()
    assert status == 2
    assert "whose receipt is it?" in said
    assert not (tmp_path / IDENTITY_FILE).exists()


# The server's side.


@pytest.fixture
def server(tmp_path: Path) -> tuple[Path, ServerHead]:
    plan = PrivacyPlan.from_noise_multiplier(
        1.0, delta=1e-3, rounds=2, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
    )
    (tmp_path / "server").mkdir()
    path = tmp_path / "server" / "ledger.db"
    with PrivacyLedger.open(path, plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
        anchor = ledger.anchor
        stated = statement_hash(privacy_statement(ledger).to_dict())
    return path, ServerHead(entries=anchor.entries, hash=anchor.hash, statement=stated)


def test_a_server_can_not_show_another_ledger_than_the_one_that_it_told(
    node: Node, server: tuple[Path, ServerHead]
) -> None:
    path, head = server
    key = ("--key", node.identity.public.hex())
    node.sign(head)
    status, said = node.verify(*key, ledger=path)
    assert status == 0, said
    assert "the statement of that point is the one" in said
    for told, wrong in (
        (ServerHead(entries=head.entries, hash="1" * 64, statement=head.statement), "is not the"),
        (ServerHead(entries=99, hash=head.hash, statement=head.statement), "knows of 99"),
        (ServerHead(entries=head.entries, hash=head.hash, statement="1" * 64), "another statement"),
    ):
        node.sign(told)
        status, said = node.verify(*key, ledger=path)
        assert status == 1
        assert wrong in said
    node.sign()
    assert "says nothing of a server's ledger" in node.verify(*key, ledger=path)[1]


def test_a_head_that_the_server_keeps_is_opened_by_the_node_alone(
    node: Node, tmp_path: Path
) -> None:
    with NodeLedger.read(node.ledger) as ledger:
        sealed = SealedHead.of(ledger.anchor, node.identity, 7)
        assert sealed.place_in(ledger, node.identity) == len(ledger.entries)
        assert sealed.place_in(ledger, Identity.generate()) is None
        # Neither the number of entries nor a hash of any is in it.
        assert ledger.anchor.hash not in sealed.to_json()
        longer = LedgerAnchor(entries=ledger.anchor.entries + 1, hash=ledger.anchor.hash)
        assert SealedHead.of(longer, node.identity, 7).seal != sealed.seal
    node.file.write_text(json.dumps({"ward": json.loads(sealed.to_json())}))
    charge(node.ledger)
    assert node.verify()[0] == 0


def test_a_ledger_that_was_put_back_shows_by_the_head_that_the_server_keeps(node: Node) -> None:
    kept = node.ledger.read_bytes()
    charge(node.ledger)
    with NodeLedger.read(node.ledger) as ledger:
        sealed = SealedHead.of(ledger.anchor, node.identity, 7)
    node.file.write_text(json.dumps({"ward": json.loads(sealed.to_json())}))
    assert node.verify()[0] == 0
    node.ledger.write_bytes(kept)
    status, said = node.verify()
    assert status == 1
    assert "an older copy that was put back" in said


def test_a_sealed_head_that_was_changed_is_none(node: Node) -> None:
    with NodeLedger.read(node.ledger) as ledger:
        sealed = json.loads(SealedHead.of(ledger.anchor, node.identity, 7).to_json())
    for key, value in (("run", 8), ("seal", "0" * 64), ("signature", "0" * 128)):
        with pytest.raises(ValueError, match="it was changed"):
            SealedHead.from_json(json.dumps(sealed | {key: value}))
