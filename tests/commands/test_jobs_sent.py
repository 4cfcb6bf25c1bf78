"""What a command decided is what it sends: nobody composes another training from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sent_jobs import require_sent

from fl_dp.commands.jobs import find_jobs

pytestmark = pytest.mark.slow  # each composes several trainings

SEVERAL = ("model.name=cnn,mlp", "server_optimizer.momentum=0.5,0.9")


@pytest.mark.parametrize("privacy", ["central", "local"])
def test_every_run_and_every_cell_sends_its_settings(privacy: str, tmp_path: Path) -> None:
    asked = ["task=fashion_mnist", "model=cnn", f"privacy={privacy}", f"output_dir={tmp_path}"]
    [one] = find_jobs(asked, multirun=False).trainings
    swept = find_jobs([*asked, *SEVERAL], multirun=True).trainings
    require_sent([one, *swept])
    assert {job.settings.rounds for job in swept} == {one.settings.rounds}
