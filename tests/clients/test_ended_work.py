"""Work that ends its node's process shows once a Flower run, whatever is summed.

Each node here has one client. An answer or none tells whether its process ended, so a second one
would tell another bit of its data, at a model of the server's choice.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import FIRST_NODE
from one_node import INSTRUCTION, REQUIRED, SHARE, SIZE, Federation, code
from secure_nodes import Adds

from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.clients.secure_node import at_work
from fl_dp.codec import encode_text
from fl_dp.protocol.instruction import SumInstruction
from fl_dp.protocol.message_keys import STATISTIC_ACTION, STATISTIC_QUERY_KEY, STATISTIC_VALUES_KEY
from fl_dp.protocol.secure_sum_messages import SUM_KEY, with_terms
from fl_dp.secagg import Refused
from fl_dp.statistics import Evaluation, Mean, Query

PRICE = SumInstruction(rounds=3, epsilon=100.0, delta=1e-3)
Ends = Callable[[], None]


class Client(Adds):
    """A client whose work may end its process."""

    def __init__(self, ends: Ends) -> None:
        super().__init__([np.full(SIZE, 0.1)], (0.5, 10, {}))
        self.ends = ends

    def fit(self, parameters: Any, config: Any) -> Any:
        self.ends()
        return super().fit(parameters, config)

    def evaluate(self, parameters: Any, config: Any) -> Any:
        self.ends()
        return super().evaluate(parameters, config)


class Records:
    """One record, whose gradient may end the process."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends

    def __len__(self) -> int:
        return 1

    def clipped_sum(self, rows: Any, clipping_norm: float) -> Any:
        self.ends()
        return {"w": np.array([clipping_norm * len(rows), 0.0, 0.0])}, len(rows)


def asked_of_records(federation: Federation, number: int) -> Message:
    price = replace(PRICE, unit="record")
    instruction = replace(INSTRUCTION, of_records=True, secure_sum=price)
    return federation.train(federation.content(instruction), number=number)


def asked_of_unit(federation: Federation, number: int) -> Message:
    return federation.train(number=number)


def asked_query(query: Query, kind: str) -> Callable[[Federation, int], Message]:
    """Return how to ask the first node for its part in the sum of an answer."""

    def ask(federation: Federation, number: int) -> Message:
        told = {
            STATISTIC_QUERY_KEY: encode_text(query),
            STATISTIC_VALUES_KEY: "ages",
            SUM_KEY: json.dumps(asdict(PRICE)),
        }
        model = ArrayRecord({"w": Array(np.zeros(SIZE))})
        content = RecordDict({"config": ConfigRecord(dict(told)), "model": model})
        segment = replace(
            SHARE.segments[0], size=query.dimension, clipping_norm=query.l2_sensitivity
        )
        terms = federation.terms(content, purpose=kind, segments=(segment,), number=number)
        sent = with_terms(content, terms.to_json())
        message = Message(sent, dst_node_id=FIRST_NODE, message_type=kind)
        [reply] = federation.grid.send_and_receive([message])
        return reply

    return ask


KINDS: dict[str, Callable[[Federation, int], Message]] = {
    "training": asked_of_unit,
    "one record": asked_of_records,
    "statistic": asked_query(Mean(lows=(0.0,), highs=(100.0,)), f"query.{STATISTIC_ACTION}"),
    "evaluation": asked_query(Evaluation(names=("loss",), lows=(0.0,), highs=(5.0,)), "evaluate"),
}


def federation_of(folder: Path, kind: str, ends: Ends) -> Federation:
    records = kind == "one record"
    owner = REQUIRED | ({"dp-require-privacy": "distributed-records"} if records else {})
    federation = Federation(folder, **owner)

    def values(*_: Any) -> list[float]:
        ends()
        return [90.0]

    if records:
        app = numpy_client_app(records=lambda *_: Records(ends))
    else:
        units = NodeUnits.single(lambda context: Client(ends))
        app = numpy_client_app(lambda context: Client(ends), units=units, statistics_fn=values)
    federation.nodes.app = lambda: app  # type: ignore[method-assign]
    return federation


def in_a_process(ask: Callable[[], Message]) -> str:
    """Return how a node in a process of its own answers; `ended` if that ends first."""
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    node = fork.Process(target=lambda: sending.send(code(ask())))
    node.start()
    node.join()
    return receiving.recv() if receiving.poll() else "ended"


@pytest.mark.parametrize("kind", KINDS)
def test_an_ended_process_shows_once(tmp_path: Path, kind: str) -> None:
    """What a message begins is marked before user code runs, whatever is summed."""
    fatal = [True]

    def ends() -> None:
        if fatal[0]:
            os._exit(1)

    federation = federation_of(tmp_path, kind, ends)
    answers = []
    for number, fatal[0] in ((1, True), (2, True), (3, False)):  # at last, of its neighbour
        answers.append(in_a_process(partial(KINDS[kind], federation, number)))
    assert answers == ["ended", "Refused late", "Refused late"]
    assert federation.charges() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_work_that_is_done_leaves_no_mark(tmp_path: Path, kind: str) -> None:
    federation = federation_of(tmp_path, kind, lambda: None)
    for number in (1, 2):
        assert code(KINDS[kind](federation, number)) == "answered"
    assert not list((tmp_path / "node-0").glob("*.lock"))


@pytest.mark.parametrize("kind", KINDS)
def test_work_of_one_client_that_fails_is_zero_and_goes_on(tmp_path: Path, kind: str) -> None:
    """It answers as any other, so nothing shows and nothing has to end."""

    def fails() -> None:
        raise SystemExit(3)

    federation = federation_of(tmp_path, kind, fails)
    for number in (1, 2):
        assert code(KINDS[kind](federation, number)) == "answered"


def test_a_message_that_meets_another_one_at_work_can_come_again(tmp_path: Path) -> None:
    """A second message is no sign that the work of the first has ended its process."""
    begun, may_end = Event(), Event()

    def waits() -> None:
        begun.set()
        assert may_end.wait()

    federation = federation_of(tmp_path, "training", waits)
    first: list[str] = []
    working = Thread(target=lambda: first.append(code(asked_of_unit(federation, 1))))
    working.start()
    assert begun.wait()
    try:
        assert code(asked_of_unit(federation, 2)) == "Refused busy"
    finally:
        may_end.set()
        working.join()
    assert first == ["answered"]
    assert code(asked_of_unit(federation, 2)) == "answered"
    assert federation.charges() == 2  # the one that was turned away cost nothing


@contextmanager
def refused(reason: str) -> Iterator[None]:
    with pytest.raises(Refused) as error:
        yield
    assert error.value.code == reason


def test_a_run_is_worked_on_once_at_a_time(tmp_path: Path) -> None:
    with at_work(tmp_path, 1), at_work(tmp_path, 2), refused("busy"), at_work(tmp_path, 1):
        pass
    with at_work(tmp_path, 1):  # and again when it is over
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_process_ended_holds_nobody_up(tmp_path: Path) -> None:
    def dies() -> None:
        with at_work(tmp_path, 1):
            os._exit(1)

    node = multiprocessing.get_context("fork").Process(target=dies)
    node.start()
    node.join()
    assert [each.name for each in tmp_path.iterdir()] == ["secagg-work-1.lock"]
    with at_work(tmp_path, 1):
        pass
