"""One node among others that know each other, and messages of secure sums to it."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import FIRST_NODE, LocalGrid
from secure_nodes import SecureNodes

from fl_dp.clients.secure_node import IDENTITY_FILE, STORE_FILE
from fl_dp.codec import encode_text
from fl_dp.files import private_folder
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms import NoiseShare, Segment
from fl_dp.mechanisms.bundle import GaussianBundle
from fl_dp.protocol.instruction import RoundInstruction, SumInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.protocol.secure_sum_messages import (
    DIRECTORY_ACTION,
    KEY_ACTION,
    MemberQuestion,
    content_digest,
    text_of,
    text_to_content,
    with_terms,
)
from fl_dp.secagg import Directory, Identity, Roster, SumTerms
from fl_dp.secagg.directory import Entry

RUN, NODES = 7, 4
SIZE = 3
INSTRUCTION = RoundInstruction(
    server_round=1,
    bundle=GaussianBundle(noise_multiplier=1.0, clipping_norms=(1.0,)),
    sampling_rate=1.0,
    secure_sum=SumInstruction(rounds=3, epsilon=100.0, delta=1e-3),
)
SHARE = NoiseShare(segments=(Segment("updates", SIZE, 100.0, 100.0, 1.0),), noise_scale=100.0)

REQUIRED: dict[str, Any] = {"dp-require-privacy": "distributed", "dp-max-epsilon": 100.0}


class Federation:
    """Four nodes that know each other, and messages to the first."""

    def __init__(self, folder: Path, *, pinned: bool = False, **owner: Any) -> None:
        self.folder = folder
        update = [np.full(SIZE, 0.1)]
        roster_hash = ""
        if pinned:
            members = []
            for node in range(NODES):
                private_folder(folder / f"node-{node}")
                identity = Identity.load_or_create(folder / f"node-{node}" / IDENTITY_FILE)
                members.append({"name": f"site-{node:03d}", "identity": identity.public.hex()})
            file = folder / "roster.json"
            file.write_text(json.dumps({"federation": "tests", "members": members}))
            owner |= {"dp-secagg-roster": str(file)} | REQUIRED
            roster_hash = Roster.read(file).hash
        self.nodes = SecureNodes(folder, [[update]] * NODES, owners={0: owner})
        self.grid = LocalGrid(self.nodes, NODES)
        self.meet(RUN, roster_hash)

    def meet(self, run: int, roster_hash: str = "") -> None:
        """Let the nodes agree on who they are, in a run of this number."""
        keys = text_to_content(json.dumps({"run": run, "epoch": 0}))
        entries = [
            Entry.from_dict(json.loads(text_of(self.ask(KEY_ACTION, keys, node).content)))
            for node in range(NODES)
        ]
        self.directory = Directory.first(run, entries, roster_hash=roster_hash)
        for node in range(NODES):
            told = text_to_content(self.directory.to_json())
            assert not self.ask(DIRECTORY_ACTION, told, node).has_error()
        self.places = {
            node: self.directory.entries.index(entry) for node, entry in enumerate(entries)
        }

    def lose_keys(self) -> None:
        """Delete the first node's memory of runs, and let it come back without."""
        for file in (self.folder / "node-0").glob(f"{STORE_FILE}*"):
            file.unlink()
        keys = text_to_content(json.dumps({"run": RUN, "epoch": self.directory.epoch + 1}))
        fresh = Entry.from_dict(json.loads(text_of(self.ask(KEY_ACTION, keys).content)))
        self.directory = self.directory.extended([fresh])
        self.places[0] = self.directory.entries.index(fresh)
        for node in range(NODES):
            told = text_to_content(self.directory.to_json())
            assert not self.ask(DIRECTORY_ACTION, told, node).has_error()

    @property
    def no_committee(self) -> tuple[int, ...]:
        """Three places that are not the committee of three."""
        chosen = self.directory.committee(3)
        return next(members for members in combinations(range(NODES), 3) if members != chosen)

    @property
    def others(self) -> tuple[int, ...]:
        """The places of all but the first node."""
        return tuple(position for position in range(NODES) if position != self.places[0])

    def ask(self, action: str, content: RecordDict, node: int = 0) -> Message:
        kind = action if action == "train" else f"query.{action}"
        message = Message(content, dst_node_id=FIRST_NODE + node, message_type=kind)
        [reply] = self.grid.send_and_receive([message])
        return reply

    def content(self, instruction: RoundInstruction = INSTRUCTION, **config: Any) -> RecordDict:
        told = ConfigRecord({INSTRUCTION_KEY: encode_text(instruction)} | config)
        model = ArrayRecord({"w": Array(np.zeros(SIZE))})
        return RecordDict({"model": model, "config": told})

    def terms(self, content: RecordDict, **changed: Any) -> SumTerms:
        given: dict[str, Any] = {
            "run": RUN,
            "number": 1,
            "purpose": "train",
            "directory": self.directory.hash.hex(),
            "content": content_digest(content),
            "cohort": self.directory.current,
            "committee": self.directory.current,
            "threshold": 4,
            "least": 4,
            "degree": 4,
            "colluding": 1,
            "cross_check": False,
            "segments": SHARE.segments,
            "bits": 16,
            "noise_scale": SHARE.noise_scale,
        }
        return SumTerms(**given | changed)

    def train(self, content: RecordDict | None = None, **changed: Any) -> Message:
        sent = self.content() if content is None else content
        return self.ask("train", with_terms(sent, self.terms(sent, **changed).to_json()))

    def question(self, **changed: Any) -> RecordDict:
        """A question to a member: everybody has replied, with labels of zeros."""
        places = self.directory.current
        terms = self.terms(self.content(), **{"cross_check": True} | changed)
        return MemberQuestion(
            terms=terms.to_json(),
            online=places,
            labels={position: bytes(32) for position in places},
            bundles={},
            quorum={},
        ).to_content()

    def charges(self) -> int:
        return sum(count for _, count in self.events())

    def events(self) -> list[tuple[Any, int]]:
        """What the first node's ledger was charged."""
        ledger = self.folder / "node-0" / "ledger.db"
        if not ledger.is_file():
            return []
        with NodeLedger.read(ledger) as opened:
            return [release for spending in opened.spendings for release in spending.history]


def code(reply: Message) -> str:
    """How a node refused; `answered` if it did not."""
    return str(reply.error.reason) if reply.has_error() else "answered"
