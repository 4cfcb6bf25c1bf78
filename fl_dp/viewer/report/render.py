"""The report's file: runs in, one HTML text out, pictures inside."""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fl_dp import __version__
from fl_dp.promise import delta_rounded_up, rounded_up
from fl_dp.tasks.metrics import METRICS
from fl_dp.viewer.found_runs import FoundAttack, FoundRun, Image, RunState
from fl_dp.viewer.found_runs.groups import (
    Group,
    compared,
    differences,
    groups_of,
    shown_value,
)
from fl_dp.viewer.jinja import environment

from .charts import MOST_CURVES, charts_of, last_names
from .findings import findings_of, membership_table
from .page_words import ASSETS, WORDS, Table, page_language
from .reported_run import ReportedRun

MOST = 8 << 20
"""Bytes of all pictures of a page, before they are written as text."""

_MOST_DIFFERENCES = 8


def report_page(
    runs: Sequence[FoundRun],
    *,
    attacks: Sequence[FoundAttack] = (),
    images: Sequence[Image] = (),
    language: str = "en",
) -> str:
    """Return the report of runs as one HTML page that needs nothing else.

    Everything that the runs' folders say is escaped; the page's policy lets no other script run and
    nothing be fetched.

    Args:
        runs: To tell of.
        attacks: On membership.
        images: That the runs drew; `MOST` bytes of them are taken.
        language: One of `LANGUAGES`.

    Raises:
        ModuleNotFoundError: Without jinja2, which `pip install 'fl-dp[viewer]'` brings.
        ValueError: Without any run and any attack.
    """
    if not runs and not attacks:
        raise ValueError("a report needs at least one run or attack")
    with page_language(language):
        return _made(runs, attacks, images)


def _made(runs: Sequence[FoundRun], attacks: Sequence[FoundAttack], images: Sequence[Image]) -> str:
    groups = groups_of(runs)
    style = _asset("uplot/uPlot.min.css") + _asset("page/report.css")
    script = "\n".join((_asset("uplot/uPlot.iife.min.js"), _asset("page/report.js")))
    several = len(runs) > 1
    title = WORDS["title.several"].format(count=len(runs)) if several else WORDS["title.one"]
    drawn = [attack.image for attack in attacks if attack.image is not None]
    shown, left_out = _fitting([*drawn, *images])
    templates = environment(ASSETS / "page")
    return templates.get_template("report.html.j2").render(
        words=WORDS,
        title=title if runs else WORDS["title.attack"],
        images=shown,
        left_out=[f"{image.folder}/{image.name}" for image in left_out],
        most=MOST >> 20,
        attacks=[(attack, membership_table(attack)) for attack in attacks],
        made=WORDS["made"].format(version=__version__),
        style=style,
        script=script,
        policy=_policy(style, script),
        facts=[ReportedRun(run) for run in runs],
        several=several,
        charts=charts_of(groups),
        legend=[group.name for group in groups[:MOST_CURVES]],
        bands=any(len(group.runs) > 1 for group in groups),
        too_many=WORDS["too_many"].format(count=len(groups), most=MOST_CURVES)
        if len(groups) > MOST_CURVES
        else None,
        tables=[_over_seeds(groups), _side_by_side(groups)] if several else [],
        findings=[finding for run in runs for finding in findings_of(run)],
    )


def _policy(style: str, script: str) -> str:
    """Return the page's content security policy: our style, our script, and what the file holds."""
    allowed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'"
        for each in (style, script)
    ]
    return (
        f"default-src 'none'; style-src {allowed[0]}; script-src {allowed[1]}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _fitting(images: Iterable[Image]) -> tuple[list[Image], list[Image]]:
    """Return the images that fit into `MOST` bytes, and those that do not."""
    shown: list[Image] = []
    left_out: list[Image] = []
    size = 0
    for image in images:
        fits = size + len(image.png) <= MOST
        (shown if fits else left_out).append(image)
        size += len(image.png) if fits else 0
    return shown, left_out


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _side_by_side(groups: Sequence[Group]) -> Table:
    runs = [run for group in groups for run in group.runs]
    differing = differences(runs)[:_MOST_DIFFERENCES]
    if len({run.settings.get("seed") for run in runs}) > 1:
        differing = ["seed", *differing]
    score = _score_of(runs)
    headings = [
        WORDS[f"compare.{name}"]
        for name in ("run", "state", "rounds", score, "loss", "epsilon", "delta")
    ]
    metrics = [name for name in last_names(groups, lambda each: each.metrics) if name != score]
    headings += [METRICS[name].title for name in metrics]
    rows = []
    for run in runs:
        card = run.card
        of_run = dict(compared(run)) | {"seed": run.settings.get("seed")}
        rows.append(
            (
                card.name,
                WORDS[f"state.{card.state}"],
                f"{_number(card.round, 'd')} / {_number(card.rounds, 'd')}",
                _number(_judged(run, score), ".4f"),
                _number(card.test_loss, ".4f"),
                "∞" if not card.promises else _bound(card.epsilon),
                "–" if card.delta is None or not card.promises else delta_rounded_up(card.delta),
                *(_number(run.metrics.get(name), ".4f") for name in metrics),
                *(shown_value(of_run[key]) if key in of_run else "–" for key in differing),
            )
        )
    return Table(
        caption=WORDS["compare.caption"], headings=(*headings, *differing), rows=tuple(rows)
    )


def _over_seeds(groups: Sequence[Group]) -> Table:
    score = _score_of([run for group in groups for run in group.runs])
    names = ("curve", score, "loss", "epsilon")
    headings = [WORDS[f"compare.{name}"] for name in names]
    headings.insert(1, WORDS["seeds.runs"])
    metrics = [name for name in last_names(groups, lambda each: each.metrics) if name != score]
    headings += [METRICS[name].title for name in metrics]
    rows = []
    for group in groups:
        spent = [run.card.epsilon for run in group.runs if run.card.epsilon is not None]
        promised = all(run.card.promises for run in group.runs)
        rows.append(
            (
                group.name,
                _count(group),
                _mean(group, partial(_judged, score=score)),
                _mean(group, lambda run: run.card.test_loss),
                _bound(max(spent, default=None)) if promised else "∞",
                *(_mean(group, partial(_metric, name=name)) for name in metrics),
            )
        )
    return Table(caption=WORDS["seeds.caption"], headings=tuple(headings), rows=tuple(rows))


def _score_of(runs: Sequence[FoundRun]) -> str:
    """Return by what runs are judged: R2 where all of them predict numbers, else accuracy."""
    return "r2" if {run.card.score.name for run in runs} == {"r2"} else "accuracy"


def _judged(run: FoundRun, score: str) -> float | None:
    return run.card.score.value if run.card.score.name == score else None


def _metric(run: FoundRun, name: str) -> float | None:
    return run.metrics.get(name)


def _count(group: Group) -> str:
    """Return how many runs a group has, and how many of them a mean should not be read with."""
    unfinished = sum(run.card.state != RunState.FINISHED for run in group.runs)
    runs = str(len(group.runs))
    return (
        runs if not unfinished else f"{runs}, {WORDS['seeds.unfinished'].format(count=unfinished)}"
    )


def _mean(group: Group, value: Callable[[FoundRun], float | None]) -> str:
    values = [each for each in map(value, group.runs) if each is not None]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.4f}"


def _number(value: float | None, digits: str) -> str:
    return "–" if value is None else f"{value:{digits}}"


def _bound(value: float | None) -> str:
    return "–" if value is None else rounded_up(value)
