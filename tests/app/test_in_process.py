"""The grid of a simulation in one process: who answers when, and what travels."""

from __future__ import annotations

import numpy as np
import pytest
from fl_dp.strategies.message_exchange import exchange
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from owned_clock import OwnedClock

from fl_dp.app.in_process import InProcessGrid

app = ClientApp()


@app.train()
def _train(message: Message, context: Context) -> Message:
    if context.node_config["place"] == 2:
        raise ValueError("no data")
    context.state["seen"] = ArrayRecord({"runs": Array(np.array([context.run_id]))})
    arrays = message.content.array_records["arrays"]
    assert isinstance(arrays, ArrayRecord)
    arrays["w"] = Array(np.array([float(context.node_config["place"])]))
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def grid() -> InProcessGrid:
    return InProcessGrid(app, [{"place": place} for place in range(3)], run_id=7)


def asked(one: InProcessGrid) -> tuple[RecordDict, list[str]]:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(1))})})
    messages = [Message(content, message_type="train", dst_node_id=n) for n in one.get_node_ids()]
    return content, list(one.push_messages(messages))


def value(reply: Message) -> float:
    return float(reply.content.array_records["arrays"]["w"].numpy()[0])


def test_nodes_answer_one_by_one_and_each_once() -> None:
    one = grid()
    _, ids = asked(one)
    first, second = (list(one.pull_messages(ids)) for _ in range(2))
    assert [value(reply) for reply in first + second] == [0.0, 1.0]
    (failed,) = one.pull_messages(ids)
    assert failed.has_error()
    assert "no data" in str(failed.error.reason)
    assert list(one.pull_messages(ids)) == []


def test_a_node_changes_nothing_that_the_server_holds() -> None:
    one = grid()
    content, ids = asked(one)
    list(one.pull_messages(ids[1:2]))
    arrays = content.array_records["arrays"]
    assert arrays["w"].numpy()[0] == 0.0


def test_sending_and_receiving_waits_for_all() -> None:
    one = grid()
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(1))})})
    messages = [Message(content, message_type="train", dst_node_id=n) for n in (1, 2)]
    assert [value(reply) for reply in one.send_and_receive(messages)] == [0.0, 1.0]


def test_a_grid_that_was_told_no_nodes_has_those_of_the_first_plan() -> None:
    one = InProcessGrid(app, None)
    with pytest.raises(ValueError, match=r"write simulate\(\.\.\., num_nodes=50\)"):
        one.get_node_ids()
    for declared in (3, 5):
        one.host(declared)
    assert len(list(one.get_node_ids())) == 3


def test_a_grid_that_was_told_its_nodes_keeps_them_whatever_a_plan_declares() -> None:
    one = grid()
    one.host(50)
    assert len(list(one.get_node_ids())) == 3


def test_a_client_that_sleeps_costs_those_after_it_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own answer comes too late, and every other one is asked for and used."""
    clock = OwnedClock()
    clock.put_in_place(monkeypatch)

    def answer(message: Message, context: Context) -> Message:
        clock.sleep(60.0 if context.node_config["place"] == 0 else 4.0)
        return Message(message.content, reply_to=message)

    one = InProcessGrid(answer, [{"place": place} for place in range(5)])
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(1))})})
    messages = [
        Message(content, message_type="train", dst_node_id=node, ttl=5.0)
        for node in one.get_node_ids()
    ]
    replies = list(exchange(one, messages, window=None, timeout=5.0))
    assert [reply.has_error() for reply in replies] == [True, False, False, False, False]
    assert "took 60 s and had 5 s" in str(replies[0].error.reason)
