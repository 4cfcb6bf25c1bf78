"""Stopping a real run in the middle and going on with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, said_on_stderr
from processes import alive
from waiting import until

from fl_dp.app.local.processes import descendants
from fl_dp.app.run_folder import RunFolder
from fl_dp.ledger import PrivacyLedger

FL_DP = str(Path(sys.executable).parent / "fl-dp")


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [FL_DP, "run", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell starts what runs in its background with ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
def test_a_run_that_is_asked_to_end_takes_everything_down(tmp_path: Path) -> None:
    run = start(
        "task.num_clients=4",
        "rounds=500",
        "run_name=it",
        "simulation.workers=1",
        "simulation.engine=flower",
        "output_dir=" + str(tmp_path),
        cwd=tmp_path,
    )
    until(lambda: run.poll() is not None or len(RunFolder(tmp_path / "it").read_metrics()) >= 2)
    assert run.poll() is None, run.communicate()[0]
    started = descendants(run.pid)
    assert started
    run.terminate()
    assert run.wait() == 130
    until(lambda: not any(map(alive, started)))


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
def test_a_run_that_is_stopped_by_ctrl_c_leaves_a_valid_folder_and_goes_on(tmp_path: Path) -> None:
    run = start(
        # Rounds that take long enough to be stopped among them.
        "task.num_clients=6",
        "rounds=20",
        "client.epochs=100",
        "simulation.units_per_node=1",
        "run_name=it",
        "output_dir=" + str(tmp_path),
        "simulation.workers=1",
        "simulation.engine=flower",
        cwd=tmp_path,
    )
    folder = RunFolder(tmp_path / "it")
    until(lambda: run.poll() is not None or len(folder.read_metrics()) >= 3)
    assert run.poll() is None, run.communicate()[0]
    os.killpg(run.pid, signal.SIGINT)
    said = run.communicate()[0]
    assert run.returncode == 130, said
    assert f"resume={folder.path}" in said.replace("\n", "")

    statement = folder.read_statement()
    with PrivacyLedger.read(folder.ledger) as ledger:
        spent = ledger.rounds_spent
    assert 2 <= statement["rounds"] == spent < 20
    assert folder.statement_page.read_text().startswith("# Privacy statement")

    resumed = start(f"resume={folder.path}", "--json", cwd=tmp_path)
    said = resumed.communicate()[0]
    assert resumed.returncode == 0, said
    after = json.loads(said[said.index("{") :])
    assert after["runs"][0]["epsilon"] <= 8.0
    with PrivacyLedger.read(folder.ledger) as ledger:
        # What was reserved and not released is spent for good: the budget ends that much earlier.
        assert ledger.rounds_spent == 20
        assert ledger.rounds_committed >= 19
    rounds = [line["round"] for line in folder.read_metrics()]
    assert rounds == list(range(len(rounds)))


def test_a_resumed_run_takes_no_other_setting(tmp_path: Path) -> None:
    done = call("run", f"resume={tmp_path}", "rounds=3")
    assert done.exit_code == 2
    assert "write resume=FOLDER alone" in said_on_stderr(done)


def test_what_a_process_started_is_found_in_whatever_session_it_runs() -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    parent = subprocess.Popen([sys.executable, "-c", script + "; time.sleep(600)"])
    try:
        until(lambda: descendants(parent.pid))
        found = descendants(parent.pid)
        assert len(found) == 1
        os.kill(found[0], signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait()
