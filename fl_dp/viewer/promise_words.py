"""Promises and scores in words of a page's language, as every page of the viewer shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fl_dp.guarantee import ENGLISH, Guarantee
from fl_dp.tasks.public_scores import ONE_ANSWER

_FOLDER = Path(__file__).parent / "words"


@cache
def shared_words(code: str) -> Mapping[str, str]:
    """Words that the dashboard and a report have in common, by the language's code."""
    words: dict[str, str] = json.loads((_FOLDER / f"{code}.json").read_text(encoding="utf-8"))
    return ENGLISH | {"score.constant": ONE_ANSWER} | words


def promise_numbers(words: Mapping[str, str], promise: Guarantee | None) -> str:
    """What is stated, spent and budgeted, or that nothing is promised."""
    return words["promise.pending"] if promise is None else promise.numbers_in(words)


def promise_terms(words: Mapping[str, str], promise: Guarantee | None) -> str:
    """All but the numbers; a text that nothing is promised, if so."""
    if promise is None or not promise.promises:
        return promise_numbers(words, promise)
    return promise.terms_in(words)
