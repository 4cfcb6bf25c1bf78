"""A run whose label is a number: lists, pages and papers are about R2, and have no accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from app_trainings import trained_run

from fl_dp.viewer.found_runs import read_run
from fl_dp.viewer.papers.facts import Facts
from fl_dp.viewer.report.render import report_page
from fl_dp.viewer.runs_view import runs_json

CLIENTS = 10


def test_lists_pages_and_papers_are_about_r2(tmp_path: Path) -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    for split, count in (("train", 200), ("test", 50)):
        x = generator.normal(size=count)
        rows = [f"{a:.4f},{200 + 30 * a:.3f}" for a in x]
        (tmp_path / f"{split}.csv").write_text("\n".join(["a,price", *rows]) + "\n")
    done = trained_run(
        tmp_path,
        "task=csv",
        f"task.data_dir={tmp_path}",
        "task.label_column=price",
        "task.label_range=[100,300]",
        f"task.num_clients={CLIENTS}",
        "client.learning_rate=0.1",
        "rounds=3",
        "clipping.norm=3",
    )
    found = read_run(done.path)
    assert (found.card.score.name, found.accuracy) == ("r2", None)
    assert found.card.score.value == done.read_metrics()[-1]["test_r2"]
    listed = runs_json([found.card], [])["runs"][0]
    assert (listed["accuracy"], listed["r2"]) == (None, found.card.score.value)
    assert "R2 over epsilon" in report_page([found])
    facts = Facts.read(done.path)
    assert facts.score_on_hubs == "r_squared"
    assert [name for name, _, _ in facts.metrics] == ["mae", "rmse"]
