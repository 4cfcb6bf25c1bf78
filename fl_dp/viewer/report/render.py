"""The report's file: runs in, one HTML text out, with pictures inside."""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from fl_dp import __version__
from fl_dp.guarantee import grouped, weakest_guarantee
from fl_dp.tasks.public_scores import METRICS
from fl_dp.viewer.found_runs import FoundAttack, FoundRun, Image, RunState
from fl_dp.viewer.found_runs.run_groups import (
    Group,
    compared,
    differences,
    groups_of,
    shown_value,
)
from fl_dp.viewer.jinja import environment
from fl_dp.viewer.promise_words import promise_numbers, promise_terms

from .charts import MOST_CURVES, charts_of, last_names
from .findings import findings_of, membership_table
from .page_words import ASSETS, WORDS, Table, marked, measured, page_language
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
    """The report of runs as one self-contained HTML page.

    Texts of the runs' folders are escaped; the page's policy allows no other script and no fetch.
    At most `MOST` bytes of `images`, which the runs drew, are included. `language` is one of
    `LANGUAGES`.

    Raises:
        ModuleNotFoundError: Without jinja2, which `pip install 'fl-dp[viewer]'` brings.
        ValueError: Without any run and any attack.
    """
    if not runs and not attacks:
        raise ValueError("a report needs at least one run or attack")
    with page_language(language):
        return _render(runs, attacks, images)


def _render(
    runs: Sequence[FoundRun], attacks: Sequence[FoundAttack], images: Sequence[Image]
) -> str:
    groups = groups_of(runs)
    style = _asset("uplot/uPlot.min.css") + _asset("page/report.css")
    script = "\n".join((_asset("uplot/uPlot.iife.min.js"), _asset("page/report.js")))
    several = len(runs) > 1
    drawn = [attack.image for attack in attacks if attack.image is not None]
    included, excluded = _fitting([*drawn, *images])
    too_many, tables = None, []
    if len(groups) > MOST_CURVES:
        too_many = WORDS["too_many"].format(count=len(groups), most=MOST_CURVES)
    if several:
        promises = list(grouped(groups, lambda group: group.runs[0].card.terms).values())
        tables = [*map(_over_seeds, promises), *map(_side_by_side, promises)]
    templates = environment(ASSETS / "page")
    return templates.get_template("report.html.j2").render(
        words=WORDS,
        title=_title(len(runs)),
        images=included,
        left_out=[f"{image.folder}/{image.name}" for image in excluded],
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
        too_many=too_many,
        tables=tables,
        findings=list(chain.from_iterable(map(findings_of, runs))),
    )


def _title(num_runs: int) -> str:
    if num_runs > 1:
        return WORDS["title.several"].format(count=num_runs)
    return WORDS["title.one"] if num_runs == 1 else WORDS["title.attack"]


def _policy(style: str, script: str) -> str:
    """Content security policy: only our style and script, and embedded images."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """A text's hash as a content security policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _fitting(images: Iterable[Image]) -> tuple[list[Image], list[Image]]:
    """The images that fit into `MOST` bytes, and the others."""
    included: list[Image] = []
    excluded: list[Image] = []
    size = 0
    for image in images:
        if size + len(image.png) > MOST:
            excluded.append(image)
            continue
        included.append(image)
        size += len(image.png)
    return included, excluded


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _side_by_side(groups: Sequence[Group]) -> Table:
    runs = list(chain.from_iterable(group.runs for group in groups))
    differing = differences(runs)[:_MOST_DIFFERENCES]
    if len({run.settings.get("seed") for run in runs}) > 1:
        differing = ["seed", *differing]
    score = _score_of(runs)
    names = ("run", "state", "rounds", score, "loss", "epsilon")
    headings = [_heading(name, runs) for name in names]
    metrics = _metric_names(groups, score)
    headings += [METRICS[name].title for name in metrics]
    rows = []
    for run in runs:
        card = run.card
        settings = dict(compared(run)) | {"seed": run.settings.get("seed")}
        values = [shown_value(settings[key]) if key in settings else "–" for key in differing]
        rows.append(
            (
                card.name,
                WORDS[f"state.{card.state}"],
                f"{_number(card.round, 'd')} / {_number(card.rounds, 'd')}",
                marked(card.score, _number(_value_of(run, score), ".4f")),
                _number(card.test_loss, ".4f"),
                promise_numbers(WORDS, card.promise),
                *(_number(run.metrics.get(name), ".4f") for name in metrics),
                *values,
            )
        )
    return Table(
        caption=_caption("compare.caption", runs),
        headings=(*headings, *differing),
        rows=tuple(rows),
    )


def _over_seeds(groups: Sequence[Group]) -> Table:
    runs = list(chain.from_iterable(group.runs for group in groups))
    score = _score_of(runs)
    names = ("curve", score, "loss", "epsilon")
    headings = [_heading(name, runs) for name in names]
    headings.insert(1, WORDS["seeds.runs"])
    metrics = _metric_names(groups, score)
    headings += [METRICS[name].title for name in metrics]
    rows = []
    for group in groups:
        promises = [run.card.promise for run in group.runs if run.card.promise is not None]
        promise = weakest_guarantee(promises) if promises else None
        rows.append(
            (
                group.name,
                _count(group),
                marked(group.score, _mean(group, partial(_value_of, score=score))),
                _mean(group, lambda run: run.card.test_loss),
                promise_numbers(WORDS, promise),
                *(_mean(group, partial(_metric, name=name)) for name in metrics),
            )
        )
    caption = _caption("seeds.caption", runs)
    return Table(caption=caption, headings=tuple(headings), rows=tuple(rows))


def _caption(key: str, runs: Sequence[FoundRun]) -> str:
    """A table's caption with the promise of its runs, which all have the same terms."""
    return f"{WORDS[key]}. {WORDS['promise.title']}: {promise_terms(WORDS, runs[0].card.promise)}"


def _heading(name: str, runs: Sequence[FoundRun]) -> str:
    if name not in ("accuracy", "auc", "r2", "loss"):
        return WORDS[f"compare.{name}"]
    return measured(name, runs)


def _metric_names(groups: Sequence[Group], score: str) -> list[str]:
    names = last_names(groups, lambda point: point.metrics)
    return [name for name in names if name != score]


def _score_of(runs: Sequence[FoundRun]) -> str:
    """Name of the runs' score, if all have the same; else accuracy."""
    names = {run.card.score.name for run in runs}
    return names.pop() if len(names) == 1 else "accuracy"


def _value_of(run: FoundRun, score: str) -> float | None:
    return run.card.score.value if run.card.score.name == score else None


def _metric(run: FoundRun, name: str) -> float | None:
    return run.metrics.get(name)


def _count(group: Group) -> str:
    """Number of a group's runs, and of those that should enter no mean."""
    unfinished = sum(run.card.state != RunState.FINISHED for run in group.runs)
    if not unfinished:
        return str(len(group.runs))
    return f"{len(group.runs)}, {WORDS['seeds.unfinished'].format(count=unfinished)}"


def _mean(group: Group, value: Callable[[FoundRun], float | None]) -> str:
    values = [number for number in map(value, group.runs) if number is not None]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.4f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.4f}"


def _number(value: float | None, digits: str) -> str:
    return "–" if value is None else f"{value:{digits}}"
