"""Charts of a report: numbers for the browser to draw, and a table that says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_dp.tasks.metrics import METRICS
from fl_dp.viewer.found_runs import FoundRun, Round, thinned

from .groups import Group, RoundRange
from .page_words import WORDS

MOST_CURVES = 12
_MOST_POINTS = 1000
_ROWS = 11


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a chart, with its band.

    Attributes:
        name: In the legend.
        points: Places along the axis, rising, and what the runs have there.
    """

    name: str
    points: tuple[tuple[float, RoundRange], ...]

    @property
    def has_band(self) -> bool:
        """Whether runs differ anywhere."""
        return any(each.low != each.high for _, each in self.points)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        key: Of its words.
        x: Label of the axis along.
        y: Label of the axis up.
        curves: Its lines.
        line: A level that is drawn across, for example a budget.
        line_name: What the level is.
        exactly: Digits behind the point in its table.
    """

    key: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    line: float | None = None
    line_name: str = ""
    exactly: int = 4

    @property
    def title(self) -> str:
        """Its heading."""
        return WORDS[f"chart.{self.key}"]

    @property
    def alternative(self) -> str:
        """A sentence that says where each curve begins and ends."""
        ends = [
            f"{curve.name}: {curve.points[0][1].mean:.4g} → {curve.points[-1][1].mean:.4g}"
            for curve in self.curves
        ]
        return f"{self.title}. {self.y} / {self.x}. {'; '.join(ends)}."

    def data(self) -> dict[str, Any]:
        """Return what the browser draws, as plain JSON values."""
        return {
            "x": self.x,
            "y": self.y,
            "line": self.line,
            "lineName": self.line_name,
            "curves": [
                {
                    "name": curve.name,
                    "x": [x for x, _ in curve.points],
                    "mean": [each.mean for _, each in curve.points],
                    "low": [each.low for _, each in curve.points] if curve.has_band else None,
                    "high": [each.high for _, each in curve.points] if curve.has_band else None,
                }
                for curve in self.curves
            ],
        }

    def rows(self) -> list[list[str]]:
        """Return a few of its numbers: of each curve where it is, and its value with the band."""
        rows = []
        for curve in self.curves:
            last = len(curve.points) - 1
            picked = sorted({round(each * last / (_ROWS - 1)) for each in range(_ROWS)})
            for x, point in (curve.points[at] for at in picked):
                value = f"{point.mean:.{self.exactly}g}"
                if curve.has_band:
                    value += f" ({point.low:.4g} – {point.high:.4g})"
                rows.append([curve.name, f"{x:.4g}", value])
        return rows


def charts_of(groups: Sequence[Group]) -> list[Chart]:
    """Return the charts that the runs have numbers for."""
    groups = groups[:MOST_CURVES]
    budget = _only({run.card.budget for group in groups for run in group.runs})
    charts = [
        _over_rounds("accuracy", groups, lambda each: each.test_accuracy),
        _over_epsilon("accuracy_epsilon", groups, lambda each: each.test_accuracy),
        _over_epsilon("r2_epsilon", groups, _of_public("r2")),
        _over_rounds("loss", groups, lambda each: each.test_loss),
        _over_epsilon("loss_epsilon", groups, lambda each: each.test_loss),
        _over_rounds("epsilon", groups, lambda each: each.epsilon, line=budget),
        _chart("noise", WORDS["axis.round"], [_noise(group) for group in groups]),
        _chart("norm", WORDS["axis.round"], [_norms(group) for group in groups]),
    ]
    for name in last_names(groups, lambda each: each.metrics):
        curves = [_curve(group.name, group.series(_of_public(name))) for group in groups]
        charts.append(_chart("public", WORDS["axis.round"], curves, y=METRICS[name].title))
    for name in last_names(groups, lambda each: each.clients):
        curves = [_curve(group.name, group.series(_of_clients(name))) for group in groups]
        charts.append(_chart("clients", WORDS["axis.round"], curves, y=name))
    return [chart for chart in charts if chart is not None]


def last_names(groups: Iterable[Group], named: Callable[[Round], Iterable[str]]) -> list[str]:
    """Return names that the last rounds, and the last evaluated ones, of runs have, each once."""
    runs = (run for group in groups for run in group.runs)
    last = (each for run in runs for each in (*run.rounds[-1:], run.evaluated))
    return list(dict.fromkeys(name for each in last if each is not None for name in named(each)))


def _of_public(name: str) -> Callable[[Round], float | None]:
    return lambda each: each.metrics.get(name)


def _of_clients(name: str) -> Callable[[Round], float | None]:
    return lambda each: each.clients.get(name)


def _over_rounds(
    key: str,
    groups: Iterable[Group],
    value: Callable[[Round], float | None],
    *,
    line: float | None = None,
) -> Chart | None:
    curves = [_curve(group.name, group.series(value)) for group in groups]
    return _chart(key, WORDS["axis.round"], curves, line=line)


def _over_epsilon(
    key: str, groups: Iterable[Group], value: Callable[[Round], float | None]
) -> Chart | None:
    curves = []
    for group in groups:
        spent = {point.round: point.mean for point in group.series(lambda each: each.epsilon)}
        at = [point for point in group.series(value) if point.round in spent]
        curve = _curve(group.name, at, [spent[point.round] for point in at])
        # Without privacy epsilon is nowhere: there is no curve over it.
        curves.append(curve if curve is not None and curve.points[-1][0] > 0.0 else None)
    return _chart(key, WORDS["axis.epsilon"], curves)


def _noise(group: Group) -> Curve | None:
    return _curve(group.name, _steps(_known_multipliers(group.runs[0])))


def _norms(group: Group) -> Curve | None:
    run = group.runs[0]
    adaptive = group.series(lambda each: each.next_clipping_norm)
    norm = (run.statement or {}).get("clipping_norm")
    first = [float(norm)] if isinstance(norm, int | float) and norm > 0 else []
    if adaptive:
        # What a line tells is the norm of the round after it.
        return _curve(
            group.name,
            [replace(each, round=each.round + 1) for each in adaptive[:-1]],
        )
    return _curve(group.name, _steps(first * len(_known_multipliers(run))))


def _known_multipliers(run: FoundRun) -> list[float]:
    return [each for each in run.noise_multipliers if each is not None]


def _steps(values: Sequence[float]) -> list[RoundRange]:
    return [
        RoundRange(round=at, mean=value, low=value, high=value)
        for at, value in enumerate(values, 1)
    ]


def _curve(
    name: str, points: Sequence[RoundRange], xs: Sequence[float] | None = None
) -> Curve | None:
    """Return a line through points, over their rounds or what else is given; None without any."""
    along = [float(point.round) for point in points] if xs is None else list(xs)
    kept: list[tuple[float, RoundRange]] = []
    for x, point in zip(along, points, strict=True):
        # The drawing needs rising places; epsilon does not fall but may stay.
        if not kept or x > kept[-1][0]:
            kept.append((x, point))
        elif x == kept[-1][0]:
            kept[-1] = (x, point)
    if not kept:
        return None
    return Curve(name=name, points=tuple(thinned(kept, _MOST_POINTS)))


def _chart(
    key: str,
    x: str,
    curves: Iterable[Curve | None],
    *,
    y: str | None = None,
    line: float | None = None,
) -> Chart | None:
    known = tuple(curve for curve in curves if curve is not None)
    if not known:
        return None
    return Chart(
        key=key,
        x=x,
        y=WORDS[f"axis.{key.partition('_')[0]}"] if y is None else y,
        curves=known,
        line=line,
        line_name=WORDS["line.budget"] if line is not None else "",
    )


def _only(values: set[float | None]) -> float | None:
    return values.pop() if len(values) == 1 else None
