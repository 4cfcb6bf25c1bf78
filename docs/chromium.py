"""The system's Chromium, driven by playwright: for screens of the pages and for their tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def chromium_path() -> str | None:
    """Return where the system has Chromium; None if it has none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser, as playwright gives it.

    Raises:
        ModuleNotFoundError: Without playwright.
        FileNotFoundError: Without Chromium.
    """
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        raise FileNotFoundError("there is no chromium: install your system's package of that name")
    with sync_playwright() as player:
        # Containers run as root without the kernel's namespaces.
        browser = player.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
