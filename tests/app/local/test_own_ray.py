"""Benchmarks start a Ray of their own, though a stopped cluster has left its address behind."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Not imported where tests are collected: that takes seconds, for nightly tests among them.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="an extra")

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
GONE = "192.0.2.1:6379"  # of a network that does not exist


@pytest.fixture(autouse=True)
def _left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(GONE)
    yield


def joined() -> str | None:
    """The address that a Ray which starts now would join."""
    from ray._private.services import get_ray_address_from_environment

    asked: Any = None  # as Ray's own callers do, against its annotation
    address: str | None = get_ray_address_from_environment(asked, None)
    return address


def test_a_round_is_timed_on_a_ray_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = importlib.import_module("rounds")
    seen: list[tuple[str | None, str]] = []

    def noted(*_: Any, **__: Any) -> None:
        seen.append((joined(), os.environ["RAY_TMPDIR"]))

    monkeypatch.setattr(rounds, "run_simulation", noted)
    rounds.measure(rounds.Federation(ours=False, clients=2, parameters=1, rounds=1))
    [(address, folder)] = seen
    assert address == "local"  # Ray's word for a new one
    assert folder != str(tmp_path)
    assert not Path(folder).exists()
    assert joined() == GONE  # and the environment is as it was
