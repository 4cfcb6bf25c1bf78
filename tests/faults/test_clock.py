"""A clock that jumps: neither a charge nor a time-out depends on what time it is."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from small_trainings import ROUNDS, grid
from soundness import require_sound
from stages import Place, train

from fl_dp.ledger import entries

YEAR = 365 * 86_400.0


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps_in_the_middle_changes_no_charge_and_ends_no_round(
    place: Place, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    true_time = time.time

    class Jumped(datetime.datetime):
        """The date after the jump."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.fromtimestamp(true_time() + years * YEAR, tz)

    def jump() -> None:
        monkeypatch.setattr(time, "time", lambda: true_time() + years * YEAR)
        monkeypatch.setattr(entries, "datetime", Jumped)

    train(grid(before_round=(2, jump)), place, rounds=ROUNDS - 1)
    assert require_sound(place) == (2, 2, 2)
    train(grid(), place, rounds=ROUNDS)  # opened, and dated, years away
    assert require_sound(place) == (3, 3, 3)
    monkeypatch.undo()  # and back
    assert require_sound(place) == (3, 3, 3)
