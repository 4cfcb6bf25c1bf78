"""Door of the dashboard: the token alone opens it, and guessing is hopeless."""

from __future__ import annotations

import pytest

from fl_dp.viewer.dashboard.access import (
    MOST_WRONG_OF_ALL,
    MOST_WRONG_OF_AN_ADDRESS,
    SESSION_SECONDS,
    WINDOW_SECONDS,
    Door,
    TooManyGuesses,
    WrongToken,
    check_token,
    new_token,
)

TOKEN = "correct horse battery staple"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(door: Door, token: str, address: str) -> type[Exception] | None:
    try:
        door.check(token, address)
    except (WrongToken, TooManyGuesses) as error:
        return type(error)
    return None


def test_the_token_is_known_and_others_are_not() -> None:
    door = Door(token=TOKEN)
    assert refused(door, TOKEN, "a") is None
    for wrong in ("", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), "\udc80", "密码" * 20):
        assert refused(door, wrong, "a") is WrongToken


def test_of_10_000_wrong_tokens_ten_are_compared_and_then_not_even_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr("fl_dp.viewer.dashboard.access.hmac.compare_digest", compare)
    clock = Clock()
    door = Door(token=TOKEN, now=clock)
    outcomes = [refused(door, f"guess {n}", "a") for n in range(10_000)]
    assert outcomes.count(WrongToken) == len(compared) == MOST_WRONG_OF_AN_ADDRESS
    assert refused(door, TOKEN, "a") is TooManyGuesses
    clock.now += WINDOW_SECONDS
    assert refused(door, TOKEN, "a") is None


def test_guesses_from_many_addresses_are_counted_together() -> None:
    door = Door(token=TOKEN, now=Clock())
    outcomes = [refused(door, f"guess {n}", f"2001:db8::{n:x}") for n in range(10_000)]
    assert outcomes.count(WrongToken) == MOST_WRONG_OF_ALL


def test_a_guesser_does_not_lock_out_another_address_or_an_open_session() -> None:
    door = Door(token=TOKEN, now=Clock())
    session = door.open_session()
    for n in range(2 * MOST_WRONG_OF_AN_ADDRESS):
        refused(door, f"guess {n}", "attacker")
    assert refused(door, TOKEN, "owner") is None
    assert door.knows(session)


def test_a_session_ends_with_its_time_or_when_it_is_closed() -> None:
    clock = Clock()
    door = Door(token=TOKEN, now=clock)
    first, second = door.open_session(), door.open_session()
    door.close_session(first)
    assert not door.knows(first)
    assert door.knows(second)
    clock.now += SESSION_SECONDS
    assert not door.knows(second)
    assert not door.knows("")


def test_sessions_do_not_pile_up() -> None:
    door = Door(token=TOKEN)
    sessions = [door.open_session() for _ in range(150)]
    assert sum(door.knows(each) for each in sessions) == 100
    assert door.knows(sessions[-1])


def test_neither_token_nor_session_is_in_what_a_log_would_show() -> None:
    door = Door(token=TOKEN)
    session = door.open_session()
    assert TOKEN not in repr(door)
    assert session not in repr(door)
    assert session not in repr(vars(door))  # only its digest is kept


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "ümlaut" * 5, "with\nnewline and more"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="at least 16"):
        check_token(token)


def test_new_tokens_are_long_and_different() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(check_token(token) == token and len(token) >= 32 for token in tokens)
