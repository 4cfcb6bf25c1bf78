"""A training's progress: last released model, nodes asked, failed rounds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from flwr.app import ArrayRecord

from .checkpoint import Checkpoint
from .companions import Optimizer
from .log import Log
from .modes import RoundFailed

logger = logging.getLogger("flwr.fl_dp")

_FAILURES_IN_A_ROW = 3


class Progress:
    """State that a resumption continues, and counts of rounds."""

    def __init__(self, *, cohorts_are_visible: bool, log: Log) -> None:
        """Start before the first round; visible cohorts are counted per node."""
        self._resumed: Checkpoint | None = None
        self._last: tuple[int, ArrayRecord] | None = None
        self._cohorts_are_visible = cohorts_are_visible
        self._log = log
        self._times_asked: Counter[int] = Counter()
        self._rounds_asked = 0
        self._failures_in_a_row = self._excused_in_a_row = 0

    def origin(self, initial: ArrayRecord) -> tuple[int, ArrayRecord]:
        """The last released round and its model; before any, round 0 with `initial`."""
        if self._resumed is None:
            return 0, initial
        return self._resumed.server_round, self._resumed.model

    def begin(self, server_round: int, model: ArrayRecord) -> None:
        """Note the model that training continues from, once nodes are rehearsed."""
        self._last = (server_round, model)
        self._failures_in_a_row = self._excused_in_a_row = 0

    def resume(self, checkpoint: Checkpoint, optimizer: Optimizer) -> None:
        """Go on after a checkpoint's round.

        Raises:
            ValueError: If the optimizer is of another kind.
        """
        if checkpoint.server_round:
            optimizer.restore(checkpoint.optimizer)
        self._resumed = checkpoint
        self._last = (checkpoint.server_round, checkpoint.model)

    def checkpoint(self, optimizer: Optimizer) -> Checkpoint:
        """The state after the last released round.

        Raises:
            ValueError: If there is none yet, or the optimizer has state that can't be saved.
        """
        if self._last is None:
            raise ValueError("there is nothing to continue from: no round was started")
        server_round, model = self._last
        return Checkpoint(server_round=server_round, model=model, optimizer=optimizer.state())

    @property
    def resumed(self) -> bool:
        """Whether training goes on from a checkpoint."""
        return self._resumed is not None

    @property
    def trained(self) -> bool:
        """Whether a round was released, here or before a resumption."""
        return self._last is not None and self._last[0] > 0

    @property
    def most_participations(self) -> int | None:
        """Upper bound on the rounds that any one node was asked for.

        If cohorts are secret, every round counts for everybody. None after a resumption: earlier
        participations are not kept.
        """
        if self.resumed:
            return None
        if not self._cohorts_are_visible:
            return self._rounds_asked
        return max(self._times_asked.values(), default=0)

    def asked(self, nodes: Iterable[int]) -> None:
        """Note that a round opened with these nodes."""
        self._times_asked.update(list(nodes))  # of a mapping it would add up the values
        self._rounds_asked += 1

    def released(self, server_round: int, model: ArrayRecord) -> None:
        """Note a round's released model."""
        self._last = (server_round, model)
        self._failures_in_a_row = self._excused_in_a_row = 0

    def gives_up(self, failed: RoundFailed, *, last: bool) -> bool:
        """Log a failed round, and return whether training ends with it.

        Raises:
            RoundFailed: If it ends, and no round was ever released.
        """
        if self._excused_in_a_row < failed.excused:
            self._excused_in_a_row += 1
        else:
            self._failures_in_a_row += 1
        self._log.warn_once(
            f"a round failed and released nothing ({failed}): the model stays as it was, and what "
            "the round was charged stays spent"
        )
        ends_untrained = last and not self.trained
        if self._failures_in_a_row < _FAILURES_IN_A_ROW and not ends_untrained:
            return False
        count = self._failures_in_a_row + self._excused_in_a_row
        ends = f"{count} rounds in a row failed" if count > 1 else "the only round failed"
        if not self.trained:
            raise RoundFailed(f"{ends}, and the model is untrained: {failed}") from failed
        logger.warning("Training ends with the last model: %s", ends)
        return True
