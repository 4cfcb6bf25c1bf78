"""Run that a paper is about: its statement, its settings and its last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fl_dp.ledger import LedgerAnchor
from fl_dp.statement import NoPromise, PrivacyStatement, RecordStatement
from fl_dp.statement.words import ceiling, neighbours_in_words, rounded_up
from fl_dp.viewer.found_runs import FoundRun, read_run
from fl_dp.viewer.found_runs.untrusted import Unreadable, parsed_json, read_whole

_FILE = "privacy.json"
_MOST = 1 << 23


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


# Of what papers write; a statement may have been edited by hand.
_KINDS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("unit", "adversary", "trusted", "mechanism", "rule", "quoted"), _is_text),
    **dict.fromkeys(("delta", "clipping_norm", "num_clients"), _is_number),
    **dict.fromkeys(("epsilon", "epsilon_so_far"), _are_numbers),
    "not_covered": _are_texts,
}

Promised: TypeAlias = PrivacyStatement | RecordStatement


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One run, its statement read strictly.

    Attributes:
        run: What its folder holds.
        statement: What it promises.
    """

    run: FoundRun
    statement: Promised | NoPromise

    @classmethod
    def read(cls, folder: Path) -> Subject:
        """Read a run's folder.

        Raises:
            OSError: If it has no statement that can be read.
            ValueError: If its statement is none of ours.
        """
        return cls(run=read_run(folder), statement=_statement(folder))

    @property
    def promise(self) -> Promised:
        """What is promised.

        Raises:
            ValueError: If nothing is.
        """
        if isinstance(self.statement, NoPromise):
            raise ValueError(
                f"{self.run.card.name} promises nothing (privacy.mode=none), so this paper has "
                "nothing to say: --format model-card says so to others"
            )
        if self.statement.insecure:
            raise ValueError(
                f"{self.run.card.name} had noise from a source that can be predicted, which is for "
                "tests: no paper can rest on it"
            )
        return self.statement

    def setting(self, key: str) -> str:
        """Return a setting as text; `not known` if the settings can't be read."""
        value = self.run.settings.get(key)
        return "not known" if value is None else str(value)


def guarantee(statement: Promised) -> str:
    """Return the promise as one phrase, rounded up."""
    if statement.quoted not in statement.epsilon:
        return "no finite epsilon is known"
    return (
        f"epsilon {rounded_up(statement.best_epsilon)} at delta {ceiling(statement.delta, 3)}, by "
        f"the accountant '{statement.quoted}'"
    )


def neighbours(statement: Promised) -> str:
    """Return which data are neighbours, in words."""
    if isinstance(statement, RecordStatement):
        return f"{statement.neighboring_relation}: {statement.neighbours}"
    relation = statement.neighboring_relation
    return f"{relation}: {neighbours_in_words(statement.unit, relation)}"


def _statement(folder: Path) -> Promised | NoPromise:
    try:
        text = read_whole(folder, _FILE, most=_MOST)
        said = parsed_json(text, _FILE)
    except Unreadable as error:
        raise ValueError(f"{folder / _FILE} is no privacy statement: {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f"{folder / _FILE} is no privacy statement: it holds no JSON object")
    if said.get("quoted") == "none" and not said.get("epsilon"):
        rounds = said.get("rounds")
        return NoPromise(rounds=rounds if isinstance(rounds, int) else 0)
    for name, fits in _KINDS.items():
        if not fits(said.get(name)):
            raise ValueError(
                f"{folder / _FILE} is no privacy statement: its '{name}' is of another kind"
            )
    of_clients = LedgerAnchor.stated_in(said) is not None
    return (PrivacyStatement if of_clients else RecordStatement).from_dict(said)
