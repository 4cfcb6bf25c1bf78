"""Words, numbers and dates of the pages, one file per language.

A word that a language lacks is English. To add a language, write `words/CODE.json` with the keys
of `words/en.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from fl_dp.guarantee import Guarantee
from fl_dp.tasks.public_scores import Score
from fl_dp.viewer.promise_words import promise_numbers, promise_terms, shared_words

_FOLDER = Path(__file__).parent / "words"
FALLBACK = "en"


@dataclass(frozen=True, kw_only=True)
class LanguageTexts:
    """One language: `code` for HTML's `lang`, and texts by key; braces name values."""

    code: str
    texts: Mapping[str, str]

    def __call__(self, key: str, **values: Any) -> str:
        """A text with its values.

        Raises:
            KeyError: If no language has the key.
        """
        return self.texts[key].format(**values)

    def label(self, name: str) -> str:
        """Name of a key or a group, in words."""
        plain = name.rpartition(".")[2].replace("_", " ").capitalize()
        return self.texts.get(f"label.{name}", plain)

    def question(self, experiment: str) -> str:
        """The question of an experiment; without one, its name."""
        return self.texts.get(f"question.{experiment}", experiment)

    def value(self, written: str) -> str:
        """A setting's value, in words if YAML has a sign for it."""
        return self.texts.get(f"value.{written}", written)

    def option(self, group: str, name: str) -> str:
        """A sentence on a group's option; without one, its value in words."""
        return self.texts.get(f"option.{group}.{name}", self.value(name))

    def number(self, value: float | None, digits: int = 4) -> str:
        """A number with `digits` significant digits; a dash for none."""
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        if isinstance(value, int):
            return self._separated(f"{value:,}")
        if abs(value) < 1e6:
            return self._separated(f"{value:,.{digits}g}")
        return self._separated(f"{value:.{digits}g}")

    def bound(self, value: float | None, digits: int = 4) -> str:
        """An upper bound such as epsilon, rounded up: less would be another promise."""
        if value is None or not math.isfinite(value) or value <= 0.0:
            return self.number(value, digits)
        scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
        return self.number(math.ceil(value * scale * (1.0 - 1e-12)) / scale, digits)

    def percent(self, value: float | None) -> str:
        """A share with one decimal."""
        if value is None or not math.isfinite(value):
            return "–"
        return self("format.percent", number=self._separated(f"{100 * value:.1f}"))

    def score(self, score: Score) -> str:
        """A model's score with the rows it was measured on, named if it is no accuracy."""
        if score.value is None:
            return "–"
        value = self.score_value(score, 3)
        if score.name != "accuracy":
            value = f"{self('run.' + score.name)} {value}"
        return self("score.on", value=value, rows=self("score." + score.measured_on))

    def score_value(self, score: Score, digits: int = 4) -> str:
        """A model's score alone, marked where all rows get one answer."""
        is_share = score.name == "accuracy"
        value = self.percent(score.value) if is_share else self.number(score.value, digits)
        return self.marked(score, value)

    def marked(self, score: Score, value: str) -> str:
        """A text of the score's value, marked where all rows get one answer."""
        return score.mark(value, self.texts["score.constant"])

    def numbers(self, promise: Guarantee | None) -> str:
        """What is stated, spent and budgeted; see `promise_numbers`."""
        return promise_numbers(self.texts, promise)

    def terms(self, promise: Guarantee | None) -> str:
        """All of a promise but the numbers; see `promise_terms`."""
        return promise_terms(self.texts, promise)

    def moment(self, timestamp: float | None) -> str:
        """A date and time in this machine's zone."""
        try:
            when = datetime.fromtimestamp(math.nan if timestamp is None else timestamp)
        except (ValueError, OverflowError, OSError):
            return "–"
        return self(
            "format.moment",
            year=when.year,
            month=self("format.months").split()[when.month - 1],
            day=when.day,
            hour=f"{when.hour:02}",
            minute=f"{when.minute:02}",
        )

    def duration(self, seconds: float | None) -> str:
        """A time span in its largest fitting unit."""
        if seconds is None or not math.isfinite(seconds):
            return "–"
        if seconds < 100:
            return self("format.seconds", n=round(seconds))
        minutes = round(seconds / 60)
        if minutes < 100:
            return self("format.minutes", n=minutes)
        return self("format.hours", n=minutes // 60, minutes=f"{minutes % 60:02}")

    def _separated(self, plain: str) -> str:
        whole, dot, part = plain.partition(".")
        return whole.replace(",", self("format.group")) + (dot and self("format.decimal")) + part


@cache
def languages() -> dict[str, LanguageTexts]:
    """Each language by its code, English first."""
    files = sorted(_FOLDER.glob("*.json"))
    texts = {file.stem: {**shared_words(file.stem), **_read(file)} for file in files}
    codes = [FALLBACK, *(code for code in texts if code != FALLBACK)]
    return {
        code: LanguageTexts(code=code, texts={**texts[FALLBACK], **texts[code]}) for code in codes
    }


def language_for(chosen: str | None, accepted: str) -> LanguageTexts:
    """A reader's language: the chosen code, else from the browser's `Accept-Language`."""
    by_code = languages()
    if chosen in by_code:
        return by_code[chosen]
    for entry in accepted[:200].split(","):
        code = entry.partition(";")[0].strip().lower().partition("-")[0]
        if code in by_code:
            return by_code[code]
    return by_code[FALLBACK]


def _read(file: Path) -> dict[str, str]:
    texts: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return texts
