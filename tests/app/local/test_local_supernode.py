"""The guarded SuperNode: it says why it ends, and nothing that it started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import alive
from waiting import until

from fl_dp import clock
from fl_dp.app.local import local_supernode
from fl_dp.gate.superlink_signs import LinkLost, NotReached, Signs

OPTIONS = ["supernode", "--superlink", "superlink.example.org:8000"]
STARTS = """\
import subprocess, sys, time
from pathlib import Path

from fl_dp.app.local import local_supernode

def supernode():
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(sys.argv[2]).write_text(f"{left.pid}\\n")
    if sys.argv[1] == "ends":
        sys.exit(0)
    time.sleep(3600)

local_supernode.guarded_supernode = lambda: supernode
local_supernode.main()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_a_supernode_started_ends_with_it(how: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    node = subprocess.Popen([sys.executable, "-c", STARTS, how, str(told)])
    until(lambda: told.exists() and told.read_text().endswith("\n"))
    left = int(told.read_text())
    if how == "is killed":
        os.kill(node.pid, signal.SIGKILL)
    node.wait()
    until(lambda: not alive(left))


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, None])
def test_a_superlink_that_can_not_be_trusted_or_has_another_time_ends_it_with_a_word(
    ahead: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(address: str, trust: object) -> Signs:
        assert address == "superlink.example.org:8000"
        if ahead is None:
            raise LinkLost("the SuperLink's certificate has expired")
        return Signs(None, ahead)

    monkeypatch.setattr(local_supernode, "look", look)
    monkeypatch.setattr(local_supernode, "guarded_supernode", lambda: pytest.fail)
    monkeypatch.setattr(sys, "argv", OPTIONS)
    with pytest.raises(SystemExit) as ended:
        local_supernode.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert ("has expired" if ahead is None else "3,600 s") in line


def test_it_looks_again_and_ends_once_the_certificate_has_expired(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Exception | Signs] = [Signs(0.0, 0.0), NotReached("no"), LinkLost("has expired")]

    def look(address: str, trust: object) -> Signs:
        signs = seen.pop(0)
        if isinstance(signs, Exception):
            raise signs
        return signs

    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        assert status == 2
        raise Ended

    monkeypatch.setattr(local_supernode, "look", look)
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)
    monkeypatch.setattr(local_supernode, "kill_all", lambda pids: None)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended):
        local_supernode._keep_looking("superlink", None)  # type: ignore[arg-type]  # not looked at
    assert seen == []
    assert "this SuperNode ends: has expired" in caplog.text
