"""Promises and scores in words of a page's language, as every page of the viewer shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fl_dp.guarantee import Guarantee
from fl_dp.promise import brief_epsilon, delta_rounded_up

_FOLDER = Path(__file__).parent / "words"


@cache
def shared_words(code: str) -> Mapping[str, str]:
    """Words that the dashboard and a report have in common, by the language's code."""
    words: dict[str, str] = json.loads((_FOLDER / f"{code}.json").read_text(encoding="utf-8"))
    return words


def promise_numbers(words: Mapping[str, str], promise: Guarantee | None) -> str:
    """What is stated, spent and budgeted, or that nothing is promised."""
    if promise is None:
        return words["promise.pending"]
    if not promise.promises:
        return words["promise.nothing"]
    if promise.ended_early and promise.spent is not None:
        spent = brief_epsilon(promise.spent)
        return words["promise.early"].format(epsilon=promise.number, spent=spent)
    if promise.budget is None:
        return promise.number
    budget = brief_epsilon(promise.budget)
    if promise.epsilon is None and promise.spent is not None:
        return words["promise.so_far"].format(spent=promise.number, budget=budget)
    return words["promise.of_budget"].format(epsilon=promise.number, budget=budget)


def promise_terms(words: Mapping[str, str], promise: Guarantee | None) -> str:
    """All but the numbers; a text that nothing is promised, if so."""
    if promise is None or not promise.promises:
        return promise_numbers(words, promise)
    unknown = words["promise.unknown"]
    unit, against = unknown, unknown
    if promise.unit is not None:
        unit = words[f"promise.unit.{promise.unit}"]
    if promise.against is not None:
        against = words[f"promise.against.{promise.against.name.lower()}"]
    return words["promise.terms"].format(
        delta=unknown if promise.delta is None else delta_rounded_up(promise.delta),
        unit=unit,
        neighbours=promise.neighbours or unknown,
        against=against,
    )
