"""Facts for a run's papers: its statement, settings and last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fl_dp import __version__
from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.accounting.events import History
from fl_dp.accounting.trade_off import TradeOff, trade_off
from fl_dp.ledger import LedgerAnchor
from fl_dp.promise import is_promise, rounded_up
from fl_dp.statement import NoPromise, PrivacyStatement, RecordStatement
from fl_dp.statement.words import describe_event, neighbours_in_words
from fl_dp.tasks.public_scores import METRICS, Score
from fl_dp.viewer.found_runs import FoundRun, read_run
from fl_dp.viewer.found_runs.untrusted import Unreadable, parsed_json, read_whole

_FILE = "privacy.json"
_ON_HUBS = {"auc": "roc_auc", "r2": "r_squared"}
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
class Facts:
    """Facts of one run, its statement read strictly; templates know nothing else of it.

    Attributes:
        run: Its folder's contents, untrusted.
        statement: Its promise.
    """

    run: FoundRun
    statement: Promised | NoPromise

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read a run's folder.

        Raises:
            OSError: If it has no readable statement.
            ValueError: If its statement is not valid.
        """
        return cls(run=read_run(folder), statement=_statement(folder))

    @property
    def promise(self) -> Promised:
        """The promise that a paper rests on.

        Raises:
            ValueError: If there is none.
        """
        if isinstance(self.statement, NoPromise):
            raise ValueError(
                f"{self.run.card.name} promises nothing (privacy=none), so this paper has "
                "nothing to say: --format model-card says so to others"
            )
        if self.statement.insecure:
            raise ValueError(
                f"{self.run.card.name} had noise from a source that can be predicted, which is for "
                "tests: no paper can rest on it"
            )
        if not self.promises:
            raise ValueError(
                f"{self.run.card.name} promises nothing ({self.statement.guarantee}): no paper can "
                "rest on it"
            )
        return self.statement

    @property
    def promises(self) -> bool:
        """Whether there is a promise to rest on."""
        if isinstance(self.statement, NoPromise):
            return False
        return is_promise(self.statement.best_epsilon, insecure=self.statement.insecure)

    def setting(self, key: str) -> str:
        """A setting as text; `not known` if the settings can't be read."""
        value = self.run.settings.get(key)
        return "not known" if value is None else str(value)

    @property
    def metrics(self) -> list[tuple[str, str, float]]:
        """The last model's metrics on public rows, besides its score and loss.

        Each has its name on model hubs, its name in words, and its value.
        """
        others = [item for item in self.run.metrics.items() if item[0] != self.score.name]
        return [(_ON_HUBS.get(name, name), METRICS[name].title, value) for name, value in others]

    @property
    def score(self) -> Score:
        """The last model's score."""
        return self.run.card.score

    @property
    def score_on_hubs(self) -> str:
        """The score's name on model hubs."""
        return _ON_HUBS.get(self.score.name, self.score.name)

    version = __version__

    # Of the promise ------------------------------------------------------------------------------

    @property
    def of_clients(self) -> bool:
        """Whether the promise is to clients, not to records alone."""
        return isinstance(self.statement, PrivacyStatement)

    @property
    def epsilon(self) -> float | None:
        """The quoted bound, rounded up to four decimals; None without a finite one."""
        promise = self.promise
        if promise.quoted not in promise.epsilon:
            return None
        return float(rounded_up(promise.best_epsilon))

    @property
    def privacy_parameters(self) -> dict[str, float]:
        """Delta, and epsilon if one is known."""
        epsilon, delta = self.epsilon, self.promise.delta
        return {"delta": delta} if epsilon is None else {"epsilon": epsilon, "delta": delta}

    @property
    def guarantee(self) -> str:
        """The promise as one phrase, rounded up."""
        promise = self.promise
        if self.epsilon is None:
            return "no finite epsilon is known"
        guarantee = f"{promise.guarantee}, by the accountant '{promise.quoted}'"
        own = promise.own_budgets if isinstance(promise, PrivacyStatement) else None
        # The last group's is the statement's own.
        stricter = [
            f"{rounded_up(group.epsilon)} for {100 * group.share:.3g} % of the clients"
            for group in (own or ())[:-1]
        ]
        if stricter:
            guarantee += f" (epsilon {', '.join(stricter)})"
        return guarantee

    @property
    def neighbours(self) -> str:
        """The neighbouring relation in words."""
        promise, relation = self.promise, self.promise.neighboring_relation
        if isinstance(promise, RecordStatement):
            return f"{relation}: {promise.neighbours}"
        return f"{relation}: {neighbours_in_words(promise.unit, relation)}"

    @property
    def randomness(self) -> str:
        """Sources of noise and coins."""
        promise = self.promise
        if isinstance(promise, PrivacyStatement):
            return "; ".join(promise.randomness)
        return "drawn by each client"

    @property
    def releases(self) -> list[str]:
        """Charged events with their counts; empty for a promise to records alone."""
        promise = self.promise
        if not isinstance(promise, PrivacyStatement):
            return []
        return [f"{count} x {describe_event(event)}" for event, count in promise.releases]

    @property
    def trade_off(self) -> TradeOff | None:
        """The trade-off curve of everything in the promise; None where only epsilon is known.

        Only epsilon is known

        - where the budget is quoted,
        - where the run stopped before its last round, as earlier releases may have influenced that,
        - under secure sums, part of whose epsilon pays for shares that are no exact Gaussian,
        - where no distribution can be computed.
        """
        promise = self.promise
        if promise.quoted == "filter":
            return None
        if isinstance(promise, RecordStatement):
            step = PoissonGaussianEvent(
                noise_multiplier=promise.noise_multiplier, sampling_rate=promise.sampling_rate
            )
            history: History = {step: promise.steps * promise.participations_planned}
        elif promise.epsilon != promise.epsilon_so_far or promise.secure_sums is not None:
            return None
        else:
            history = promise.releases
        try:
            return trade_off(history, neighboring_relation=promise.neighboring_relation)
        except ValueError:
            return None

    @property
    def recognized(self) -> float | None:
        """Percentage of participants that an attacker identifies, at most, at 1 % false positives.

        None where only epsilon is known.
        """
        curve = self.trade_off
        return None if curve is None else 100.0 * float(curve(0.01))


def _statement(folder: Path) -> Promised | NoPromise:
    try:
        text = read_whole(folder, _FILE, most=_MOST)
        document = parsed_json(text, _FILE)
    except Unreadable as error:
        raise ValueError(f"{folder / _FILE} is no privacy statement: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{folder / _FILE} is no privacy statement: it holds no JSON object")
    if document.get("quoted") == "none" and not document.get("epsilon"):
        rounds = document.get("rounds")
        return NoPromise(rounds=rounds if isinstance(rounds, int) else 0)
    for name, fits in _KINDS.items():
        if not fits(document.get(name)):
            raise ValueError(
                f"{folder / _FILE} is no privacy statement: its '{name}' is of another kind"
            )
    if LedgerAnchor.from_statement(document) is None:
        return RecordStatement.from_dict(document)
    return PrivacyStatement.from_dict(document)
