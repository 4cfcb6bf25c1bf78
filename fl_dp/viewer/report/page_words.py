"""Words, values and tables of a page; a language is another file with the same keys.

A page is rendered in one language, inside `page_language`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fl_dp.tasks.public_scores import Score
from fl_dp.viewer.found_runs import FoundRun
from fl_dp.viewer.promise_words import shared_words

ASSETS = Path(__file__).parent / "assets"

_WORDS = ASSETS / "page/words"
LANGUAGES = tuple(sorted(file.stem for file in _WORDS.glob("*.json")))
_language = ContextVar("language", default="en")


class _Words(Mapping[str, str]):
    """Words of the language in which a page is rendered."""

    def __getitem__(self, key: str) -> str:
        return _read(_language.get())[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_read(_language.get()))

    def __len__(self) -> int:
        return len(_read(_language.get()))


WORDS = _Words()


@contextmanager
def page_language(code: str) -> Iterator[None]:
    """Render pages in one of `LANGUAGES`."""
    token = _language.set(code)
    try:
        yield
    finally:
        _language.reset(token)


@cache
def _read(code: str) -> dict[str, str]:
    words: dict[str, str] = json.loads((_WORDS / f"{code}.json").read_text(encoding="utf-8"))
    return {**shared_words(code), **words}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page; each row has one text per heading."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def measured(name: str, runs: Sequence[FoundRun]) -> str:
    """Name of `accuracy`, `r2` or `loss` with the rows that runs measured it on."""
    rows = dict.fromkeys(WORDS[f"score.{run.card.score.measured_on}"] for run in runs)
    return WORDS["score.on"].format(value=WORDS[f"compare.{name}"], rows=", ".join(rows))


def marked(score: Score, value: str) -> str:
    """A text of a score's value, marked where all rows get one answer."""
    return score.mark(value, WORDS["score.constant"])
