"""Pages in Chromium: live, compared, filled in, by keyboard, in both languages, and by axe-core.

They are skipped where playwright or a Chromium of the system is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from browsers import WAIT, chromium, chromium_or_skip, expect, serious, watched_page
from dashboards import TOKEN, pretend_command, served
from written_runs import statement, write_rounds, write_run

from fl_dp.viewer.dashboard.start_form import KINDS
from fl_dp.viewer.dashboard.started_runs import StartedRuns

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

chromium_or_skip()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with watched_page(browser) as tab:
        yield tab


def log_in(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()


def test_a_live_run_is_followed_to_its_end(page: Any, root: Path) -> None:
    path = write_run(root / "a", rounds=6, done=1, stated=False)
    with served(root) as address:
        log_in(page, address)
        page.get_by_role("link", name="a", exact=True).click()
        expect(page.locator("#connection")).to_contain_text("Live", timeout=WAIT)
        expect(page.locator("#round")).to_have_text("1 / 6", timeout=WAIT)
        (path / "run.log").write_text("a line <b>of the log</b>\n")
        expect(page.get_by_role("log")).to_have_text("a line <b>of the log</b>", timeout=WAIT)
        write_rounds(path, range(2, 7), rounds=6)
        expect(page.locator("#round")).to_have_text("6 / 6", timeout=WAIT)
        expect(page.locator("#score")).to_have_text("90.0%", timeout=WAIT)
        (path / "privacy.json").write_text(json.dumps(statement(rounds=6, done=6, epsilon=8.0)))
        # The page comes again by itself, with the statement.
        statement_of_run = page.get_by_role("region", name="Privacy statement", exact=True)
        expect(statement_of_run.first).to_contain_text("one client's whole", timeout=WAIT)
        expect(page.locator("#connection")).to_have_text("")
        expect(page.locator("#state")).to_have_text("finished")
        chart = page.locator("[data-chart=accuracy]")
        expect(chart.locator("canvas")).to_be_visible()
        said = "From 10.0% to 90.0%"
        expect(chart.locator(".alternative")).to_have_text(said)
        # A multiplier that stays the same stands in the table of the plan alone.
        expect(page.locator("[data-chart=noise]")).to_be_hidden()
        expect(chart.get_by_role("img").first).to_have_accessible_name(re.compile(said))


def test_a_server_that_dies_is_survived_and_said(page: Any, root: Path) -> None:
    write_run(root / "a", rounds=6, done=3, stated=False)
    with served(root) as address:
        log_in(page, address)
        page.goto(f"{address}/run/a")
        expect(page.locator("#connection")).to_contain_text("Live", timeout=WAIT)
    expect(page.locator("#connection")).to_contain_text("does not answer", timeout=WAIT)
    expect(page.locator("#round")).to_have_text("3 / 6")
    expect(page.locator("[data-chart=accuracy] canvas")).to_be_visible()


def test_a_form_error_is_shown_at_its_field_then_a_run_starts_and_stops(
    page: Any, root: Path, tmp_path: Path
) -> None:
    started = StartedRuns(root=root, command=pretend_command(tmp_path, rounds=2000, pause=0.05))
    with served(root, started=started) as address:
        log_in(page, address)
        page.get_by_role("link", name="Start a simulation").click()
        page.get_by_label("Rounds", exact=True).fill("none")
        page.get_by_role("button", name="Compute the price").click()
        field = page.get_by_label("Rounds", exact=True)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_value("none")
        expect(field).to_be_focused()
        expect(field).to_have_accessible_description(re.compile("rounds must be a whole number"))
        field.fill("2000")
        page.get_by_label("Name of the run").fill("mine")
        page.get_by_role("button", name="Compute the price").click()
        expect(page.locator(".promise .numbers", has_text="1.25")).to_be_visible()
        page.get_by_role("button", name="Start at this price").click()
        page.wait_for_url(f"{address}/run/mine", timeout=WAIT)
        expect(page.locator("#round")).to_have_text(re.compile(r"^[1-9]\d* / 2,000"), timeout=WAIT)
        page.get_by_role("button", name="Stop this run").click()
        expect(page.locator("#state")).to_have_text("stopped", timeout=WAIT)
        expect(page.locator("#stop")).to_have_count(0, timeout=WAIT)
        expect(page.get_by_role("heading", name="The run was stopped")).to_be_visible(timeout=WAIT)
        [mine] = started.all()
        assert mine.process.wait() != 0


def test_everything_is_reached_by_keyboard_alone(page: Any, root: Path) -> None:
    write_run(root / "a")
    write_run(root / "b")
    with served(root) as address:
        page.goto(address)
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Runs", exact=True).wait_for()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()  # the browser follows the link later
        order = []
        for _ in range(11):
            page.keyboard.press("Tab")
            name, outline = page.evaluate(
                "() => { const e = document.activeElement;"
                " return [e.name || e.getAttribute('href') || e.innerText,"
                " getComputedStyle(e).outlineStyle] }"
            )
            order.append(name)
            assert outline != "none", name
        wanted = ["q", "state", "task", "sort", "Show", "run", "/run/", "run", "/run/", "Compare"]
        places = iter(order)
        assert all(any(str(each).startswith(want) for each in places) for want in wanted), order
        for name in ("a", "b"):
            page.get_by_label(f"Compare {name}").focus()
            page.keyboard.press("Space")
        page.get_by_role("button", name="Compare the chosen runs").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Comparison")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, root: Path, tmp_path: Path, scheme: str) -> None:
    write_run(root / "a", done=2)
    write_run(root / "b")
    write_run(root / "many" / "run-0", done=2)
    cells = [{"name": f"run-{n}", "variant": "a curve", "place": "1"} for n in range(2)]
    (root / "many" / "sweep.json").write_text(json.dumps({"cells": cells}))
    (root / "broken").mkdir()
    (root / "broken" / "config.yaml").write_text("[")
    started = StartedRuns(root=root, command=pretend_command(tmp_path))
    # The policy lets no script in but ours, and axe is none.
    context = browser.new_context(color_scheme=scheme, bypass_csp=True, locale="en-GB")
    context.set_default_timeout(WAIT)
    page = context.new_page()
    found = {}
    with served(root, started=started, ledgers=["/nowhere"]) as address:
        page.goto(f"{address}/login")
        found["/login"] = serious(page)
        log_in(page, address)
        paths = ["/", "/run/a", "/budgets"]  # in the dark, colours alone can be different
        if scheme == "light":
            paths += ["/run/broken", "/compare?run=a&run=b", "/sweep/many", "/nowhere"]
            # Each form once: languages take turns, and differ in nothing but words.
            codes = zip(KINDS, cycle(("en", "zh")), strict=False)
            paths += [f"/start?kind={kind}&lang={code}" for kind, code in codes]
            paths += ["/?lang=zh"]
        for path in paths:
            page.goto(f"{address}{path}", wait_until="load")
            page.evaluate(
                "document.querySelectorAll('details').forEach((each) => each.open = true)"
            )
            page.wait_for_timeout(200)
            found[path] = serious(page, contrast_alone=scheme == "dark")
    context.close()
    assert {path: said for path, said in found.items() if said} == {}


def test_a_hostile_run_runs_nothing(page: Any, root: Path) -> None:
    script = "<img src=x onerror=alert(1)><script>alert(1)<script>"
    path = write_run(root / script, done=2)
    (path / "run.log").write_text(f"the run failed {script}\n")
    said: list[None] = []
    page.on("dialog", lambda dialog: said.append(dialog.dismiss()))
    with served(root) as address:
        log_in(page, address)
        page.get_by_role("link", name=script, exact=True).click()
        expect(page.get_by_role("heading", name=script)).to_be_visible()
        expect(page.locator("[data-chart=accuracy] canvas")).to_be_visible()
    assert said == []


def test_another_site_s_page_can_neither_post_nor_frame_nor_read(page: Any, root: Path) -> None:
    write_run(root / "a")
    with served(root) as address:
        log_in(page, address)
        evil = "http://evil.example/"
        form = f'<form method=post action="{address}/logout"><button>go</button></form>'
        frame = f'<iframe src="{address}/"></iframe>'
        html = {"content_type": "text/html", "body": form + frame}
        page.route(evil, lambda route: route.fulfill(**html))
        page.goto(evil)
        fetched = (
            "(address) => fetch(address, {credentials: 'include'}).then((r) => r.text(), () => '')"
        )
        assert page.evaluate(fetched, f"{address}/points/a") == ""
        assert "Runs" not in page.frames[-1].content()
        with page.expect_response(f"{address}/logout") as answer:
            page.get_by_role("button", name="go").click()
        assert answer.value.status == 403
        page.goto(f"{address}/")
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
