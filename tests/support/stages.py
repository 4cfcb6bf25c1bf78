"""Training whose process kills itself at a named stage of a round, and goes on when restarted.

Nothing here imports the tests: it is copied into the app that a real SuperLink runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import Grid

from fl_dp import Plan, PrivacyLedger
from fl_dp.app.checkpoints import load_checkpoint, save_checkpoint
from fl_dp.plan import BufferedPlan, plan_from_dict
from fl_dp.strategies import BufferedLoop, Checkpoint, DPFedAvg, DPFedBuff, PrivateLoop

STAGES = (
    "before the charge",
    "charged, nobody asked",
    "one reply is in",
    "all replies are in",
    "noise is added, not committed",
    "committed, not shown",
    "shown, no checkpoint",
    "checkpoint written",
)
"""Stages of a round, in their order."""


class Place:
    """The folder of one training."""

    def __init__(self, path: Path) -> None:
        """Name its files."""
        self.path = path
        self.ledger: str | Path = path / "ledger.db"
        self.checkpoint = path / "checkpoint.safetensors"
        self._plan = path / "plan.json"
        self._shown = path / "shown.jsonl"
        self._stage = path / "die-at.json"

    def plan(self) -> Plan:
        """The plan that was put here."""
        return plan_from_dict(json.loads(self._plan.read_text()))

    def put_plan(self, plan: Plan) -> None:
        """Write the plan down."""
        self._plan.write_text(json.dumps(plan.to_dict()))

    def shown(self) -> list[dict[str, Any]]:
        """What has left the strategy so far: round and digest of each model."""
        if not self._shown.exists():
            return []
        return [json.loads(line) for line in self._shown.read_text().splitlines()]

    def show(self, server_round: int, arrays: ArrayRecord) -> None:
        """Let a model out."""
        digest = hashlib.sha256(b"".join(array.data for array in arrays.values())).hexdigest()
        with self._shown.open("a") as file:
            file.write(json.dumps({"round": server_round, "model": digest}) + "\n")

    def die_at(self, stage: str, server_round: int) -> None:
        """Let the process that comes there kill itself, once."""
        self._stage.write_text(json.dumps([stage, server_round]))

    def come_to(self, stage: str, server_round: int) -> None:
        """Be at a stage, and perhaps not survive it."""
        if self._stage.exists() and json.loads(self._stage.read_text()) == [stage, server_round]:
            self._stage.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class Staged(PrivateLoop):
    """Comes to each stage of a round in turn."""

    place: Place

    def open(self, server_round: int, *arguments: Any) -> Iterable[Message]:
        """Charge and ask."""
        self._round = server_round
        self.place.come_to(STAGES[0], server_round)
        messages = super().open(server_round, *arguments)
        self.place.come_to(STAGES[1], server_round)
        return messages

    def release(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Sum up and release."""
        released = super().release(server_round, self._coming(replies))
        self.place.come_to(STAGES[5], server_round)
        return released

    def _coming(self, replies: Iterable[Message]) -> Iterator[Message]:
        for number, reply in enumerate(replies):
            yield reply
            if number == 0:
                self.place.come_to(STAGES[2], self._round)
        self.place.come_to(STAGES[3], self._round)

    def _settle(self, released: Any) -> None:
        self.place.come_to(STAGES[4], self._round)
        super()._settle(released)


class StagedFedAvg(DPFedAvg):
    """Rounds in stages."""

    loop_class = Staged


class StagedBuffers(Staged, BufferedLoop):
    """The same with releases of whoever answers next: the stages are those of a release."""


class StagedFedBuff(DPFedBuff):
    """Releases in stages."""

    loop_class = StagedBuffers


def train(grid: Grid, place: Place, *, rounds: int, timeout: float = 60.0) -> None:
    """Train, or go on from an existing checkpoint."""

    def show(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            place.show(server_round, arrays)
            place.come_to(STAGES[6], server_round)

    def save(checkpoint: Checkpoint) -> None:
        save_checkpoint(checkpoint, place.checkpoint)
        place.come_to(STAGES[7], checkpoint.server_round)

    plan = place.plan()
    with PrivacyLedger.open(place.ledger, plan) as ledger:
        staged = StagedFedBuff if isinstance(plan, BufferedPlan) else StagedFedAvg
        strategy = staged(plan=plan, ledger=ledger, after_round=save, roster_timeout=90.0)
        assert isinstance(strategy.loop, Staged)
        strategy.loop.place = place
        if place.checkpoint.exists():
            strategy.resume(load_checkpoint(place.checkpoint))
        model = ArrayRecord({"w": Array(np.zeros(8, np.float32))})
        strategy.start(grid, model, num_rounds=rounds, timeout=timeout, evaluate_fn=show)
