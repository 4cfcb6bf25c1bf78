"""Axes of pictures fit their data: curves that end close together can be told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sweep_results import RESULT

from fl_dp.viewer.report.curves import plot_curves
from fl_dp.viewer.report.sweep_pictures import plot_against_axis, plot_over_rounds

FINALS = {"a": 0.93, "b": 0.94, "c": 0.95}
TOLD_APART = 1 / 6  # of the axis, between the least and the largest final value
NOWHERE = Path("x.png")


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def rising_to(final: float) -> list[float]:
    return [0.1, 0.7, 0.9, final]


def lines(*finals: float) -> list[list[dict[str, float]]]:
    return [
        [{"round": at, "test_accuracy": value} for at, value in enumerate(rising_to(final))]
        for final in finals
    ]


def require_told_apart(axes: Axes) -> None:
    low, high = axes.get_ylim()
    assert low < min(FINALS.values()) and max(FINALS.values()) < high
    assert max(FINALS.values()) - min(FINALS.values()) > TOLD_APART * (high - low)


def test_the_picture_of_a_sweep_tells_its_last_models_apart(saved: list[Figure]) -> None:
    runs = {name: lines(final) for name, final in FINALS.items()}
    plot_curves(runs, NOWHERE, unit="one client", deltas=[1e-5])
    require_told_apart(saved[0].axes[0])


def test_an_experiment_over_rounds_tells_its_curves_apart(saved: list[Figure]) -> None:
    results = [replace(RESULT, curve=name, accuracy=final) for name, final in FINALS.items()]
    curves = {name: [rising_to(final)] for name, final in FINALS.items()}
    plot_over_rounds(results, curves, NOWHERE)
    require_told_apart(saved[0].axes[0])


def test_an_experiment_along_its_axis_tells_its_curves_apart(saved: list[Figure]) -> None:
    results = [
        replace(RESULT, curve=name, x=x, accuracy=final)
        for name, final in FINALS.items()
        for x in ("1", "8")
    ]
    plot_against_axis(results, NOWHERE, label="epsilon", panels=["accuracy"])
    require_told_apart(saved[0].axes[0])


def test_a_lone_run_is_shown_from_where_it_starts(saved: list[Figure]) -> None:
    plot_curves({"": lines(0.9)}, NOWHERE, unit="one client", deltas=[1e-5])
    low, high = saved[0].axes[0].get_ylim()
    assert low < 0.1 and 0.9 < high < 1.0


def test_a_curve_that_stays_at_chance_is_in_the_picture(saved: list[Figure]) -> None:
    plot_curves({"": lines(0.9, 0.15)}, NOWHERE, unit="one client", deltas=[1e-5])
    assert saved[0].axes[0].get_ylim()[0] < 0.1
