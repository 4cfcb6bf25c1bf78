"""Messages to a running node, as a hostile server fills them.

A node answers with an error of one word, or as its app does. Whatever a message holds, it is
charged once at most, before a record is read, and no text of the node's own leaves it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from hostile import cases
from hostile_records import hostile_records
from ledger_files import fresh_path
from local_grid import FIRST_NODE, LocalGrid
from node_charges import charges_of

from fl_dp.clients import numpy_client_app
from fl_dp.codec import encode_text
from fl_dp.mechanisms import GaussianBundle
from fl_dp.mechanisms.bundle import ScalarMetric
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.protocol.message_keys import (
    INSTRUCTION_KEY,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
)
from fl_dp.statistics import Mean

SECRET = "Jane Doe, born 1970-01-01"
LOCAL = RoundInstruction(
    server_round=1,
    client_noise=NoiseInstruction(
        scheme="gaussian", noise_multiplier=2.0, clipping_norm=1.0, epsilon=900.0, delta=1e-3
    ),
)
CENTRAL = RoundInstruction(
    server_round=1,
    utility="loss",
    weight_cap=20.0,
    bundle=GaussianBundle(
        noise_multiplier=1.0,
        clipping_norms=(1.0,),
        metrics=(ScalarMetric(name="loss", low=0.0, high=1.0),),
        scalar_noise_std=9.0,
    ),
)
STATISTIC = encode_text(Mean(lows=(0.0,), highs=(99.0,)))
ASKED: dict[str, dict[str, Any]] = {
    "train": {INSTRUCTION_KEY: encode_text(LOCAL)},
    "evaluate": {"epochs": 1},
    f"query.{STATISTIC_ACTION}": {STATISTIC_QUERY_KEY: STATISTIC, STATISTIC_VALUES_KEY: "age"},
}
OWNERS: dict[str, dict[str, Any]] = {
    "closed": {"dp-require-privacy": "local"},
    "open": {"dp-require-privacy": "none"},
}


class Ward(NumPyClient):
    """Counts how often its records were read; an error of its own has one in its text."""

    def __init__(self) -> None:
        self.reads = 0

    def fit(self, parameters: Any, config: Any) -> Any:
        self.reads += 1
        if parameters[0].shape != (3,):
            raise ValueError(f"{SECRET} does not fit into {parameters[0].shape}")
        return [each + 0.25 for each in parameters], 10, {"loss": 0.5}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        self.reads += 1
        if "epochs" not in config:
            raise KeyError(SECRET)
        return 0.5, 10, {"accuracy": float(parameters[0].sum())}


class Node:
    """A node on which an app runs."""

    def __init__(self, owner: dict[str, Any], ledger: Path) -> None:
        self.ward, self.ledger = Ward(), ledger
        self.closed = owner["dp-require-privacy"] != "none"
        app = numpy_client_app(lambda context: self.ward, statistics_fn=self._values)
        config: dict[str, Any] = {"dp-ledger-path": str(ledger), "dp-unit-name": "north"}
        config |= {
            "dp-allow-unverified-apps": True,
            "dp-max-epsilon": 1000.0,
            "dp-max-delta": 1e-3,
        } | owner
        context = Context(1, FIRST_NODE, config, RecordDict(), {})
        self.grid = LocalGrid(lambda message, _: app(message, context), 1, introduces=True)

    def _values(self, context: Context, unit: int, config: Any, name: str) -> object:
        self.ward.reads += 1
        if name != "age":
            raise KeyError(f"{SECRET} has no {name}")
        return [40.0]

    def ask(self, kind: str, content: RecordDict) -> Message:
        [reply] = self.grid.send_and_receive(
            [Message(content, dst_node_id=FIRST_NODE, message_type=kind)]
        )
        return reply

    @property
    def charges(self) -> int:
        return charges_of(self.ledger)


@pytest.fixture(scope="module", params=OWNERS)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with fresh_path() as path:
        yield Node(OWNERS[request.param], path)


def content_of(kind: str, instruction: RoundInstruction | None = None) -> RecordDict:
    told = {} if instruction is None else {INSTRUCTION_KEY: encode_text(instruction)}
    config = ASKED[kind] | told
    return RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.zeros(3))}),
            "config": ConfigRecord(config),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )


@pytest.mark.parametrize("kind", ASKED)
def test_what_is_changed_is_answered_or_not_allowed_by_the_owner(node: Node, kind: str) -> None:
    reply = node.ask(kind, content_of(kind))
    if node.closed and kind != "train":
        assert reply.error.reason == "PolicyRefusal"
    else:
        assert not reply.has_error(), reply.error.reason


@cases(100)
def test_a_node_answers_any_message_by_a_word_or_as_it_is_charged(node: Node, rng: Random) -> None:
    kind = rng.choice(["train", *ASKED])
    instruction = rng.choice((None, LOCAL, CENTRAL)) if kind == "train" else None
    content = hostile_records(content_of(kind, instruction), rng)
    charged, node.ward.reads = node.charges, 0
    reply = node.ask(kind, content)
    spent = node.charges - charged
    assert spent in (0, 1)
    assert SECRET.encode() not in pickle.dumps(reply)
    if reply.has_error():
        assert re.fullmatch(r"[A-Z]\w*( [a-z]+)?", reply.error.reason or "")
    if node.closed:
        assert node.ward.reads <= spent  # nothing is read that was not charged
