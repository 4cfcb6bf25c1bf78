"""An account, and what one of its trainings has spent. Nothing here spends more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Self

from fl_dp.accounting import (
    CyclicSampling,
    EpsilonBounds,
    PrivacyBudget,
    PrivacyEvent,
    freeze,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.promise import Enforcement

from .account import AccountState
from .chain import ChainedLedger
from .entries import ANOTHER_VERSION, LedgerCorrupted
from .state import Choice, Reservation, TrainingState
from .store import LedgerStore
from .witness import Witness


class AccountLedger(ChainedLedger):
    """All entries of an account, to look at. Open it with `read`."""

    first_entry = "plan"

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `read` instead."""
        super().__init__(store, witness)
        self.account = AccountState()

    @classmethod
    def look(cls, location: str | Path, *, witness: Witness | None = None) -> Self:
        """Open as `read`, with the chain verified and no bound computed anew."""
        return super().read(location, witness=witness)

    @classmethod
    def begun(cls, location: str | Path, *, witness: Witness | None = None) -> Self | None:
        """Open as `look`; None: nothing was entered yet, in a file or database."""
        store = LedgerStore.existing(location)
        if store is None:
            return None
        ledger = cls(store, witness)
        with ledger._first_transaction():
            has_entries = bool(ledger.entries)
        if has_entries:
            return ledger
        ledger.close()
        return None

    @classmethod
    def read(cls, location: str | Path, *, witness: Witness | None = None) -> Self:
        """Open as `ChainedLedger.read`.

        Raises:
            LedgerCorrupted: As there, or budgets and cap pay for less than was reserved.
        """
        ledger = super().read(location, witness=witness)
        try:
            ledger._require_paid()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _require_paid(self) -> None:
        """Check each budget and the cap, with a margin for other versions' bounds."""
        unpaid = f"of {self.location}, which no ledger allows: it was written by nobody's ledger"
        for state in self.account.trainings.values():
            gate = state.plan.filter(room=1.0 + ANOTHER_VERSION)
            for event in Counter(dict(state.history)).elements():
                if gate.would_exceed(event):
                    raise LedgerCorrupted(
                        f"the entries spend more than {Guarantee.of(state.plan)} {unpaid}"
                    )
                gate.spend(event)
        try:
            self.account.require_paid()
        except ValueError as error:
            raise LedgerCorrupted(f"{error} {unpaid}") from error

    def left(self) -> PrivacyBudget | None:
        """Return the largest budget that a further plan of the account may have.

        It is of the unit and neighbours of the account's first plan. Its delta is all that is left,
        and none is left after it; a plan that takes half leaves the other half to later ones.

        Returns:
            None where the account has no cap.

        Raises:
            PrivacyBudgetExhausted: Nothing is left.
        """
        return self.account.left()

    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        self.account.add(sequence, fields)


class SpentLedger(AccountLedger):
    """The spending of one training of an account, to look at. Open it with `read`."""

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `read` instead."""
        super().__init__(store, witness)
        self._training: str | None = None  # the last one entered

    @classmethod
    def read(
        cls, location: str | Path, *, witness: Witness | None = None, training: str | None = None
    ) -> Self:
        """Open as `AccountLedger.read`, with a training, by default the last one entered.

        Raises:
            LedgerCorrupted: As there.
            ValueError: There is no such training.
        """
        ledger = super().read(location, witness=witness)
        ledger._training = training
        try:
            ledger._require_training()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _require_training(self) -> None:
        names = self.account.trainings
        if not names:
            raise ValueError(
                f"{self.location} has no training with a plan: `fl-dp budgets` lists its entries"
            )
        if self.training not in names:
            listed = ", ".join(f"'{name}'" for name in names)
            raise ValueError(f"the ledger has no training '{self.training}' there, but {listed}")

    def as_of(self, entries: int, *, training: str | None = None) -> Self:
        """Return a ledger of the first `entries` entries, to look at, of this or another training.

        Raises:
            ValueError: They have no such training.
        """
        earlier = super().as_of(entries)
        earlier._training = self._training if training is None else training
        earlier._require_training()
        return earlier

    @property
    def training(self) -> str:
        """Name of the training."""
        return self._training or next(reversed(self.account.trainings))

    @property
    def _state(self) -> TrainingState:
        return self.account.trainings[self.training]

    @property
    def plan(self) -> Plan:
        """The training's plan: that of its entry, or of a choice since."""
        return self._state.plan

    @property
    def rounds_spent(self) -> int:
        """Number of reserved rounds, committed or not."""
        return self._state.rounds.total()

    @property
    def rounds_committed(self) -> int:
        """Number of rounds known to be released."""
        committed = [self._state.reserved[entry] for entry in self._state.committed]
        return sum(reservation.index is not None for reservation in committed)

    @property
    def other_releases_spent(self) -> int:
        """Number of reserved releases besides the rounds."""
        return self._state.others.total()

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multiplier of each reserved round, in order."""
        return tuple(self._state.multipliers)

    @property
    def participations(self) -> dict[str, int]:
        """Each unit's rounds, where rounds name units; as private as the cohorts."""
        return dict(self._state.participations)

    def has_participations_left(self, unit: str, noise_multiplier: float) -> bool:
        """Tell whether a participation cap lets a unit join a round of that noise."""
        return self._state.has_participations_left(unit, self.plan.cap_share(noise_multiplier))

    @property
    def counts(self) -> dict[str, int]:
        """Rounds that each unit could join: its own, or its group's turns.

        Where groups take turns, it is as public as they are: the ledger knows no unit's coins.
        """
        law = self.plan.sampling
        if not isinstance(law, CyclicSampling):
            return self.participations
        turns = Counter(law.group_at(index) for index in range(self.rounds_spent))
        return {unit: turns[group] for unit, group in self._state.group_of.items()}

    @property
    def last_index(self) -> dict[str, int]:
        """Index at which each unit last took part, where rounds name units."""
        return dict(self._state.last_index)

    @property
    def asked(self) -> dict[str, int]:
        """Units that owe a buffer an answer, with the index at which each was asked."""
        return dict(self._state.asks.asked)

    @property
    def group_of(self) -> dict[str, int]:
        """Each unit's group, if any; public."""
        return dict(self._state.group_of)

    @property
    def enforcement(self) -> Enforcement:
        """The weakest enforcement at any asked node, as each round's answers say."""
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
        """Choice of hyper-parameters; None: unknown."""
        return self._state.choice

    @property
    def trained_as_chosen(self) -> bool:
        """Whether every opening since a known choice had the chosen settings."""
        return self._state.choice is not None and not self._state.changed_by_hand

    def reservation_of(self, what: str) -> Reservation | None:
        """Return the last reservation of that name, committed or not."""
        for reservation in reversed(self._state.reserved.values()):
            if reservation.what == what:
                return reservation
        return None

    @property
    def rule(self) -> str:
        """The rule that decides whether a release still fits."""
        return self._state.gate.rule

    @property
    def history(self) -> FrozenHistory:
        """See `TrainingState.history`."""
        return self._state.history

    def epsilon(self) -> EpsilonBounds:
        """Return what all reserved releases spend together, at the plan's delta."""
        return self.plan.epsilon(self.history)

    def promise(self) -> EpsilonBounds:
        """Return the epsilon that holds wherever the training may have stopped.

        While planned releases are missing, it is the whole plan's: a stop that depends on releases
        uses the rest of the plan, too. It never exceeds the budget, as no release does.
        """
        spent = self.epsilon()
        if not self.history:
            return spent
        promised = self.promised_history
        if promised == self.history:
            return spent
        return self.plan.epsilon(promised).within(self.plan.budget.epsilon)

    def own_promises(self) -> tuple[EpsilonBounds, ...]:
        """Return the promise to each group with its own budget; empty without such groups."""
        return self.plan.own_epsilons(self.promised_history)

    @property
    def promised_history(self) -> FrozenHistory:
        """The larger count of each event: all planned, and attempts beyond the plan.

        Empty while nothing was released.
        """
        if not self.history:
            return ()
        return freeze(Counter(dict(self.plan.history)) | Counter(dict(self.history)))

    def running_epsilon(self) -> float:
        """Return a coarser bound, quick enough for every round.

        The budget bounds it, too, as nothing was reserved beyond that.
        """
        coarse = self.plan.tight_epsilon(self.history, interval=SEARCH_INTERVAL)
        return min(coarse, self.plan.budget.epsilon)

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Tell whether one more `event` would exceed the budget, as of the last read."""
        return self._state.gate.would_exceed(event)

    def another_round_exceeds(self, event: PrivacyEvent) -> bool:
        """Tell the same of one more round, charged as `event`."""
        return self._state.charges_another_round and self.would_exceed(event)
