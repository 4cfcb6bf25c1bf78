"""A gate whose disk is full: the server sees what it sees of an app that fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_site import PROJECT, Site, adding, bundle
from owned_clock import OwnedClock

from fl_dp.files import full_disk_named, sha256_of
from fl_dp.gate import kept
from fl_dp.gate.gate import PULLS
from fl_dp.ledger import store as ledger_store

MODEL = {"w": np.zeros(3, np.float32)}
NONE = {"dp-gate-clipping-norm": None, "dp-gate-noise-multiplier": None}
POLICIES: dict[str, dict[str, Any]] = {
    "local": {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12},
    "clip": {
        "dp-gate-promise": "clip",
        "dp-gate-noise-multiplier": None,
        "dp-max-epsilon": None,
    },
    "record": NONE
    | {
        "dp-gate-promise": "record",
        "dp-gate-dp-sgd": {
            "noise-multiplier": 1.1,
            "sampling-rate": 0.05,
            "steps": 20,
            "clipping-norm": 1.5,
        },
        "dp-gate-message-config": {"lr": 0.1},
        "dp-gate-environment": "/srv/app/venv",
        "dp-max-epsilon": 8.0,
    },
}


def fill(patch: pytest.MonkeyPatch) -> None:
    """Leave no room for a ledger or for a message."""
    connect = ledger_store._connect

    def full(path: Path, *, writable: bool) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, writable=writable)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    @contextmanager
    def nowhere(file: Path) -> Iterator[Path]:
        with full_disk_named(file.parent):
            yield Path("/dev/full")

    patch.setattr(ledger_store, "_connect", full)
    patch.setattr(kept, "written_whole", nowhere)


@pytest.mark.parametrize("way", list(POLICIES))
def test_the_server_hears_nothing_of_it_and_the_owner_one_line_with_its_path(
    way: str,
    site: Callable[..., Site],
    owned: OwnedClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = dict(POLICIES[way])
    if way == "record":
        (tmp_path / "fab").write_bytes(bundle(PROJECT))
        policy["dp-shared-parameters"] = "w"
        policy["dp-allowed-apps"] = f"hospital/heart@{sha256_of(tmp_path / 'fab')}"
    here = site(adding(1.0), **policy)
    with pytest.MonkeyPatch.context() as patch:
        fill(patch)
        here.answers(MODEL)
    [arrived] = here.server.arrived
    assert not here.seen
    assert arrived.arrays["w"] == pytest.approx(np.zeros(3), abs=1e-2)
    times = [time for call, time, _ in here.server.calls if call == "push-messages"]
    assert times == [PULLS + 60.0]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2  # of the message and of the ledger
    assert all(str(here.ledger.parent) in line and "make room on" in line for line in lines)
    assert not any(record.exc_info for record in caplog.records)
    here.answers(MODEL)
    assert len(here.seen) == here.charges() + (way == "clip") == 1
