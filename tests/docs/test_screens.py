"""Screens of `make pictures`: each is there, is small, and is shown by a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from draw_screens import IMAGES, SCREENS
from PIL import Image

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_there_small_and_shown(name: str) -> None:
    file = IMAGES / f"{name}.png"
    assert file.stat().st_size < 120_000
    with Image.open(file) as image:
        assert image.size[0] >= 1000
    shown = [page.name for page in DOCS.glob("*.md") if f"images/{name}.png" in page.read_text()]
    assert shown == [f"{name.partition('_')[0]}.md"]
