"""Screens of the report and of the dashboard in docs/images, of runs that were really made.

    make pictures

They are of the sweep in results/pictures/digits, which `make pictures` trains first. Settings and
seeds are always the same; the noise is not, as it can't be predicted.
"""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chromium import chromium
from PIL import Image

from fl_dp.viewer.dashboard.languages import languages
from fl_dp.viewer.report import write_report

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "results" / "pictures"
IMAGES = ROOT / "docs" / "images"
SWEEP = "digits"
SCREENS = (
    "report",
    "report_dark",
    "report_compared",
    "dashboard_runs",
    "dashboard_start",
    "dashboard_run",
    "dashboard_run_dark",
)
"""Names of the pictures that are drawn here."""

_PORT = 18788
_WIDTH = 1180
_COLOURS = 128  # enough for pages, and a third of the bytes
_ELSEWHERE = """folder => document.querySelectorAll("pre, code").forEach(
    block => { block.textContent = block.textContent.replace(folder, "/home/you/runs") })"""
_SECONDS = 120.0


def main() -> None:
    """Draw all screens."""
    runs = sorted(path.parent for path in (RUNS / SWEEP).glob("*/privacy.json"))
    if not runs:
        sys.exit(f"there is no finished run in {RUNS / SWEEP}: write `make pictures`")
    strong = runs[0]
    with chromium() as browser:
        one = write_report([strong], strong / "report.html").as_uri()
        several = write_report([RUNS / SWEEP], RUNS / SWEEP / "report.html").as_uri()
        for scheme, end in (("light", ""), ("dark", "_dark")):
            with _page(browser, scheme) as page:
                page.goto(one)
                _shoot(page, f"report{end}", height=1180)
        with _page(browser, "light") as page:
            page.goto(several)
            _shoot(page, "report_compared", height=1120)
        with _dashboard() as (address, token):
            _dashboard_screens(browser, address, token, f"{SWEEP}/{strong.name}")


def _dashboard_screens(browser: Any, address: str, token: str, run: str) -> None:
    with _page(browser, "light") as page:
        _log_in(page, address, token)
        _shoot(page, "dashboard_runs", height=760)
        page.goto(f"{address}/start")
        words = languages()["en"]  # a script's own would grow old
        page.get_by_label(words.label("rounds"), exact=True).fill("50")
        page.get_by_label(words.label("privacy.epsilon"), exact=True).fill("4")
        page.get_by_role("button", name=words("start.ask_price")).click()
        page.get_by_text(words("start.epsilon")).wait_for()
        page.evaluate(_ELSEWHERE, str(RUNS))
        _shoot(page, "dashboard_start", height=960)
    for scheme, end in (("light", ""), ("dark", "_dark")):
        with _page(browser, scheme) as page:
            _log_in(page, address, token)
            page.goto(f"{address}/run/{run}")
            page.locator("[data-chart=accuracy] canvas").wait_for()
            _shoot(page, f"dashboard_run{end}", height=1170)


def _log_in(page: Any, address: str, token: str) -> None:
    page.goto(f"{address}/login")
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()


@contextmanager
def _page(browser: Any, scheme: str) -> Iterator[Any]:
    context = browser.new_context(
        color_scheme=scheme, locale="en-GB", viewport={"width": _WIDTH, "height": 900}
    )
    context.set_default_timeout(1000.0 * _SECONDS)
    yield context.new_page()
    context.close()


def _shoot(page: Any, name: str, *, height: int) -> None:
    """Write the upper part of a page, with few colours."""
    assert name in SCREENS, name
    page.set_viewport_size({"width": _WIDTH, "height": height})
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(400)  # charts are drawn anew for their width
    whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    few = whole.quantize(colors=_COLOURS, dither=Image.Dither.NONE)
    few.save(IMAGES / f"{name}.png", optimize=True)
    print(f"docs/images/{name}.png")


@contextmanager
def _dashboard() -> Iterator[tuple[str, str]]:
    """Serve the runs on this machine; yield address and token."""
    token = secrets.token_urlsafe(24)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fl_dp",
            "dashboard",
            str(RUNS),
            "--port",
            str(_PORT),
            "--allow-start",
        ],
        env={**os.environ, "FL_DP_DASHBOARD_TOKEN": token},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    end = time.monotonic() + _SECONDS
    try:
        while "Dashboard: " not in process.stdout.readline():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the dashboard did not start")
        yield f"http://127.0.0.1:{_PORT}", token
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
