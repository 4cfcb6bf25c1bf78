"""Secret coins: the time of one unit or record decides about that unit alone, or about one bit.

The node under attack trains in processes, as a real one does, by a clock of the test. What it adds
to the sum is read off before its noise.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_shares import Encoded
from flwr.app import Array, ArrayRecord, Context, RecordDict
from one_node import INSTRUCTION, REQUIRED, RUN, SIZE, Federation, code
from owned_clock import OwnedClock, machine_clock
from scipy.stats import ks_2samp
from secure_nodes import Adds
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fl_dp.clients import NodeRecords, NodeUnits, numpy_client_app, secure_sum_client
from fl_dp.clients.owner.slots import Overrun, Slots, working_in
from fl_dp.clients.record_sums import RecordsFn, sum_of_records
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.secure_sum_messages import DONE_ACTION, text_to_content

NOBODY, EVERYBODY = 1e-12, 1.0 - 1e-12  # rates of secret coins, as good as 0 and 1 in these tests
UNITS, SLOW = 3, 1
C = 1.0  # what one unit or record is clipped to, and charged as
SECONDS = 3600.0  # of the test's clock; the machine's own alarm is beyond it


def matches_for_ever() -> Any:
    """Work for more than a lifetime, in one call that never gives the interpreter's lock away."""
    return re.match("(a+)+$", "a" * 60 + "b")


@pytest.fixture
def holds_the_lock(clock: OwnedClock) -> Callable[[], Any]:
    def work() -> Any:
        clock.say_that_it_hangs()
        return matches_for_ever()

    return work


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    return Encoded(monkeypatch)


def asked(rate: float, **changed: Any) -> RoundInstruction:
    return replace(INSTRUCTION, sampling_rate=rate, **changed)


class Unit(Adds):
    """Adds more than the clipping norm along the first axis, after something else."""

    def __init__(self, before: Callable[[], Any]) -> None:
        super().__init__([np.array([2.0, 0.0, 0.0])])
        self.before = before

    def fit(self, parameters: Any, config: Any) -> Any:
        self.before()
        return super().fit(parameters, config)


def of_units(folder: Path, slow: Callable[[], Any] = bool, **units: Any) -> Federation:
    """Units of which one does something before it trains."""
    federation = Federation(folder)
    usual = {
        "client_fn": lambda context, unit: Unit(slow if unit == SLOW else bool),
        "count": lambda *_: UNITS,
    }
    app = numpy_client_app(units=NodeUnits(**usual | units))
    federation.nodes.app = lambda: app  # type: ignore[method-assign]
    return federation


def of_fatal(fatal: list[int | None], **loader: Any) -> NodeRecords:
    """Return records of which one may kill the process that reads it."""
    return NodeRecords(
        model_fn=lambda *_: nn.Linear(1, SIZE, bias=False),
        loader_fn=lambda *_: DataLoader(Fatal(fatal[0]), **loader),
    )


def answered(federation: Federation) -> str:
    """Return how the node answers a sum of all its units under coins."""
    content = federation.content(asked(EVERYBODY, max_units=UNITS))
    return code(federation.train(content, sampling_rate=EVERYBODY, reply_after=SECONDS))


def fails() -> None:
    raise ValueError("its training fails")


@pytest.mark.parametrize("hangs", [True, False])
def test_a_unit_that_is_slow_moves_the_sum_by_its_own_update_alone(
    tmp_path: Path, added: Encoded, holds_the_lock: Callable[[], Any], hangs: bool
) -> None:
    """As one that fails at once, which is its neighbour: all others are in the sum."""
    assert answered(of_units(tmp_path, holds_the_lock if hangs else fails)) == "answered"
    assert np.abs(added.values[-1] - [(UNITS - 1) * C, 0.0, 0.0]).max() < 1e-3


def test_units_are_not_trained_together_in_slots(
    tmp_path: Path, added: Encoded, clock: OwnedClock
) -> None:
    """One that takes for ever would leave all others behind."""
    assert answered(of_units(tmp_path, train_many=lambda *_: clock.hang())) == "answered"
    assert np.abs(added.values[-1] - [UNITS * C, 0.0, 0.0]).max() < 1e-3


class Records:
    """Records that add the clipping norm each; one of them may never be done."""

    def __init__(self, slow: int | None = None, hang: Callable[[], Any] = bool) -> None:
        self.slow, self.hang = slow, hang
        self.summed: list[list[int]] = []

    def __len__(self) -> int:
        return 200

    def clipped_sum(self, rows: Sequence[int], clipping_norm: float) -> Any:
        self.summed.append(list(rows))
        if self.slow in rows:
            self.hang()
        return {"w": np.array([clipping_norm * len(rows), 0.0, 0.0])}, len(rows)


def of_records(folder: Path, records: RecordsFn | Records) -> Federation:
    federation = Federation(folder, **REQUIRED | {"dp-require-privacy": "distributed-records"})
    found = records if callable(records) else lambda *_: records
    app = numpy_client_app(records=found)
    federation.nodes.app = lambda: app  # type: ignore[method-assign]
    return federation


def asked_of_records(rate: float) -> RoundInstruction:
    assert INSTRUCTION.secure_sum is not None
    price = replace(INSTRUCTION.secure_sum, unit="record")
    return asked(rate, max_units=200, of_records=True, secure_sum=price)


@pytest.mark.parametrize("rate", [NOBODY, EVERYBODY])
def test_no_sum_is_of_the_records_that_one_s_time_left(
    tmp_path: Path,
    added: Encoded,
    clock: OwnedClock,
    holds_the_lock: Callable[[], Any],
    rate: float,
) -> None:
    """The node says once that it was late, whatever its coins were, and nothing more in that run.

    With all but the slow record in one world and none in the other, sums would lie 199 C apart.
    """
    federation = of_records(tmp_path, Records(slow=7, hang=holds_the_lock))
    content = federation.content(asked_of_records(rate))
    times = {"sampling_rate": rate, "reply_after": SECONDS}
    assert code(federation.train(content, **times)) == "Refused late"
    assert clock.now() == pytest.approx(SECONDS)  # the time of every answer
    assert not any(each.any() for each in added.values)
    # Nor what has neither coin nor clock.
    everybody = federation.content(asked_of_records(1.0))
    assert code(federation.train(everybody, number=2)) == "Refused late"
    assert federation.charges() == 1


class Fatal(Dataset[tuple[Tensor, Tensor]]):
    """Records of which one may kill the process that reads it."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal = fatal

    def __len__(self) -> int:
        return 50

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == self.fatal:
            os._exit(1)
        return torch.ones(1), torch.tensor(0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(("fatal", "rate"), [(None, 1.0), (7, 1.0), (7, EVERYBODY)])
def test_a_record_that_ends_its_worker_moves_the_sum_by_its_own_gradient_alone(
    tmp_path: Path, added: Encoded, fatal: int | None, rate: float
) -> None:
    """Were the sum zero in its place, or were nothing sent, it would decide about 49 others."""
    federation = of_records(tmp_path, of_fatal([fatal], num_workers=1, timeout=2))
    content = content_of(federation, rate)
    times = {} if rate == 1.0 else {"sampling_rate": rate, "reply_after": SECONDS}
    assert code(federation.train(content, **times)) == "answered"
    # Three classes of equal probability: a gradient of (-2, 1, 1) / 3.
    summed = (50 - (fatal is not None)) * np.sqrt(2 / 3) * C
    assert float(np.linalg.norm(added.values[-1])) == pytest.approx(summed, rel=1e-3)


def content_of(federation: Federation, rate: float = 1.0) -> Any:
    content = federation.content(asked_of_records(rate))
    content["model"] = ArrayRecord({"weight": Array(np.zeros((SIZE, 1), np.float32))})
    return content


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_record_that_ends_the_process_of_its_node_shows_once(tmp_path: Path) -> None:
    """At rate 1, without a process of its own; what was begun is marked before a record is read."""
    fatal: list[int | None] = [7]
    federation = of_records(tmp_path, of_fatal(fatal))
    content = content_of(federation)
    fork = multiprocessing.get_context("fork")
    node = fork.Process(target=federation.train, args=(content,))
    node.start()
    node.join()
    assert node.exitcode == 1
    for fatal[0] in (7, None):  # its neighbour's first reply differs, and no later one
        assert code(federation.train(content, number=2)) == "Refused late"
    assert federation.charges() == 1


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_work_that_ends_leaves_no_mark(tmp_path: Path) -> None:
    federation = of_records(tmp_path, of_fatal([None]))
    for number in (1, 2):
        assert code(federation.train(content_of(federation), number=number)) == "answered"
    assert federation.charges() == 2


def test_what_fails_as_a_whole_is_zero_where_that_is_one_unit(
    tmp_path: Path, added: Encoded
) -> None:
    """Of several, one could decide about all others."""
    for units, said in ((1, "answered"), (UNITS, "Refused late")):
        federation = of_units(tmp_path / str(units), count=lambda *_: fails())
        content = federation.content(asked(1.0, max_units=units))
        assert code(federation.train(content)) == said
    assert not any(each.any() for each in added.values)


def test_a_node_that_was_late_stays_so_in_whatever_run_the_server_names(tmp_path: Path) -> None:
    """Once a Flower run; what the server calls a run, and when it is over, is the server's."""
    federation = of_units(tmp_path, count=lambda *_: fails())
    content = federation.content(asked(1.0, max_units=UNITS))
    assert code(federation.train(content)) == "Refused late"
    done = text_to_content(json.dumps({"run": RUN}))
    assert code(federation.ask(DONE_ACTION, done)) == "answered"
    federation.meet(RUN + 1)
    assert code(federation.train(content, run=RUN + 1)) == "Refused late"
    assert federation.charges() == 1
    # Another of Flower's begins anew.
    usual = federation.nodes.contexts[0]
    federation.nodes.contexts[0] = Context(
        usual.run_id + 1, usual.node_id, usual.node_config, RecordDict(), usual.run_config
    )
    federation.train(content, number=2, run=RUN + 1)
    assert federation.charges() == 2


def test_records_that_are_done_in_time_are_summed(tmp_path: Path, added: Encoded) -> None:
    federation = of_records(tmp_path, Records())
    content = federation.content(asked_of_records(EVERYBODY))
    reply = federation.train(content, sampling_rate=EVERYBODY, reply_after=SECONDS)
    assert code(reply) == "answered"
    assert abs(added.values[-1][0] + 200 * C) < 0.1  # down the gradient


@pytest.mark.parametrize("rate", [NOBODY, 0.3, EVERYBODY])
def test_as_many_gradients_are_computed_for_every_outcome_of_the_coins(rate: float) -> None:
    """Every record's gradient is computed once, in a number of batches that the rate says."""
    records, model = Records(), ArrayRecord({"w": Array(np.zeros(SIZE))})
    context = Context(1, 1, {}, RecordDict(), {})
    with working_in(Slots(begin=0.0, end=1.0, until=1.0)):
        sum_of_records(asked_of_records(rate), model, {}, context, lambda *_: records)
    assert sorted(row for rows in records.summed for row in rows) == list(range(200))


def test_a_slot_that_begins_late_is_the_end_of_the_work() -> None:
    """Else the time of what came before would decide about its unit."""
    with pytest.raises(Overrun):
        next(Slots(begin=-1.0, end=60.0, until=60.0).waited(3))


def test_a_node_whose_own_marks_take_too_long_is_silent_for_one_sum(
    tmp_path: Path, added: Encoded, clock: OwnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data were read before, so nobody's time shows, and a slow disk does not end its run."""
    federation = of_units(tmp_path)
    content = federation.content(asked(EVERYBODY, max_units=UNITS))
    times = {"sampling_rate": EVERYBODY, "reply_after": SECONDS}
    with monkeypatch.context() as patch:
        charge = secure_sum_client._charge

        def slow(*told: Any) -> None:
            charge(*told)
            clock.sleep(0.2 * SECONDS)

        patch.setattr(secure_sum_client, "_charge", slow)
        assert code(federation.train(content, **times)) == "answered"
        assert not any(each.any() for each in added.values)
    assert code(federation.train(content, number=2, **times)) == "answered"
    assert np.abs(added.values[-1] - [UNITS * C, 0.0, 0.0]).max() < 1e-3


def test_a_node_whose_count_takes_too_long_sends_nothing(
    tmp_path: Path, added: Encoded, clock: OwnedClock
) -> None:
    assert answered(of_units(tmp_path, count=lambda *_: clock.hang())) == "Refused late"
    assert not any(each.any() for each in added.values)


@pytest.mark.parametrize("reply_after", [None, 0.001])
def test_everybody_needs_neither_coin_nor_clock(
    tmp_path: Path, added: Encoded, reply_after: float | None
) -> None:
    """Nor does a lying server's clock cut anybody off, where there is no coin to hide."""
    federation = of_units(tmp_path)
    content = federation.content(asked(1.0, max_units=UNITS))
    for number, rate in enumerate((None, 1.0), start=1):
        reply = federation.train(
            content, number=number, sampling_rate=rate, reply_after=reply_after
        )
        assert code(reply) == "answered"
        assert np.abs(added.values[-1] - [UNITS * C, 0.0, 0.0]).max() < 1e-3


# Shorter, a node's own marks would take too long now and then, and both worlds answer with noise.
REPLIES, LATEST = 200, 1.0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_time_of_an_answer_shows_no_coin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers with coins up and down in turn, while the work holds the interpreter's lock.

    By the machine's clock, as no other test: its time is what an attacker sees. One false alarm in
    a million.
    """
    machine_clock(monkeypatch)
    monkeypatch.setattr("fl_dp.secagg.terms._LEAST_RESERVE", 0.05)  # for three coordinates
    federation = of_units(tmp_path, client_fn=lambda *_: Unit(matches_for_ever), count=lambda *_: 1)
    took: dict[float, list[float]] = {NOBODY: [], EVERYBODY: []}
    for number in range(1, 2 * REPLIES + 1):
        rate = (NOBODY, EVERYBODY)[number % 2]
        content = federation.content(asked(rate))
        began = time.monotonic()
        reply = federation.train(content, number=number, sampling_rate=rate, reply_after=LATEST)
        took[rate].append(time.monotonic() - began)
        assert code(reply) == "answered"
    assert ks_2samp(took[NOBODY], took[EVERYBODY]).pvalue > 1e-6
    # Power: a tenth of a second would show.
    late = np.array(took[EVERYBODY]) + 0.1
    assert ks_2samp(took[NOBODY], late).pvalue < 1e-6
