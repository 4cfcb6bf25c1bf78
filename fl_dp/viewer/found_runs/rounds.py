"""Rounds of a run, from the lines of `metrics.jsonl`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from fl_dp.tasks.metrics import MOST_CLASSES_OF_A_MATRIX, NUMBERS, Score

from .untrusted import Unreadable, number, opened, parsed_json, shown, texts

T = TypeVar("T")

METRICS = "metrics.jsonl"
_LONGEST_LINE = 1 << 16
_MOST_READ = 1 << 25  # 32 MiB: 100,000 rounds
_MOST_METRICS = 20


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round, as it was released; None is what a line does not say, or not as a finite number.

    Attributes:
        round: Its number; 0 is the model before training.
        expected_cohort: Expected clients of a round.
        test_loss: On public rows, mean cross-entropy in nats, or mean squared error.
        test_accuracy: On the same rows; None where the label is a number.
        metrics: Other metrics on the same rows that are one number, by name.
        confusion_matrix: On the same rows, counts of each true class by predicted class.
        classes: Names of these classes, as many as the matrix has rows; () where it has none.
        epsilon: Spent until then.
        bytes_down: Bytes of the arrays in a message to a client.
        bytes_up: Bytes of the arrays in its reply.
        next_clipping_norm: Under adaptive clipping, the norm that the next round clips to.
        clients: Clients' metrics that were released with the model, by name.
        is_evaluated: Whether the model was measured on public rows, be it to no finite number.
    """

    round: int
    expected_cohort: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    epsilon: float | None = None
    bytes_down: float | None = None
    bytes_up: float | None = None
    next_clipping_norm: float | None = None
    clients: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    confusion_matrix: tuple[tuple[int, ...], ...] | None = None
    classes: tuple[str, ...] = ()
    is_evaluated: bool = False

    @property
    def score(self) -> Score:
        """What the model is judged by."""
        return Score.of(self.test_accuracy, self.metrics)


@dataclass(frozen=True, kw_only=True)
class ReadRounds:
    """Rounds of a file.

    The last that was evaluated says how good the model is, until the next evaluation.

    Attributes:
        rounds: In their order.
        planned: Rounds of the plan, as the last line says; None if it does not.
        problems: Said to the reader, if something was left out.
    """

    rounds: tuple[Round, ...]
    planned: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def evaluated(self) -> Round | None:
        """The last round whose model was measured; None if there is none."""
        return last_evaluated(self.rounds)


def last_evaluated(rounds: Sequence[Round]) -> Round | None:
    """Return the last round whose model was measured; None if there is none."""
    return next((each for each in reversed(rounds) if each.is_evaluated), None)


def read_rounds(root: Path, name: str) -> ReadRounds:
    """Return the rounds of a run's folder, its last 32 MiB at most.

    Args:
        root: The folder that the user named.
        name: Of the run's folder below it.

    Raises:
        FileNotFoundError: If the run has no metrics yet.
        Unreadable: As `opened`.
        OSError: As `opened`.
    """
    with opened(root, f"{name}/{METRICS}") as stream:
        size = os.fstat(stream.fileno()).st_size
        problems = []
        if size > _MOST_READ:
            problems.append(f"{METRICS} has {size:,} bytes: only its last {_MOST_READ:,} are shown")
        found = rounds_of(_last_bytes(stream, size, _MOST_READ))
    return ReadRounds(
        rounds=found.rounds, planned=found.planned, problems=(*problems, *found.problems)
    )


def last_round(root: Path, name: str) -> ReadRounds:
    """Return the rounds from the last evaluated one on, from the end of the file.

    Otherwise as `read_rounds`.
    """
    with opened(root, f"{name}/{METRICS}") as stream:
        size = os.fstat(stream.fileno()).st_size
        for most in (1 << 12, _LONGEST_LINE):
            found = rounds_of(_last_bytes(stream, size, most), last_alone=True)
            if size <= most or (found.rounds and found.rounds[0].is_evaluated):
                break
    return found


def rounds_of(text: bytes, *, last_alone: bool = False) -> ReadRounds:
    """Return the rounds that complete lines tell of.

    Lines that are none are left out and counted; a line without its end is still being written.

    Args:
        text: Of `metrics.jsonl`.
        last_alone: Whether only the last lines are wanted, from an evaluated round on.
    """
    lines = text.split(b"\n")[:-1]
    rounds: list[Round] = []
    planned, broken = None, 0
    for line in reversed(lines):
        if not line.strip():
            continue
        read = _round(line)
        if read is None:
            broken += 1
            continue
        found, of_all = read
        planned = of_all if planned is None else planned
        # Read backwards, so of a round that was done again only the last line counts.
        if not rounds or found.round < rounds[-1].round:
            rounds.append(found)
        if last_alone and found.is_evaluated:
            break
    problems = (f"{METRICS} has {broken:,} lines that tell no round",) if broken else ()
    return ReadRounds(rounds=tuple(reversed(rounds)), planned=planned, problems=problems)


def thinned(rounds: Sequence[T], most: int) -> list[T]:
    """Return at most `most` rounds, or their points, evenly, the first and the last among them."""
    if len(rounds) <= most:
        return list(rounds)
    if most < 2:
        return [rounds[-1]][:most]
    step = (len(rounds) - 1) / (most - 1)
    return [rounds[round(index * step)] for index in range(most)]


def _round(line: bytes) -> tuple[Round, int | None] | None:
    """Return the round that a line tells of and how many are planned, or None if it tells none."""
    if len(line) > _LONGEST_LINE:
        return None
    try:
        said = parsed_json(line, METRICS)
    except Unreadable:
        return None
    if not isinstance(said, dict):
        return None
    of = _count(said.get("round"))
    if of is None:
        return None
    numbers = {name: number(said.get(name)) for name in _NUMBERS}
    clients = said.get("clients")
    matrix = _matrix(said.get("test_confusion_matrix"))
    classes = tuple(map(shown, texts(said.get("test_classes"))))
    found = Round(
        round=of,
        clients=_metrics(clients.items() if isinstance(clients, dict) else ()),
        metrics=_metrics((name, said.get(f"test_{name}")) for name in NUMBERS),
        confusion_matrix=matrix,
        classes=classes if len(classes) == len(matrix or ()) else (),
        is_evaluated=said.get("test_loss") is not None,
        **numbers,
    )
    return found, _count(said.get("rounds"))


_NUMBERS = (
    "expected_cohort",
    "test_loss",
    "test_accuracy",
    "epsilon",
    "bytes_down",
    "bytes_up",
    "next_clipping_norm",
)


def _metrics(pairs: Iterable[tuple[object, object]]) -> dict[str, float]:
    read = [(shown(str(name)), number(value)) for name, value in pairs]
    return {name: value for name, value in read[:_MOST_METRICS] if value is not None}


def _matrix(value: object) -> tuple[tuple[int, ...], ...] | None:
    """Return a square matrix of counts, and None for anything else."""
    if not isinstance(value, list) or not 1 < len(value) <= MOST_CLASSES_OF_A_MATRIX:
        return None
    rows = [tuple(map(_count, row)) if isinstance(row, list) else () for row in value]
    counts = tuple(tuple(each for each in row if each is not None) for row in rows)
    return counts if all(len(row) == len(value) for row in counts) else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**53 else None


def _last_bytes(stream: BinaryIO, size: int, most: int) -> bytes:
    """Return the last whole lines of a file."""
    start = max(size - most, 0)
    stream.seek(start)
    text = stream.read(most)
    # From the middle of a line, if that is where it begins.
    return text if start == 0 else text.partition(b"\n")[2]
