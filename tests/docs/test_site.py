"""The site builds strictly from the pages, loads nothing from elsewhere, and leaves no page out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from site_hooks import DOCS, anchor, without_links_that_leave

ROOT = DOCS.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    target = tmp_path_factory.mktemp("site")
    # No proxy that is there: what the build would fetch fails it.
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert built.returncode == 0, built.stderr
    return target


@pytest.mark.nightly
def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")]
    left_out = {Path("decisions/TEMPLATE.html")}
    # MkDocs calls a folder's README its index.
    names = {page.with_name("index.html") if page.stem == "README" else page for page in pages}
    assert {name for name in names if not (site / name).is_file()} == left_out


@pytest.mark.nightly
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?(?:https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []
    scripts = "".join(each.read_text() for each in site.glob("assets/javascripts/*.js"))
    assert "iframe-worker/shim" not in scripts and "fonts.googleapis" not in scripts


@pytest.mark.nightly
def test_the_api_is_written_from_docstrings(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    assert "A Flower strategy whose every released model is differentially private." in page
    assert ":::" not in page


def test_a_link_that_leaves_the_pages_becomes_a_name() -> None:
    text = "[a](../SECURITY.md) [b](privacy.md#x) [`c`](../tests) ![d](images/rooms.png) [e](#f)"
    shown = "a (`SECURITY.md`) [b](privacy.md#x) `c` (`tests`) ![d](images/rooms.png) [e](#f)"
    assert without_links_that_leave(text, DOCS) == shown
    assert without_links_that_leave("```\n[a](../x)\n```", DOCS) == "```\n[a](../x)\n```"


def test_headings_have_the_anchors_of_the_repository() -> None:
    assert anchor("Records: DP-SGD inside `clients`") == "records-dp-sgd-inside-clients"
