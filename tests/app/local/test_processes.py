"""Processes that are ended hold nothing afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fl_dp.app.local.processes import (
    delete_in_use,
    descendants,
    kill_all,
    stop_with_descendants,
)
from fl_dp.files import held_alone

HOLDS_A_LOCK = """
import sys, threading, time
from pathlib import Path
from fl_dp.files import held_alone

# Memory and threads: its end takes a while.
memory = bytearray(200 << 20)
for _ in range(8):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
with held_alone(Path(sys.argv[1]), "waits"):
    print("held", flush=True)
    time.sleep(600)
"""
STARTS_IT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True)
time.sleep(600)
"""


def begun(*command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", *command], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    process = begun(HOLDS_A_LOCK, str(tmp_path / "lock"))
    kill_all([process.pid])
    with held_alone(tmp_path / "lock", "waits"):
        process.wait()


def test_what_a_process_had_started_holds_no_lock_after_it(tmp_path: Path) -> None:
    process = begun(STARTS_IT, HOLDS_A_LOCK, str(tmp_path / "lock"))
    [started] = descendants(process.pid)
    stop_with_descendants(process)
    with held_alone(tmp_path / "lock", "waits"):
        assert not descendants(started)


def test_a_process_that_is_gone_is_not_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    kill_all([process.pid])


def test_a_folder_goes_in_which_something_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a SuperLink that is still starting when whoever started it is killed."""
    folder, late = tmp_path / "run", ["source", "state.db"]
    folder.mkdir()
    rmtree = shutil.rmtree

    def deleted(path: str, ignore_errors: bool) -> None:
        rmtree(path, ignore_errors=ignore_errors)
        if late:
            folder.mkdir()
            (folder / late.pop()).touch()

    monkeypatch.setattr(shutil, "rmtree", deleted)
    delete_in_use(str(folder))
    assert not folder.exists()
