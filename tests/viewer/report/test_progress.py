"""Progress of runs: live lines on a terminal (a pseudo-terminal here), plain ones elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from fl_dp.terminal.progress import describe_round

_PROMISE = """
PROMISE = {"budget": 8.0, "delta": 1e-3, "unit": "client", "neighbours": "zero-out",
           "against": "whoever sees the models"}
"""
HEADING = "at most epsilon 8 at delta 0.001, one client (zero-out), against whoever sees the models"
ONE_RUN = """
from fl_dp.commands.console import out
from fl_dp.terminal.progress import progress_line
with progress_line(out, "digits, seed 0", rounds=ROUNDS, done=DONE) as on_round:
    for at in range(ROUNDS + 1):
        line = {"round": at, "test_accuracy": 0.5 * at / ROUNDS, "epsilon": 2.0 * at / ROUNDS}
        on_round(line | {"promise": PROMISE})
print("after")
"""
ALONE = ONE_RUN.replace("ROUNDS", "20").replace("DONE", "0")
CONTINUED = ONE_RUN.replace("ROUNDS", "150").replace("DONE", "129")
TOGETHER = """
import threading
from fl_dp.commands.console import out
from fl_dp.terminal.progress import ProgressLines
both = threading.Barrier(2)
def train(title):
    with lines.line(title, rounds=4) as on_round:
        for at in range(5):
            on_round({"round": at, "test_accuracy": at / 8, "epsilon": at / 2, "promise": PROMISE})
        both.wait()
with ProgressLines(out) as lines:
    threads = [threading.Thread(target=train, args=[f"[{n}/2] seed {n}"]) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("after")
"""
PLAIN = {"TERM": "xterm", "COLUMNS": "120"}


def on_a_terminal(code: str, **environment: str) -> str:
    """Return what a program writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROMISE + code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | PLAIN | environment,
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            read = os.read(ours, 1 << 16)
        except OSError:  # the end of a terminal on Linux
            break
        if not read:
            break
        said += read
    os.close(ours)
    assert process.wait() == 0, said
    return said.decode()


def in_a_pipe(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROMISE + code],
        env=os.environ | PLAIN | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def rows_of(said: str) -> list[str]:
    """Return the lines that a terminal was told to show, one after the other."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "\n")
    return [line.rstrip() for line in plain.splitlines() if line.strip()]


def test_a_terminal_shows_one_line_that_is_written_over() -> None:
    said = on_a_terminal(ALONE)
    assert "\x1b[2K" in said  # a line is cleared
    last = rows_of(said)
    assert f"digits, seed 0: {HEADING}" in last
    assert last[-1] == "after"
    assert "round 20/20, test accuracy 0.500, epsilon 2/8" in last[-2]
    assert "━" in last[-2]
    assert "\x1b[?25h" in said  # the cursor is there again


def test_a_pipe_gets_a_plain_line_for_each_tenth_of_the_rounds() -> None:
    lines = in_a_pipe(ALONE)
    assert lines[0] == "digits, seed 0: starting the nodes"
    assert lines[1] == f"digits, seed 0: {HEADING}"
    assert [int(re.findall(r"round (\d+)/20", line)[0]) for line in lines[2:-1]] == [
        *range(0, 21, 2)
    ]
    assert lines[-2] == "digits, seed 0: round 20/20, test accuracy 0.500, epsilon 2/8"
    assert "\x1b" not in "".join(lines)


def test_a_resumed_run_says_where_it_continues_and_begins_there() -> None:
    lines = in_a_pipe(CONTINUED)
    assert lines[0] == "digits, seed 0: starting the nodes, continues after round 129"
    assert [line.split(",")[1] for line in lines[2:-1]] == [
        " seed 0: round 135/150",
        " seed 0: round 150/150",
    ]
    assert "continues after round 129" in on_a_terminal(CONTINUED)
    assert "round 12/150" not in on_a_terminal(CONTINUED)


def test_trainings_side_by_side_have_a_live_line_each_on_a_terminal() -> None:
    said = on_a_terminal(TOGETHER)
    assert "\x1b[1A" in said  # up by a line: two are written over
    rows = rows_of(said)
    assert sum(row.endswith(HEADING) for row in rows) == 1
    for number in (1, 2):
        live = f"round 4/4, test accuracy 0.500, epsilon 2/8: [{number}/2] seed {number}"
        assert any(row.endswith(live) and "━" in row for row in rows)
        assert f"[{number}/2] seed {number}: round 4/4, test accuracy 0.500, epsilon 2/8" in rows
    assert rows[-1] == "after"


def test_an_epsilon_that_protects_nothing_is_no_number() -> None:
    line = {"round": 9, "test_accuracy": 0.9, "epsilon": 1e9, "promise": {"budget": 1e9}}
    said = describe_round(line, rounds=9)
    assert said == "round 9/9, test accuracy 0.900, no privacy"
