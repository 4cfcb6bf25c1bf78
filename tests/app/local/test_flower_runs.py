"""What Flower says of a run, with what broke first."""

from __future__ import annotations

import pytest

from fl_dp.app.local.flower_runs import RunStatus

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
