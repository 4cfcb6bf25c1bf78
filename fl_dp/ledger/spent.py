"""What a training has spent, as its ledger tells: to look at, with no way to spend more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Self

from fl_dp.accounting import (
    EpsilonBounds,
    PrivacyEvent,
    freeze,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.promise import Enforcement

from .chain import ChainedLedger
from .entries import ANOTHER_VERSION, LedgerCorrupted
from .state import Choice, Reservation, TrainingState
from .store import LedgerStore
from .witness import Witness


class SpentLedger(ChainedLedger):
    """The spending of one plan, to look at. Open it with `read`."""

    first_entry = "plan"

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `read` instead."""
        super().__init__(store, witness)
        self._state = TrainingState()

    @classmethod
    def read(cls, location: str | Path, *, witness: Witness | None = None) -> Self:
        """Open a ledger as `ChainedLedger.read`, and check that its budget pays for its releases.

        Raises:
            LedgerCorrupted: As there, or if more was reserved than the plan's rule admits.
        """
        ledger = super().read(location, witness=witness)
        try:
            ledger._require_paid()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _require_paid(self) -> None:
        """Check that no release is beyond the budget, which no promise is above."""
        gate = self.plan.filter(room=1.0 + ANOTHER_VERSION)
        for event in Counter(dict(self.history)).elements():
            if gate.would_exceed(event):
                budget = self.plan.budget
                raise LedgerCorrupted(
                    f"the entries of {self.location} spend more than epsilon {budget.epsilon:.4g} "
                    f"at delta {budget.delta:.3g}, which no ledger of that plan allows: it was "
                    "written by nobody's ledger"
                )
            gate.spend(event)

    @property
    def plan(self) -> Plan:
        """The plan that the ledger was started with."""
        return self._state.plan

    @property
    def rounds_spent(self) -> int:
        """Rounds that were reserved, whether or not they were committed."""
        return self._state.rounds.total()

    @property
    def rounds_committed(self) -> int:
        """Rounds whose release is known to have happened."""
        return sum(self._state.reserved[each].index is not None for each in self._state.committed)

    @property
    def other_releases_spent(self) -> int:
        """Releases besides the rounds that were reserved."""
        return self._state.others.total()

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multiplier of each reserved round, in the order of their reservation."""
        return tuple(self._state.multipliers)

    @property
    def participations(self) -> dict[str, int]:
        """Rounds of each unit, as far as rounds said so; as private as the cohorts."""
        return dict(self._state.participations)

    def has_participations_left(self, unit: str, noise_multiplier: float) -> bool:
        """Tell whether a unit may take part in a round of that noise, as far as a cap allows."""
        return self._state.has_participations_left(unit, self.plan.cap_share(noise_multiplier))

    @property
    def counts(self) -> dict[str, int]:
        """Rounds in which each unit could take part: its own, or those that were its group's turn.

        Of groups, as public as these: the ledger does not know how often a unit's coin came up.
        """
        law = self.plan.sampling
        if not law.takes_turns:
            return self.participations
        turns = Counter(law.group_at(index) for index in range(self.rounds_spent))
        return {unit: turns[group] for unit, group in self._state.group_of.items()}

    @property
    def last_index(self) -> dict[str, int]:
        """The last index at which each unit took part, as far as rounds said so."""
        return dict(self._state.last_index)

    @property
    def asked(self) -> dict[str, int]:
        """The index at which each unit was asked whose answer to a buffer has not arrived."""
        return dict(self._state.asks.asked)

    @property
    def group_of(self) -> dict[str, int]:
        """The group of each unit, where there are groups; public."""
        return dict(self._state.group_of)

    @property
    def enforcement(self) -> Enforcement:
        """What the promise holds by at all nodes that were asked, as each round's answers say."""
        return self._state.enforcement

    @property
    def randomness(self) -> frozenset[str]:
        """Every source of randomness that the ledger was opened with."""
        return frozenset(self._state.randomness)

    @property
    def insecure(self) -> bool:
        """Whether noise may have come from a source that an adversary can predict."""
        return self._state.randomness != {SecureRandom.SECURE_KIND}

    @property
    def choice(self) -> Choice | None:
        """How the hyper-parameters were chosen, where the ledger knows; None: unknown."""
        return self._state.choice

    @property
    def trained_as_chosen(self) -> bool:
        """Whether the ledger knows the choice, and every opening since had the chosen settings."""
        return self._state.choice is not None and not self._state.changed_by_hand

    def reservation_of(self, what: str) -> Reservation | None:
        """Return the last reservation of that name, whether or not it was committed."""
        named = [each for each in self._state.reserved.values() if each.what == what]
        return named[-1] if named else None

    @property
    def rule(self) -> str:
        """The rule that decides whether a release still fits."""
        return self._state.gate.rule

    @property
    def history(self) -> FrozenHistory:
        """Every release that one unit is charged for so far.

        Under a participation cap that is the cap's worth of rounds, for all clients alike: how
        often a single unit did is private itself. Where units take turns it is one unit's turns.
        """
        counted: Counter[PrivacyEvent] = Counter()
        for event, count in self._state.rounds.items():
            counted[self.plan.charged_event(event)] += count
        # Different events have no turns: the plan refuses them.
        rounds = {event: self.plan.charged_of(count) for event, count in counted.items()}
        return freeze([*rounds.items(), *self._state.others.items()])

    def epsilon(self) -> EpsilonBounds:
        """Return what every reserved release spends together, at the plan's delta."""
        return self.plan.epsilon(self.history)

    def promise(self) -> EpsilonBounds:
        """Return what holds wherever the training may have been stopped.

        While planned releases are missing that is the whole plan's epsilon, and not what is spent
        so far: a stop that depends on what was released uses the rest of the plan, too. Never
        more than the budget, which no release exceeds.
        """
        spent = self.epsilon()
        if not self.history:
            return spent
        promised = self.promised_history
        if promised == self.history:
            return spent
        return self.plan.epsilon(promised).within(self.plan.budget.epsilon)

    def own_promises(self) -> tuple[EpsilonBounds, ...]:
        """Return the promise to each group with a budget of its own; none where nobody has one."""
        return self.plan.own_epsilons(self.promised_history)

    @property
    def promised_history(self) -> FrozenHistory:
        """The larger count of each event: all that is planned, and attempts beyond the plan.

        Nothing, as long as nothing was released.
        """
        if not self.history:
            return ()
        return freeze(Counter(dict(self.plan.history)) | Counter(dict(self.history)))

    def running_epsilon(self) -> float:
        """Return a bound that is coarser and quick enough to ask for after every round.

        Nothing was ever reserved beyond the budget, so the budget bounds it too.
        """
        coarse = self.plan.tight_epsilon(self.history, interval=SEARCH_INTERVAL)
        return min(coarse, self.plan.budget.epsilon)

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Tell whether one more `event` would break the budget, as of the last look."""
        return self._state.gate.would_exceed(event)

    def another_round_exceeds(self, event: PrivacyEvent) -> bool:
        """Tell whether one more round, charged as `event`, would break the budget; see above."""
        return self._state.charges_another_round and self.would_exceed(event)

    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        self._state.take_in(sequence, fields)
