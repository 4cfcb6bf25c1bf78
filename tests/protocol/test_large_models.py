"""A model of any size travels in pieces: no part of a message grows with it.

Flower sends each object of a message in a request of its own, none of which may have 2 GiB. It cuts
arrays into chunks of 5 MiB, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from local_grid import Answer, LocalGrid, answer_with_app, introducing
from secure_nodes import SecureNodes
from trainings import FixedClient, client_fn, plan_of, train

from fl_dp import PrivacyLedger
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.plan import SecureSum
from fl_dp.strategies import DPFedAvg
from fl_dp.updates import Compression

PIECE = 4096  # bytes; Flower's own are of 5 MiB
MOST = 4 * PIECE  # the list of an array's pieces is an object, too
NODES, SIZE = 4, 100_000


def model() -> ArrayRecord:
    return ArrayRecord(
        {"w": Array(np.linspace(0.0, 1.0, SIZE, dtype=np.float32))}
    )  # no chunks alike


def pieces(content: RecordDict) -> list[int]:
    """Return the sizes of the objects in which a message's content travels."""
    return [len(each.deflate()) for each in get_all_nested_objects(content).values()]


def require_pieces(messages: Iterable[Message]) -> None:
    sizes = [size for each in messages if each.has_content() for size in pieces(each.content)]
    assert max(sizes) <= MOST
    assert sum(sizes) > 10 * MOST  # the model was among them, and is larger than allowed


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", PIECE)


def kept(answer: Answer, replies: list[Message]) -> Answer:
    def answer_and_keep(message: Message, node: int) -> Message | None:
        reply = answer(message, node)
        if reply is not None:
            replies.append(reply)
        return reply

    return introducing(answer_and_keep)


def client(node: Any) -> FixedClient:
    return FixedClient(np.linspace(0.0, 1e-3, SIZE, dtype=np.float32))


def test_bytes_in_a_config_record_would_be_one_piece() -> None:
    content = RecordDict({"config": ConfigRecord({"all": bytes(10 * MOST)})})
    assert max(pieces(content)) > MOST


@pytest.mark.parametrize(
    ("up", "down"),
    [("none", "none"), ("float16", "bfloat16"), ("quantize", "none"), ("top_k", "bfloat16")],
)
def test_models_and_updates_travel_in_pieces(tmp_path: Path, up: str, down: str) -> None:
    replies: list[Message] = []
    options: dict[str, Any] = {"fraction": 1.0} if up == "top_k" else {}
    app = numpy_client_app(client_fn(client))
    trained = train(
        tmp_path,
        plan_of(NODES),
        kept(answer_with_app(app, NODES), replies),
        model(),
        rounds=1,
        compression=Compression(up=up, down=down, **options),
    )
    require_pieces(trained.grid.sent)
    require_pieces(replies)


def test_what_a_node_sums_of_its_units_travels_in_pieces(tmp_path: Path) -> None:
    replies: list[Message] = []
    units = NodeUnits(client_fn=lambda context, unit: client(unit), count=lambda *_: 2)
    app = numpy_client_app(client_fn(client), units=units)
    train(
        tmp_path,
        plan_of(2 * NODES),
        kept(answer_with_app(app, NODES), replies),
        model(),
        nodes=NODES,
        rounds=1,
        units_per_node=2,
    )
    require_pieces(replies)


def test_a_masked_sum_travels_in_pieces(tmp_path: Path) -> None:
    nodes = SecureNodes(tmp_path, [[[np.full(SIZE, 1e-3, np.float32)]] for _ in range(NODES)])
    plan = noised_plan(
        0.05,
        delta=1e-3,
        rounds=1,
        num_clients=NODES,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=SecureSum(),
        contribution_check=False,
    )
    grid = LocalGrid(nodes, NODES)
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        DPFedAvg(plan=plan, ledger=ledger).start(grid, model(), num_rounds=1, timeout=60.0)
    require_pieces(grid.sent)
    require_pieces(nodes.replies)
