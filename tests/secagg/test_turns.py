"""Turns at a node: what their text says, what is remembered, and which visits are charged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_terms import terms

from fl_dp.secagg import Refused, SQLiteStore, SumTerms
from fl_dp.secagg.turn import Turn
from fl_dp.secagg.turns import Turns, forget_turns

TRAINING = "0d" * 32
COLUMN = (4096, 2867, 2048)
PRICE = ("client zero-out", 1.5)


def turn(index: int = 5, **changes: Any) -> Turn:
    usual: dict[str, Any] = {
        "training": TRAINING,
        "index": index,
        "groups": 4,
        "coefficients": COLUMN,
        "dropped": {},
    }
    return Turn(**usual | changes)


def with_turn(**changes: Any) -> SumTerms:
    usual = {"sampling_rate": None, "turn": turn(dropped={3: (0, 4), 4: (1,)})}
    return terms(**usual | changes)


def test_terms_with_a_turn_survive_their_text_and_bind_all_of_it() -> None:
    made = with_turn()
    assert SumTerms.from_json(made.to_json()) == made
    others = [
        turn(index=6),
        turn(groups=5),
        turn(training="0e" * 32),
        turn(coefficients=(4096, 2867)),
        turn(dropped={4: (1,)}),
        turn(dropped={3: (0, 4), 4: (2,)}),
    ]
    hashes = {made.hash, terms(sampling_rate=None).hash}
    hashes |= {replace(made, turn=each).hash for each in others}
    assert len(hashes) == 2 + len(others)


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": 2},  # fewer than the bands: noise would reach the unit's next turn
        {"groups": 1, "coefficients": (4096,)},
        {"coefficients": (4096,)},
        {"coefficients": (4095, 1)},
        {"coefficients": (4096, 1.0)},
        {"coefficients": (4096, 2**41)},
        {"coefficients": (4096, 5, 0)},
        {"coefficients": (4096, *[1] * 1000), "groups": 5000},  # a disk full of rows
        {"index": -1},
        {"index": True},
        {"training": "0d"},
        {"dropped": {5: (1,)}},
        {"dropped": {2: (1,)}},  # of before the bands
        {"dropped": {4: (1,), 3: (1,)}},
        {"dropped": {4: (2, 1)}},
        {"dropped": {4: (-1,)}},
    ],
)
def test_a_turn_that_nothing_is_charged_for_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        turn(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_scale": 4.3},  # below twice the column's L1 norm
        {"noise_scale": 0.0, "least": 10},
        {"sampling_rate": 0.5},
    ],
)
def test_terms_refuse_turns_with_coins_or_too_little_noise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        with_turn(**wrong)
    assert with_turn(noise_scale=4.5).share.noise_scale == 4.5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"index":5', '"index":"5"'),
        lambda text: text.replace('"index":5', '"index":5.0'),
        lambda text: text.replace('"groups":4,', ""),
        lambda text: text.replace('"groups":4', '"groups":4,"more":1'),
        lambda text: text.replace('"dropped":[[3,[0,4]],[4,[1]]]', '"dropped":{}'),
        lambda text: text.replace('"dropped":[[3,[0,4]],[4,[1]]]', '"dropped":[[3]]'),
        lambda text: text.replace('"dropped":[[3,[0,4]],[4,[1]]]', '"dropped":[[3,1]]'),
        lambda text: text.replace("[4096,2867,2048]", "4096"),
        lambda text: text.replace('"turn":{', '"turn":[{'),
    ],
)
def test_another_text_of_a_turn_is_refused(spoil: Any) -> None:
    text = with_turn().to_json()
    assert spoil(text) != text
    with pytest.raises(ValueError):
        SumTerms.from_json(spoil(text))


def test_an_index_is_taken_once_and_in_order() -> None:
    store = SQLiteStore(None)
    for index in (0, 3, 7):
        Turns(store, 1, turn(index)).take(b"t" * 32)
    for index in (0, 3, 6, 7):
        with pytest.raises(Refused, match="over, or was answered"):
            Turns(store, 1, turn(index)).take(b"u" * 32)
    Turns(store, 2, turn(0)).take(b"t" * 32)  # in another run all noise is forgotten


def test_positions_stay_for_a_training_and_another_number_is_refused() -> None:
    store = SQLiteStore(None)
    first = Turns(store, 1, turn(0))
    first.check(3, 5)
    assert first.first == 2  # floor(3 * 4 / 5)
    first.take(b"t" * 32)
    forget_turns(store, 1)  # the training may go on
    store.forget(1)
    again = Turns(store, 2, turn(9))
    again.check(1, 7)  # another run, of other nodes
    assert again.first == 2
    with pytest.raises(Refused, match="had 4 positions, and now 5"):
        Turns(store, 2, turn(10, groups=5)).check(3, 5)
    other = Turns(store, 3, turn(0, training="0e" * 32, groups=5))
    other.check(0, 5)
    assert other.first == 0


def test_a_run_is_of_one_training() -> None:
    """In another one of other positions, a unit's next turn would come before noise has left."""
    store = SQLiteStore(None)
    Turns(store, 1, turn(0)).check(0, 5)
    for groups in (4, 5):
        other = Turns(store, 1, turn(1, training="0e" * 32, groups=groups))
        with pytest.raises(Refused, match="of another training"):
            other.check(0, 5)


def test_other_records_within_a_training_are_refused() -> None:
    store = SQLiteStore(None)
    Turns(store, 1, turn(0)).require_same_records("a")
    Turns(store, 2, turn(9)).require_same_records("a")
    with pytest.raises(Refused, match="not those that this training began with"):
        Turns(store, 2, turn(10)).require_same_records("b")
    Turns(store, 2, turn(0, training="0e" * 32)).require_same_records("b")


def test_ten_indices_of_four_positions_are_three_charges() -> None:
    store, charges = SQLiteStore(None), 0
    for index in range(10):
        turns = Turns(store, 1, turn(index))
        turns.check(0, 5)
        turns.take(b"t" * 32)
        if turns.costs(b"t" * 32, PRICE):
            charges += 1
            turns.charged(b"t" * 32, PRICE)
    assert charges == 3


@pytest.mark.parametrize(
    ("prices", "charged"),
    [
        ([("client", 2.0), ("client", 1.0)], [True, True]),  # the first did not pay for that noise
        ([("client", 1.0), ("client", 2.0)], [True, False]),
        ([("client", 1.0), ("record", 1.0)], [True, True]),
        (
            [("client", 1.0), ("client", 2.0), ("client", 1.0), ("client", 2.0)],
            [True] + [False] * 3,
        ),
    ],
)
def test_a_charge_pays_for_no_less_noise_and_nobody_else(
    prices: list[tuple[str, float]], charged: list[bool]
) -> None:
    """A lying server would have the first position pay for much noise, and ask all with little."""
    store, found = SQLiteStore(None), []
    for index, price in enumerate(prices):
        turns = Turns(store, 1, turn(index))
        turns.check(0, 5)
        found.append(turns.costs(b"t" * 32, price))
        if found[-1]:
            turns.charged(b"t" * 32, price)
    assert found == charged


@given(st.data())
def test_no_position_is_visited_more_often_than_was_charged(data: st.DataObject) -> None:
    """Over restarts of the server, crashes of the node between any two steps, lying indices, noise.

    Each visit needs a charge to itself of no more noise (Hall's condition at each level).
    """
    store, charges, run = SQLiteStore(None), list[float](), 1
    visits: dict[int, list[float]] = {position: [] for position in range(4)}
    last: Counter[int] = Counter()
    gone = set[int]()
    steps = ["sum"] * 6 + ["restart", "ends", "half", "crash", "crash 2"]
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(steps))
        if what == "restart":
            run += 1
        elif what in ("ends", "half"):
            if (over := data.draw(st.integers(1, run))) not in gone:
                forget_turns(store, over)
                if what == "ends" and over < run:  # else it died in between
                    store.forget(over)
                    gone.add(over)
        else:
            index = last[run] + data.draw(st.integers(0, 5))
            last[run] = index + 1
            turns = Turns(store, run, turn(index))
            turns.check(0, 5)
            turns.take(b"t" * 32)
            if what == "crash":
                continue
            multiplier = data.draw(st.sampled_from([1.0, 1.0, 2.0, 3.0]))
            if turns.costs(b"t" * 32, ("client", multiplier)):
                charges.append(multiplier)
                if what == "crash 2":
                    continue  # charged, and not noted
                turns.charged(b"t" * 32, ("client", multiplier))
            visits[index % 4].append(multiplier)
        for each in visits.values():
            for level in (1.0, 2.0, 3.0):
                assert sum(m <= level for m in charges) >= sum(m <= level for m in each)


def test_an_end_that_comes_twice_counts_once() -> None:
    store = SQLiteStore(None)

    def answered(run: int, index: int) -> bool:
        turns = Turns(store, run, turn(index))
        turns.check(0, 5)
        costs = turns.costs(b"t" * 32, PRICE)
        if costs:
            turns.charged(b"t" * 32, PRICE)
        return costs

    assert [answered(1, index) for index in (0, 4, 5)] == [True, True, False]
    for _ in range(2):
        forget_turns(store, 1)  # and the node dies before the run is gone
    # One visit of position 1 is paid for, and no third.
    assert [answered(2, index) for index in (1, 5, 9)] == [False, True, True]


def test_a_client_is_told_by_its_place() -> None:
    told = turn(dropped={3: (0, 4), 4: (1, 4)})
    assert [told.forgotten_by(place) for place in (0, 1, 2, 4)] == [[3], [4], [], [3, 4]]
    assert [turn(index).position for index in range(6)] == [0, 1, 2, 3, 0, 1]
