"""A run that trackers are told of, which none of them can stop, slow down or make dearer."""

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
    """One run, and the trackers that are told of it.

    Each tracker works in a thread of its own, so the training never waits for one before its end.
    What a tracker raises is logged once, and it is told nothing more.
    """

    def __init__(
        self,
        trackers: Iterable[Tracker],
        *,
        client_metrics: Sequence[str] = (),
        patience: float = PATIENCE,
    ) -> None:
        """Prepare; nobody is told anything yet.

        Args:
            trackers: Who is told.
            client_metrics: Names of clients' metrics that the plan releases.
            patience: Seconds that the end waits for all of them together.
        """
        self._followers = [_Follower(tracker) for tracker in trackers]
        self._client_metrics = tuple(client_metrics)
        self._patience = patience
        self._planned: int | None = None
        self._last = 0
        self._final: Mapping[str, Any] = {}
        self._begun = False

    def __enter__(self) -> Self:
        """Do nothing: `start` tells of the run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Tell how the run ended, and wait for what is still being written."""
        if not self._begun:
            return
        whole = self._planned is None or self._last >= self._planned
        state = "failed" if kind is not None else "finished" if whole else "stopped"
        final = only(FINAL, self._final)
        for follower in self._followers:
            follower.tell("ended", lambda tracker: tracker.ended(state, final))
            follower.tell_no_more()
        left = self._patience
        for follower in self._followers:
            left = follower.wait(left)

    def start(self, run: RunStart) -> None:
        """Tell of a run that begins, or goes on."""
        self._begun, self._planned = True, run.rounds
        self._last = run.before[-1][0] if run.before else 0
        before = tuple(
            round_values({"round": at, **values}, self._client_metrics) for at, values in run.before
        )
        told = replace(run, before=before, promise=only(PROMISE, run.promise))
        for follower in self._followers:
            follower.tell("started", lambda tracker: tracker.started(told))

    def released(self, line: Mapping[str, Any]) -> None:
        """Tell what a round released; whatever else the line holds stays here.

        Args:
            line: Of `metrics.jsonl`, or like one: see `round_values`.
        """
        server_round, values = round_values(line, self._client_metrics)
        self._last = server_round
        for follower in self._followers:
            follower.tell("released", lambda tracker: tracker.released(server_round, dict(values)))

    def conclude(self, final: Mapping[str, Any]) -> None:
        """Note what was spent, by the names of `FINAL`; it is told with the end."""
        self._final = dict(final)


class _Follower:
    """One tracker, and the thread that tells it."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._name = type(tracker).__name__
        self._calls: SimpleQueue[tuple[str, Callable[[Tracker], None]] | None] = SimpleQueue()
        self._gave_up = False
        # A daemon: a tracker that hangs must not keep the process either.
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def tell(self, what: str, call: Callable[[Tracker], None]) -> None:
        if not self._gave_up:
            self._calls.put((what, call))

    def tell_no_more(self) -> None:
        self._calls.put(None)

    def wait(self, seconds: float) -> float:
        """Wait for what was told, and return how much of the time is left."""
        began = monotonic()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("%s is still writing, and is left behind", self._name)
        return max(seconds - (monotonic() - began), 0.0)

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            what, call = task
            try:
                call(self._tracker)
            except BaseException as error:  # also SystemExit: it is a tracker's, not the run's
                self._gave_up = True
                logger.warning(
                    "%s failed (%s: %s: %s); the run goes on without it",
                    self._name,
                    what,
                    type(error).__name__,
                    str(error).partition("\n")[0],
                )
                return
