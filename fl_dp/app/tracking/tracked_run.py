"""A run that trackers follow; none of them can stop it, slow it down or cost budget."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from time import monotonic
from typing import Any, Self

from .released_values import FINAL, PROMISE, only, round_values
from .tracker import RunStart, Tracker

PATIENCE = 60.0
"""Seconds that the end of a run waits for trackers that are still writing."""

logger = logging.getLogger("flwr.fl_dp")


class TrackedRun:
    """One run, and the trackers that follow it.

    The training waits for no tracker before its end. A tracker's exception is logged once.
    """

    def __init__(
        self,
        trackers: Iterable[Tracker],
        *,
        client_metrics: Sequence[str] = (),
        patience: float = PATIENCE,
    ) -> None:
        """Prepare the trackers; they get nothing yet.

        `client_metrics` are those that the plan releases. The end of the run waits `patience`
        seconds for all trackers together.
        """
        self._followers = [_Follower(tracker) for tracker in trackers]
        self._client_metrics = tuple(client_metrics)
        self._patience = patience
        self._planned: int | None = None
        self._last = 0
        self._final: Mapping[str, Any] = {}
        self._begun = False

    def __enter__(self) -> Self:
        """Do nothing: `start` tells the trackers."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Tell how the run ended, and wait for trackers that still write."""
        final = only(FINAL, self._final)
        state = self._state(failed=kind is not None)
        for follower in self._followers:
            if self._begun:
                follower.call("ended", lambda tracker: tracker.ended(state, final))
            else:
                follower.call("close", _close)
            follower.finish()
        remaining = self._patience
        for follower in self._followers:
            remaining = follower.wait(remaining)

    def _state(self, *, failed: bool) -> str:
        if failed:
            return "failed"
        is_whole = self._planned is None or self._last >= self._planned
        return "finished" if is_whole else "stopped"

    def start(self, run: RunStart) -> None:
        """Tell of a run that begins or continues."""
        self._begun, self._planned = True, run.rounds
        self._last = run.before[-1][0] if run.before else 0
        before = []
        for server_round, values in run.before:
            line = {"round": server_round, **values}
            before.append(round_values(line, self._client_metrics))
        public = replace(run, before=tuple(before), promise=only(PROMISE, run.promise))
        for follower in self._followers:
            follower.call("started", lambda tracker: tracker.started(public))

    def released(self, line: Mapping[str, Any]) -> None:
        """Tell a round's releases; the line's other content is not passed on."""
        server_round, values = round_values(line, self._client_metrics)
        self._last = server_round
        for follower in self._followers:
            follower.call("released", lambda tracker: tracker.released(server_round, dict(values)))

    def conclude(self, final: Mapping[str, Any]) -> None:
        """Store what was spent, by the names of `FINAL`; trackers get it at the end."""
        self._final = dict(final)


def _close(tracker: Tracker) -> None:
    """Free what a tracker has had since it was made: no end is told where no run started."""
    close = getattr(tracker, "close", None)
    if close is not None:
        close()


class _Follower:
    """One tracker, and the thread that calls it."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._name = type(tracker).__name__
        self._calls: SimpleQueue[tuple[str, Callable[[Tracker], None]] | None] = SimpleQueue()
        self._gave_up = False
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def call(self, name: str, call: Callable[[Tracker], None]) -> None:
        if not self._gave_up:
            self._calls.put((name, call))

    def finish(self) -> None:
        self._calls.put(None)

    def wait(self, seconds: float) -> float:
        """Wait for pending calls; return the remaining seconds."""
        began = monotonic()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("%s is still writing, and is left behind", self._name)
        return max(seconds - (monotonic() - began), 0.0)

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            name, call = task
            try:
                call(self._tracker)
            except BaseException as error:  # also SystemExit: it is the tracker's, not the run's
                self._gave_up = True
                logger.warning(
                    "%s failed (%s: %s: %s); the run goes on without it",
                    self._name,
                    name,
                    type(error).__name__,
                    str(error).partition("\n")[0],
                )
                return
