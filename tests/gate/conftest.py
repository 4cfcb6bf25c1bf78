"""Sites behind a gate, by a clock of the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated_site import App, Site
from owned_clock import OwnedClock


@pytest.fixture(autouse=True)
def owned(monkeypatch: pytest.MonkeyPatch) -> OwnedClock:
    """Have the gate wait for nobody but the app."""
    clock = OwnedClock()
    clock.put_in_place(monkeypatch)
    return clock


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Site]:
    """Make a site behind a gate."""

    def make(app: App, name: str = "site", **policy: Any) -> Site:
        folder = tmp_path / name
        folder.mkdir()
        return Site(folder, app, **policy)

    return make
