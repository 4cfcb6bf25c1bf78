"""What Flower says of a run, with what broke first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_dp.app.local import flower_runs
from fl_dp.app.local.flower_runs import RunStatus, SuperLinkSilent, run_status

GENERIC = "Simulation failed with exception: An error was encountered. Ending simulation."
LOG = """\x1b[91mERROR \x1b[0m:     An exception {word} No room left for Ray.
Traceback (most recent call last):
\x1b[91mERROR \x1b[0m:     An exception occurred !! Simulation Runtime crashed.
"""


@pytest.mark.parametrize("word", ["occured!!", "occurred !!"])
def test_a_failed_run_says_what_broke_first(word: str) -> None:
    failed = RunStatus(status="finished:failed", details=GENERIC)
    assert failed.explained_by(LOG.format(word=word)).details == (
        f"{GENERIC} (No room left for Ray.)"
    )


@pytest.mark.parametrize("log", ["", "nothing of the kind", f"An exception occurred !! {GENERIC}"])
def test_where_the_log_knows_no_more_nothing_is_added(log: str) -> None:
    failed = RunStatus(status="finished:failed", details=GENERIC)
    assert failed.explained_by(log) == failed


def test_a_superlink_that_hangs_is_asked_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "flwr"
    command.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setattr(flower_runs, "BIN", tmp_path)
    monkeypatch.setattr(flower_runs, "_ANSWERS_WITHIN", 0.2)
    with pytest.raises(SuperLinkSilent, match="did not tell within 0 s how run 17 stands"):
        run_status("17")
