"""A message's deadline ends the process that Flower started for it, and no other."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest

from fl_dp.clients import deadline_mod

# A process as Flower starts one for each message; `HANG` never comes back.
PROCESS = """\
import ctypes, faulthandler, sys, threading, time
from types import SimpleNamespace
from fl_dp.clients import deadline_mod
from fl_dp.clients.owner import deadline

deadline._GRACE = 0.2
sys.argv[0] = "/usr/bin/flwr-clientapp"
message = SimpleNamespace(metadata=SimpleNamespace(ttl=0.01))
# Time counts from when the client is at work, however long a busy machine takes until then.
at_work, arm, armed = threading.Event(), faulthandler.dump_traceback_later, []
timer = threading.Timer.run
threading.Timer.run = lambda self: at_work.wait() and timer(self)
faulthandler.dump_traceback_later = lambda *given, **named: armed.append((given, named))

def client(message, context):
    [(given, named)] = armed
    arm(*given, **named)
    at_work.set()
    exec(sys.argv[1])

deadline_mod(message, None, client)
"""
HANGS = {
    "in Python": "while True: time.sleep(0.01)",
    "holding the interpreter's lock": "ctypes.PyDLL(None).sleep(3600)",
    "swallowing every exception": """\
while True:
    try: time.sleep(0.01)
    except BaseException: pass""",
}


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS.keys())
def test_a_client_that_hangs_ends_with_its_message_and_the_log_says_where(hang: str) -> None:
    command = [sys.executable, "-c", PROCESS, hang]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "in client" in ended.stderr


class Watch:
    """Runs a client under a deadline, and looks at what would end its process."""

    def __init__(self, process: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alarms: list[str] = []
        self.timers: list[Timer] = []
        monkeypatch.setattr(sys, "argv", [process])
        for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
            noted = partial(self._note, name)
            monkeypatch.setattr(faulthandler, name, noted)

    def _note(self, name: str, *given: Any, **named: Any) -> None:
        self.alarms.append(name)

    def answer(self, client: Callable[[], str]) -> str:
        def watched(message: Any, context: Any) -> Any:
            timers = [each for each in threading.enumerate() if isinstance(each, Timer)]
            # Those of earlier tests are cancelled, and may not have ended yet.
            self.timers += [each for each in timers if not each.finished.is_set()]
            return client()

        message: Any = SimpleNamespace(metadata=SimpleNamespace(ttl=3600.0))
        context: Any = None
        answer: Any = deadline_mod(message, context, watched)
        return str(answer)

    def is_over(self) -> bool:
        """Whether nothing that was begun can end this process any more."""
        return self.alarms[-1] == "cancel_dump_traceback_later" and all(
            timer.finished.is_set() for timer in self.timers
        )


FOR_THE_MESSAGE = "/usr/bin/flwr-clientapp"


def test_a_client_that_answers_is_left_alone_also_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(FOR_THE_MESSAGE, monkeypatch)
    assert watch.answer(lambda: "answered") == "answered"
    assert len(watch.timers) == 1
    assert watch.is_over()


def test_an_exception_is_passed_on_and_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises() -> str:
        raise KeyError("a client of its own")

    watch = Watch(FOR_THE_MESSAGE, monkeypatch)
    with pytest.raises(KeyError, match="a client of its own"):
        watch.answer(raises)
    assert watch.is_over()


def test_a_process_that_flower_did_not_start_for_the_message_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch("/usr/bin/python3", monkeypatch)
    assert watch.answer(lambda: "late") == "late"
    assert not (watch.timers or watch.alarms)
