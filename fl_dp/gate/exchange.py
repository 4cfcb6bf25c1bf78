"""One message at the gate: the owner's mods run in a thread, and the app is their inner handler.

When a mod calls the handler, the message goes to the SuperNode. The thread waits for the app's
reply or the end of the app's time. The answer leaves at a public instant, whatever the app did.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_dp import clock
from fl_dp.user_code import Contained

logger = logging.getLogger("flwr.fl_dp.client")

LATE = "the app gave no answer in its time"
"""Log text for an app for which the gate has answered."""

_OF_THE_APP = 0.8  # share of the time until the answer; the rest is for the noise
_GRACE = 120.0  # seconds; Flower notices within a minute that an app's process has ended


class Exchange:
    """A received message, until its answer has left."""

    def __init__(
        self,
        respond: Callable[[ClientAppCallable], Message],
        release: Callable[[Message], None],
        *,
        answer_after: float | None,
        abandon: Callable[[], None],
    ) -> None:
        """Store the message's handlers.

        Args:
            respond: Answers it around a handler, which represents the app. It never raises.
            release: Sends the answer.
            answer_after: Seconds until the answer leaves. None: at once, as no app is asked.
            abandon: Ends this SuperNode, whose app never comes back.
        """
        self._began, self._answer_after = clock.now(), answer_after
        self._respond, self._release, self._abandon = respond, release, abandon
        self._for_app: Message | None = None
        self._passed_on = threading.Event()  # or answered without the app
        self._reply: Message | None = None
        self._is_over = False  # then later replies of the app are not used
        self._lock = threading.Lock()
        self._signal: int | None
        self._arrived, self._signal = os.pipe()
        self._thread = threading.Thread(target=self._work, name="gate", daemon=True)

    def begin(self) -> Message | None:
        """Run the mods, and return the app's message; None: it was answered without the app."""
        self._thread.start()
        self._passed_on.wait()
        if self._for_app is None:
            self.end(None)
        return self._for_app

    def end(self, reply: Message | None) -> None:
        """Take the app's first reply, and wait until the answer has left.

        A reply of None: the app gave none that can be read.
        """
        with self._lock:
            if not self._is_over:
                self._is_over, self._reply = True, reply
            if self._signal is not None:
                os.close(self._signal)  # the other end sees it
                self._signal = None
        self._thread.join()

    def _work(self) -> None:
        try:
            answer = self._respond(self._hand_over)
            if self._for_app is not None or not answer.has_error():
                self._wait_until_due()
            with Contained("an answer could not be sent"):
                self._release(answer)
        finally:
            self._passed_on.set()
        if not clock.readable(self._arrived, _GRACE):
            logger.error("the app never came back from a message that was answered: this node ends")
            self._abandon()
        os.close(self._arrived)

    def _wait_until_due(self) -> None:
        if self._answer_after is None:
            return
        remaining = self._began + self._answer_after - clock.now()
        if remaining < 0.0:
            logger.error("an answer is %.3g s late: dp-gate-answer-after is too short", -remaining)
        clock.sleep(remaining)

    def _hand_over(self, message: Message, context: Context) -> Message:
        """Hand the message to the app as the mods' handler, and return its reply.

        Raises:
            TimeoutError: The app gives none in its time.
            ValueError: The reply can't be read.
        """
        assert self._answer_after is not None  # set for messages that may reach an app
        self._for_app = message
        self._passed_on.set()
        until = self._began + _OF_THE_APP * self._answer_after
        in_time = clock.readable(self._arrived, until - clock.now())
        with self._lock:
            self._is_over = True
            reply = self._reply
        if not in_time:
            raise TimeoutError(LATE)
        if reply is None:
            raise ValueError("the app gave no answer that can be read")
        return reply
