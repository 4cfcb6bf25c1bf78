"""A mode of two exchanges a round: drops in between, duplicates, failed rounds stay charged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Result
from local_grid import Answer, LocalGrid, reply
from masked_mode import Masked, MaskedLoop, MaskedMode, MaskedNodes, repeated
from played_rounds import HandOver
from trainings import numbers, plan_of, record

from fl_dp import PrivacyLedger
from fl_dp.strategies import Ask, Checkpoint, Cohort, RoundFailed

N, SIZE = 6, 50
UPDATES = np.random.default_rng(3).integers(-(2**20), 2**20, (N, SIZE), dtype=np.int32)
MODEL = record(w=np.zeros(SIZE))
ALL = set(range(N))
WAIT = 0.2  # seconds until a silent node is given up


class Run:
    """One training and what is left of it.

    Attributes:
        models: By round, as evaluated.
        kept: Checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        answer: Answer,
        rounds: int,
        loop: type[MaskedLoop] = MaskedLoop,
        grid: Callable[[Answer, int], LocalGrid] = LocalGrid,
    ) -> None:
        self.models: dict[int, Any] = {}
        self.kept: list[Checkpoint] = []
        plan = plan_of(N, rounds=rounds)
        self.grid = grid(answer, N)
        with PrivacyLedger.open(folder / "ledger.db", plan) as self.ledger:

            class Made(Masked):
                loop_class = loop

            self.strategy = Made(
                HandOver(), plan=plan, ledger=self.ledger, after_round=self.kept.append
            )
            self.result: Result | None = None
            try:
                self.result = self.strategy.start(
                    self.grid, MODEL, num_rounds=rounds, timeout=WAIT, evaluate_fn=self.look
                )
            finally:
                self.charged = self.ledger.rounds_spent
                self.committed = self.ledger.rounds_committed

    def look(self, server_round: int, arrays: ArrayRecord) -> None:
        self.models[server_round] = numbers(arrays)["w"]


def exact(run: Run, nodes: MaskedNodes, server_round: int) -> bool:
    """The sum is that of the nodes that remain, to the bit: all numbers are dyadic."""
    expected = run.models[max(r for r in run.models if r < server_round)]
    expected = expected + nodes.mean(server_round, N)
    return bool((run.models[server_round] == expected).all())


# --- Drops between the exchanges ------------------------------------------------------------------


@pytest.fixture(scope="module")
def dropping() -> MaskedNodes:
    """Round 1: all; 2: one never sends; 3: one never opens; 4: all of it; 5 and 6: too few."""
    return MaskedNodes(
        UPDATES,
        silent={2: {4}, 4: {0}, 6: {0, 1, 2, 3}},
        closed={3: {4}, 4: {5}, 5: {0, 1, 2, 3}},
        rubbish={4: {1}},
    )


@pytest.fixture(scope="module")
def dropped(dropping: MaskedNodes, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"), dropping, 7)


@pytest.mark.parametrize("server_round", [1, 2, 3, 4, 7])
def test_the_sum_is_exact_over_those_who_sent_and_opened(
    dropped: Run, dropping: MaskedNodes, server_round: int
) -> None:
    assert exact(dropped, dropping, server_round)


def test_a_sum_that_keeps_who_never_opened_is_seen(tmp_path: Path) -> None:
    class KeepsMasked(MaskedMode):
        def total(self, opened: Any) -> Any:
            return super().total({node: opened.get(node, 0) for node in self.masked})

    class Broken(MaskedLoop):
        kind = KeepsMasked

    nodes = MaskedNodes(UPDATES, closed={1: {4}})
    assert not exact(Run(tmp_path, nodes, 1, Broken), nodes, 1)


def test_a_round_of_too_few_releases_nothing_and_stays_charged(dropped: Run) -> None:
    assert sorted(dropped.models) == [0, 1, 2, 3, 4, 7]
    assert (dropped.charged, dropped.committed) == (7, 5)
    assert dropped.strategy.rounds_completed == 5
    assert [each.server_round for each in dropped.kept] == [0, 1, 2, 3, 4, 7]


def test_nobody_opens_a_mask_where_too_few_have_sent(dropping: MaskedNodes, dropped: Run) -> None:
    kinds = [{kind for number, _, kind in dropping.asked if number == r} for r in (5, 6)]
    assert kinds == [{"train", "query.mask"}, {"train"}]


def test_who_sent_nothing_is_not_asked_for_a_mask(dropping: MaskedNodes, dropped: Run) -> None:
    opened = [node for number, node, kind in dropping.asked if (number, kind) == (4, "query.mask")]
    assert sorted(opened) == [2, 3, 4, 5]


def test_a_node_is_asked_once_in_each_exchange(dropping: MaskedNodes, dropped: Run) -> None:
    assert len(set(dropping.asked)) == len(dropping.asked)


# --- Duplicates -----------------------------------------------------------------------------------


class Echoing(LocalGrid):
    """Hands out each reply twice."""

    def replies_to(self, message_ids: Any) -> Any:
        return [reply for reply in super().replies_to(message_ids) for _ in range(2)]


def test_what_arrives_twice_counts_once(tmp_path: Path) -> None:
    nodes = MaskedNodes(UPDATES)

    def one_repeats_another(message: Message, node: int) -> Message | None:
        if node != 4:
            return nodes(message, node)
        number = int(message.content.config_records["config"]["number"])  # type: ignore[arg-type]  # one number
        masked = UPDATES[3].view(np.uint32) + nodes.masks[number, 3]
        return repeated(reply(message, {"words": masked}), 3)

    run = Run(tmp_path, one_repeats_another, 1, grid=Echoing)
    assert exact(run, MaskedNodes(UPDATES, silent={1: {4}}), 1)


# --- Rounds that fail -----------------------------------------------------------------------------


def test_three_failures_in_a_row_end_the_training_with_the_last_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, MaskedNodes(UPDATES, closed={2: ALL, 3: ALL, 4: ALL}), 9)
    assert run.result is not None
    np.testing.assert_array_equal(numbers(run.result.arrays)["w"], run.models[1])
    assert (run.charged, run.committed) == (4, 1)
    assert "3 rounds in a row failed" in caplog.text


def test_a_training_that_never_released_anything_is_an_error(tmp_path: Path) -> None:
    nodes = MaskedNodes(UPDATES, closed=dict.fromkeys(range(1, 9), ALL))
    with pytest.raises(RoundFailed, match=r"3 rounds in a row failed.*untrained.*too few"):
        Run(tmp_path, nodes, 9)
    assert {number for number, _, _ in nodes.asked} == {1, 2, 3}


def test_a_failed_round_is_done_again_after_a_resumption_and_charged_again(tmp_path: Path) -> None:
    nodes = MaskedNodes(UPDATES, closed={2: ALL})
    before = Run(tmp_path, nodes, 2)
    assert before.kept[-1].server_round == 1
    nodes.closed = {}
    plan = before.ledger.plan
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        again = Masked(HandOver(), plan=plan, ledger=ledger)
        again.resume(before.kept[-1])
        result = again.start(before.grid, MODEL, num_rounds=2, timeout=WAIT)
        assert (ledger.rounds_spent, ledger.rounds_committed) == (3, 2)
    before.models[2] = numbers(result.arrays)["w"]
    assert exact(before, nodes, 2)


# --- Before the messages are written --------------------------------------------------------------


def test_a_round_that_fails_when_it_is_opened_asks_nobody_to_train(tmp_path: Path) -> None:
    class Crowded(MaskedLoop):
        least = N + 1

    nodes = MaskedNodes(UPDATES)
    with pytest.raises(RoundFailed, match="untrained"):
        Run(tmp_path, nodes, 9, Crowded)
    assert not nodes.asked


def test_a_mode_may_ask_the_cohort_before_it_writes_the_messages(tmp_path: Path) -> None:
    class Greeting(MaskedMode):
        """Asks each node for a word and sends it back to that node alone."""

        def open(self, cohort: Cohort, ask: Ask) -> None:
            super().open(cohort, ask)
            hello = RecordDict({"config": ConfigRecord({"number": self.number})})
            questions = [
                Message(hello, dst_node_id=node, message_type="query.word") for node in cohort
            ]
            self.words = {
                each.metadata.src_node_id: str(each.content.config_records["config"]["word"])
                for each in ask(questions, self.timeout)
            }

        def content_for(self, node: int, content: RecordDict) -> RecordDict:
            content = super().content_for(node, content)
            content.config_records["config"]["word"] = self.words[node]
            return content

    class Greeted(MaskedLoop):
        kind = Greeting

    nodes = MaskedNodes(UPDATES)
    told: dict[int, Any] = {}

    def answer(message: Message, node: int) -> Message | None:
        if message.metadata.message_type == "query.word":
            word = ConfigRecord({"word": f"of {node}"})
            return Message(RecordDict({"config": word}), reply_to=message)
        if message.metadata.message_type == "train":
            told[node] = message.content.config_records["config"]["word"]
        return nodes(message, node)

    run = Run(tmp_path, answer, 1, Greeted)
    assert exact(run, nodes, 1)
    assert told == {node: f"of {node}" for node in range(N)}
