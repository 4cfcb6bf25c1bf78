"""Charts of a report: numbers for the browser to draw, and a table that says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_dp.promise import rounded_up
from fl_dp.tasks.metrics import METRICS
from fl_dp.viewer.found_runs import FoundRun, Round, thinned
from fl_dp.viewer.found_runs.groups import Group, RoundRange

from .page_words import WORDS

MOST_CURVES = 12
_MOST_POINTS = 1000
_ROWS = 11
_SHARES = ("accuracy", "accuracy_epsilon", "balanced_accuracy", "auc", "f1")
_LEAST_SHARE = 0.1  # of an axis of shares: a few test rows must not look decisive


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a chart, with its band.

    Attributes:
        name: In the legend.
        look: Which colour and dashes it has, in every chart.
        points: Places along the axis, rising, and what the runs have there.
    """

    name: str
    look: int
    points: tuple[tuple[float, RoundRange], ...]

    @property
    def has_band(self) -> bool:
        """Whether runs differ anywhere."""
        return any(each.low != each.high for _, each in self.points)

    @property
    def is_constant(self) -> bool:
        """Whether it has one value alone."""
        return len({value for _, each in self.points for value in (each.low, each.high)}) == 1


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
        least: Least length of the axis up; None: as the numbers ask.
        exactly: Digits behind the point in its table.
    """

    key: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    line: float | None = None
    line_name: str = ""
    least: float | None = None
    exactly: int = 4

    @property
    def title(self) -> str:
        """Its heading."""
        return WORDS[f"chart.{self.key}"]

    @property
    def alternative(self) -> str:
        """A sentence that says where each curve begins and ends."""
        ends = []
        for curve in self.curves:
            first, last = (f"{curve.points[at][1].mean:.4g}" for at in (0, -1))
            ends.append(f"{curve.name}: {last if curve.is_constant else f'{first} → {last}'}")
        return f"{self.title}. {self.y} / {self.x}. {'; '.join(ends)}."

    def data(self) -> dict[str, Any]:
        """Return what the browser draws, as plain JSON values."""
        return {
            "x": self.x,
            "y": self.y,
            "line": self.line,
            "least": self.least,
            "curves": [
                {
                    "name": curve.name,
                    "look": curve.look,
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
    """Return the charts that the runs have numbers for.

    A noise multiplier or a clipping norm that stays the same has no chart: it stands among the
    rows of its run.
    """
    groups = groups[:MOST_CURVES]
    budget = _only({run.card.budget for group in groups for run in group.runs})
    charts = [
        _over_rounds("accuracy", groups, lambda each: each.test_accuracy),
        _over_epsilon("accuracy_epsilon", groups, lambda each: each.test_accuracy),
        _over_epsilon("r2_epsilon", groups, _of_public("r2")),
        _over_rounds("loss", groups, lambda each: each.test_loss),
        _over_epsilon("loss_epsilon", groups, lambda each: each.test_loss),
        _over_rounds("epsilon", groups, lambda each: each.epsilon, line=budget),
    ]
    for key, curve_of in (("noise", _noise), ("norm", _norms)):
        curves = [curve_of(look, group) for look, group in enumerate(groups)]
        if any(curve is not None and not curve.is_constant for curve in curves):
            charts.append(_chart(key, WORDS["axis.round"], curves))
    for name in last_names(groups, lambda each: each.metrics):
        curves = _curves(groups, _of_public(name))
        title = METRICS[name].title
        charts.append(_chart("public", WORDS["axis.round"], curves, y=title, share=name in _SHARES))
    for name in last_names(groups, lambda each: each.clients):
        curves = _curves(groups, _of_clients(name))
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


def _curves(groups: Iterable[Group], value: Callable[[Round], float | None]) -> list[Curve | None]:
    return [_curve(group.name, look, group.series(value)) for look, group in enumerate(groups)]


def _over_rounds(
    key: str,
    groups: Iterable[Group],
    value: Callable[[Round], float | None],
    *,
    line: float | None = None,
) -> Chart | None:
    curves = _curves(groups, value)
    return _chart(key, WORDS["axis.round"], curves, line=line, share=key in _SHARES)


def _over_epsilon(
    key: str, groups: Iterable[Group], value: Callable[[Round], float | None]
) -> Chart | None:
    curves = []
    for look, group in enumerate(groups):
        spent = {point.round: point.mean for point in group.series(lambda each: each.epsilon)}
        at = [point for point in group.series(value) if point.round in spent]
        curve = _curve(group.name, look, at, [spent[point.round] for point in at])
        # Without privacy epsilon is nowhere: there is no curve over it.
        curves.append(curve if curve is not None and curve.points[-1][0] > 0.0 else None)
    return _chart(key, WORDS["axis.epsilon"], curves, share=key in _SHARES)


def _noise(look: int, group: Group) -> Curve | None:
    return _curve(group.name, look, _steps(_known_multipliers(group.runs[0])))


def _norms(look: int, group: Group) -> Curve | None:
    run = group.runs[0]
    adaptive = group.series(lambda each: each.next_clipping_norm)
    norm = (run.statement or {}).get("clipping_norm")
    first = [float(norm)] if isinstance(norm, int | float) and norm > 0 else []
    if adaptive:
        # What a line tells is the norm of the round after it.
        after = [replace(each, round=each.round + 1) for each in adaptive[:-1]]
        return _curve(group.name, look, after)
    return _curve(group.name, look, _steps(first * len(_known_multipliers(run))))


def _known_multipliers(run: FoundRun) -> list[float]:
    return [each for each in run.noise_multipliers if each is not None]


def _steps(values: Sequence[float]) -> list[RoundRange]:
    return [
        RoundRange(round=at, mean=value, low=value, high=value)
        for at, value in enumerate(values, 1)
    ]


def _curve(
    name: str, look: int, points: Sequence[RoundRange], xs: Sequence[float] | None = None
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
    return Curve(name=name, look=look, points=tuple(thinned(kept, _MOST_POINTS)))


def _chart(
    key: str,
    x: str,
    curves: Iterable[Curve | None],
    *,
    y: str | None = None,
    line: float | None = None,
    share: bool = False,
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
        line_name="" if line is None else WORDS["line.budget"].format(budget=rounded_up(line)),
        least=_LEAST_SHARE if share else None,
    )


def _only(values: set[float | None]) -> float | None:
    return values.pop() if len(values) == 1 else None
