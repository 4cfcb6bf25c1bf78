"""The Shakespeare loader, on a made play in the texts' format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.datasets.held_out import of_clients, with_public_part, with_validation_part
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


PLAYS = {
    "hamlet": long_play(ann=3000, bob=2000),
    "lear": long_play(ann=2500, cyd=2200),
    "tempest": long_play(dan=2800),
}


def windows(dataset: Any) -> set[bytes]:
    """Every window, with the character after it, of training and test part."""
    return {
        x.tobytes() + bytes([y])
        for part in ("train", "test")
        for x, y in zip(getattr(dataset, f"{part}_x"), getattr(dataset, f"{part}_y"), strict=True)
    }


def roles_of(dataset: Dataset, part: str = "train") -> set[str]:
    return {dataset.client_names[k] for k in getattr(dataset, f"{part}_clients")}


def test_public_plays_and_private_ones_share_no_client_and_no_window() -> None:
    whole = windows_of(PLAYS)
    public, private = of_clients(whole, ["hamlet: *"]), of_clients(whole, ["!hamlet: *"])
    clients = [roles_of(each) for each in (public, private)]
    assert clients[0] == {"hamlet: ANN", "hamlet: BOB"}
    assert clients[1] == {"lear: ANN", "lear: CYD", "tempest: DAN"}
    # "I am ann" is said in two plays: each has the windows that its own play alone gives.
    assert windows(public) == windows(windows_of({"hamlet": PLAYS["hamlet"]}))
    others = windows_of({play: text for play, text in PLAYS.items() if play != "hamlet"})
    assert windows(private) == windows(others)
    assert windows(private) != windows(whole)  # so it would be seen
    for part in ("train_y", "test_y"):
        sizes = [len(getattr(each, part)) for each in (public, private, whole)]
        assert min(sizes) and sizes[0] + sizes[1] == sizes[2]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["lear: *", "tempest: *"], {"lear: ANN", "lear: CYD", "tempest: DAN"}),
        (["*: ANN", "!hamlet: *"], {"lear: ANN"}),
        (["lear: C?D"], {"lear: CYD"}),
    ],
)
def test_clients_are_chosen_by_their_names(patterns: list[str], left: set[str]) -> None:
    dataset = of_clients(windows_of(PLAYS), patterns)
    assert roles_of(dataset) == roles_of(dataset, "test") == left
    divided = with_public_part(with_validation_part(dataset), 3)
    assert roles_of(divided) | roles_of(divided, "test") == left
    assert divided.test_clients is not None
    assert len(divided.test_clients) == len(divided.test_y)


@pytest.mark.parametrize("patterns", [["Hamlet: *"], ["!macbeth: *"], ["!*"]])
def test_clients_that_are_not_there_are_refused(patterns: list[str]) -> None:
    with pytest.raises(ValueError, match=r"task\.clients"):
        of_clients(windows_of(PLAYS), patterns)


def test_the_vocabulary_is_fixed_and_foreign_characters_are_spaces() -> None:
    text = "é\t" + "x" * 2000
    dataset = windows_of({"made": f"ACT I.\n\nANN.\n{text}\n"})
    assert len(VOCABULARY) == dataset.vocabulary_size == dataset.num_classes == 96
    assert decode(dataset.train_x[0][:3]) == "  x"
    assert len(set(VOCABULARY)) == 96
