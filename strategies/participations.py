"""Participation cap of a plan: which units are left, told by names that outlast a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger import PrivacyLedger

from .rehearsal import Answers, named
from .roster import Unit, lasting_names, require_countable, unit_name


class Participations:
    """Participations without a cap: nobody is counted and everybody may take part again."""

    def require_countable(self) -> None:
        """Check, before anybody is asked, that earlier participations can be counted on."""

    def needs_everyone(self, first: Answers) -> bool:
        """Tell, by the first answers of a rehearsal, whether every node has to say its name."""
        return False

    def recognise(self, answers: Answers, nodes: Sequence[int]) -> None:
        """Take in the names of nodes."""

    def left(self, roster: list[Unit]) -> list[Unit]:
        """Return the units that may take part once more."""
        return roster

    def require_some_left(self, roster: list[Unit]) -> None:
        """Check that not everybody is at the cap."""

    def names_of(self, cohort: Iterable[Unit]) -> list[str] | None:
        """Return the names that the ledger charges a cohort under; None: it charges everybody."""
        return None


class CappedParticipations(Participations):
    """At most so many participations for each unit, over all runs on one ledger."""

    def __init__(self, cap: int, *, units_per_node: int, ledger: PrivacyLedger) -> None:
        """Count by the ledger."""
        self._cap = cap
        self._units_per_node = units_per_node
        self._ledger = ledger
        self._names: dict[int, str] | None = None

    def require_countable(self) -> None:
        """Check that the ledger counts by names.

        Raises:
            ValueError: If it counts by ids of an earlier run.
        """
        require_countable(self._ledger.participations)

    def needs_everyone(self, first: Answers) -> bool:
        """Tell whether names count: somebody told one, or the ledger knows some."""
        return bool(self._ledger.participations or named(first))

    def recognise(self, answers: Answers, nodes: Sequence[int]) -> None:
        """Take in the names of nodes.

        Raises:
            RosterIncomplete: If a node does not tell its name.
        """
        self._names = lasting_names(answers, nodes, spoken_for=self._ledger.participations)

    def left(self, roster: list[Unit]) -> list[Unit]:
        """Return the units below the cap."""
        if self._names is not None:  # who came later, or can't be told apart, takes no part
            roster = [unit for unit in roster if unit.node in self._names]
        taken = self._ledger.participations
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

    def names_of(self, cohort: Iterable[Unit]) -> list[str]:
        """Return the names that the ledger charges."""
        return [self._name(unit) for unit in cohort]

    def _name(self, unit: Unit) -> str:
        return unit_name(unit, self._names or {}, self._units_per_node)
