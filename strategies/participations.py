"""Participation cap of a plan: which units are left, told by names that outlast a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger import PrivacyLedger

from .rehearsal import Answers, named
from .roster import Unit, lasting_names, require_countable, unit_name


class Participations:
    """Count of each unit's participations, over all runs on one ledger.

    Without a cap nobody is counted, every check passes, and the ledger charges everybody.
    """

    def __init__(
        self,
        cap: int | None = None,
        *,
        units_per_node: int = 1,
        ledger: PrivacyLedger | None = None,
    ) -> None:
        """Count by the ledger, up to `cap`."""
        self._cap = cap
        self._units_per_node = units_per_node
        self._ledger = ledger if cap is not None else None
        self._names: dict[int, str] | None = None

    def require_countable(self) -> None:
        """Check, before anybody is asked, that earlier participations can be counted on.

        Raises:
            ValueError: If they were counted by ids of an earlier run.
        """
        require_countable(self._taken)

    def needs_everyone(self, first: Answers) -> bool:
        """Tell, by the first answers of a rehearsal, whether every node has to say its name."""
        return self._cap is not None and bool(self._taken or named(first))

    def recognise(self, answers: Answers, nodes: Sequence[int]) -> None:
        """Take in the names of nodes.

        Raises:
            RosterIncomplete: If names count and a node does not tell its own.
        """
        if self._cap is not None:
            self._names = lasting_names(answers, nodes, spoken_for=self._taken)

    def left(self, roster: list[Unit]) -> list[Unit]:
        """Return the units that may take part once more."""
        if self._cap is None:
            return roster
        if self._names is not None:  # who came later, or can't be told apart, takes no part
            roster = [unit for unit in roster if unit.node in self._names]
        taken = self._taken
        return [unit for unit in roster if taken.get(self._name(unit), 0) < self._cap]

    def require_some_left(self, roster: list[Unit]) -> None:
        """Check that not everybody is at the cap.

        Raises:
            PrivacyBudgetExhausted: If everybody is.
        """
        if roster and not self.left(roster):
            raise PrivacyBudgetExhausted(
                f"every client has taken part {self._cap} times, the plan's participation_cap"
            )

    def names_of(self, cohort: Iterable[Unit]) -> list[str] | None:
        """Return the names that the ledger charges a cohort under; None: it charges everybody."""
        return None if self._cap is None else [self._name(unit) for unit in cohort]

    @property
    def _taken(self) -> dict[str, int]:
        return {} if self._ledger is None else self._ledger.participations

    def _name(self, unit: Unit) -> str:
        return unit_name(unit, self._names or {}, self._units_per_node)
