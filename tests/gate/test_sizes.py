"""How large a message may be: counted before anything of it is inflated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate
from gated_site import RUN, Site, adding

from fl_dp.gate import flower_wire
from fl_dp.gate.flower_wire import Parts, inflated_size, parts_of
from fl_dp.protocol.flower_compat import be_in_a_run

MODEL = {"w": np.zeros(3, np.float32)}
PIECE = 4096  # bytes


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Flower cut arrays into pieces of a few bytes."""
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", PIECE)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the roots of what was inflated."""
    roots: list[str] = []

    def counting(root: str, *rest: Any, **options: Any) -> Any:
        roots.append(root)
        return inflate(root, *rest, **options)

    monkeypatch.setattr(flower_wire, "inflate_object_from_contents", counting)
    return roots


def as_object(kind: str, children: list[str], body: bytes = b"") -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def named_often(times: int) -> dict[str, bytes]:
    body = json.dumps({"arraychunk_ids": [0] * times}).encode()
    return {"root": as_object("Array", ["piece"], body), "piece": as_object("ArrayChunk", [])}


def test_a_piece_that_is_named_often_counts_as_often() -> None:
    sizes = [
        inflated_size("root", objects) - len(objects["root"])
        for objects in map(named_often, (1, 1_000))
    ]
    assert sizes[1] == 1_000 * sizes[0] > 0


def test_the_size_of_a_message_is_that_of_its_arrays_and_little_more(small_pieces: None) -> None:
    be_in_a_run(RUN)
    zeros = Array(np.zeros(100_000, np.float32))  # whose pieces are all alike
    message = Message(
        RecordDict({"a": ArrayRecord({"w": zeros})}), dst_node_id=1, message_type="train"
    )
    parts = parts_of(message)
    size = inflated_size(parts.tree.object_id, parts.contents)
    assert 400_000 < size < 420_000
    assert sum(map(len, parts.contents.values())) < 40_000


def test_objects_that_are_nested_deeper_than_a_message_are_refused() -> None:
    objects = {"0": as_object("RecordDict", [])}
    for depth in range(1, 9):
        assert inflated_size(str(depth - 1), objects) > 0
        objects[str(depth)] = as_object("RecordDict", [str(depth - 1)])
    with pytest.raises(ValueError, match="nested more than 8 deep"):
        inflated_size("8", objects)


def test_a_reply_that_would_grow_beyond_the_model_is_never_inflated(
    site: Any, small_pieces: None, counted: list[str]
) -> None:
    bomb: list[Parts] = []

    def app(message: Message) -> list[Parts]:
        counted.clear()  # the app's own reading
        arrays = {"w": Array(np.zeros(4_000_000, np.float32))}
        reply = Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)
        bomb.append(parts_of(reply))
        return bomb

    here = site(app)
    here.server.train(MODEL)
    here.step()
    [parts] = bomb
    # Small enough to be taken, and it would have been sixteen times what a reply may be.
    assert sum(map(len, parts.contents.values())) < 1 << 20
    assert parts.tree.object_id not in counted
    [arrived] = here.server.arrived
    assert arrived.arrays["w"].shape == (3,)


def test_a_model_of_zeros_is_trained_though_its_pieces_travel_once(
    site: Any, small_pieces: None
) -> None:
    here: Site = site(lambda message: drawn(message), **QUIET)
    size = 600_000
    [arrived] = here.answers({"w": np.zeros(size, np.float32)})
    # An update of norm 1 arrives, in the noise of deviation 1e-4 in each of its numbers.
    direction = np.random.default_rng(1).normal(size=size)
    along = arrived.arrays["w"] @ direction / np.linalg.norm(direction)
    assert along == pytest.approx(1.0, abs=1e-3)  # ten standard deviations


QUIET: dict[str, Any] = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}


def drawn(message: Message) -> Any:
    """Train as an app does whose update has no two pieces alike."""
    (model,) = message.content.array_records.values()
    update = np.random.default_rng(1).normal(size=model["w"].shape)
    return adding(update)(message)


def test_a_message_of_too_many_bytes_is_refused_before_it_is_inflated(
    site: Any, monkeypatch: pytest.MonkeyPatch, counted: list[str]
) -> None:
    monkeypatch.setattr(flower_wire, "_MOST_BYTES", 10_000)
    here = site(adding(0.0))
    here.server.train({"w": np.zeros(10_000)})
    here.step()
    [arrived] = here.server.arrived
    assert arrived.message.error.reason == "unreadable"
    assert len(counted) == 1  # the server's reading of the answer
    assert (here.seen, here.charges()) == ([], 0)
