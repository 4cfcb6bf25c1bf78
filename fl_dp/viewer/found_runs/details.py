"""One run with the contents of its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_dp.documents import flattened

from .cards import RunCard
from .follow import ReadPosition, follow_log
from .rounds import Round, last_evaluated, read_rounds
from .untrusted import (
    Unreadable,
    number,
    opened,
    parsed_json,
    parsed_yaml,
    problems_noted,
    read_object,
    read_whole,
    shown,
)

_MOST_SETTINGS = 1 << 18
_MOST_DOCUMENT = 1 << 23
_MOST_ROWS = 200
_DOCUMENTS = (
    "privacy.json",
    "statistic.json",
    "audit.json",
    "summary.json",
    "private_metrics.json",
)


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """One run, as far as its files can be read; nothing in it is trusted.

    Attributes:
        settings: All of `config.yaml` by keys such as `task.name`; empty if it can't be read.
        rounds: Rounds of `metrics.jsonl`.
        statement: `privacy.json`; None if it can't be read.
        documents: Other JSON files of the run by name, for example `audit.json`.
        parameters: Number of the model's parameters, from its file's head; None if unknown.
        log: The last lines of the operator's log, which is not released.
        problems: What could not be read, in words.
    """

    card: RunCard
    settings: Mapping[str, Any]
    rounds: tuple[Round, ...]
    statement: Mapping[str, Any] | None
    documents: Mapping[str, Mapping[str, Any]]
    parameters: int | None
    log: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def noise_multipliers(self) -> list[float | None]:
        """Noise multiplier of each charged round, as the statement lists them."""
        values = (self.statement or {}).get("noise_multipliers")
        return [number(value) for value in values] if isinstance(values, list) else []

    @property
    def accuracy(self) -> float | None:
        """The last evaluated model's accuracy; None if the label is a number."""
        return None if self.evaluated is None else self.evaluated.test_accuracy

    @property
    def evaluated(self) -> Round | None:
        """The last round whose model was measured on public rows, if any."""
        return last_evaluated(self.rounds)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last evaluated model's metrics, besides accuracy and loss."""
        return {} if self.evaluated is None else self.evaluated.metrics

    @property
    def answer(self) -> list[tuple[str, float | None, float | None]]:
        """Rows of a statistic's answer: name, private value and error."""
        rows = self.documents.get("statistic.json", {}).get("rows")
        if not isinstance(rows, list):
            return []
        valid = [row for row in rows[:_MOST_ROWS] if isinstance(row, list) and len(row) == 3]
        return [(shown(str(name)), number(value), number(error)) for name, value, error in valid]

    @property
    def failed(self) -> bool:
        """Whether the log ends in an exception of the run."""
        return any("the run failed" in line for line in self.log)


def found_run(root: Path, card: RunCard) -> FoundRun:
    """A listed run of the folder `root`, with its files."""
    name, problems = card.name, list(card.problems)
    settings: dict[str, Any] = {}
    rounds: tuple[Round, ...] = ()
    with problems_noted(problems):
        text = read_whole(root, f"{name}/config.yaml", most=_MOST_SETTINGS)
        read = parsed_yaml(text, "config.yaml")
        if not isinstance(read, dict):
            raise Unreadable("config.yaml has no settings")
        settings = flattened(read)
    with problems_noted(problems, may_lack=True):  # before the first round
        of_file = read_rounds(root, name)
        rounds = of_file.rounds
        problems += of_file.problems
    documents: dict[str, dict[str, Any]] = {}
    for file in _DOCUMENTS:
        with problems_noted(problems, may_lack=True):
            documents[file] = read_object(root, f"{name}/{file}", most=_MOST_DOCUMENT)
    unique_problems = tuple(dict.fromkeys(problems))
    return FoundRun(
        card=replace(card, problems=unique_problems),
        settings=settings,
        rounds=rounds,
        statement=documents.pop("privacy.json", None),
        documents=documents,
        parameters=_parameters(root, name),
        log=_log(root, name),
        problems=unique_problems,
    )


def _parameters(root: Path, name: str) -> int | None:
    """Number of parameters in a safetensors file, by its head."""
    try:
        with opened(root, f"{name}/model.safetensors") as stream:
            length = int.from_bytes(stream.read(8), "little")
            head = parsed_json(stream.read(min(length, _MOST_SETTINGS)), "model.safetensors")
        shapes = [tensor["shape"] for key, tensor in head.items() if key != "__metadata__"]
        total = sum(math.prod(map(int, shape)) for shape in shapes)
    except (OSError, Unreadable, AttributeError, KeyError, TypeError, ValueError):
        return None
    return total if 0 < total < 2**53 else None


def _log(root: Path, name: str) -> tuple[str, ...]:
    try:
        return follow_log(root, name, ReadPosition()).lines
    except (OSError, Unreadable):
        return ()
