"""The report in Chromium, opened from a file: charts, pictures, keyboard, dark, and axe-core.

They are skipped where playwright or a Chromium of the system is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsers import chromium, chromium_or_skip, expect, serious, watched_page
from pngs import write_png
from written_attacks import write_attack
from written_runs import write_run

from fl_dp.viewer.report import write_report

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

chromium_or_skip()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of two runs over two seeds each, an audit, and an attack with its picture."""
    root = tmp_path_factory.mktemp("runs")
    for name, norm, seed in (("a", "0.5", 0), ("b", "0.5", 1), ("c", "0.25", 0)):
        write_run(root / name, f"clipping.norm={norm}", f"seed={seed}", epsilon=2.0)
    write_png(root / "a" / "images.png", 60, 30)
    (root / "a" / "audit.json").write_text('{"sentences": ["Fine."], "lower_bound": 0.5}')
    write_attack(root / "attack")
    return write_report([root]).as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_a_file_and_shows_charts_and_pictures(
    browser: Any, address: str, scheme: str
) -> None:
    asked: list[str] = []
    with watched_page(browser, color_scheme=scheme) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        charts = page.locator("[data-chart]")
        assert charts.count() >= 5
        for chart in charts.all():
            expect(chart.locator("canvas")).to_be_visible()
        for picture in page.locator(".picture img").all():
            assert picture.evaluate("(each) => each.complete && each.naturalWidth > 0")
        assert page.locator(".picture img").count() == 2
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(18, 22, 28)") == (scheme == "dark")
    # Nothing is asked of anybody but the file and what lies in it.
    assert asked[0] == address
    assert all(each.startswith("data:image/png;base64,") for each in asked[1:])


def test_every_table_and_number_is_reached_by_keyboard_alone(browser: Any, address: str) -> None:
    with watched_page(browser) as page:
        page.goto(address)
        opened = 0
        focusable = page.locator("summary, [tabindex='0']").count()
        for _ in range(focusable):
            page.keyboard.press("Tab")
            where = page.evaluate("document.activeElement.tagName")
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            if where == "SUMMARY":
                page.keyboard.press("Enter")
                opened += 1
                assert page.evaluate("document.activeElement.parentElement.open")
            if opened == 3:
                break
        assert opened == 3
        expect(page.get_by_role("cell", name="0.9000").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, address: str, scheme: str) -> None:
    # The policy lets no script in but ours, and axe is none.
    context = browser.new_context(color_scheme=scheme, bypass_csp=True, locale="en-GB")
    page = context.new_page()
    page.goto(address)
    # Some of each kind: every line of every run would take axe a minute.
    page.evaluate(
        "document.querySelectorAll('details').forEach((each, at) => each.open = at % 4 === 0)"
    )
    page.set_viewport_size({"width": 480, "height": 800})  # where tables have to scroll
    found = serious(page, contrast_alone=scheme == "dark")
    context.close()
    assert found == []
