"""What a training spends, on disk before it is spent.

One append-only, hash-chained table in SQLite or PostgreSQL. A round is *reserved* on disk before
anyone is asked and *committed* after its release. A crash in between leaves it spent: whether the
model got out is then unknown, so the answer is yes. Entries are only ever added, never changed;
what is spent is replayed from them whenever the ledger is opened, and before every reservation, so
that two processes with one ledger can't spend the same budget twice. The time stands in the entry
of an opening alone: a gap between two rounds would show a client that hung, and so who took part.

    >>> with PrivacyLedger.open("ledger.db", plan) as ledger:
    ...     reservation = ledger.reserve(round=1)  # on disk; raises PrivacyBudgetExhausted
    ...     ...                                    # ask, train, add noise, release
    ...     ledger.commit(reservation)
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
    PrivacyBudgetExhausted,
    PrivacyEvent,
)
from fl_dp.accounting.events import event_from_dict, event_to_dict
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.promise import Enforcement

from .anchors import STATEMENT_NAME, LedgerAnchor, anchor_beside
from .entries import SCHEMA, now_to_the_minute, require_printable
from .spent import SpentLedger
from .state import Reservation, opening_of
from .store import LedgerStore
from .witness import Witness

logger = logging.getLogger("flwr.fl_dp")

_RECORDED_LIBRARIES = ("fl-dp", "flwr", "dp-accounting", "numpy", "cryptography")


class PlanMismatch(ValueError):
    """A ledger was opened with another plan than the one that it was started with."""


class PrivacyLedger(SpentLedger):
    """The spending of one plan. Open it with `open` (to train) or `read` (to look)."""

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `open` or `read` instead."""
        super().__init__(store, witness)
        self._run_id = uuid.uuid4().hex

    @classmethod
    def open(
        cls,
        location: str | Path,
        plan: Plan,
        *,
        run_id: str | None = None,
        rng: SecureRandom | None = None,
        anchor: LedgerAnchor | None = None,
        witness: Witness | None = None,
        settings: str | None = None,
    ) -> Self:
        """Open the ledger of `plan` to spend from, creating it if there is none.

        A ledger in a file is compared with the `privacy.json` beside it, if that is its own.

        Args:
            location: An SQLite file, or a SQLAlchemy URL such as
                `postgresql+psycopg://user@host/database`, one ledger a database or schema. Keep it
                as long as the promise is to hold.
            plan: What will be released; must equal the plan that the ledger was started with.
            run_id: A name for this opening in the entries; a random one by default.
            rng: Where the noise will come from; a secure source by default. An insecure one taints
                the ledger for good.
            anchor: What the ledger has to hold already: the `anchor` that it had earlier, as kept
                in a checkpoint.
            witness: A second place that is told of each entry, and that the ledger is compared with
                now; see `witness_at`.
            settings: Digest of all that is trained with; compared with the one of a `choose`.

        Raises:
            PlanMismatch: With every difference named.
            LedgerCorrupted: If an entry does not match the chain, the ledger's end was cut off, or
                its witness knows of another state.
            LedgerUnavailable: If the disk or the database fails, or the witness.
            FileNotFoundError: If the file's folder does not exist.
            ValueError: If the `privacy.json` beside it is no statement, or the witness lies beside
                the ledger.
        """
        if run_id is not None:
            require_printable(run_id)
        store = LedgerStore.writable(location)
        stated = None if store.file is None else anchor_beside(store.file)
        ledger = cls(store, witness)
        if run_id is not None:
            ledger._run_id = run_id
        randomness = SecureRandom.SECURE_KIND if rng is None else rng.kind
        with ledger._first_transaction() as connection:
            if stated is not None:
                ledger.require_holds(stated, of=f"the {STATEMENT_NAME} beside it")
            if anchor is not None:
                ledger.require_holds(anchor, of="the anchor")
            compared = (witness, stated, anchor) != (None, None, None)
            if ledger.entries and not compared:
                logger.warning("%s (privacy.witness_dir)", ledger.unwitnessed)
            if not ledger.entries:
                opening = {"kind": "plan", "schema": SCHEMA, "plan": plan.to_dict()}
                ledger._append(connection, opening)
            else:
                _require_same_plan(ledger, plan)
            opened = ledger._run_fields(plan, randomness)
            if ledger._state.choice is not None:  # else nobody asks
                opened["settings"] = settings
            ledger._append(connection, opened)
        return ledger

    def require_known(self, rng: SecureRandom) -> None:
        """Check that the ledger knows where a release's noise comes from.

        Raises:
            ValueError: If `rng` is insecure and the ledger was never opened with an insecure one.
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

        Args:
            round: Its number in the training, from 1. A second attempt is charged again.
            participants: The units that take part, where that is no secret; required under a
                participation cap or a separation, but for a buffer, whose units `ask` names. Never
                the cohort of a Poisson sample: the ledger would reveal it. A unit that is named has
                taken part, whether it answers or not.
            index: The `next_index` that the participants were chosen for, to make sure that it is
                still the next one; the ledger counts itself.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing is written.
            ParticipationCapReached: If a participant has none left; then nothing is written.
            SeparationBroken: If a participant has to rest; then nothing is written.
            LedgerUnavailable: If it can't be written; then nothing may be released.
            ValueError: If participants are missing or not wanted, or another process has taken the
                index.
        """
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
            entry = self._append(connection, {"kind": "reserve", "run": self._run_id, **planned})
        return self._state.reserved[entry.sequence]

    def ask(self, units: Sequence[str]) -> None:
        """Write down, before anything is sent, who is asked for a contribution to a buffer.

        Each ask counts against a participation cap, whatever comes of it.

        Args:
            units: By lasting name. Who was asked and has not answered can't be asked again.

        Raises:
            ParticipationCapReached: If a unit has none left; then nothing is written.
            SeparationBroken: If a unit has to rest; then nothing is written.
            LedgerUnavailable: If it can't be written; then no client may be asked.
            ValueError: If no index is open, or a unit was asked before.
        """
        for unit in units:
            require_printable(unit)
        with self._transaction() as connection:
            index = self._state.require_askable(units)
            self._append_units(connection, "ask", index, units)

    def fold(self, units: Sequence[str]) -> None:
        """Write down, before they are added, whose contributions the open index gets.

        Args:
            units: Those that were asked and have answered, with whatever it was.

        Raises:
            LedgerUnavailable: If it can't be written; then nothing may be added.
            ValueError: If no index is open, a unit was not asked since this ledger was opened, or
                the buffer is full.
        """
        with self._transaction() as connection:
            index = self._state.require_foldable(units)
            self._append_units(connection, "fold", index, units)

    def _append_units(self, connection: Any, kind: str, index: int, units: Sequence[str]) -> None:
        entry = {"kind": kind, "run": self._run_id, "index": index, "units": list(units)}
        self._append(connection, entry)

    def next_index(self) -> int:
        """Return the index that the next reserved round will have, by all that is on disk now.

        An index that was reserved and never committed keeps its number: no other round gets it.

        Raises:
            LedgerUnavailable: If the entries can't be read.
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
        """Write down the group of every unit that has none yet, once and for good.

        New units are dealt in the order of their names, each to the group that lacks units most,
        unless `chosen` says their group. Groups are public, and made from names alone.

        Args:
            units: Lasting names of those that are there.
            most: Units that there may be in all; the plan's by default. One more would be a unit
                under a second name.
            chosen: The group of each unit, where owners have chosen; who is not in it gets none.

        Returns:
            The group of every unit that has one.

        Raises:
            LedgerUnavailable: If it can't be written; then no client may take part.
            ValueError: If the plan has no groups, a name can't be printed or repeats, or there
                are more units than the plan declares.
        """
        sampling, names = self.plan.sampling, sorted(units)
        if sampling.num_groups == 1:
            raise ValueError(
                f"groups are assigned where there are any, and the plan has {sampling}"
            )
        if len(set(names)) != len(names):
            raise ValueError("a unit has one group, but names repeat")
        for name in names:
            require_printable(name)
        with self._transaction() as connection:
            known = self._state.group_of
            fresh = [n for n in names if n not in known and (chosen is None or n in chosen)]
            most = self.plan.num_units if most is None else most
            if len(known) + len(fresh) > most:
                raise ValueError(
                    f"{len(fresh)} new units after {len(known)} are more than the {most} that the "
                    f"plan declares: is one there under a second name? The first is {fresh[0]}"
                )
            sizes = Counter(known.values())
            groups: dict[str, int] = {}
            for name in fresh:
                groups[name] = sampling.next_group(sizes) if chosen is None else chosen[name]
                sizes[groups[name]] += 1
            if groups:
                self._append(connection, {"kind": "assign", "run": self._run_id, "groups": groups})
        return self.group_of

    def reserve_release(self, what: str, event: PrivacyEvent) -> Reservation:
        """Write a release other than a round to disk as spent, before it is made.

        Args:
            what: A name for the entries, for instance `feature means`.
            event: What it is charged as; a plan that declared it has put budget aside for it.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget, or the plan's rule takes declared
                releases only and it was made as often as declared; then nothing is written.
            LedgerUnavailable: If it can't be written; then nothing may be released.
            ValueError: If the plan's rule takes declared releases only and this is none, or the
                name can't be printed.
        """
        require_printable(what)
        with self._transaction() as connection:
            self._state.require_declared(event, f"'{what}'")
            self._require_budget(event, f"'{what}'")
            self._state.require_declared_left(event, f"'{what}'")
            entry = self._append(
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

        The privacy statement then no longer lists their choice among what is not covered, as long
        as the ledger is opened with these settings alone.

        Args:
            chosen: The settings that won, as overrides.
            how: The way, in words for the privacy statement.
            settings: Digest of all settings that the training is to be made with.
            plan: That of the training; may differ from the ledger's in its `release` alone.
            paid: The committed release that the choice was; None if it saw no client's data.

        Raises:
            LedgerUnavailable: If it can't be written.
            ValueError: If there was a choice or a round before, the plan differs in what is
                charged, or `paid` was not committed.
        """
        for text in (chosen, how, settings):
            require_printable(text)
        entry = None if paid is None else paid.sequence
        with self._transaction() as connection:
            self._state.require_choosable(plan, entry)
            self._append(
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
        """Write down what a round's promise held by at its nodes, as their answers showed.

        A round of which nothing is written counts as `APP`.

        Args:
            reservation: Of the round.
            enforcement: The weakest of all nodes that may have been asked.

        Raises:
            LedgerUnavailable: If it can't be written.
            ValueError: If the reservation is no round of this ledger, or was noted before.
        """
        if enforcement is Enforcement.APP:
            return
        with self._transaction() as connection:
            self._state.require_shows_nothing(reservation.sequence)
            entry = {
                "kind": "enforcement",
                "reserved": reservation.sequence,
                "enforcement": str(enforcement),
            }
            self._append(connection, entry)

    def commit(self, reservation: Reservation) -> None:
        """Note that the reserved release has happened.

        Raises:
            ValueError: If it was committed before or is not a reservation of this ledger.
        """
        with self._transaction() as connection:
            if self._state.reserved.get(reservation.sequence) != reservation:
                raise ValueError(f"{reservation.what} was not reserved in this ledger")
            if reservation.sequence in self._state.committed:
                raise ValueError(f"{reservation.what} was committed before")
            self._append(connection, {"kind": "commit", "reserved": reservation.sequence})

    def _require_budget(self, event: PrivacyEvent, what: str) -> None:
        if self._state.gate.would_exceed(event):
            raise PrivacyBudgetExhausted(
                f"{what} would exceed epsilon {self.plan.budget.epsilon:.4g} at delta "
                f"{self.plan.budget.delta:.3g}: {self.rounds_spent} rounds are spent"
            )

    def _run_fields(self, plan: Plan, randomness: str) -> dict[str, Any]:
        # Of the least noise: no round has a finer grid, so no sum needs more bits.
        updates = plan.bundle(plan.noise_multiplier).updates
        return {
            "kind": "run",
            "run": self._run_id,
            **opening_of(plan),
            # As of the version that opened it; nothing is charged by them.
            "finest_grid": updates.grid,
            "rule": plan.filter().rule,
            "randomness": randomness,
            "versions": library_versions(),
            "time": now_to_the_minute(),
        }


def library_versions() -> dict[str, str]:
    """Return the installed versions of what a privacy number depends on."""
    versions = {"python": platform.python_version()}
    for name in _RECORDED_LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _require_same_plan(ledger: PrivacyLedger, wanted: Plan) -> None:
    theirs, ours = _flat(ledger.plan), _flat(wanted)
    differences = [
        f"{name} is {ours.get(name)} here and {theirs.get(name)} in the ledger"
        for name in ours | theirs
        if ours.get(name) != theirs.get(name)
    ]
    if differences:
        spent = ledger.rounds_spent + ledger.other_releases_spent
        advice = (
            "Train with the ledger's plan, or start a new ledger: its spending adds up with this "
            "one's if the clients are the same"
            if spent
            else f"Nothing was spent in it: you may delete {ledger.location} and start anew"
        )
        raise PlanMismatch(
            f"this ledger belongs to another plan: {'; '.join(differences)}. {advice}"
        )


def _flat(plan: Plan) -> dict[str, Any]:
    """Return what a plan says, with `secure_sum.bits` and its like as names."""
    flat: dict[str, Any] = {}
    for field, value in plan.to_dict().items():
        inside = value if isinstance(value, dict) else None
        flat |= {field: value} if inside is None else {f"{field}.{k}": v for k, v in inside.items()}
    return flat
