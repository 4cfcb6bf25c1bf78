"""SIGKILL to a gate at each stage of a message, which the gate after it finds on its disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from gated_site import Arrived, Site, replying
from small_trainings import in_a_process

from fl_dp.ledger import NodeLedger

QUIET: dict[str, Any] = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("train", QUIET),
    "evaluation": ("evaluate", QUIET | {"dp-gate-evaluation": {"accuracy": [0, 2]}}),
    "clip": (
        "train",
        {
            "dp-gate-promise": "clip",
            "dp-gate-noise-multiplier": None,
            "dp-max-epsilon": None,
        },
    ),
}
STAGES = (
    "the receipt is not confirmed",
    "before the charge",
    "the charge is not committed",
    "charged, and the app has not started",
    "the app trains",
    "the reply is rebuilt, and nothing is sent",
    "the reply is announced, and not sent",
    "the reply is sent",
)
PAID = STAGES[3:]  # the charge is on disk


def telling(message: Message) -> dict[str, Any]:
    """Reply with an update of length 1 and an accuracy of 2, which noise alone is far from."""
    arrays = ArrayRecord({"w": Array(np.ones(1))})
    told = {"metrics": MetricRecord({"num-examples": 1, "accuracy": 2.0})}
    return told if message.metadata.message_type == "evaluate" else told | {"arrays": arrays}


class Killed:
    """A site whose gate is killed, in a process of its own, and the gate that comes after it.

    Attributes:
        here: The site, whose gate can be started again.
    """

    def __init__(self, site: Callable[..., Site], folder: Path, way: str, stage: str) -> None:
        kind, policy = WAYS[way]
        self._stage, self._parent, self._sent = stage, os.getpid(), folder / "sent"
        self._app = replying(telling)
        self.here = site(self._train, **policy)
        # The ledger is there: what is killed is the work of one message.
        with NodeLedger.open(self.here.ledger):
            pass
        arrays = ArrayRecord({"w": Array(np.zeros(1))})
        self.here.server.ask(kind, {"arrays": arrays, "config": ConfigRecord({"lr": 0.1})})

    def come_to(self, stage: str) -> None:
        if stage == self._stage and os.getpid() != self._parent:
            os.kill(os.getpid(), signal.SIGKILL)

    def arrange(self, patch: pytest.MonkeyPatch) -> None:
        append, server = NodeLedger._append, self.here.server
        announce, push = server._push_messages, server._push_object

        def appended(ledger: Any, connection: Any, fields: Any) -> Any:
            is_charge = fields["kind"] in ("charge", "relied")
            if is_charge:
                self.come_to(STAGES[1])
            entry = append(ledger, connection, fields)
            if is_charge:
                self.come_to(STAGES[2])
            return entry

        def announced(asked: Any) -> Any:
            self.come_to(STAGES[5])
            answer = announce(asked)
            self.come_to(STAGES[6])
            return answer

        def pushed(asked: Any) -> Any:
            answer = push(asked)
            if server.arrived and os.getpid() != self._parent:
                self._sent.write_text(str(has_data(server.arrived[0])))
                self.come_to(STAGES[7])
            return answer

        def confirmed(asked: Any) -> None:
            self.come_to(STAGES[0])

        patch.setattr(NodeLedger, "_append", appended)
        for name in ("charge", "note_reliance"):
            patch.setattr(NodeLedger, name, self._then(getattr(NodeLedger, name), STAGES[3]))
        patch.setattr(server, "_push_messages", announced)
        patch.setattr(server, "_push_object", pushed)
        patch.setattr(server, "_confirm_message_received", confirmed)

    def _then(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> None:
            function(*args, **options)
            self.come_to(stage)

        return called

    def _train(self, message: Message) -> Any:
        self.come_to(STAGES[4])
        return self._app(message)

    @property
    def sent_data(self) -> bool:
        """Whether the killed gate's answer left with something of the app's."""
        return self._sent.exists() and self._sent.read_text() == "True"


def has_data(arrived: Arrived) -> bool:
    """Tell whether an answer, whose noise is small, has something of the app's."""
    content = arrived.message.content
    if content.array_records:
        return bool(arrived.arrays["w"][0] > 0.5)
    accuracy = content.metric_records["metrics"]["accuracy"]
    return isinstance(accuracy, float) and accuracy > 1.5


def charged(here: Site) -> int:
    """Return how many answers the ledger counts, noised or relied upon."""
    with NodeLedger.read(here.ledger) as ledger:
        relied = sum(reliance.answers for reliance in ledger.reliances)
        return relied + sum(spending.charges for spending in ledger.spendings)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stage", STAGES)
def test_nothing_uncharged_has_left_and_one_message_is_charged_and_answered_once(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, stage: str
) -> None:
    killed = Killed(site, tmp_path, way, stage)
    killed.arrange(monkeypatch)
    here = killed.here
    assert in_a_process(lambda: here.step()) == -signal.SIGKILL
    assert charged(here) == (stage in PAID)
    assert killed.sent_data == (stage == STAGES[-1])

    # The gate that is started then answers first, and the server sends what was not confirmed.
    if stage != STAGES[0]:
        here.server.waiting.clear()
    here.restart()
    arrived = here.server.arrived[0]
    assert charged(here) == 1
    # What was charged before is not trained again: no second answer has anything of the data.
    assert has_data(arrived) == (stage not in PAID)
    assert bool(here.seen) == (stage not in PAID)
    here.step()
    assert len(here.server.arrived) == 1 + (stage == STAGES[0])
    with_data = sum(map(has_data, here.server.arrived)) + killed.sent_data
    assert with_data <= charged(here) == 1


def test_the_message_after_that_is_answered_as_ever(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(site, tmp_path, "local", STAGES[4])
    killed.arrange(monkeypatch)
    here = killed.here
    assert in_a_process(lambda: here.step()) == -signal.SIGKILL
    here.server.waiting.clear()
    here.restart()
    [_, second] = here.answers({"w": np.zeros(1)})
    assert has_data(second)
    assert charged(here) == 2
