"""Rounds of a run, from the lines of `metrics.jsonl`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from fl_dp.guarantee import Guarantee
from fl_dp.tasks.public_scores import MOST_CLASSES_OF_A_MATRIX, NUMBERS, Score

from .untrusted import Unreadable, number, opened, parsed_json, shown, texts

T = TypeVar("T")

METRICS = "metrics.jsonl"
_LONGEST_LINE = 1 << 16
_MOST_READ = 1 << 25  # 32 MiB: 100,000 rounds
_MOST_METRICS = 20


@dataclass(frozen=True, kw_only=True)
class Round:
    """One released round; None is what a line lacks, or no finite number.

    Attributes:
        round: Its number; 0 is the model before training.
        expected_cohort: Expected number of clients.
        test_loss: Loss on public rows: mean cross-entropy in nats, or mean squared error.
        test_accuracy: Accuracy on the same rows; None if the label is a number.
        metrics: Other metrics on the same rows that are one number.
        confusion_matrix: Counts of each true class by predicted class, on the same rows.
        classes: Names of these classes, one per row of the matrix; () without it.
        epsilon: Spent so far.
        promise: All that epsilon means nothing without, with the budget; None: no such part.
        measured_on: The public rows, `test` or `validation`.
        bytes_down: Bytes of the arrays in a message to a client.
        bytes_up: Bytes of the arrays in its reply.
        next_clipping_norm: That of the next round, if adaptive.
        clients: Clients' metrics that were released with the model.
        is_evaluated: Whether the model was measured on public rows, even if the loss is not
            finite.
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
    promise: Guarantee | None = None
    measured_on: str = "test"

    @property
    def score(self) -> Score:
        """The model's score."""
        return Score.of(self.test_accuracy, self.metrics, self.measured_on)


@dataclass(frozen=True, kw_only=True)
class ReadRounds:
    """Rounds of a file, in order.

    Attributes:
        planned: Planned number by the last line; None if it has none.
        problems: What was left out, in words.
    """

    rounds: tuple[Round, ...]
    planned: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def evaluated(self) -> Round | None:
        """The last round whose model was measured, if any."""
        return last_evaluated(self.rounds)


def last_evaluated(rounds: Sequence[Round]) -> Round | None:
    """The last round whose model was measured, if any."""
    return next((point for point in reversed(rounds) if point.is_evaluated), None)


def read_rounds(root: Path, name: str) -> ReadRounds:
    """Rounds of a run, a folder below `root`, from its last 32 MiB at most.

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
        read = rounds_of(_last_bytes(stream, size, _MOST_READ))
    return replace(read, problems=(*problems, *read.problems))


def last_round(root: Path, name: str) -> ReadRounds:
    """Rounds from the last evaluated one on, from the end of the file.

    Errors are those of `read_rounds`.
    """
    with opened(root, f"{name}/{METRICS}") as stream:
        size = os.fstat(stream.fileno()).st_size
        for most in (1 << 12, _LONGEST_LINE):
            read = rounds_of(_last_bytes(stream, size, most), last_alone=True)
            if size <= most or (read.rounds and read.rounds[0].is_evaluated):
                break
    return read


def rounds_of(text: bytes, *, last_alone: bool = False) -> ReadRounds:
    """Rounds of complete lines; a last line without its end is still being written.

    Invalid lines are left out and counted. `last_alone` returns only the last rounds, from an
    evaluated one on.
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
        point, num_rounds = read
        if planned is None:
            planned = num_rounds
        # Read backwards, so of a round that was done again only the last line counts.
        if not rounds or point.round < rounds[-1].round:
            rounds.append(point)
        if last_alone and point.is_evaluated:
            break
    problems = (f"{METRICS} has {broken:,} lines that tell no round",) if broken else ()
    return ReadRounds(rounds=tuple(reversed(rounds)), planned=planned, problems=problems)


def thinned(rounds: Sequence[T], most: int) -> list[T]:
    """At most `most` items, evenly, including the first and last."""
    if len(rounds) <= most:
        return list(rounds)
    if most < 2:
        return [rounds[-1]][:most]
    step = (len(rounds) - 1) / (most - 1)
    return [rounds[round(index * step)] for index in range(most)]


def _round(line: bytes) -> tuple[Round, int | None] | None:
    """A line's round and the planned number of rounds; None without a round."""
    if len(line) > _LONGEST_LINE:
        return None
    try:
        document = parsed_json(line, METRICS)
    except Unreadable:
        return None
    if not isinstance(document, dict):
        return None
    round_number = _count(document.get("round"))
    if round_number is None:
        return None
    numbers = {name: number(document.get(name)) for name in _NUMBERS}
    clients = document.get("clients")
    matrix = _matrix(document.get("test_confusion_matrix"))
    classes = tuple(map(shown, texts(document.get("test_classes"))))
    if len(classes) != len(matrix or ()):
        classes = ()
    point = Round(
        round=round_number,
        clients=_metrics(clients.items() if isinstance(clients, dict) else ()),
        metrics=_metrics((name, document.get(f"test_{name}")) for name in NUMBERS),
        confusion_matrix=matrix,
        classes=classes,
        is_evaluated=document.get("test_loss") is not None,
        promise=Guarantee.read(document.get("promise")),
        measured_on="validation" if document.get("measured_on") == "validation" else "test",
        **numbers,
    )
    return point, _count(document.get("rounds"))


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
    """A square matrix of counts; None for anything else."""
    if not isinstance(value, list) or not 1 < len(value) <= MOST_CLASSES_OF_A_MATRIX:
        return None
    rows = []
    for row in value:
        counts = list(map(_count, row)) if isinstance(row, list) else []
        rows.append(tuple(count for count in counts if count is not None))
    return tuple(rows) if all(len(row) == len(value) for row in rows) else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**53 else None


def _last_bytes(stream: BinaryIO, size: int, most: int) -> bytes:
    """The last whole lines of a file."""
    start = max(size - most, 0)
    stream.seek(start)
    text = stream.read(most)
    # From the middle of a line, if that is where it begins.
    return text if start == 0 else text.partition(b"\n")[2]
