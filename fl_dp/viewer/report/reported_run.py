"""Rows of a report on one run: promise, costs, public figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fl_dp.accounting.trade_off import epsilon_delta_trade_off
from fl_dp.app.keys import FOLDERS, SECRET
from fl_dp.guarantee import Against, Guarantee
from fl_dp.promise import delta_rounded_up, is_large_delta, rounded_up
from fl_dp.statement.sentences import ACCOUNTANTS
from fl_dp.tasks.public_scores import METRICS
from fl_dp.terminal.results import noise_of_mean
from fl_dp.viewer.found_runs import FoundRun
from fl_dp.viewer.found_runs.run_groups import shown_value
from fl_dp.viewer.found_runs.untrusted import number, texts
from fl_dp.viewer.promise_words import promise_numbers, promise_terms

from .page_words import WORDS, Table, marked, measured

Row = tuple[str, str]
_USELESS = 0.9
_SUSPECTED = 0.01


@dataclass(frozen=True)
class ReportedRun:
    """A report on one run, as text; what its files lack is left out."""

    run: FoundRun

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.run.card.name

    @property
    def state(self) -> str:
        """Its state, in words."""
        return WORDS[f"state.{self.run.card.state}"]

    @property
    def promise(self) -> str:
        """Its promise in a sentence."""
        return _promise(self.run)[0]

    @property
    def warning(self) -> bool:
        """Whether `promise` says that nothing is promised."""
        return _promise(self.run)[1]

    @property
    def large_delta(self) -> str:
        """Warning of a delta only fine for trials; empty if small."""
        promise = self.run.card.promise
        delta = None if promise is None else promise.delta
        if self.warning or delta is None or not is_large_delta(delta):
            return ""
        return WORDS["budget.large_delta"].format(delta=delta_rounded_up(delta))

    @property
    def why(self) -> str:
        """Reason why more is stated than was spent; empty if it is not."""
        promise = self.run.card.promise
        return WORDS["promise.why"] if promise is not None and promise.ended_early else ""

    @property
    def terms(self) -> str:
        """All of its promise but the numbers."""
        return promise_terms(WORDS, self.run.card.promise)

    @property
    def score(self) -> Row | None:
        """The last model's score, under its name and the rows that it was measured on."""
        score = self.run.card.score
        if score.value is None:
            return None
        return measured(score.name, [self.run]), marked(score, f"{score.value:.4f}")

    @property
    def share_spent(self) -> float | None:
        """Spent share of its budget, while it is being spent."""
        promise = self.run.card.promise
        return None if promise is None else promise.share_spent

    @property
    def loss(self) -> Row | None:
        """The last model's loss, under its name and the rows that it was measured on."""
        loss = self.run.card.test_loss
        return None if loss is None else (measured("loss", [self.run]), f"{loss:.4f}")

    @property
    def metrics(self) -> list[Row]:
        """The last model's metrics on public rows, besides accuracy and loss."""
        return [(METRICS[name].title, f"{value:.4f}") for name, value in self.run.metrics.items()]

    @property
    def confusion(self) -> Table | None:
        """The last model's confusion matrix on public rows; None if not measured."""
        evaluated = self.run.evaluated
        if evaluated is None or (matrix := evaluated.confusion_matrix) is None:
            return None
        classes = evaluated.classes or tuple(map(str, range(len(matrix))))
        return Table(
            caption=WORDS["confusion"],
            headings=(WORDS["confusion.class"], *classes),
            rows=tuple((name, *map(str, row)) for name, row in zip(classes, matrix, strict=True)),
        )

    @property
    def plain(self) -> list[str]:
        """The promise in plain sentences."""
        return [] if self.warning else _plain(self.run)

    @property
    def statement(self) -> list[Row]:
        """The statement's rows."""
        outside = [
            (WORDS["stated.outside"], sentence)
            for sentence in texts(self._document.get("public_inputs"))
        ]
        return [*_texts(self._document, _STATED), *_other_promises(self.run), *outside]

    @property
    def not_covered(self) -> list[str]:
        """The statement's sentences on what is not covered."""
        return texts(self._document.get("not_covered"))

    @property
    def accountants(self) -> list[Row]:
        """Epsilon by each accountant."""
        return _accountants(self._document)

    @property
    def costs(self) -> list[Row]:
        """Noise, cohort, bytes, time."""
        return _costs(self.run)

    @property
    def selection(self) -> list[Row]:
        """Public figures of the selection."""
        return _selection(self.run)

    @property
    def settings(self) -> list[Row]:
        """Settings that may be shown."""
        settings = self.run.settings.items()
        return [(key, shown_value(value)) for key, value in settings if key not in _HIDDEN]

    @property
    def _document(self) -> Mapping[str, Any]:
        return self.run.statement or {}


_HIDDEN = SECRET | FOLDERS
_STATED = (
    "unit",
    "neighboring_relation",
    "adversary",
    "trusted",
    "mechanism",
    "composition",
    "sampling",
    "rule",
    "clipping_norm",
    "denominator",
    "num_clients",
    "most_rounds",
    "rounds",
    "rounds_committed",
    "rounds_planned",
    "randomness",
)


def _other_promises(run: FoundRun) -> list[Row]:
    """Rows of other promises than the quoted one: to records, groups, of models alone."""
    rows: list[Row] = []
    card, statement = run.card, run.statement or {}
    if card.of_records is not None:
        rows.append((WORDS["stated.records"], _in_full(card.of_records)))
    promise = card.promise
    if promise is None:
        return rows
    groups = statement.get("own_budgets")
    for group in groups if isinstance(groups, list) else ():
        if not isinstance(group, Mapping):
            continue
        budget, share = number(group.get("budget")), number(group.get("share"))
        bound = number(group.get("epsilon"))
        if budget is not None and share is not None and bound is not None:
            name = WORDS["stated.own_budget"].format(share=f"{share:.0%}")
            own = replace(promise, epsilon=bound, spent=None, budget=budget)
            rows.append((name, _in_full(own)))
    sums = statement.get("secure_sums")
    bound = number(sums.get("epsilon_of_models")) if isinstance(sums, Mapping) else None
    if bound is not None:
        of_models = replace(promise, epsilon=bound, spent=None, against=Against.MODELS)
        rows.append((WORDS["stated.of_models"], _in_full(of_models)))
    return rows


def _in_full(promise: Guarantee) -> str:
    if not promise.promises:
        return WORDS["promise.nothing"]
    numbers, terms = promise_numbers(WORDS, promise), promise_terms(WORDS, promise)
    return f"{WORDS['promise.epsilon']} {numbers} {terms}"


def _promise(run: FoundRun) -> tuple[str, bool]:
    promise, statement = run.card.promise, run.statement
    if promise is None:
        return WORDS["budget.unknown"], True
    if statement is None:
        return WORDS["budget.running"].format(promise=_in_full(promise)), not promise.promises
    if statement.get("quoted") != "none" and statement.get("insecure") is not False:
        return WORDS["insecure"], True
    if not promise.promises:
        return WORDS["budget.none"], True
    return WORDS["budget.promised"].format(promise=_in_full(promise)), False


def _plain(run: FoundRun) -> list[str]:
    promise, statement = run.card.promise, run.statement or {}
    unit = statement.get("unit")
    sentences = [WORDS["plain.unit"].format(unit=unit if isinstance(unit, str) else "?")]
    epsilon = None if promise is None else promise.epsilon
    delta = None if promise is None else promise.delta
    if epsilon is not None and delta is not None and epsilon >= 0.0 and 0.0 <= delta <= 1.0:
        identified = float(epsilon_delta_trade_off(epsilon, delta)(_SUSPECTED))
        share = math.ceil(1000.0 * identified) / 10.0
        if identified > _USELESS:
            sentences.append(WORDS["plain.useless"])
        else:
            sentences.append(WORDS["plain.guess"].format(share=f"{share:g}"))
    for key, word in (("adversary", "plain.adversary"), ("trusted", "plain.trust")):
        if isinstance(statement.get(key), str):
            sentences.append(WORDS[word].format(**{key: statement[key]}))
    return sentences


def _texts(document: Mapping[str, Any], keys: Iterable[str]) -> list[Row]:
    rows = []
    for key in keys:
        name = WORDS[f"stated.{key}"]
        match document.get(key):
            case None:
                continue
            case str(text):
                rows.append((name, text))
            case list(values):
                rows.append((name, "; ".join(map(shown_value, values))))
            case value:
                rows.append((name, shown_value(value)))
    return rows


def _accountants(statement: Mapping[str, Any]) -> list[Row]:
    bounds = statement.get("epsilon")
    if not isinstance(bounds, Mapping):
        return []
    rows: list[Row] = []
    for name, bound in bounds.items():
        quoted = f" ({WORDS['quoted']})" if name == statement.get("quoted") else ""
        if isinstance(bound, int | float):
            rows.append((f"{ACCOUNTANTS.get(name, name)}{quoted}", rounded_up(bound)))
    return rows


def _costs(run: FoundRun) -> list[Row]:
    card = run.card
    last = run.rounds[-1] if run.rounds else None
    cohort = None if last is None else last.expected_cohort
    of_records = run.settings.get("privacy.mode") == "distributed_records"
    asked = number(run.settings.get("task.num_clients")) if of_records else cohort
    rows: list[Row] = []
    if run.parameters is not None:
        rows.append((WORDS["cost.parameters"], f"{run.parameters:,}"))
    multipliers = [value for value in run.noise_multipliers if value is not None]
    if multipliers:
        low, high = f"{min(multipliers):.5g}", f"{max(multipliers):.5g}"
        span = low
        if low != high:
            span = WORDS["cost.multiplier.rounds"].format(low=low, high=high)
        rows.append((WORDS["cost.multiplier"], span))
    if cohort is not None:
        units = WORDS["cost.cohort.records" if of_records else "cost.cohort.clients"]
        rows.append((WORDS["cost.cohort"], units.format(cohort=f"{cohort:g}")))
        rows += _signal(run, cohort)
    for key in ("bytes_down", "bytes_up"):
        size = None if last is None else getattr(last, key)
        if size is None:
            continue
        rows.append((WORDS[f"cost.{key}"], f"{size:,.0f}"))
        if asked is not None:
            total = size * asked * max(card.round or 0, 0)
            rows.append((WORDS[f"cost.{key}.all"], f"{total:,.0f}"))
    if card.started is not None and card.changed is not None:
        # To the minute, as times of rounds can tell who took part.
        minutes = max(math.ceil((card.changed - card.started) / 60.0), 1)
        text = WORDS["cost.time.minutes"].format(minutes=minutes, seconds=60 * minutes)
        rows.append((WORDS["cost.time"], text))
    return rows


def _signal(run: FoundRun, cohort: float) -> list[Row]:
    """Rows of noise against the largest signal, from public numbers alone."""
    settings, statement = run.settings, run.statement or {}
    try:
        noise = noise_of_mean(
            statement,
            scheme=settings.get("privacy.scheme"),
            cohort=cohort,
        )
        norm = float(statement["clipping_norm"]) * cohort / float(statement["denominator"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return []
    if noise is None or not noise > 0.0:
        return []
    rows = [(WORDS["cost.noise"], f"{noise:.4g}")]
    if run.parameters is not None:
        # Its norm cannot be above the clipping norm, and is lower where clients disagree.
        ratio = norm / (noise * math.sqrt(run.parameters))
        text = WORDS["cost.signal.ratio"].format(ratio=f"{ratio:.3g}")
        rows.append((WORDS["cost.signal"], text))
    return rows


def _selection(run: FoundRun) -> list[Row]:
    settings = run.settings
    # The other keys weigh scores, which only one selection has.
    keys: Iterable[str] = _WITHOUT_SCORES
    if settings.get("selection.name") == "exponential":
        keys = [key for key in settings if key.startswith("selection.")]
    rows = [(key, shown_value(settings[key])) for key in keys if settings.get(key) is not None]
    most = (run.statement or {}).get("most_rounds")
    if isinstance(most, int):
        rows.append((WORDS["stated.most_rounds"], str(most)))
    return rows


_WITHOUT_SCORES = tuple(
    f"selection.{key}" for key in ("name", "sampling_rate", "max_cohort", "coins")
)
