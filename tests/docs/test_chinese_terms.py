"""Each term has one Chinese word: that of docs/zh/glossary.md, in every Chinese text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs/zh/glossary.md"
TEXTS = [
    *(page for page in sorted((ROOT / "docs/zh").glob("*.md")) if page != GLOSSARY),
    *sorted((ROOT / "fl_dp/viewer").glob("**/words/zh.json")),
    *sorted((ROOT / "fl_dp/viewer/papers/templates/zh").glob("*.j2")),
]
ROW = re.compile(r"^\| ([A-Za-z -]+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
TERMS = [
    (english, chinese, others.split("、"))
    for english, chinese, others in ROW.findall(GLOSSARY.read_text(encoding="utf-8"))
]


def test_the_glossary_and_its_texts_are_read() -> None:
    assert len(TERMS) >= 30
    assert len(TEXTS) >= 8
    assert len({english for english, _, _ in TERMS}) == len(TERMS)


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_term_has_a_second_translation(text: Path) -> None:
    said = text.read_text(encoding="utf-8")
    assert [other for _, _, others in TERMS for other in others if other in said] == []


def test_each_word_of_the_glossary_is_used() -> None:
    said = "".join(text.read_text(encoding="utf-8") for text in TEXTS)
    assert [chinese for _, chinese, _ in TERMS if chinese not in said] == []
    # No word that one row asks for is one that another refuses.
    refused = {other for _, _, others in TERMS for other in others}
    assert [chinese for _, chinese, _ in TERMS if any(each in chinese for each in refused)] == []


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_where_the_english_stands_in_brackets_its_word_stands_before(text: Path) -> None:
    known = {english: chinese for english, chinese, _ in TERMS}
    glossed = re.findall(r"([\u4e00-\u9fff]+)（([A-Za-z -]+)）", text.read_text(encoding="utf-8"))
    wrong = [
        (before, english)
        for before, english in glossed
        if english in known and not before.endswith(known[english])
    ]
    assert wrong == []
