"""The Chinese pages say what the English ones say: the same commands, numbers and code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = (ROOT / "docs/zh/quickstart.md").read_text(encoding="utf-8")
PRIVACY = (ROOT / "docs/zh/privacy.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROMISE = (ROOT / "docs/privacy.md").read_text(encoding="utf-8")
ENGLISH = README + "\n".join(
    page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))
)


def commands(page: str) -> list[str]:
    """Return the shell commands of a page, without their comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [line for kind, text in blocks if kind in ("", "sh") for line in text.splitlines()]
    return [line.partition("#")[0].strip() for line in lines]


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?:\.\d+)?", text)


def test_the_quickstart_has_the_readme_s_commands() -> None:
    ours = set(commands(QUICKSTART)) - {""}
    assert {"make demo", "make test"} <= ours
    assert [command for command in ours if command.split()[0] not in ("make", "fl-dp")] == []
    words = {" ".join(command.split()[:2]) for command in ours}
    assert [each for each in words if each not in ENGLISH] == []


def test_the_quickstart_has_the_readme_s_numbers() -> None:
    table = r"^\|.*\|$"
    rows = [
        sorted(numbers("".join(re.findall(table, page, re.MULTILINE)[:5])))
        for page in (QUICKSTART, README)
    ]
    assert rows[0] == rows[1] != []


def test_the_quickstart_s_python_is_the_readme_s() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", QUICKSTART, re.DOTALL)
    plain = re.sub(r"#.*|\s+", "", code)
    assert plain in re.sub(r"#.*|\s+", "", README)


def test_numbers_of_the_privacy_page_stand_in_the_english_one() -> None:
    ours = set(numbers(PRIVACY))
    assert {"2.7", "7.4", "2,980"} <= ours
    assert sorted(ours - set(numbers(PROMISE))) == []


@pytest.mark.parametrize("page", [QUICKSTART, PRIVACY], ids=["quickstart", "privacy"])
def test_code_words_of_a_chinese_page_stand_in_the_english_pages(page: str) -> None:
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    words = set(re.findall(r"`([^`\n]+)`", prose))
    assert len(words) > 5
    assert sorted(word for word in words if word not in ENGLISH) == []


def test_both_have_the_modes_and_the_same_rows_of_what_is_chosen() -> None:
    for mode in ("central", "distributed", "local", "none"):
        assert f"`{mode}`" in PRIVACY and f"`{mode}`" in PROMISE
