"""SIGKILL to whoever started Flower: nothing trains on, and nothing is left behind.

SIGTERM and ctrl-C to `fl-dp run` are in tests/app/test_interruption.py, SIGKILL with
`simulation.engine=in_process` is in tests/app/local/test_one_process.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import alive
from waiting import until

from fl_dp.app.local.processes import descendants

HOLDER = """
import time
from fl_dp.app.local.launch import LocalSuperLink
with LocalSuperLink() as link:
    print(link._folder.name, link._process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_superlink_ends_with_a_run_that_is_killed_and_takes_its_folder_along() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        folder, link = holder.stdout.readline().split()
        started = descendants(holder.pid)
        assert int(link) in started
        assert (Path(folder) / "config.toml").is_file()
    finally:
        holder.kill()
        holder.wait()
    until(lambda: not Path(folder).exists() and not any(map(alive, started)))
