"""`results.csv`, and the points that pictures are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sweep_results import RESULT

from fl_dp.tasks.public_scores import NUMBERS
from fl_dp.terminal.results import points, read_results, write_results

WITHOUT = replace(
    RESULT,
    x=None,
    promise=replace(RESULT.promise, epsilon=None),
    noise_multiplier=None,
    noise_of_mean=None,
    seconds=None,
)


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_results([RESULT, WITHOUT], tmp_path / "results.csv")
    assert read_results(tmp_path / "results.csv") == [RESULT, WITHOUT]


def test_a_point_is_the_mean_over_seeds_with_its_sample_deviation() -> None:
    results = [replace(RESULT, seed=seed, accuracy=value) for seed, value in enumerate((0.8, 0.9))]
    [point] = points(results, RESULT.curve, "accuracy")
    assert point.x == "0.5"
    assert point.mean == pytest.approx(0.85)
    assert point.deviation == pytest.approx(0.0707107)
    assert points(results[:1], RESULT.curve, "accuracy")[0].deviation == 0.0


def test_metrics_on_public_rows_are_columns_and_points(tmp_path: Path) -> None:
    measured = replace(RESULT, metrics={"auc": 0.75, "f1": 0.5})
    write_results([measured, RESULT], tmp_path / "results.csv")
    assert read_results(tmp_path / "results.csv") == [measured, RESULT]
    header = (tmp_path / "results.csv").read_text().splitlines()[0].split(",")
    assert set(NUMBERS) <= set(header) and "metrics" not in header
    assert points([measured, RESULT], RESULT.curve, "auc")[0].mean == 0.75


def test_results_without_a_number_are_no_point() -> None:
    assert points([WITHOUT], RESULT.curve, "noise_of_mean") == []
    assert points([RESULT], "another curve", "accuracy") == []
