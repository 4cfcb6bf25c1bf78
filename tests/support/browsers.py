"""Debian's Chromium through playwright, and axe-core's findings in a page.

A test file asks for it with `chromium_or_skip()` and its own fixture around `chromium()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, chromium_path

__all__ = ["WAIT", "chromium", "chromium_or_skip", "expect", "serious", "watched_page"]

AXE = Path(__file__).parent / "axe" / "axe.min.js"
WAIT = 240_000  # milliseconds: more than anything here takes on a busy machine


def chromium_or_skip() -> None:
    """Skip the test file if playwright or the system's Chromium is missing."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if chromium_path() is None:
        pytest.skip("no chromium is installed", allow_module_level=True)


@contextmanager
def watched_page(browser: Any, **options: Any) -> Iterator[Any]:
    """Open a page; a script that fails, or a refusal by the policy, fails the test."""
    context = browser.new_context(locale="en-GB", **options)
    context.set_default_timeout(WAIT)
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on(
        "console",
        lambda message: wrong.append(message.text) if "Policy directive" in message.text else None,
    )
    yield tab
    context.close()
    assert wrong == []


def expect(locator: Any) -> Any:
    """Playwright's expectations of a place in a page."""
    import playwright.sync_api

    return playwright.sync_api.expect(locator)


def serious(page: Any, *, contrast_alone: bool = False) -> list[str]:
    """What axe-core calls serious or critical in a page that bypasses its policy.

    With `contrast_alone` only colours are looked at: all that the dark changes.
    """
    page.add_script_tag(path=AXE)
    options: dict[str, Any] = {"resultTypes": ["violations"]}  # what is right takes as long to list
    if contrast_alone:
        options["runOnly"] = ["color-contrast"]
    result = page.evaluate("(options) => axe.run(options)", options)
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
