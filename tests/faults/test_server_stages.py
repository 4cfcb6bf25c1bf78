"""SIGKILL to the server's process at each stage of a round, and the process after it.

On a real SuperLink: test_real_nodes.py.
"""

from __future__ import annotations

import signal

import pytest
from small_trainings import BUFFERED, ROUNDS, grid, in_a_process, named_grid
from soundness import require_sound, require_sound_buffers
from stages import STAGES, Place, train

from fl_dp.accounting import PrivacyBudgetExhausted

DIES_IN = 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_is_killed_goes_on_and_pays_for_what_may_have_got_out(
    place: Place, stage: str
) -> None:
    place.die_at(stage, DIES_IN)
    killed = in_a_process(lambda: train(grid(), place, rounds=ROUNDS))
    assert killed == -signal.SIGKILL
    before = require_sound(place)
    lost = before.charged - (DIES_IN - 1) if stage != STAGES[-1] else 0
    assert before.charged == (DIES_IN - 1 if stage == STAGES[0] else DIES_IN)

    train(grid(), place, rounds=ROUNDS)  # the same call, nothing else
    after = require_sound(place)
    assert after.charged == ROUNDS
    # Each round once; the one that was lost is charged, and the budget ends a round earlier.
    last = ROUNDS - lost
    assert [line["round"] for line in place.shown()][-1] == last
    assert after.committed == after.charged - (stage in STAGES[1:5])


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_of_buffers_that_is_killed_goes_on_and_uses_no_number_twice(
    place: Place, stage: str
) -> None:
    place.put_plan(BUFFERED)
    place.die_at(stage, DIES_IN)
    assert in_a_process(lambda: train(named_grid(), place, rounds=ROUNDS)) == -signal.SIGKILL
    before = require_sound_buffers(place)
    train(named_grid(), place, rounds=ROUNDS)
    after = require_sound_buffers(place)
    assert after[: len(before)] == before and len(after) > len(before)
    charged, committed, shown = require_sound(place)
    assert charged == ROUNDS and committed == charged - (stage in STAGES[1:5])
    assert shown == committed - (stage == STAGES[5])


def test_killed_again_and_again_the_budget_still_ends_the_training(place: Place) -> None:
    for _ in range(ROUNDS):
        place.die_at(STAGES[1], 1)
        assert in_a_process(lambda: train(grid(), place, rounds=ROUNDS)) == -signal.SIGKILL
    assert require_sound(place) == (ROUNDS, 0, 0)
    with pytest.raises(PrivacyBudgetExhausted, match=r"the ledger .* is spent \(epsilon"):
        train(grid(), place, rounds=ROUNDS)
    assert require_sound(place) == (ROUNDS, 0, 0)
