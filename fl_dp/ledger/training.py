"""What an account's trainings spend, on disk before it is spent.

One append-only, hash-chained table in SQLite or PostgreSQL. A round is *reserved* on disk before
anyone is asked and *committed* after its release. A crash in between leaves it spent, as the model
may have got out. Spending is replayed from the entries at opening and before every reservation. So
two processes with one ledger can't spend the same budget twice. Only openings have a time: a gap
between two rounds would show a client that hung, and so who took part.

    >>> with PrivacyLedger.open("ledger.db", plan) as ledger:
    ...     reservation = ledger.reserve(round=1)  # on disk; raises PrivacyBudgetExhausted
    ...     ...                                    # ask, train, add noise, release
    ...     ledger.commit(reservation)

A ledger holds an account: all trainings on the same clients, each by its name, whose budgets add up
(`fl_dp/ledger/account.py`). `PrivacyLedger` is the one training that it was opened for.
"""

from __future__ import annotations

import logging
import platform
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from fl_dp.accounting import (
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
)
from fl_dp.accounting.events import event_from_dict, event_to_dict
from fl_dp.accounting.grouped_sampling import GroupedSampling
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.promise import Enforcement, delta_rounded_up

from .account import AccountState, AccountTerms, first_entry
from .anchors import STATEMENT_NAME, LedgerAnchor, anchor_beside
from .entered import EnteredTraining
from .entering import clients_in
from .entries import LedgerEntry, now_to_the_minute, require_printable
from .population import Population, made_key
from .spent import AccountLedger, SpentLedger
from .state import Reservation, TrainingState, opening_of
from .store import LedgerStore
from .witness import Witness

logger = logging.getLogger("flwr.fl_dp")

_RECORDED_LIBRARIES = ("fl-dp", "flwr", "dp-accounting", "numpy", "cryptography")


FIRST_TRAINING = "training"
"""Name of a training that was given none."""


class PrivacyLedger(SpentLedger):
    """The spending of one training of an account.

    Open it with `open` (to train) or `read` (to look).
    """

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `open` or `read` instead."""
        super().__init__(store, witness)
        self._run_id = uuid.uuid4().hex
        self._caution: str | None = None

    @classmethod
    def open(
        cls,
        location: str | Path,
        plan: Plan,
        *,
        name: str | None = None,
        cap: PrivacyBudget | None = None,
        population: Population | None = None,
        run_id: str | None = None,
        rng: SecureRandom | None = None,
        anchor: LedgerAnchor | None = None,
        witness: Witness | None = None,
        settings: str | None = None,
    ) -> Self:
        """Open a training of a ledger's account to spend from, creating what is not there.

        A training of this name and plan is continued. One of a new name is entered at its budget,
        which adds to the account's total whether it is used or not. A file is compared with its own
        `privacy.json` beside it, if any.

        Args:
            location: SQLite file, or SQLAlchemy URL such as
                `postgresql+psycopg://user@host/database`, one ledger per database or schema. Keep
                it as long as the promise is to hold.
            plan: Must equal that of the training of this name, if anything was reserved of it.
            name: The training's name; `training` by default.
            cap: Largest total of all trainings of the account, for the unit and neighbours of its
                first plan; fixed when the account is made. None: that of the account, which has
                none if it is made now. Without a cap, the account's delta is three times the first
                plan's.
            population: Whom the training is of, compared with whom the account was made for. Its
                digests have a key beside the ledger's file (`population.py`). None: the caller says
                that they are the account's.
            run_id: Name of this opening in the entries; random by default.
            rng: Noise source; secure by default. An insecure one taints the ledger for good.
            anchor: An earlier `anchor`, for example from a checkpoint, that the ledger must hold.
            witness: Second place that notes each entry, and is compared now; see `witness_at`.
            settings: Digest of all training settings, compared with that of a `choose`.

        Raises:
            PrivacyBudgetExhausted: A new training does not fit into what is left of the account;
                nothing is written.
            LedgerCorrupted: An entry breaks the chain, the end was cut off, or the witness has
                another state.
            LedgerUnavailable: The disk, database or witness fails.
            ValueError: The training has another plan (the text names every difference) or other
                clients, the account has another cap or other people, the file's folder does not
                exist, the `privacy.json` beside it is no statement, or the witness lies beside the
                ledger.
        """
        plan.require_noise()
        if run_id is not None:
            require_printable(run_id)
        name = FIRST_TRAINING if name is None else name
        store = LedgerStore.writable(location)
        beside = None if store.file is None else anchor_beside(store.file)
        place = store.file or location
        ledger = cls(store, witness)
        ledger._training = name
        if run_id is not None:
            ledger._run_id = run_id
        randomness = SecureRandom.SECURE_KIND if rng is None else rng.kind
        with ledger._first_transaction() as connection:
            if beside is not None:
                ledger.require_holds(beside, of=f"the {STATEMENT_NAME} beside it")
            if anchor is not None:
                ledger.require_holds(anchor, of="the anchor")
            compared = (witness, beside, anchor) != (None, None, None)
            if ledger.entries and not compared:  # logged before the first reservation
                ledger._caution = ledger.unwitnessed
            account, made = ledger.account, {}
            if not ledger.entries:
                people = None if population is None else population.keyed(made_key(place))
                first = EnteredTraining(name, TrainingState(plan))
                terms = AccountTerms.of(ledger.name, first, cap, people)
                account = AccountState.made(terms, first)
                made = first_entry(terms)
            account.require_cap(cap)
            clients = clients_in(account, name, population, place)
            account.require_source(randomness)
            run = ledger._run_fields(plan, randomness)
            is_entered = account.differences(name, plan) == []
            if is_entered and not account.has_other_clients(name, clients):
                if ledger._state.choice is not None:  # otherwise nothing reads it
                    run["settings"] = settings
            else:
                account.require_enterable(name, plan)
                entry = {"kind": "plan", "training": name, "plan": plan.to_dict()}
                if clients is not None:
                    entry["clients"] = clients
                ledger._append(connection, made | entry)
            ledger._append(connection, run)
        return ledger

    @classmethod
    def delta_for(
        cls, location: str | Path, *, name: str | None = None, cap: PrivacyBudget | None = None
    ) -> float | None:
        """Return the delta of a training that was given none.

        It is that of the training of this name if there is one, else half of what is left of the
        account's. None: the account is to be made, without a cap. Nothing is written.

        Raises:
            PrivacyBudgetExhausted: No delta is left.
            LedgerCorrupted, LedgerUnavailable, ValueError: As `open`.
        """
        name = FIRST_TRAINING if name is None else name
        ledger = AccountLedger.begun(location)
        if ledger is None:
            return None if cap is None else cap.delta / 2.0
        with ledger:
            account = ledger.account
        if name in account.trainings:
            return account.trainings[name].plan.budget.delta
        if account.delta_of_further <= 0.0:
            raise PrivacyBudgetExhausted(
                f"no delta is left of the {delta_rounded_up(account.terms.delta)} of the account "
                f"{account.terms.name}, so no further training fits into it"
            )
        return account.delta_of_further / 2.0

    def require_known(self, rng: SecureRandom) -> None:
        """Check that the ledger has recorded a noise source's kind.

        Raises:
            ValueError: `rng` is insecure, and the ledger was never opened with an insecure one.
        """
        if rng.insecure and not self.insecure:
            raise ValueError(
                "the noise would come from an insecure source that the ledger does not know of: "
                "open the ledger with the same rng, or leave it out"
            )

    def reserve(
        self,
        *,
        round: int,
        participants: Sequence[str | int] | None = None,
        index: int | None = None,
    ) -> Reservation:
        """Write one round to disk as spent, before anything of it happens.

        A refused round writes nothing.

        Args:
            round: Number in the training, from 1. A second attempt is charged again.
            participants: Units that take part, where that is no secret. A participation cap or
                separation requires them, except for a buffer, whose units `ask` names. Never a
                Poisson sample's cohort: the ledger would reveal it. A named unit has taken part,
                even without an answer.
            index: The `next_index` for which participants were chosen, checked to be still next.

        Raises:
            PrivacyBudgetExhausted: It would exceed the budget.
            ParticipationCapReached: A participant has none left.
            SeparationBroken: A participant has to rest.
            LedgerUnavailable: It can't be written; nothing may be released.
            ValueError: Participants are missing or not wanted, or another process took the index.
        """
        self._give_caution()
        with self._transaction() as connection:
            turn = self._state.rounds.total()
            if index is not None and index != turn:
                raise ValueError(
                    f"round {round} was prepared for index {index}, and the ledger's next one is "
                    f"{turn}: another process reserves rounds in it; stop one of them"
                )
            planned = self._state.fields_of_round(round, participants)
            if self._state.charges_another_round:
                charged = self.plan.charged_event(event_from_dict(planned))
                self._require_budget(charged, f"round {round}")
            entry = self._add(connection, {"kind": "reserve", "run": self._run_id, **planned})
        return self._state.reserved[entry.sequence]

    def _give_caution(self) -> None:
        if self._caution is not None:
            logger.warning("%s (witness=, or privacy.witness_dir of fl-dp run)", self._caution)
            self._caution = None

    def ask(self, units: Sequence[str]) -> None:
        """Write down whom a buffer asks for a contribution, before anything is sent.

        Each ask counts against a participation cap, whatever comes of it; a refused one writes
        nothing. Units have lasting names.

        Raises:
            ParticipationCapReached: A unit has none left.
            SeparationBroken: A unit has to rest.
            LedgerUnavailable: It can't be written; no client may be asked.
            ValueError: No index is open, or a unit still owes an answer.
        """
        for unit in units:
            require_printable(unit)
        with self._transaction() as connection:
            index = self._state.require_askable(units)
            self._append_units(connection, "ask", index, units)

    def fold(self, units: Sequence[str]) -> None:
        """Write down whose contributions the open index gets, before they are added.

        The units were asked and have answered, whatever the answer.

        Raises:
            LedgerUnavailable: It can't be written; nothing may be added.
            ValueError: No index is open, a unit was not asked since this opening, or the buffer is
                full.
        """
        with self._transaction() as connection:
            index = self._state.require_foldable(units)
            self._append_units(connection, "fold", index, units)

    def _append_units(self, connection: Any, kind: str, index: int, units: Sequence[str]) -> None:
        entry = {"kind": kind, "run": self._run_id, "index": index, "units": list(units)}
        self._add(connection, entry)

    def _add(self, connection: Any, fields: dict[str, Any]) -> LedgerEntry:
        """Append an entry of this training.

        Raises:
            ValueError: Another plan took the place of this one, of which nothing was reserved.
        """
        if self._training is not None and self._run_id not in self._state.openings:
            raise ValueError(
                f"the training '{self.training}' was begun anew with another plan by another "
                "process: stop one of them, or give each a name of its own"
            )
        return self._append(connection, {"training": self.training, **fields})

    def next_index(self) -> int:
        """Return the next reserved round's index, by all that is on disk now.

        An index reserved and never committed is not used again.

        Raises:
            LedgerUnavailable: The entries can't be read.
        """
        with self._transaction():
            return self._state.rounds.total()

    def assign(
        self,
        units: Iterable[str],
        *,
        most: int | None = None,
        chosen: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Write down the group of every unit without one, for good.

        Without `chosen`, new units go in order of name, each to the group that lacks units most.
        Groups are public, and made from names alone.

        Args:
            units: Lasting names of the units present.
            most: Most units in all; the plan's by default. One more would be a unit under a second
                name.
            chosen: Each unit's group, where owners have chosen; units not in it get none.

        Returns:
            The group of every unit that has one.

        Raises:
            LedgerUnavailable: It can't be written; no client may take part.
            ValueError: The plan has no groups, a name repeats or is not printable, or there are
                more than `most` units.
        """
        sampling, names = self.plan.sampling, sorted(units)
        if not isinstance(sampling, GroupedSampling):
            raise ValueError(
                f"groups are assigned where there are any, and the plan has {sampling}"
            )
        if len(set(names)) != len(names):
            raise ValueError("a unit has one group, but names repeat")
        for name in names:
            require_printable(name)
        with self._transaction() as connection:
            assigned = self._state.group_of
            fresh = [name for name in names if name not in assigned]
            if chosen is not None:
                fresh = [name for name in fresh if name in chosen]
            most = self.plan.num_units if most is None else most
            if len(assigned) + len(fresh) > most:
                raise ValueError(
                    f"{len(fresh)} new units after {len(assigned)} are more than the {most} that "
                    f"the plan declares: is one there under a second name? The first is {fresh[0]}"
                )
            sizes = Counter(assigned.values())
            groups: dict[str, int] = {}
            for name in fresh:
                groups[name] = sampling.next_group(sizes) if chosen is None else chosen[name]
                sizes[groups[name]] += 1
            if groups:
                self._add(connection, {"kind": "assign", "run": self._run_id, "groups": groups})
        return self.group_of

    def reserve_release(self, what: str, event: PrivacyEvent) -> Reservation:
        """Write a release other than a round to disk as spent, before it is made.

        Args:
            what: Name in the entries, for instance `feature means`.
            event: Its charge; a plan that declared it has put budget aside.

        Raises:
            PrivacyBudgetExhausted: It would exceed the budget, or was made as often as declared;
                nothing is written.
            LedgerUnavailable: It can't be written; nothing may be released.
            ValueError: The plan does not declare it, or the name is not printable.
        """
        require_printable(what)
        self._give_caution()
        with self._transaction() as connection:
            self._state.require_declared(event, f"'{what}'")
            self._require_budget(event, f"'{what}'")
            self._state.require_declared_left(event, f"'{what}'")
            entry = self._add(
                connection,
                {
                    "kind": "reserve",
                    "run": self._run_id,
                    "what": what,
                    **event_to_dict(event),
                },
            )
        return self._state.reserved[entry.sequence]

    def choose(
        self,
        chosen: str,
        *,
        how: str,
        settings: str,
        plan: Plan,
        paid: Reservation | None,
    ) -> None:
        """Write down which hyper-parameters were chosen, how, and what pays for it.

        While every opening has these settings, the privacy statement no longer lists the choice as
        not covered.

        Args:
            chosen: Winning settings, as overrides.
            how: In words for the privacy statement.
            settings: Digest of all training settings.
            plan: The training's plan; only its `release` may differ from the ledger's.
            paid: The committed release that was the choice; None if it saw no client's data.

        Raises:
            LedgerUnavailable: It can't be written.
            ValueError: There was a choice or a round before, the plan differs in what is charged,
                or `paid` was not committed.
        """
        for text in (chosen, how, settings):
            require_printable(text)
        entry = None if paid is None else paid.sequence
        with self._transaction() as connection:
            self._state.require_choosable(plan, entry)
            self._add(
                connection,
                {
                    "kind": "chosen",
                    "run": self._run_id,
                    "chosen": chosen,
                    "how": how,
                    "settings": settings,
                    "reserved": entry,
                    "plan": plan.to_dict(),
                },
            )

    def note_enforcement(self, reservation: Reservation, enforcement: Enforcement) -> None:
        """Write down how nodes enforce a round's promise, as their answers showed.

        `enforcement` is the weakest of all nodes that may have been asked. A round without such an
        entry counts as `APP`.

        Raises:
            LedgerUnavailable: It can't be written.
            ValueError: The reservation is no round of this ledger, or was noted before.
        """
        if enforcement is Enforcement.APP:
            return
        with self._transaction() as connection:
            self._state.require_no_enforcement(reservation.sequence)
            entry = {
                "kind": "enforcement",
                "reserved": reservation.sequence,
                "enforcement": str(enforcement),
            }
            self._add(connection, entry)

    def commit(self, reservation: Reservation) -> None:
        """Note that the reserved release has happened.

        Raises:
            ValueError: It was committed before or is no reservation of this ledger.
        """
        with self._transaction() as connection:
            if self._state.reserved.get(reservation.sequence) != reservation:
                raise ValueError(f"{reservation.what} was not reserved in this ledger")
            if reservation.sequence in self._state.committed:
                raise ValueError(f"{reservation.what} was committed before")
            self._add(connection, {"kind": "commit", "reserved": reservation.sequence})

    def _require_budget(self, event: PrivacyEvent, what: str) -> None:
        if self._state.gate.would_exceed(event):
            raise PrivacyBudgetExhausted(
                f"{what} would exceed {Guarantee.of(self.plan)}: "
                f"{self.rounds_spent} rounds are spent"
            )
        self.account.require_within_ceiling(self.training, event)

    def _run_fields(self, plan: Plan, randomness: str) -> dict[str, Any]:
        # The least noise has the finest grid, so no round's sum needs more bits.
        updates = plan.bundle(plan.noise_multiplier).updates
        return {
            "kind": "run",
            "training": self.training,
            "run": self._run_id,
            **opening_of(plan),
            # These depend on the version that opened it; no charge does.
            "finest_grid": updates.grid,
            "rule": plan.filter().rule,
            "randomness": randomness,
            "versions": library_versions(),
            "time": now_to_the_minute(),
        }


def library_versions() -> dict[str, str]:
    """Return installed versions of the libraries that a privacy number depends on."""
    versions = {"python": platform.python_version()}
    for name in _RECORDED_LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions
