"""`pull_messages` under both of its names: Flower 1.43 renamed what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from local_grid import LocalGrid, answer_with_update
from own_grids import OneByOne
from trainings import plan_of, record

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.protocol.own_grid import OwnGrid
from fl_dp.strategies import BufferedSelection, DPFedAvg, DPFedBuff

N = 3


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


@pytest.mark.parametrize("name", ["reply_to_message_ids", "message_ids", None])
def test_a_grid_of_ours_answers_to_either_name(name: str | None) -> None:
    grid = OneByOne(echo, N)
    message = Message(RecordDict(), dst_node_id=1, message_type="query")
    ids = list(grid.push_messages([message]))
    asked = grid.pull_messages(ids) if name is None else grid.pull_messages(**{name: ids})
    assert [each.metadata.reply_to_message_id for each in asked] == ids
    assert list(grid.pull_messages([])) == []


@pytest.mark.parametrize("given", [{}, {"reply_to_message_ids": ["m"], "message_ids": ["m"]}])
def test_neither_or_both_is_an_error_that_says_what_to_write(given: dict[str, list[str]]) -> None:
    with pytest.raises(TypeError, match=r"pull_messages\(reply_to_message_ids=\[...\]\)"):
        OneByOne(echo, N).pull_messages(**given)


def test_grids_of_ours_take_all_that_the_installed_flower_s_do() -> None:
    flowers, ours = (inspect.signature(each.pull_messages).parameters for each in (Grid, OwnGrid))
    assert flowers.keys() <= ours.keys()


class Before(LocalGrid):
    """As Flower has it before 1.43."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:  # type: ignore[override]  # as it was
        return self.replies_to(message_ids)


class After(LocalGrid):
    """As Flower has it from 1.43 on, where the older name is deprecated."""

    def pull_messages(  # type: ignore[override]  # as it will be
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        assert reply_to_message_ids is not None and message_ids is None
        return self.replies_to(reply_to_message_ids)


BUFFER = BufferedSelection(BufferedSampling(cohort=N, participation_cap=1), concurrency=N)
PLANS: dict[type[DPFedAvg], Plan] = {
    DPFedAvg: plan_of(N),
    DPFedBuff: plan_of(N, sampling=BUFFER.sampling),
}


@pytest.mark.parametrize("grid", [Before, After])
@pytest.mark.parametrize("kind", PLANS)
def test_strategies_ask_a_grid_of_either_version(
    grid: type[LocalGrid], kind: type[DPFedAvg], tmp_path: Path
) -> None:
    nodes: Any = grid(answer_with_update([{"w": np.ones(2)}] * N), N)
    with PrivacyLedger.open(tmp_path / "ledger.db", PLANS[kind]) as ledger:
        strategy = kind(plan=PLANS[kind], ledger=ledger)
        strategy.start(nodes, record(w=np.zeros(2)), num_rounds=1)
    assert strategy.rounds_completed == 1
