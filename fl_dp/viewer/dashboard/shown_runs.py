"""Contents of pages on runs: list, planned values, differences, advice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_dp.guarantee import Guarantee, weakest_guarantee
from fl_dp.tasks.public_scores import Score
from fl_dp.viewer.found_runs import FoundRun, Round, RunCard, RunState, thinned
from fl_dp.viewer.found_runs.run_groups import Group, groups_of, shown_value
from fl_dp.viewer.found_runs.run_groups import differences as differing_keys
from fl_dp.viewer.found_runs.untrusted import number, texts

MOST_POINTS = 1000
MOST_COMPARED = 12
PAGE = 100

_SORTED = {
    "changed": lambda card: -(card.changed or 0.0),
    "accuracy": lambda card: -card.score.rank,
    "epsilon": lambda card: (card.weakness == math.inf, card.terms, card.weakness),
    "name": lambda card: card.name,
}
SORTS = tuple(_SORTED)


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Search and filter of the list; empty text is no filter.

    Attributes:
        words: All must be in a run's name, variant or settings.
        state: One of `RunState`.
        task: A value of `task.name`.
        sweep: Name of a sweep.
        sort: One of `SORTS`.
    """

    words: str = ""
    state: str = ""
    task: str = ""
    sweep: str = ""
    sort: str = "changed"

    def of(self, cards: Sequence[RunCard]) -> list[RunCard]:
        """The runs that pass the filter, in order."""
        words = self.words.lower()[:200].split()
        matches = [card for card in cards if self._passes(card) and _has(card, words)]
        return sorted(matches, key=_SORTED.get(self.sort, _SORTED["changed"]))

    def _passes(self, card: RunCard) -> bool:
        return (
            self.state in ("", card.state)
            and self.task in ("", card.settings.get("task.name", ""))
            and self.sweep in ("", card.sweep)
        )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs started together: folder name, numbers, and last time of writing."""

    name: str
    runs: int
    finished: int
    changed: float


def sweeps_of(cards: Sequence[RunCard]) -> list[Sweep]:
    """The runs' sweeps, in the order of the runs."""
    members: dict[str, list[RunCard]] = {}
    for card in cards:
        if card.sweep is not None:
            members.setdefault(card.sweep, []).append(card)
    return [
        Sweep(
            name=name,
            runs=len(sweep),
            finished=sum(card.state is RunState.FINISHED for card in sweep),
            changed=max(card.changed or 0.0 for card in sweep),
        )
        for name, sweep in members.items()
    ]


def seconds_left(card: RunCard) -> float | None:
    """Estimated seconds left of a running run, from its rounds so far; else None."""
    if card.state is not RunState.RUNNING or not card.round or card.rounds is None:
        return None
    if card.started is None or card.changed is None:
        return None
    seconds_per_round = max(card.changed - card.started, 0.0) / card.round
    return seconds_per_round * max(card.rounds - card.round, 0)


def round_points(
    rounds: Sequence[Round], multipliers: Sequence[float | None] = ()
) -> list[list[Any]]:
    """At most `MOST_POINTS` rounds as rows.

    A row has round, score, loss, epsilon, next clipping norm and noise multiplier; `multipliers`,
    from the statement, has one per charged round.
    """
    rows = []
    for point in thinned(rounds, MOST_POINTS):
        multiplier = None
        if 0 < point.round <= len(multipliers):
            multiplier = multipliers[point.round - 1]
        rows.append(
            [
                point.round,
                point.score.value,
                point.test_loss,
                point.epsilon,
                point.next_clipping_norm,
                multiplier,
            ]
        )
    return rows


def planned_and_done(run: FoundRun) -> list[tuple[str, float | None, float | None]]:
    """Rows of planned and actual values: a word's key and two numbers."""
    card, statement, settings = run.card, run.statement or {}, run.settings
    multipliers = [value for value in run.noise_multipliers if value is not None]
    least_noise = min(multipliers, default=number(statement.get("noise_multiplier")))
    rate = number(settings.get("selection.sampling_rate"))
    clients = number(settings.get("task.num_clients"))
    planned_cohort = None
    if rate is not None and clients is not None:
        planned_cohort = rate * clients
    cohort = run.rounds[-1].expected_cohort if run.rounds else None
    norm = number(settings.get("clipping.norm"))
    rows = [
        ("rounds", card.rounds, card.round),
        ("noise", number(settings.get("privacy.noise_multiplier")), least_noise),
        ("cohort", planned_cohort, cohort),
        ("clipping", norm, number(statement.get("clipping_norm"))),
    ]
    return [row for row in rows if row[1] is not None or row[2] is not None]


def advice_for(run: FoundRun, age: float | None) -> str | None:
    """Key of the advice for a run in trouble, if any.

    `age` is the seconds since anything of it was written.
    """
    alone = "_alone" if in_one_process(run.card.settings) else ""
    if run.failed and run.card.state is not RunState.FINISHED:
        return "failed"
    match run.card.state:
        case RunState.FAILED:
            return "failed"
        case RunState.BROKEN | RunState.STOPPED as state:
            return str(state)
        case RunState.SILENT:
            return f"silent{alone}"
        case RunState.RUNNING if run.card.round is None and age is not None and age > 120.0:
            return f"pending{alone}"
        case _:
            return None


def in_one_process(settings: Mapping[str, str]) -> bool:
    """Whether a run's nodes answer in one process, unseen by Flower's commands."""
    return settings.get("simulation.engine") == "in_process"


@dataclass(frozen=True, kw_only=True)
class SeedRow:
    """Runs that differ in their seed alone, as one row of a comparison.

    Attributes:
        name: Settings in which it differs from other rows.
        runs: Numbers of its runs in the comparison, from 1.
        judged: One run's score, for its name; of a constant answer if those of all are.
        score: Mean and deviation of the score over the runs.
        loss: The same of the loss.
        promise: The weakest of the runs' promises; None: not known yet.
        terms: All of their promises but the numbers.
    """

    name: str
    runs: tuple[int, ...]
    unfinished: int
    judged: Score
    score: tuple[float | None, float | None]
    loss: tuple[float | None, float | None]
    promise: Guarantee | None
    terms: str


def seed_rows(runs: Sequence[FoundRun]) -> list[SeedRow]:
    """One row per group of runs that differ in their seed alone, in the order of the runs."""
    numbers = {id(run): number for number, run in enumerate(runs, 1)}
    return [_seed_row(group, [numbers[id(run)] for run in group.runs]) for group in groups_of(runs)]


def _seed_row(group: Group, numbers: Sequence[int]) -> SeedRow:
    cards = [run.card for run in group.runs]
    promises = [card.promise for card in cards if card.promise is not None]
    return SeedRow(
        name=group.name,
        runs=tuple(numbers),
        unfinished=sum(card.state is not RunState.FINISHED for card in cards),
        judged=group.score,
        score=_spread([card.score.value for card in cards]),
        loss=_spread([card.test_loss for card in cards]),
        promise=weakest_guarantee(promises) if promises else None,
        terms=cards[0].terms,
    )


def _spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample deviation of the numbers among values; None for none."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None, None
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return statistics.fmean(numbers), deviation


def compared_settings(runs: Sequence[FoundRun]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ, with each run's value; a dash for none."""
    return [(key, [_shown(run.settings.get(key)) for run in runs]) for key in differing_keys(runs)]


def promise(statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A statement's sentences by name."""
    outside = texts(statement.get("public_inputs"))
    return [
        (name.replace("_", " "), value)
        for name, value in statement.items()
        if isinstance(value, str) and name not in ("quoted", "ledger_hash")
    ] + [("outside the promise", sentence) for sentence in outside]


def _has(card: RunCard, words: Sequence[str]) -> bool:
    if not words:
        return True
    settings = [f"{key}={value}" for key, value in card.settings.items()]
    text = " ".join([card.name, card.variant or "", *settings]).lower()
    return all(word in text for word in words)


def _shown(value: object) -> str:
    return "–" if value is None else shown_value(value)
