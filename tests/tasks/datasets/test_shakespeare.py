"""The Shakespeare loader, on a made play in the texts' format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fl_dp.tasks.datasets.shakespeare import (
    LENGTH,
    MIN_CHARACTERS,
    STRIDE,
    VOCABULARY,
    speeches,
    windows_of,
)

PLAY = """THE MADE PLAY

by Nobody

PERSONS REPRESENTED.

ANN, a Queen.
Bob.

ACT I.

SCENE I. A heath.

[Enter ANN and
Bob.]

ANN.
Who's there?
Speak [aside] up.

Bob.
Nay.

FIRST WITCH.
Boil.

Ann.
Stand, ho!

[A noise.]

Go on.

SCENE II. The same.

This belongs to nobody.

Bob.
The end is not yet.
"""


def decode(tokens: Any) -> str:
    return "".join(VOCABULARY[token] for token in tokens)


def long_play(**lengths: Any) -> str:
    parts = ["ACT I.\n"]
    for role, length in lengths.items():
        line = (f"I am {role} and I speak on. " * length)[: length - 1]
        parts.append(f"\n{role.upper()}.\n{line}\n")
    return "".join(parts)


def test_each_role_s_lines_are_put_together() -> None:
    assert speeches(PLAY) == {
        "ANN": "Who's there?\nSpeak  up.\nStand, ho!\nGo on.\n",
        "BOB": "Nay.\nThe end is not yet.\n",
        "FIRST WITCH": "Boil.\n",
    }


def test_lines_may_end_as_on_windows() -> None:
    assert speeches(PLAY.replace("\n", "\r\n")) == speeches(PLAY)


def test_a_text_without_acts_has_no_roles() -> None:
    assert speeches("ANN.\nA sonnet.\n") == {}


def test_a_bracket_that_is_never_closed_removes_nothing() -> None:
    assert "BOB" in speeches(PLAY.replace("[A noise.]", "[A noise."))


def test_a_window_is_eighty_characters_and_the_next_is_its_label() -> None:
    dataset = windows_of({"made": long_play(ann=2000)})
    spoken = speeches(long_play(ann=2000))["ANN"]
    assert dataset.input_shape == (LENGTH,)
    for number in (0, 1, 7):
        start = number * STRIDE
        assert decode(dataset.train_x[number]) == spoken[start : start + LENGTH]
        assert VOCABULARY[dataset.train_y[number]] == spoken[start + LENGTH]


def test_no_test_window_holds_what_was_trained_on() -> None:
    text = "".join(chr(97 + (7 * i * i + i // 26) % 26) for i in range(4000))
    dataset = windows_of({"made": f"ACT I.\n\nANN.\n{text}\n"})
    cut = round(4001 * 0.85)
    assert decode(dataset.test_x[0]) == text[cut : cut + LENGTH]
    assert decode(dataset.test_x[1]) == text[cut + LENGTH : cut + 2 * LENGTH]
    last = (len(dataset.train_x) - 1) * STRIDE + LENGTH
    assert last < cut
    assert VOCABULARY[dataset.train_y[-1]] == text[last]


def test_clients_are_the_roles_that_speak_enough() -> None:
    plays = {
        "first": long_play(ann=MIN_CHARACTERS, bob=MIN_CHARACTERS - 1),
        "second": long_play(ann=3000),
    }
    dataset = windows_of(plays)
    assert dataset.client_names == ("first: ANN", "second: ANN")
    assert dataset.train_clients is not None
    windows = np.bincount(dataset.train_clients)
    assert windows.tolist() == [(850 - LENGTH - 1) // STRIDE + 1, (2550 - LENGTH - 1) // STRIDE + 1]
    assert len(dataset.train_clients) == len(dataset.train_x)


def test_plays_without_a_long_role_are_refused() -> None:
    with pytest.raises(ValueError, match="no role speaks 1000 characters"):
        windows_of({"made": PLAY})


def test_the_vocabulary_is_fixed_and_foreign_characters_are_spaces() -> None:
    text = "é\t" + "x" * 2000
    dataset = windows_of({"made": f"ACT I.\n\nANN.\n{text}\n"})
    assert len(VOCABULARY) == dataset.vocabulary_size == dataset.num_classes == 96
    assert decode(dataset.train_x[0][:3]) == "  x"
    assert len(set(VOCABULARY)) == 96
