"""A training's folder, before anything happened to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_trainings import PLAN
from stages import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.put_plan(PLAN)
    return made
