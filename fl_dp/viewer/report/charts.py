"""Charts of a report: numbers for the browser to draw, and a table of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from fl_dp.guarantee import grouped
from fl_dp.promise import brief_epsilon
from fl_dp.tasks.public_scores import METRICS
from fl_dp.viewer.found_runs import FoundRun, Round, thinned
from fl_dp.viewer.found_runs.run_groups import Group, RoundRange
from fl_dp.viewer.promise_words import promise_terms

from .page_words import WORDS, measured

MOST_CURVES = 12
_MOST_POINTS = 1000
_ROWS = 11
_SHARES = ("accuracy", "accuracy_epsilon", "balanced_accuracy", "auc", "f1")
_LEAST_SHARE = 0.1  # of an axis of shares: a few test rows must not look decisive


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a chart, with its band.

    Attributes:
        name: As in the legend.
        look: Number of its colour and dashes, the same in every chart.
        points: Rising coordinates along the axis, and the runs' values there.
    """

    name: str
    look: int
    points: tuple[tuple[float, RoundRange], ...]

    @property
    def has_band(self) -> bool:
        """Whether runs differ anywhere."""
        return any(value.low != value.high for _, value in self.points)

    @property
    def is_constant(self) -> bool:
        """Whether it has only one value."""
        lows = {value.low for _, value in self.points}
        return len(lows | {value.high for _, value in self.points}) == 1

    def data(self) -> dict[str, Any]:
        """What the browser draws, as plain JSON values."""
        low, high = None, None
        if self.has_band:
            low = [value.low for _, value in self.points]
            high = [value.high for _, value in self.points]
        return {
            "name": self.name,
            "look": self.look,
            "x": [x for x, _ in self.points],
            "mean": [value.mean for _, value in self.points],
            "low": low,
            "high": high,
        }


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart; `x` and `y` label its axes.

    Attributes:
        key: Key of its words.
        line: A level drawn across, for example a budget.
        least: Least length of the vertical axis; None: as the numbers ask.
        exactly: Significant digits in its table.
        terms: All of the curves' promise but the numbers, where an axis is an epsilon.
    """

    key: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    line: float | None = None
    line_name: str = ""
    least: float | None = None
    exactly: int = 4
    terms: str = ""

    @property
    def title(self) -> str:
        """Its heading."""
        return WORDS[f"chart.{self.key}"]

    @property
    def alternative(self) -> str:
        """A sentence with each curve's first and last value."""
        ends = []
        for curve in self.curves:
            (_, first), (_, last) = curve.points[0], curve.points[-1]
            values = f"{last.mean:.4g}"
            if not curve.is_constant:
                values = f"{first.mean:.4g} → {values}"
            ends.append(f"{curve.name}: {values}")
        terms = f" {self.terms}." if self.terms else ""
        return f"{self.title}.{terms} {self.y} / {self.x}. {'; '.join(ends)}."

    def data(self) -> dict[str, Any]:
        """The browser's data, as plain JSON values."""
        return {
            "x": self.x,
            "y": self.y,
            "line": self.line,
            "least": self.least,
            "curves": [curve.data() for curve in self.curves],
        }

    def rows(self) -> list[list[str]]:
        """A few of its numbers: curve name, coordinate, and value with the band."""
        rows = []
        for curve in self.curves:
            last = len(curve.points) - 1
            picked = sorted({round(row * last / (_ROWS - 1)) for row in range(_ROWS)})
            for index in picked:
                x, point = curve.points[index]
                value = f"{point.mean:.{self.exactly}g}"
                if curve.has_band:
                    value += f" ({point.low:.4g} – {point.high:.4g})"
                rows.append([curve.name, f"{x:.4g}", value])
        return rows


def charts_of(groups: Sequence[Group]) -> list[Chart]:
    """The charts that runs have numbers for.

    A constant noise multiplier or clipping norm is among its run's rows instead.
    """
    groups = groups[:MOST_CURVES]
    charts = [
        _over_rounds("accuracy", groups, _accuracy),
        _over_rounds("loss", groups, _loss),
    ]
    looks = {id(group): look for look, group in enumerate(groups)}
    promised = [group for group in groups if _promises(group)]
    for members in grouped(promised, lambda group: group.runs[0].card.terms).values():
        charts += _over_spending(members, [looks[id(group)] for group in members])
    for key, curve_of in (("noise", _noise), ("norm", _norms)):
        curves = [curve_of(look, group) for look, group in enumerate(groups)]
        if any(curve is not None and not curve.is_constant for curve in curves):
            charts.append(_chart(key, WORDS["axis.round"], curves))
    for name in last_names(groups, lambda point: point.metrics):
        curves = _curves(groups, _of_public(name))
        title = METRICS[name].title
        charts.append(_chart("public", WORDS["axis.round"], curves, y=title, share=name in _SHARES))
    for name in last_names(groups, lambda point: point.clients):
        curves = _curves(groups, _of_clients(name))
        charts.append(_chart("clients", WORDS["axis.round"], curves, y=name))
    return [chart for chart in charts if chart is not None]


def _promises(group: Group) -> bool:
    promise = group.runs[0].card.promise
    return promise is not None and promise.promises


def _over_spending(groups: Sequence[Group], looks: Sequence[int]) -> list[Chart | None]:
    """Charts with an axis of epsilon, of runs whose promises have the same terms."""
    promises = [run.card.promise for group in groups for run in group.runs]
    budget = _only({None if promise is None else promise.budget for promise in promises})
    terms = promise_terms(WORDS, promises[0])
    curves = [
        _curve(group.name, look, group.series(_epsilon))
        for group, look in zip(groups, looks, strict=True)
    ]
    charts = [
        _over_epsilon("accuracy_epsilon", groups, looks, _accuracy),
        *(
            _over_epsilon(f"{name}_epsilon", groups, looks, _judged_by(name))
            for name in ("auc", "r2")
        ),
        _over_epsilon("loss_epsilon", groups, looks, _loss),
        _chart("epsilon", WORDS["axis.round"], curves, line=budget),
    ]
    return [None if chart is None else replace(chart, terms=terms) for chart in charts]


def last_names(groups: Iterable[Group], named: Callable[[Round], Iterable[str]]) -> list[str]:
    """Names in all runs' last rounds, and in their last evaluated ones."""
    names: dict[str, None] = {}
    for run in chain.from_iterable(group.runs for group in groups):
        for point in (*run.rounds[-1:], run.evaluated):
            if point is not None:
                names |= dict.fromkeys(named(point))
    return list(names)


def _accuracy(point: Round) -> float | None:
    return point.test_accuracy


def _loss(point: Round) -> float | None:
    return point.test_loss


def _epsilon(point: Round) -> float | None:
    return point.epsilon


def _judged_by(name: str) -> Callable[[Round], float | None]:
    return lambda point: point.score.value if point.score.name == name else None


def _of_public(name: str) -> Callable[[Round], float | None]:
    return lambda point: point.metrics.get(name)


def _of_clients(name: str) -> Callable[[Round], float | None]:
    return lambda point: point.clients.get(name)


def _curves(groups: Iterable[Group], value: Callable[[Round], float | None]) -> list[Curve | None]:
    return [_curve(group.name, look, group.series(value)) for look, group in enumerate(groups)]


def _over_rounds(
    key: str, groups: Iterable[Group], value: Callable[[Round], float | None]
) -> Chart | None:
    curves = _curves(groups, value)
    return _chart(key, WORDS["axis.round"], curves, y=_measured(key, groups), share=key in _SHARES)


def _over_epsilon(
    key: str,
    groups: Sequence[Group],
    looks: Sequence[int],
    value: Callable[[Round], float | None],
) -> Chart | None:
    curves = []
    for look, group in zip(looks, groups, strict=True):
        spent = {point.round: point.mean for point in group.series(_epsilon)}
        charged = [point for point in group.series(value) if point.round in spent]
        curve = _curve(group.name, look, charged, [spent[point.round] for point in charged])
        # Without privacy there is no epsilon, and so no curve over it.
        if curve is not None and curve.points[-1][0] > 0.0:
            curves.append(curve)
    y = _measured(key, groups)
    return _chart(key, WORDS["axis.epsilon"], curves, y=y, share=key in _SHARES)


def _measured(key: str, groups: Iterable[Group]) -> str:
    runs = list(chain.from_iterable(group.runs for group in groups))
    return measured(key.partition("_")[0], runs)


def _noise(look: int, group: Group) -> Curve | None:
    return _curve(group.name, look, _steps(_multipliers(group.runs[0])))


def _norms(look: int, group: Group) -> Curve | None:
    run = group.runs[0]
    adaptive = group.series(lambda point: point.next_clipping_norm)
    if adaptive:
        # A line holds the norm of the round after it.
        shifted = [replace(point, round=point.round + 1) for point in adaptive[:-1]]
        return _curve(group.name, look, shifted)
    norm = (run.statement or {}).get("clipping_norm")
    if not isinstance(norm, int | float) or not norm > 0:
        return None
    return _curve(group.name, look, _steps([float(norm)] * len(_multipliers(run))))


def _multipliers(run: FoundRun) -> list[float]:
    return [multiplier for multiplier in run.noise_multipliers if multiplier is not None]


def _steps(values: Sequence[float]) -> list[RoundRange]:
    return [
        RoundRange(round=number, mean=value, low=value, high=value)
        for number, value in enumerate(values, 1)
    ]


def _curve(
    name: str, look: int, points: Sequence[RoundRange], xs: Sequence[float] | None = None
) -> Curve | None:
    """A line through points, over rounds or `xs`; None without points."""
    if xs is None:
        xs = [float(point.round) for point in points]
    rising: list[tuple[float, RoundRange]] = []
    for x, point in zip(xs, points, strict=True):
        # The drawing needs rising coordinates; epsilon does not fall but may stay.
        if not rising or x > rising[-1][0]:
            rising.append((x, point))
        elif x == rising[-1][0]:
            rising[-1] = (x, point)
    if not rising:
        return None
    return Curve(name=name, look=look, points=tuple(thinned(rising, _MOST_POINTS)))


def _chart(
    key: str,
    x: str,
    curves: Iterable[Curve | None],
    *,
    y: str | None = None,
    line: float | None = None,
    share: bool = False,
) -> Chart | None:
    drawn = tuple(curve for curve in curves if curve is not None)
    if not drawn:
        return None
    if y is None:
        y = WORDS[f"axis.{key}"]
    line_name = ""
    if line is not None:
        line_name = WORDS["line.budget"].format(budget=brief_epsilon(line))
    return Chart(
        key=key,
        x=x,
        y=y,
        curves=drawn,
        line=line,
        line_name=line_name,
        least=_LEAST_SHARE if share else None,
    )


def _only(values: set[float | None]) -> float | None:
    return values.pop() if len(values) == 1 else None
