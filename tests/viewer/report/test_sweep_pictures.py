"""Pictures of an experiment show every point where it belongs, on axes that fit their data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sweep_results import RESULT

from fl_dp.guarantee import Against
from fl_dp.terminal.results import Result
from fl_dp.viewer.run_pictures import (
    plot_against_axis,
    plot_curves,
    plot_over_rounds,
)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def xs(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def ys(line: Line2D) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata())]


def along(curve: str, accuracy: dict[str, tuple[float, ...]]) -> list[Result]:
    return [
        replace(RESULT, curve=curve, x=x, seed=seed, accuracy=value)
        for x, values in accuracy.items()
        for seed, value in enumerate(values)
    ]


def test_a_curve_goes_through_the_means_of_its_seeds_with_their_deviations(
    saved: list[Figure],
) -> None:
    results = along("central", {"1": (0.5, 0.7), "8": (0.8, 0.8)})
    assert plot_against_axis(results, Path("x.png"), label="epsilon", panels=["accuracy"])
    [panel] = saved[0].axes
    [curve] = panel.containers
    line, _, bars = curve
    assert xs(line) == [1.0, 8.0]
    assert ys(line) == pytest.approx([0.6, 0.8])
    low, high = bars[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 0.1414214, rel=1e-6)
    assert panel.get_xlabel() == "epsilon"
    assert "2 seeds" in panel.get_title()


def test_infinity_has_a_place_of_its_own_right_of_every_number(saved: list[Figure]) -> None:
    results = along("central", {"0.5": (0.5,), "16": (0.8,)}) + along("none", {"inf": (0.9,)})
    plot_against_axis(results, Path("x.png"), label="epsilon", panels=["accuracy"])
    [panel] = saved[0].axes
    ticks = dict(
        zip([t.get_text() for t in panel.get_xticklabels()], panel.get_xticks(), strict=True)
    )
    assert list(ticks) == ["0.5", "16", "∞"]
    assert 16.0 < ticks["∞"] < 160.0
    assert panel.get_xscale() == "log"


def test_accuracy_over_the_rounds_is_a_mean_with_every_last_model_beside_it(
    saved: list[Figure],
) -> None:
    results = [replace(RESULT, x=None, seed=s, accuracy=a) for s, a in enumerate((0.6, 0.8))]
    curves = {RESULT.curve: [[0.1, 0.4, 0.6], [0.1, 0.6, 0.8]]}
    assert plot_over_rounds(results, curves, Path("x.png"))
    over_rounds, last = saved[0].axes
    assert ys(over_rounds.get_lines()[0]) == pytest.approx([0.1, 0.5, 0.7])
    assert xs(last.get_lines()[0]) == [0.6, 0.8]
    assert [t.get_text() for t in last.get_yticklabels()] == [RESULT.curve]


def test_a_mean_covers_none_of_its_seeds(saved: list[Figure]) -> None:
    results = [replace(RESULT, x=None, seed=s, accuracy=0.5) for s in range(3)]
    plot_over_rounds(results, {RESULT.curve: [[0.1, 0.5]] * 3}, Path("x.png"))
    seeds, mean = saved[0].axes[1].get_lines()[:2]
    assert set(ys(seeds)).isdisjoint(ys(mean))


def test_marks_of_two_curves_at_one_place_do_not_cover_each_other(saved: list[Figure]) -> None:
    results = along("a", {"1": (0.5,), "8": (0.6,)}) + along("b", {"1": (0.5,), "8": (0.6,)})
    plot_against_axis(results, Path("x.png"), label="epsilon", panels=["accuracy"])
    [panel] = saved[0].axes
    first, second = (lines for lines, _, _ in panel.containers)
    assert xs(first) == xs(second)
    at = [line.get_transform().transform((1.0, 0.5)) for line in (first, second)]
    assert abs(at[0][0] - at[1][0]) > 4.0  # pixels


@pytest.mark.parametrize("seeds", [(0.94, 0.944), (0.5, 0.944)])
def test_two_of_500_rows_make_no_difference_to_see(
    saved: list[Figure], seeds: tuple[float, float]
) -> None:
    results = [replace(RESULT, x=None, seed=s, accuracy=a) for s, a in enumerate(seeds)]
    curves = {RESULT.curve: [[0.1, value] for value in seeds]}
    plot_over_rounds(results, curves, Path("x.png"))
    low, high = saved[0].axes[1].get_xlim()
    assert low < min(seeds) and max(seeds) < high
    assert 0.05 * (high - low) > 0.004
    lone = along("a", {"1": (seeds[0],), "8": (seeds[1],)})
    plot_against_axis(lone, Path("x.png"), label="epsilon", panels=["accuracy"])
    low, high = saved[1].axes[0].get_ylim()
    assert 0.05 * (high - low) > 0.004


# Curves that end close together can be told apart.

FINALS = {"a": 0.93, "b": 0.94, "c": 0.95}
TOLD_APART = 1 / 6  # of the axis, between the least and the largest final value
NOWHERE = Path("x.png")


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


def test_what_was_really_spent_is_drawn_beside_what_is_claimed(saved: list[Figure]) -> None:
    results = [
        replace(RESULT, x=x, promise=replace(RESULT.promise, epsilon=epsilon))
        for x, epsilon in (("4", 4.5), ("8", 11.0))
    ]
    plot_against_axis(results, Path("x.png"), label="claimed", panels=["accuracy", "epsilon"])
    panel = saved[0].axes[1]
    [claimed] = [line for line in panel.get_lines() if line.get_label() == "as claimed"]
    assert xs(claimed) == ys(claimed) == [4.0, 8.0]


def test_a_run_without_privacy_has_no_empty_panel(saved: list[Figure]) -> None:
    plot_curves({"": lines(0.9)}, NOWHERE)
    [panel] = saved[0].axes
    assert "nothing is promised" in panel.get_title()


def test_epsilons_of_different_promises_have_panels_of_their_own(saved: list[Figure]) -> None:
    of_clients = along("central", {"1": (0.6,), "8": (0.9,)})
    promise = replace(RESULT.promise, unit="record", against=Against.SERVER)
    of_records = [
        replace(one, promise=promise) for one in along("dp_sgd", {"1": (0.5,), "8": (0.7,)})
    ]
    nothing = replace(RESULT.promise, epsilon=None)
    without = replace(RESULT, curve="none", x="inf", promise=nothing, accuracy=0.95)
    results = [*of_clients, *of_records, without]
    plot_against_axis(results, NOWHERE, label="epsilon", panels=["accuracy"], of_epsilon=True)
    first, second = saved[0].axes
    assert "one client (zero-out)" in " ".join(first.get_title().split())
    assert "one record (zero-out)" in " ".join(second.get_title().split())
    names = [panel.get_legend_handles_labels()[1] for panel in saved[0].axes]
    assert names == [["central", "none"], ["dp_sgd", "none"]]
    assert first.get_ylim() == second.get_ylim()


def test_spent_epsilons_of_different_promises_have_panels_of_their_own(
    saved: list[Figure],
) -> None:
    promise = {"budget": 8.0, "delta": 1e-3, "unit": "client", "neighbours": "zero-out"}
    runs = {}
    for unit in ("client", "record", "person"):
        spent = [{"round": at, "test_accuracy": 0.1 * at, "epsilon": 1.0 * at} for at in range(4)]
        runs[unit] = [[line | {"promise": promise | {"unit": unit}} for line in spent]]
    plot_curves(runs, NOWHERE)
    score, *spending = saved[0].axes
    assert saved[0].get_figwidth() < 16  # a fourth panel stands below, not beside
    assert len(score.get_lines()) == 3
    assert [[line.get_label() for line in panel.get_lines()] for panel in spending] == [
        ["client"],
        ["record"],
        ["person"],
    ]
    for panel, unit in zip(spending, runs, strict=True):
        title = " ".join(panel.get_title().split())
        assert title.startswith(f"Privacy spent at delta 0.001, one {unit} (zero-out), against")


def test_curves_that_cover_each_other_differ_in_their_dashes(saved: list[Figure]) -> None:
    plot_curves({"a": lines(0.9), "b": lines(0.9)}, NOWHERE)
    styles = [line.get_linestyle() for line in saved[0].axes[0].get_lines()]
    assert styles[0] != styles[1]
