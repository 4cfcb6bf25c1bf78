"""State of a training's ledger, folded from its entries one by one. No disk, no lock.

Entry by entry is the one way in: what is spent can't depend on anything but the entries.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fl_dp.accounting import PrivacyBudgetExhausted, PrivacyEvent
from fl_dp.accounting.events import event_from_dict, event_to_dict
from fl_dp.accounting.filters import PrivacyFilter
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan, plan_from_dict
from fl_dp.promise import Enforcement, weakest

from .asks import Asks
from .entries import SCHEMA, require_printable, require_schema


class SeparationBroken(ValueError):
    """A unit would take part again before it has rested as long as the plan says."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A release that is on disk as spent and may now be made, once.

    Attributes:
        sequence: Its entry in the ledger.
        what: `round 3`, or the name of another release.
        noise_multiplier: Of the release, where it has one.
        index: Of a round: how many rounds were reserved in the ledger before it, by any training. A
            round that fails keeps its index. None for another release.
    """

    sequence: int
    what: str
    noise_multiplier: float | None
    index: int | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Hyper-parameters that were chosen for this training, in a way that the ledger knows.

    Attributes:
        how: The way, in words for the privacy statement.
        chosen: The settings that won, as overrides.
        settings: Digest of all settings that the training is to be made with.
        reserved: Entry of the reservation that pays for it; None: no client's data was used.
    """

    how: str
    chosen: str
    settings: str
    reserved: int | None


_ROUNDING = 1.0 + 1e-12  # of a sum of parts of a cap
_ANOTHER_MACHINE = 1e-9  # relative: its functions of floating-point numbers may round otherwise
_OF_A_RESERVATION = {True: {"kind", "run"}, False: {"kind", "run", "what"}}  # by: is it a round
_RANDOMNESS = (SecureRandom.SECURE_KIND, SecureRandom.INSECURE_KIND)


class ParticipationCapReached(PrivacyBudgetExhausted):
    """A unit would take part more often than the plan allows; nothing was released or charged."""


class TrainingState:
    """What the entries so far come to.

    Attributes:
        rounds: Rounds that were reserved, by what each is charged as.
        others: Other releases that were reserved, in the same way.
        multipliers: Noise multiplier of each reserved round, in their order.
        attempts: How often each round was reserved, by its number.
        participations: Rounds of each unit, as far as rounds said so; of a buffer, its asks.
        taken_of_cap: What the rounds of each unit take of a participation cap.
        last_index: The last index at which each unit took part, as far as rounds said so.
        asks: Who was asked for a contribution to a buffer, where there are any.
        group_of: The group of each unit, where there are groups.
        reserved: Every reservation, by its entry.
        committed: Entries of the reservations that were committed.
        waiting: What each other release is charged as that was not committed, by its entry.
        randomness: Every source of randomness that the ledger was opened with.
        choice: Hyper-parameters that were chosen for this training; None: unknown.
        changed_by_hand: Whether the ledger was opened with other settings after that.
    """

    def __init__(self) -> None:
        """Start before the first entry."""
        self._plan: Plan | None = None
        self._filter: PrivacyFilter | None = None
        self.rounds: Counter[PrivacyEvent] = Counter()
        self.others: Counter[PrivacyEvent] = Counter()
        self.multipliers: list[float] = []
        self.attempts: Counter[int] = Counter()
        self.participations: Counter[str] = Counter()
        self.taken_of_cap: dict[str, float] = {}
        self.last_index: dict[str, int] = {}
        self.asks = Asks()
        self.group_of: dict[str, int] = {}
        self._newest: int | None = None  # entry of the newest round's reservation
        self.reserved: dict[int, Reservation] = {}
        self.committed: set[int] = set()
        self.waiting: dict[int, PrivacyEvent] = {}
        self._openings: set[str] = set()
        self.randomness: set[str] = set()
        self.choice: Choice | None = None
        self.changed_by_hand = False
        self._enforced: dict[int, Enforcement] = {}  # by the entry of a round's reservation

    @property
    def plan(self) -> Plan:
        """The plan, which is the first entry."""
        assert self._plan is not None  # each way to open a ledger sees to it
        return self._plan

    @property
    def gate(self) -> PrivacyFilter:
        """The filter of the plan, with everything spent so far."""
        assert self._filter is not None  # it comes with the plan
        return self._filter

    @property
    def charges_another_round(self) -> bool:
        """Whether one more reserved round raises what a unit is charged for at most."""
        reserved = self.rounds.total()
        return self.plan.charged_of(reserved + 1) > self.plan.charged_of(reserved)

    @property
    def enforcement(self) -> Enforcement:
        """The weakest that a release was made under; `APP` where one shows nothing."""
        return weakest(self._enforced.get(entry, Enforcement.APP) for entry in self.reserved)

    def require_shows_nothing(self, entry: int) -> None:
        """Check that an entry reserves a round of which no enforcement is written.

        Raises:
            ValueError: If it does not, or one is.
        """
        is_round = entry in self.reserved and self.reserved[entry].index is not None
        if not is_round or entry in self._enforced:
            raise ValueError(f"entry {entry} is no round that waits for its enforcement")

    def require_rested(self, units: Iterable[str], index: int) -> None:
        """Check that units may take part at an index, after the ones at which they did.

        Raises:
            SeparationBroken: If one has not rested for as long as the plan says.
        """
        apart = self.plan.sampling.least_separation
        early = [unit for unit in units if index - self.last_index.get(unit, index - apart) < apart]
        if early:
            raise SeparationBroken(
                f"{len(early)} of the participants of index {index} took part less than {apart} "
                f"indices before, the plan's separation; the first is {early[0]}, at index "
                f"{self.last_index[early[0]]}"
            )

    def has_participations_left(self, unit: str, share: float = 1.0) -> bool:
        """Tell whether a unit may take part in a round that takes so much of a cap."""
        cap = self.plan.sampling.cap
        return cap is None or self.taken_of_cap.get(unit, 0.0) + share <= cap * _ROUNDING

    def require_participations_left(self, units: Iterable[str], share: float = 1.0) -> None:
        """Check that units may take part once more, in a round that takes so much of a cap.

        Raises:
            ParticipationCapReached: If one has none left.
        """
        cap = self.plan.sampling.cap
        spent = [unit for unit in units if not self.has_participations_left(unit, share)]
        if spent:
            raise ParticipationCapReached(
                f"{len(spent)} of the participants have taken part {cap} times already, the plan's "
                f"participation cap; the first is {spent[0]}"
            )

    def require_declared(self, event: PrivacyEvent, what: str) -> None:
        """Check that another release was declared.

        Raises:
            ValueError: If it was not.
        """
        if event not in dict(self.plan.other_releases):
            raise ValueError(
                f"{what} is not among the plan's other_releases: what was not declared before "
                "the first release may depend on it, and the plan's rule does not cover that. "
                "Declare it"
            )

    def require_declared_left(self, event: PrivacyEvent, what: str) -> None:
        """Check that another release was made less often than declared.

        One that was reserved and never committed may be repeated, and is charged twice.

        Raises:
            PrivacyBudgetExhausted: If it was not.
        """
        declared = dict(self.plan.other_releases).get(event, 0)
        made = self.others[event] - list(self.waiting.values()).count(event)
        if made >= declared:
            raise PrivacyBudgetExhausted(
                f"{what} is among the plan's other_releases {declared} times, and was made as "
                "often: declare how often it is made"
            )

    def fields_of_round(
        self,
        number: int,
        participants: Sequence[str | int] | None,
    ) -> dict[str, Any]:
        """Return what the next reservation of a round says: what the plan and the entries make it.

        Raises:
            PrivacyBudgetExhausted: If the plan has no such round.
            ParticipationCapReached: If a participant has none left.
            SeparationBroken: If a participant has to rest.
            ValueError: If participants are missing or not wanted.
        """
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"round must be an integer from 1 on, got {number!r}")
        if number > self.plan.rounds:
            raise PrivacyBudgetExhausted(
                f"round {number} is not in the plan, whose budget pays for {self.plan.rounds}"
            )
        event = self.plan.event_of(number)
        noise_multiplier = self.plan.noise_multipliers[number - 1]
        sampling, turn = self.plan.sampling, self.rounds.total()
        fields: dict[str, Any] = {
            "round": number,
            "attempt": self.attempts[number] + 1,
            "noise_multiplier": noise_multiplier,  # not every event has one
            **event_to_dict(event),
        }
        if sampling.least_separation > 1 or sampling.buffered:
            fields["index"] = turn
        if (group := sampling.group_at(turn)) is not None:
            fields["group"] = group
        units = self._units_of_round(participants)
        if units is not None:
            self.require_participations_left(units, self.plan.cap_share(noise_multiplier))
            self.require_rested(units, turn)
            fields["participants"] = units
        return fields

    def _units_of_round(self, participants: Sequence[str | int] | None) -> list[str] | None:
        """Return the units that a round names, in their order; None where it names none.

        Raises:
            ValueError: If they are missing or not wanted, or repeat.
        """
        sampling = self.plan.sampling
        if sampling.buffered:
            if participants is not None:
                raise ValueError(
                    "who fills a buffer is not known when its round is reserved: name units when "
                    "they are asked"
                )
            return None
        if participants is None:
            if sampling.cap is not None:
                raise ValueError("under a participation cap every round has to name participants")
            if sampling.least_separation > 1 and not sampling.takes_turns:
                raise ValueError("under a separation every round has to name its participants")
            return None
        # Each unit of a group is charged for its turn.
        if sampling.takes_turns or not sampling.visible:
            raise ValueError(
                "the participants of a secret sample are secret: the plan's amplification rests "
                "on it, so they are not recorded"
            )
        units = sorted(str(unit) for unit in participants)
        if len(set(units)) != len(units):
            raise ValueError("a unit takes part in a round once, but participants repeat")
        return units

    def require_askable(self, units: Collection[str]) -> int:
        """Check that units may be asked for a contribution now, and return the open index.

        Raises:
            ParticipationCapReached: If one has none left.
            SeparationBroken: If one has to rest.
            ValueError: If one was asked before and has not answered, or no index is open.
        """
        index = self.open_index()
        self.asks.require_idle(units)
        self.require_participations_left(units)
        self.require_rested(units, index)
        return index

    def require_foldable(self, units: Collection[str]) -> int:
        """Check that contributions may be added now, and return the open index.

        Raises:
            ValueError: If one was not asked for, the buffer is full, or no index is open.
        """
        index = self.open_index()
        room = round(self.plan.sampling.expected_cohort(self.plan.num_units))
        self.asks.require_asked(units, room=room)
        return index

    def open_index(self) -> int:
        """Return the index that is reserved and not committed.

        Raises:
            ValueError: If there is none, or no client is buffered.
        """
        if not self.plan.sampling.buffered:
            raise ValueError(
                f"only for a buffer units are asked one by one, and the plan has "
                f"{self.plan.sampling}"
            )
        if self._newest is None or self._newest in self.committed:
            raise ValueError("no index is open: reserve a round before anybody is asked")
        return self.rounds.total() - 1

    def take_in(self, sequence: int, fields: dict[str, Any]) -> None:
        """Take in one entry.

        Args:
            sequence: Its number, from 1.
            fields: What it says.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field is of another type.
            ValueError: If it can't stand there, is not what the plan would have charged, or is
                unknown to this version.
        """
        try:
            self._take_in(sequence, fields)
        except PrivacyBudgetExhausted as beyond:
            raise ValueError(str(beyond)) from beyond

    def _take_in(self, sequence: int, fields: dict[str, Any]) -> None:
        kind = fields["kind"]
        if (kind == "plan") != (sequence == 1):
            raise ValueError("a ledger starts with its plan and has no other")
        match kind:
            case "plan":
                require_schema(fields["schema"], SCHEMA)
                self._plan = plan_from_dict(fields["plan"])
                self._filter = self._plan.filter()
            case "run":
                self._require_as_planned(fields, opening_of(self.plan))
                if fields["randomness"] not in _RANDOMNESS:
                    raise ValueError(f"a source of noise '{fields['randomness']}' is unknown")
                for name in ("run", "rule", "time"):
                    require_printable(fields[name])
                self.randomness.add(fields["randomness"])
                self._openings.add(fields["run"])
                # The process that asked them has ended: it adds no answer any more. If it has added
                # one, then to the newest index.
                self.last_index |= dict.fromkeys(self.asks.forget(), self.rounds.total() - 1)
                if self.choice is not None and fields.get("settings") != self.choice.settings:
                    self.changed_by_hand = True
            case "assign":
                self._take_in_groups(fields["groups"])
            case "reserve":
                self._take_in_reservation(sequence, fields)
            case "ask" | "fold":
                self._take_in_units(kind, fields["index"], fields["units"])
            case "chosen":
                self._take_in_choice(fields)
            case "enforcement":
                reserved = fields["reserved"]
                self.require_shows_nothing(reserved)
                self._enforced[reserved] = Enforcement(fields["enforcement"])
            case "commit":
                reserved = fields["reserved"]
                if reserved not in self.reserved or reserved in self.committed:
                    raise ValueError(f"entry {reserved} is no reservation that waits for a commit")
                self.committed.add(reserved)
                self.waiting.pop(reserved, None)
            case _:
                raise ValueError(f"an entry of kind '{kind}' is unknown to this version")

    def _take_in_groups(self, groups: dict[str, int]) -> None:
        sampling = self.plan.sampling
        if sampling.num_groups == 1:
            raise ValueError("it assigns groups, and the plan has none")
        for unit, group in groups.items():
            if unit in self.group_of:
                raise ValueError(f"{unit} has group {self.group_of[unit]} for the whole training")
            if not 0 <= group < sampling.num_groups:
                raise ValueError(f"there is no group {group} of {sampling.num_groups}")
            self.group_of[unit] = group

    def _take_in_units(self, kind: str, index: int, units: list[str]) -> None:
        if kind == "ask":
            opened = self.require_askable(units)
            self.asks.ask(units, opened)
            self._take_part(units, 1.0)
        else:
            opened = self.require_foldable(units)
            self.asks.fold(units, room=self.asks.folded + len(units))
            self.last_index |= dict.fromkeys(units, opened)
        if index != opened:
            raise ValueError(f"its index is {index} and the open one was {opened}")

    def _take_part(self, units: Iterable[str], share: float) -> None:
        for unit in units:
            self.participations[unit] += 1
            self.taken_of_cap[unit] = self.taken_of_cap.get(unit, 0.0) + share

    def _require_as_planned(self, fields: dict[str, Any], planned: dict[str, Any]) -> None:
        """Check that an entry says what the plan makes of it: whoever rewrote one may say less.

        Raises:
            ValueError: With what differs.
        """
        for name, value in planned.items():
            said = fields.get(name)
            if not _is_same(said, value):
                raise ValueError(f"its {name} is {said!r:.60}, and the plan's is {value!r:.60}")

    def require_choosable(self, plan: Plan, paid: int | None) -> None:
        """Check that a choice of hyper-parameters can stand here.

        Args:
            plan: Of the training with what was chosen.
            paid: Entry of the reservation that pays for it, if one does.

        Raises:
            ValueError: If there was a choice or a round before, the plan differs in what is
                charged, or the reservation was not committed.
        """
        if self.choice is not None or self.rounds:
            raise ValueError("hyper-parameters are chosen once, before the first round")
        if paid is not None and paid not in self.committed:
            raise ValueError(f"entry {paid} is no release that could have been this choice")
        # What the choice showed may decide about the updates, and about nothing that is charged.
        if not plan.charges_like(self.plan):
            raise ValueError("a choice changes more of the plan than what a round releases")

    def _take_in_choice(self, fields: dict[str, Any]) -> None:
        chosen, paid = plan_from_dict(fields["plan"]), fields["reserved"]
        self.require_choosable(chosen, paid)
        self._plan = chosen
        self.choice = Choice(
            how=fields["how"], chosen=fields["chosen"], settings=fields["settings"], reserved=paid
        )

    def _take_in_reservation(self, sequence: int, fields: dict[str, Any]) -> None:
        event = event_from_dict(fields)
        is_round = "round" in fields
        if fields["run"] not in self._openings:
            raise ValueError("it belongs to no opening of the ledger")
        if is_round:
            # What is declared is computed anew, as an auditor's machine rounds it.
            planned = self.fields_of_round(fields["round"], fields.get("participants"))
            self._require_as_planned(fields, planned)
        else:
            planned = event_to_dict(event)
            require_printable(fields["what"])
            self.require_declared(event, f"'{fields['what']}'")
            self.require_declared_left(event, f"'{fields['what']}'")
        # What nobody reads could still be shown.
        if more := fields.keys() - planned.keys() - _OF_A_RESERVATION[is_round]:
            raise ValueError(f"its {min(more)} is nothing that a reservation says")
        self.reserved[sequence] = Reservation(
            sequence=sequence,
            what=f"round {fields['round']}" if is_round else fields["what"],
            noise_multiplier=fields.get("noise_multiplier"),
            index=self.rounds.total() if is_round else None,
        )
        # Beyond the cap, or where it is another's turn, a round charges no unit more than before.
        if not is_round or self.charges_another_round:
            self.gate.spend(self.plan.charged_event(event) if is_round else event)
        if not is_round:
            self.others[event] += 1
            self.waiting[sequence] = event
            return
        self._newest = sequence
        self.asks.open()
        units = fields.get("participants", ())
        self.last_index |= dict.fromkeys(units, self.rounds.total())
        self.rounds[event] += 1
        self.multipliers.append(fields["noise_multiplier"])
        self.attempts[fields["round"]] += 1
        self._take_part(units, self.plan.cap_share(fields["noise_multiplier"]))


def opening_of(plan: Plan) -> dict[str, Any]:
    """Return what an opening of the ledger says of the plan."""
    return {
        "unit": plan.unit,
        "sampling": plan.sampling.kind,
        "sensitivity": plan.neighboring_relation.distance * plan.clipping_norm,
        "denominator": plan.denominator,
    }


def _is_same(said: object, planned: object) -> bool:
    """Tell whether an entry's value is the plan's, but for rounding on another machine."""
    if isinstance(planned, float):
        if isinstance(said, bool) or not isinstance(said, int | float):
            return False
        return math.isclose(said, planned, rel_tol=_ANOTHER_MACHINE)
    return type(said) is type(planned) and said == planned
