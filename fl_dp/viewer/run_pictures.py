"""Pictures of runs: curves over rounds, and a sweep's results against its axis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dp.app.pictures import (
    COLOURS,
    PALE,
    dashes,
    ends_apart,
    equal_panels,
    in_lines,
    new_picture,
    nudge,
    save_picture,
    score_axis,
)
from fl_dp.guarantee import Guarantee, grouped
from fl_dp.tasks.public_scores import METRICS, NUMBERS, Score
from fl_dp.terminal.progress import guarantee_of
from fl_dp.terminal.results import Point, Result, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_FAR_APART = 8.0  # values further apart than that squash each other on a linear axis


def plot_curves(
    runs: Mapping[str, Sequence[Sequence[dict[str, Any]]]],
    target: Path,
) -> bool:
    """Draw public score and epsilon so far over the rounds, one colour per variant.

    Epsilons of different promises have a panel each.

    Args:
        runs: Lines of `metrics.jsonl` of each run, by variant.
        target: Path of the PNG.

    Returns:
        Whether it was drawn: False without matplotlib.
    """
    spending = [variant for variant, members in runs.items() if _guarantee(members[0]) is not None]
    promises = grouped(spending, lambda variant: str(_terms(runs[variant][0])))
    count = 1 + len(promises)
    picture = equal_panels(count, (_PANEL if count > 2 else 9.0 / count, 3.4))
    if picture is None:
        return False
    figure, panels = picture
    score = panels[0]
    all_runs = list(chain.from_iterable(runs.values()))
    name = _name_of(chain.from_iterable(lines[:1] for lines in all_runs))
    for index, (variant, members) in enumerate(runs.items()):
        colour = COLOURS[index % len(COLOURS)]
        for number, lines in enumerate(members):
            evaluated = [line for line in lines if Score.in_line(line).value is not None]
            label = variant if number == 0 and len(runs) > 1 else None
            score.plot(
                [line["round"] for line in evaluated],
                scores_of(evaluated),
                color=colour,
                linestyle=dashes(index),
                label=label,
                linewidth=1.4,
                alpha=0.8,
            )
    score.set(
        xlabel="round",
        ylabel=name,
        title=f"{name[0].upper()}{name[1:]}, one line a run",
    )
    score.set_ylim(ends_apart([scores_of(lines) for lines in all_runs]))
    for panel, (terms, variants) in zip(panels[1:], promises.items(), strict=True):
        _draw_spent(panel, runs, variants)
        panel.set_title(in_lines(f"Privacy spent {terms}"), fontsize=9)
    if not promises:
        score.set_title(f"{score.get_title()}; no privacy: nothing is promised")
    for axes in panels:
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", integer=True)
    save_picture(figure, target)
    return True


def _guarantee(lines: Sequence[Mapping[str, Any]]) -> Guarantee | None:
    """The promise of a run with what it spent; None if nothing is promised."""
    guarantee = guarantee_of(lines[-1])
    return guarantee if guarantee is not None and guarantee.promises else None


def _terms(lines: Sequence[Mapping[str, Any]]) -> str | None:
    guarantee = _guarantee(lines)
    return None if guarantee is None else guarantee.terms


def _draw_spent(
    panel: Axes,
    runs: Mapping[str, Sequence[Sequence[dict[str, Any]]]],
    variants: Sequence[str],
) -> None:
    """Draw epsilon so far over the rounds of the first run of each variant of one promise."""
    last = []
    for index, variant in enumerate(runs):
        if variant not in variants:
            continue
        lines = runs[variant][0]
        rounds = [line["round"] for line in lines]
        spent = [line.get("epsilon", math.nan) for line in lines]
        look = {"color": COLOURS[index % len(COLOURS)], "linestyle": dashes(index)}
        label = variant if len(runs) > 1 else None
        panel.plot(rounds, spent, label=label, linewidth=1.8, **look)
        last.append(spent[-1])
    panel.set(xlabel="round", ylabel="epsilon")
    if max(last) > _FAR_APART * min(last) > 0.0:
        # The logarithmic axis leaves out round 0, where nothing is spent.
        panel.set_yscale("log", nonpositive="mask")
    else:
        panel.set_ylim(bottom=0)


_WORDS = {
    "accuracy": "{measured_on} accuracy",
    "loss": "{measured_on} loss",
    "epsilon": "epsilon that was really spent",
    "noise_multiplier": "noise multiplier",
    "noise_of_mean": "noise std per coordinate of the mean",
    **{name: f"{{measured_on}} {METRICS[name].title}" for name in NUMBERS},
}
_LOGARITHMIC = ("epsilon", "noise_multiplier", "noise_of_mean")
_MARKERS = "osD^vPX*"
# Grey is for comparison alone; eight ways of choosing clients need as many colours.
_COLOURS = (*COLOURS[:-1], "#7f5539", "#5fa8d3", "#8c2f39")
_BESIDE = 0.15  # of the distance of two rows
_SCORES = ("accuracy", "balanced_accuracy", "auc", "f1", "r2")
_PANEL, _LONE_PANEL, _HEIGHT, _NAME = 5.2, 7.5, 3.8, 0.22  # inches


def plot_against_axis(
    results: Sequence[Result],
    target: Path,
    *,
    label: str,
    panels: Sequence[str],
    of_epsilon: bool = False,
) -> bool:
    """Draw results against an experiment's axis, one panel per column of `Result`.

    Points are means, bars standard deviations over the seeds. Infinity is drawn to the right of
    the largest number. Where the axis is an epsilon (`of_epsilon`), each promise has panels of its
    own, and what promises nothing is in all of them.

    Returns:
        Whether it was drawn: False without matplotlib.
    """
    groups = _by_promise(results) if of_epsilon else {"": list(results)}
    count = len(groups) * len(panels)
    picture = equal_panels(count, (_LONE_PANEL if count == 1 else _PANEL, _HEIGHT))
    if picture is None:
        return False
    figure, axes = picture
    layout = _axis_layout(results)
    curves = list(dict.fromkeys(result.curve for result in results))
    drawn = [(terms, column) for terms in groups for column in panels]
    for panel, (terms, column) in zip(axes, drawn, strict=True):
        _draw(panel, groups[terms], curves, column, layout)
        panel.set(xlabel=label, ylabel=_words(column, results))
        seeds = seeds_in_words(groups[terms])
        panel.set_title(f"{in_lines(terms)}\n{seeds}".lstrip(), fontsize=9)
    for column in set(panels) & set(_SCORES):
        _share_heights(
            [panel for panel, drawing in zip(axes, drawn, strict=True) if drawing[1] == column]
        )
    save_picture(figure, target)
    return True


def _by_promise(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by the terms of their promise; those without one in every group."""
    nothing = [result for result in results if not result.promise.promises]
    promised = [result for result in results if result.promise.promises]
    groups = grouped(promised, lambda result: f"epsilon {result.promise.terms}")
    if not groups:
        return {"no privacy": nothing}
    return {terms: [*group, *nothing] for terms, group in groups.items()}


def _share_heights(panels: Sequence[Axes]) -> None:
    """Give panels of one number the same vertical axis."""
    lows, highs = zip(*(panel.get_ylim() for panel in panels), strict=True)
    for panel in panels:
        panel.set_ylim(min(lows), max(highs))


def plot_over_rounds(
    results: Sequence[Result], curves: Mapping[str, Sequence[Sequence[float]]], target: Path
) -> bool:
    """Draw the mean score over the rounds, and beside it each seed's last model.

    `curves` has the scores after each round, for each training of each curve.

    Returns:
        Whether it was drawn: False without matplotlib.
    """
    picture = new_picture((3.0, 2.0), size=(2 * _PANEL, max(_HEIGHT, _NAME * len(curves))))
    if picture is None:
        return False
    figure, (over_rounds, last) = picture
    means: list[list[float]] = []
    ends: list[float] = []
    for row, (curve, runs) in enumerate(curves.items()):
        colour = _COLOURS[row % len(_COLOURS)]
        shortest = min(map(len, runs))
        mean = [statistics.fmean(run[t] for run in runs) for t in range(shortest)]
        means.append(mean)
        evaluated = [t for t, value in enumerate(mean) if not math.isnan(value)]
        over_rounds.plot(evaluated, [mean[t] for t in evaluated], color=colour, linewidth=1.5)
        scores = [result.score.value for result in results if result.curve == curve]
        finals = [value for value in scores if value is not None]
        ends += finals
        # The seeds above, their mean below: none covers another.
        above, below = row - _BESIDE, row + _BESIDE
        last.plot(finals, [above] * len(finals), "o", color=colour, alpha=0.6, markersize=4)
        for point in points(results, curve, results[0].score.name):
            last.errorbar(point.mean, below, xerr=point.deviation, fmt="|", color=colour, capsize=3)
    score = _words(results[0].score.name, results)
    over_rounds.set(xlabel="round", ylabel=score)
    over_rounds.set_title("mean of the seeds", fontsize=9)
    over_rounds.set_ylim(ends_apart(means))
    over_rounds.locator_params(axis="x", integer=True)
    last.set(xlabel=score, yticks=range(len(curves)))
    # The names stand for a legend: each has the colour of its curve.
    for row, text in enumerate(last.set_yticklabels(list(curves))):
        text.set_color(_COLOURS[row % len(_COLOURS)])
    if ends:
        last.set_xlim(score_axis(min(ends), max(ends)))
    # To the left, over the names: a longer line than the panel would be cut at its right.
    last.set_title("last model of each seed; mean and deviation", fontsize=9, loc="right")
    last.locator_params(axis="x", nbins=5)
    last.invert_yaxis()
    save_picture(figure, target)
    return True


def scores_of(lines: Iterable[Mapping[str, Any]]) -> list[float]:
    """The score of each line of `metrics.jsonl`; NaN where there is none."""
    scores = [Score.in_line(line).value for line in lines]
    return [math.nan if value is None else value for value in scores]


def _name_of(lines: Iterable[Mapping[str, Any]]) -> str:
    return " or ".join(dict.fromkeys(Score.in_line(line).title for line in lines))


def seeds_in_words(results: Sequence[Result]) -> str:
    """The meaning of a point and its bar."""
    seeds = len({result.seed for result in results})
    return "one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds"


class _AxisLayout:
    """Coordinates of an axis: numbers at themselves, infinity beyond them, names in turn.

    Attributes:
        coordinates: The coordinate of each value, by its text.
        split: Coordinate between the numbers and infinity; None without infinity.
    """

    def __init__(self, values: Sequence[str], numbers: Sequence[float]) -> None:
        """Lay out `values`, distinct texts; if one is a name, there are fewer `numbers`."""
        finite = [number for number in numbers if math.isfinite(number)]
        self.logarithmic = (
            bool(finite) and min(finite) > 0 and max(finite) > _FAR_APART * min(finite)
        )
        self.split: float | None = None
        self.coordinates: dict[str, float] = {}
        if len(numbers) < len(values):
            self.coordinates = {value: float(index) for index, value in enumerate(values)}
            return
        beyond = max(finite, default=0.0)
        low = min(finite, default=0.0)
        # Infinity lies beyond the numbers by about a tenth of their span.
        if self.logarithmic:
            step = max(2.0, (beyond / low) ** 0.12)
            infinity, self.split = beyond * step**1.6, beyond * step**0.8
        else:
            step = max(0.15 * (beyond - low), 0.1)
            infinity, self.split = beyond + 1.6 * step, beyond + 0.8 * step
        for value, number in zip(values, numbers, strict=True):
            self.coordinates[value] = number if math.isfinite(number) else infinity
        if all(map(math.isfinite, numbers)):
            self.split = None

    def is_infinite(self, value: str) -> bool:
        return self.split is not None and self.coordinates[value] > self.split


def _axis_layout(results: Sequence[Result]) -> _AxisLayout:
    numbers_by_text = {result.x: result.position for result in results if result.x is not None}
    numbers = [number for number in numbers_by_text.values() if number is not None]
    return _AxisLayout(list(numbers_by_text), numbers)


def _draw(
    panel: Axes,
    results: Sequence[Result],
    curves: Sequence[str],
    column: str,
    layout: _AxisLayout,
) -> None:
    finite: list[float] = []
    for index, curve in enumerate(curves):
        on_axis = [point for point in points(results, curve, column) if point.x is not None]
        shown = [point for point in on_axis if math.isfinite(point.mean)]
        if not shown:
            continue
        finite += [point.mean for point in shown]
        colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
        if _is_reference(shown, layout):
            panel.axhline(shown[0].mean, color=PALE, linewidth=1, linestyle=":")
            colour = PALE
        drawn = panel.errorbar(
            [layout.coordinates[point.x or ""] for point in shown],
            [point.mean for point in shown],
            yerr=[point.deviation for point in shown],
            color=colour,
            linestyle=dashes(index),
            marker=marker,
            markersize=4.5,
            linewidth=1.4,
            capsize=2.5,
            label=curve,
        )
        if column != "epsilon":  # whose curves are compared with a dashed line
            nudge(drawn, index, len(curves))
    if column == "epsilon":
        values = layout.coordinates
        claimed = [x for value, x in values.items() if not layout.is_infinite(value)]
        # Drawn on top: a curve that keeps its claim would hide it.
        panel.plot(claimed, claimed, "--", color="black", linewidth=1, label="as claimed", zorder=5)
    if column in _SCORES and finite:
        low, high = score_axis(min(finite), max(finite))
        bars_low, bars_high = panel.get_ylim()
        panel.set_ylim(min(low, bars_low), max(high, bars_high))
    if layout.logarithmic:
        panel.set_xscale("log")
    if column in _LOGARITHMIC and finite and min(finite) > 0:
        panel.set_yscale("log")
    labels = [_tick_label(value) for value in layout.coordinates]
    panel.set_xticks(list(layout.coordinates.values()), labels, fontsize=8)
    panel.minorticks_off()
    if layout.split is not None:
        panel.axvline(layout.split, color=PALE, linewidth=0.8, linestyle=(0, (2, 3)))


def _is_reference(curve: Sequence[Point], layout: _AxisLayout) -> bool:
    """Whether a curve is one point at infinity, made comparable by a line through it."""
    return len(curve) == 1 and curve[0].x is not None and layout.is_infinite(curve[0].x)


def _tick_label(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        return value
    if math.isinf(number):
        return "∞"
    return f"{number:,g}" if number < 1e6 else f"{number:g}"


def _words(column: str, results: Sequence[Result]) -> str:
    return _WORDS[column].format(measured_on=results[0].measured_on)
