"""Words of the pages: every one in every language, numbers and dates in the reader's form."""

from __future__ import annotations

import json
import re
import string
from datetime import datetime
from pathlib import Path

import pytest

import fl_dp.viewer.dashboard
from fl_dp.viewer.dashboard.languages import LanguageTexts, language_for, languages

HOME = Path(fl_dp.viewer.dashboard.__file__).parent
FILES = sorted((HOME / "words").glob("*.json"))
PAGES = [*(HOME / "templates").glob("*.html"), *(HOME / "static").glob("*.js"), HOME / "site.py"]

# Keys that a page puts together; `*` stands for what is not in its text.
_ASKED = re.compile(r"""\b(?:t|word|words)\(\s*['"`]([\w.]+)(['"`]\s*[,)]|['"] ~|\$)""")


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_language_has_every_word_with_the_same_values_in_it(file: Path) -> None:
    english = json.loads((HOME / "words" / "en.json").read_text())
    words = json.loads(file.read_text())
    assert list(words) == list(english)
    different = [key for key in words if fields(words[key]) - fields(english[key])]
    assert different == []


def test_every_word_that_a_page_asks_for_is_there() -> None:
    english = languages()["en"].texts
    asked = [match for page in PAGES for match in _ASKED.findall(page.read_text())]
    assert len(asked) > 150
    for key, end in asked:
        is_prefix = end[0] in "'\"$" and end[-1] in "~$"
        known = any(each.startswith(key) for each in english) if is_prefix else key in english
        assert known, key


@pytest.mark.parametrize(
    ("chosen", "accepted", "code"),
    [
        ("zh", "en-US,en;q=0.9", "zh"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "ZH-tw", "zh"),
        (None, "fr, en;q=0.5", "en"),
        (None, "", "en"),
        ("../../etc/passwd", "", "en"),
        ("", "x" * 100_000, "en"),
    ],
)
def test_the_language_is_the_chosen_one_or_the_browser_s(
    chosen: str | None, accepted: str, code: str
) -> None:
    assert language_for(chosen, accepted).code == code


def words(code: str) -> LanguageTexts:
    return languages()[code]


def test_numbers_dates_and_times_have_the_language_s_form() -> None:
    when = datetime(2026, 3, 7, 9, 5).timestamp()
    assert words("en").moment(when) == "7 Mar 2026, 09:05"
    assert words("zh").moment(when) == "2026年3月7日 09:05"
    assert words("en").number(12345) == "12,345"
    assert words("en").number(0.00294352) == "0.002944"
    assert words("en").percent(0.9167) == "91.7%"
    assert words("en").duration(7260) == "2 h 01"
    assert words("zh").duration(90) == "90 秒"


def test_an_epsilon_is_never_rounded_down() -> None:
    bounds = [words("en").bound(each) for each in (1.9999999962, 2.0, 2.0000001, 0.12341, 0.0)]
    assert bounds == ["2", "2", "2.001", "0.1235", "0"]


def test_a_value_is_put_in_as_it_is() -> None:
    """A name with braces is no format of ours."""
    assert words("en")("runs.in_sweep", name="{t.__class__}") == "Runs of the sweep {t.__class__}."
