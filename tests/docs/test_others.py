"""What pages say of other systems can be looked up: there is a link, and the day it was true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SYSTEMS = (  # as regular expressions
    "FATE",
    "Fedstellar",
    "JAX Privacy",
    "NVFlare",
    "OpenDP(?! deployments)",
    "OpenFHE",
    "SecretFlow",
    "SmartNoise",
    "TenSEAL",
    "Tumult Analytics",
    "pfl-research",
)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def sections(text: str) -> Iterator[str]:
    """Return what stands below each heading of the second level."""
    yield from re.split(r"^## ", text, flags=re.MULTILINE)


def named(text: str) -> list[str]:
    return [name for name in SYSTEMS if re.search(rf"(?<![\w-]){name}(?![\w-])", text)]


def undated(page: str) -> list[str]:
    """Return the systems of sections that have no date."""
    without = [section for section in sections(page) if not DATE.search(section)]
    return [name for section in without for name in named(section)]


def unlinked(page: str) -> list[str]:
    """Return the systems that a page names and never links."""
    return [name for name in named(page) if not re.search(rf"\[{name}\]\(https://", page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_about_another_system_has_a_link_and_a_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert (unlinked(text), undated(text)) == ([], [])


def test_one_without_is_found() -> None:
    page = "## Speed\nNVFlare is slow.\n## Others\n2026-11-28: [FATE](https://x.org) is not."
    assert (unlinked(page), undated(page)) == (["NVFlare"], ["NVFlare"])
