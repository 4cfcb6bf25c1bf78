"""A message's deadline ends the process that Flower started for it, and no other."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fl_dp.clients import deadline_mod

pytestmark = pytest.mark.slow

# A process as Flower starts one for each message; `HANG` never comes back.
PROCESS = """\
import ctypes, sys, time
from types import SimpleNamespace
from fl_dp.clients import deadline_mod

sys.argv[0] = "/usr/bin/flwr-clientapp"
message = SimpleNamespace(metadata=SimpleNamespace(ttl=float(sys.argv[1])))

def client(message, context):
    exec(sys.argv[2])
    return "answered"

print(deadline_mod(message, None, client), flush=True)
time.sleep(float(sys.argv[3]))
print("went on", flush=True)
"""
HANGS = {
    "in Python": "while True: time.sleep(0.01)",
    "holding the interpreter's lock": "ctypes.PyDLL(None).sleep(3600)",
    "swallowing every exception": """\
while True:
    try: time.sleep(0.01)
    except BaseException: pass""",
}


def run(ttl: float, client: str, afterwards: float = 0.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROCESS, str(ttl), client, str(afterwards)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS.keys())
def test_a_client_that_hangs_ends_with_its_message_and_the_log_says_where(hang: str) -> None:
    ended = run(0.2, hang)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "in client" in ended.stderr


def test_a_client_that_answers_is_left_alone_also_afterwards() -> None:
    ended = run(3.0, "pass", afterwards=10.0)  # longer than the deadline and its grace
    assert (ended.returncode, ended.stdout) == (0, "answered\nwent on\n")


def test_an_exception_is_passed_on_and_ends_the_watch() -> None:
    ended = run(3.0, "raise KeyError('a client of its own')", afterwards=0.0)
    assert "KeyError" in ended.stderr
    assert "time to live" not in ended.stderr


def test_a_process_that_flower_did_not_start_for_the_message_is_left_alone() -> None:
    message: Any = SimpleNamespace(metadata=SimpleNamespace(ttl=0.01))
    context: Any = None

    def late(message: Any, context: Any) -> Any:
        time.sleep(0.5)
        return "late"

    answer: Any = deadline_mod(message, context, late)
    assert answer == "late"
