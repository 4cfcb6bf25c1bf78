"""Sums of one node, whatever happens to it: each is on its ledger before its answer leaves.

Hypothesis chooses what happens next. A process that dies is one that raises what nothing catches;
the next message finds what is on disk, as on a real node.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from one_node import INSTRUCTION, Federation, code

from fl_dp.clients import secure_sum_client
from fl_dp.clients.trained_unit import train_unit
from fl_dp.mechanisms import NoiseShare
from fl_dp.protocol.instruction import SumInstruction
from fl_dp.secagg.client import Participation

RICH = SumInstruction(rounds=1000, epsilon=1e6, delta=1e-3)
POOR = replace(RICH, epsilon=1e-3)

BEFORE_CHARGE, AFTER_CHARGE, TRAINING, AT_THE_DOOR = "mark", "charge", "training", "door"


class Died(KeyboardInterrupt):
    """The end of a process."""


class Charges(RuleBasedStateMachine):
    """A node that is asked for sums, old and new, and dies, fails, is poor or loses its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        self.federation = Federation(self.folder)
        self.dies: str | None = None
        self.fails = False
        self.ended = False  # whether work has ended the node's process in this run
        self.number = 0
        self.numbers: list[int] = []  # that were asked since the keys were made
        self.due = 0  # charges
        self.with_values = 0  # messages that were made with more than noise in them
        charge, encode, message = (
            secure_sum_client._charge,
            NoiseShare.encode,
            Participation.message,
        )
        holds: list[bool] = []

        def charged(*told: Any) -> None:
            self.die_at(BEFORE_CHARGE)
            charge(*told)
            self.die_at(AFTER_CHARGE)

        def trained(*told: Any) -> Any:
            self.die_at(TRAINING)
            if self.fails:
                raise RuntimeError("the training failed")
            return train_unit(*told)

        def encoded(share: NoiseShare, values: Any, rng: Any) -> Any:
            holds.append(any(np.any(each) for each in values))
            return encode(share, values, rng)

        def masked(part: Participation, steps: Any) -> Any:
            if holds[-1]:
                self.with_values += 1
                # On disk by now, read by another connection.
                assert self.federation.charges() >= self.with_values
            self.die_at(AT_THE_DOOR)
            return message(part, steps)

        self.patch.setattr(secure_sum_client, "_charge", charged)
        self.patch.setattr("fl_dp.clients.units.train_unit", trained)
        self.patch.setattr(NoiseShare, "encode", encoded)
        self.patch.setattr(Participation, "message", masked)

    def die_at(self, place: str) -> None:
        if self.dies == place:
            raise Died

    def ask(self, number: int, price: SumInstruction = RICH) -> str:
        content = self.federation.content(replace(INSTRUCTION, secure_sum=price))
        try:
            return code(self.federation.train(content, number=number))
        except Died:
            return "died"
        finally:
            self.dies, self.fails = None, False

    @rule(
        dies=st.sampled_from([None, None, BEFORE_CHARGE, AFTER_CHARGE, TRAINING, AT_THE_DOOR]),
        fails=st.booleans(),
        apart=st.integers(1, 3),
    )
    def ask_for_a_sum(self, dies: str | None, fails: bool, apart: int) -> None:
        self.number += apart
        self.numbers.append(self.number)
        self.dies, self.fails = dies, fails
        if self.ended:
            assert self.ask(self.number) == "Refused late"
            return
        assert self.ask(self.number) == ("answered" if dies is None else "died")
        self.due += dies != BEFORE_CHARGE
        self.ended = dies == TRAINING

    # A run that begins poor stays so: a node holds it to its first word.
    @precondition(lambda self: self.numbers)
    @rule()
    def ask_for_a_sum_that_it_can_not_afford(self) -> None:
        self.number += 1
        self.numbers.append(self.number)
        # By noise alone.
        assert self.ask(self.number, POOR) == ("Refused late" if self.ended else "answered")

    @precondition(lambda self: self.numbers)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.numbers))
        # Whatever became of it.
        assert self.ask(number) == ("Refused late" if self.ended else "Refused stale")

    @precondition(lambda self: self.number)
    @rule()
    def lose_keys(self) -> None:
        self.federation.lose_keys()  # and the marks with them: the ledger stays
        self.number, self.numbers, self.ended = 0, [], False

    @invariant()
    def each_sum_is_charged_once(self) -> None:
        if hasattr(self, "federation"):
            assert self.federation.charges() == self.due >= self.with_values


TestCharges = pytest.mark.slow(Charges.TestCase)
TestCharges.settings = settings(max_examples=5, stateful_step_count=8)


def nothing(*told: Any) -> None:
    """A charge that is forgotten."""


def too_late(charge: Callable[..., object], patch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A charge that is written once the message is made, and not before."""
    message = Participation.message

    def deferred(*told: Any) -> None:
        def sent(part: Participation, steps: Any) -> Any:
            made = message(part, steps)
            charge(*told)
            return made

        patch.setattr(Participation, "message", sent)

    return deferred


@pytest.mark.parametrize("late", [False, True])
def test_the_machine_sees_a_charge_that_is_forgotten_or_late(late: bool) -> None:
    machine = Charges()
    try:
        start: Any = machine.start
        ask_for_a_sum: Any = machine.ask_for_a_sum
        start()
        ask_for_a_sum(dies=None, fails=False, apart=1)
        machine.each_sum_is_charged_once()
        wrong = too_late(secure_sum_client._charge, machine.patch) if late else nothing
        machine.patch.setattr(secure_sum_client, "_charge", wrong)
        with pytest.raises(AssertionError):
            ask_for_a_sum(dies=None, fails=False, apart=1)
    finally:
        machine.teardown()
