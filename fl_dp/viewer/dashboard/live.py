"""Live run: server-sent events with new rounds, log lines and the run's state."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from fl_dp.viewer.found_runs import ReadPosition, RunCard, RunsFolder, RunState
from fl_dp.viewer.found_runs.follow import follow_log

from .languages import LanguageTexts
from .shown_runs import round_points, seconds_left

_TICK = 1.0
_HEARTBEAT = 15.0
_LONGEST = 3600.0  # a browser connects again, and shows its session again
MOST_STREAMS = 32


@dataclass(kw_only=True)
class LiveRuns:
    """Streams of events.

    Attributes:
        is_mine: Returns whether this dashboard started a run that still runs.
        tick: Seconds between two looks at a run's files.
        streams: Number of open streams, at most `MOST_STREAMS`.
    """

    runs: RunsFolder
    is_mine: Callable[[str], bool]
    tick: float = _TICK
    streams: int = field(default=0, init=False)

    async def events(
        self, name: str, last_event_id: str, words: LanguageTexts
    ) -> AsyncIterator[str]:
        """Yield a run's events until it has ended, in the reader's words.

        `last_event_id` is that of the last event that the browser has; empty for none.
        """
        self.streams += 1
        try:
            mark, last_state, last_sent = mark_of(last_event_id), "", time.monotonic()
            end, log = last_sent + _LONGEST, ReadPosition()
            while time.monotonic() < end:
                try:
                    mark, text, state, over = await run_in_threadpool(self._look, name, mark, words)
                    log, lines = await run_in_threadpool(self._look_at_log, name, log)
                except (OSError, ValueError):
                    yield _event("gone", {})
                    return
                if state != last_state:
                    text, last_state = text + state, state
                text += lines
                if over:
                    yield text + _event("end", {})
                    return
                if not text and time.monotonic() - last_sent > _HEARTBEAT:
                    text = ": still here\n\n"
                if text:
                    last_sent = time.monotonic()
                    yield text
                await asyncio.sleep(self.tick)
        finally:
            self.streams -= 1

    def _look(
        self, name: str, mark: ReadPosition, words: LanguageTexts
    ) -> tuple[ReadPosition, str, str, bool]:
        card = self.runs.card(name)
        news = self.runs.follow(name, mark)
        text = ""
        if news.rounds or news.replaces:
            data = {"anew": news.replaces, "points": round_points(news.rounds)}
            text = _event("rounds", data, f"{news.mark.file}.{news.mark.offset}")
        # The statement is written after the last round, and the run's process ends after that.
        over = card.state not in (RunState.RUNNING, RunState.SILENT) and not self.is_mine(name)
        return news.mark, text, _event("state", live_state(card, words)), over

    def _look_at_log(self, name: str, mark: ReadPosition) -> tuple[ReadPosition, str]:
        try:
            news = follow_log(self.runs.root, name, mark)
        except (OSError, ValueError):
            return mark, ""  # the page says that there is none
        if not news.lines and not news.replaces:
            return news.mark, ""
        return news.mark, _event("log", {"anew": news.replaces, "lines": news.lines})


def live_state(card: RunCard, words: LanguageTexts) -> dict[str, Any]:
    """Values that a page shows of a run that goes on."""
    promise = card.promise
    return {
        "state": str(card.state),
        "round": card.round,
        "rounds": card.rounds,
        "score": words.score_value(card.score),
        "numbers": words.numbers(promise),
        "terms": words.terms(promise),
        "share": None if promise is None else promise.share_spent,
        "left": seconds_left(card),
    }


def mark_of(last_event_id: str) -> ReadPosition:
    """The position in an event's id; without one, the start."""
    file, _, offset = last_event_id.partition(".")
    if all(part.isascii() and part.isdigit() and len(part) < 21 for part in (file, offset)):
        return ReadPosition(file=int(file), offset=int(offset))
    return ReadPosition()


def _event(kind: str, data: dict[str, Any], event_id: str = "") -> str:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"
