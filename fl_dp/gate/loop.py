"""A gate's work by its clock: it pulls, confirms, judges and answers, one message at a time.

    pull -> on disk -> confirm -> judge -> the app, at most -> wait until due -> push

All that the server sees of it happens at public instants: those of a grid, or when an answer is
due. They depend on messages and the owner's policy, and on nothing that the site's SuperNode does.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, Error, Message

from fl_dp import clock
from fl_dp.clients.owner.running_app import RunningApp
from fl_dp.protocol.flower_compat import ErrorCode, bundle_name_and_version
from fl_dp.user_code import Contained

from .app_starts import AppStarts
from .figures import GateFigures
from .flower_wire import Parts, config_of_run, message_of
from .gate import PULLS, Gate, Ruling, welcome_in
from .gate_site import Site
from .judged_run import JudgedRun
from .kept import Keeper, KeptMessage
from .link import Link, LinkLost, LinkRefused

logger = logging.getLogger("flwr.fl_dp.client")

_STEPS = 1.0  # seconds between instants at which receipts and answers without an app leave
_SENDING = 2.0  # seconds that an answer may take on its way before it moves the next pull
_OF_THE_APP = 0.8  # share of the time until the answer; the rest is for the noise


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A message that is worked on.

    Attributes:
        asked: The message.
        ruling: How it is answered.
        began: Time of `fl_dp.clock` at which it was pulled.
        due: Time of the same at which an answer of the app's leaves.
    """

    asked: Message
    ruling: Ruling
    began: float
    due: float


class GateLoop:
    """A gate between its SuperLink and its site."""

    def __init__(
        self, link: Link, site: Site, gate: Gate, keeper: Keeper, figures: GateFigures
    ) -> None:
        """Start the grid now; the link has joined. `figures` counts answers."""
        self._link, self._site, self._gate, self._keeper = link, site, gate, keeper
        self._starts, self._figures = AppStarts(site), figures
        self._start = clock.now()
        self._busy_until = self._start
        self._runs: dict[int, JudgedRun] = {}  # as first received

    def resume(self) -> None:
        """Answer the message that an earlier gate has left, by the time at which that is due."""
        kept = self._keeper.get()
        if kept is None:
            return
        if kept.parts.shell.metadata.dst_node_id != self._link.node_id:
            logger.error("a message of another node was not answered")
            self._keeper.remove()
            return
        now, wait = clock.now(), kept.due - kept.came
        due = now + min(max(kept.due - clock.date(), 0.0), wait)
        try:
            asked, judged = self._read(kept.parts)
        except LinkRefused as refused:
            logger.error("a message is not answered, as its run is over: %s", refused)
            self._keeper.remove()
            return
        ruling = self._gate.judge(asked, judged, came=kept.came)
        self._answer(_Work(asked=asked, ruling=ruling, began=now, due=due))

    def step(self) -> None:
        """Wait for the next instant of the grid; pull a message then, and answer it."""
        tick = _next(self._start, PULLS, max(clock.now(), self._busy_until))
        self._starts.look()  # after it: what a reply takes to read may not choose the instant
        clock.sleep(tick - clock.now())
        try:
            pulled = self._link.pull()
            if pulled is not None:
                self._receive(*pulled, tick)
        except LinkRefused as refused:
            logger.error("a message is not answered, as its run is over: %s", refused)

    def _receive(self, shell: Message, tree: Any, tick: float) -> None:
        work = None
        try:
            parts = Parts(shell, tree, self._link.pull_objects(shell.metadata.run_id, tree))
            asked, judged = self._read(parts)
            # Its server may have sent the rest long after its beginning.
            came, began = clock.date(), _next(tick, _STEPS, clock.now()) - _STEPS
            ruling = self._gate.judge(asked, judged, came=came)
            wait = ruling.answer_after or 0.0
            self._keep(KeptMessage(parts, came, came + wait))
            work = _Work(asked=asked, ruling=ruling, began=began, due=began + wait)
        except (LinkLost, LinkRefused):
            raise
        except Exception:  # hostile bytes may make Flower raise anything
            logger.exception("a message can't be read, and is refused")
        self._wait_for_a_step(tick)
        self._link.confirm(shell)
        if work is None:
            refused = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "unreadable")
            self._link.push(Message(refused, reply_to=shell))
            self._figures.refusals += 1
        else:
            self._answer(work)

    def _keep(self, message: KeptMessage) -> None:
        """Keep a message, if there is room: the server must not hear of a disk that apps fill."""
        try:
            self._keeper.put(message)
        except OSError as error:
            logger.error("%s; only if this gate is killed now, a message stays unanswered", error)

    def _answer(self, work: _Work) -> None:
        asked, ruling, was_asked = work.asked, work.ruling, False

        def ask(message: Message, context: Context) -> Message:
            nonlocal was_asked
            was_asked = True
            assert ruling.answer_after is not None  # set for messages that may reach an app
            until = work.due - (1.0 - _OF_THE_APP) * ruling.answer_after
            self._starts.end(latest=(work.began + until) / 2.0)
            self._site.offer(asked, message.content, once=ruling.once)
            return self._site.reply(until)

        answer = ruling.answer(ask)
        if was_asked or (ruling.answer_after is not None and not answer.has_error()):
            late = clock.now() - work.due
            if late > 0.0:
                logger.error("an answer is %.3g s late: dp-gate-answer-after is too short", late)
            clock.sleep(-late)
            self._busy_until = work.due + _SENDING
        else:
            self._wait_for_a_step(work.began)
        # Made again at the moment it leaves, as a message says when it was made.
        content = answer.error if answer.has_error() else answer.content
        try:
            self._link.push(Message(content, reply_to=asked))
        except LinkRefused as refused:
            logger.error("an answer could not be sent: %s", refused)
        else:
            with Contained("marks of what has ended stay, and the run is over for this site"):
                for rest in ruling.once_sent:
                    rest()
            if (introduction := welcome_in(asked, answer)) is not None:
                assert introduction.answer_after is not None  # a gate tells it
                app = self._runs[asked.metadata.run_id].app
                self._starts.begin(asked, app, _OF_THE_APP * introduction.answer_after)
            if answer.has_error():
                self._figures.refusals += 1
            elif ruling.answer_after is not None:
                self._figures.answers += 1
        self._keeper.remove()

    def _wait_for_a_step(self, began: float) -> None:
        now = clock.now()
        clock.sleep(_next(began, _STEPS, now) - now)

    def _read(self, parts: Parts) -> tuple[Message, JudgedRun]:
        return message_of(parts), self._judged(parts.shell.metadata.run_id)

    def _judged(self, run_id: int) -> JudgedRun:
        """A run with the bundle's own name, version and hash.

        Raises:
            ValueError: The bundle can't be read, or is not what the run names.
        """
        if run_id not in self._runs:
            run = self._link.run(run_id)
            bundle = run.fab.fab.content
            name, version = bundle_name_and_version(bundle)
            if not (name + version).isprintable():
                raise ValueError("the app's name can't be printed")
            config, overrides = config_of_run(bundle, run.run.run)
            app = RunningApp(name=name, version=version, fab_hash=run.run.run.fab_hash)
            self._runs[run_id] = JudgedRun(app=app, config=config, overrides=overrides)
            # The app's process finds the folder of its code by these, so they are the bundle's own.
            run.run.run.fab_id, run.run.run.fab_version = name, version
            self._site.keep(run_id, run)
        return self._runs[run_id]


def _next(start: float, seconds: float, now: float) -> float:
    """The first instant after `now` of a grid, which has one every so many seconds."""
    return start + seconds * (math.floor((now - start) / seconds) + 1)
