"""What a choice decided is what it sends."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from sent_jobs import require_sent

from fl_dp.app.cells import digest_of
from fl_dp.commands import tune
from fl_dp.commands.console import err
from fl_dp.commands.jobs import Job, find_jobs
from fl_dp.commands.tune import with_candidates

pytestmark = pytest.mark.slow  # each composes several trainings

FASHION = ("task=fashion_mnist", "model=cnn")
MODELS = "model.name=cnn,mlp"


@pytest.mark.parametrize("asked", [FASHION, ("task=digits",)])
def test_a_choice_trains_what_was_charged(
    asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Job] = []

    def lost(job: Job, console: object) -> float:
        seen.append(job)
        return -math.inf

    monkeypatch.setattr(tune, "_score", lost)
    given = ["tune.by=stopping", "tune.mean_runs=8", "privacy.insecure_seed=2"]
    swept = with_candidates([*asked, MODELS, *given, f"output_dir={tmp_path}"])
    [job] = find_jobs(swept, multirun=False).trainings
    with pytest.raises(ValueError, match="every training of the choice failed"):
        tune._best_of_many(job, err)
    assert len({digest_of(each.settings) for each in seen}) == 2  # both candidates were drawn
    require_sent([job, *seen])
