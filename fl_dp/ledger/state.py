"""State of one training, folded from its entries alone. No disk, no lock.

So what is spent depends on nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fl_dp.accounting import CyclicSampling, PrivacyBudgetExhausted, PrivacyEvent, freeze
from fl_dp.accounting.events import FrozenHistory, event_from_dict, event_to_dict
from fl_dp.accounting.grouped_sampling import GroupedSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan, plan_from_dict
from fl_dp.promise import Enforcement, weakest

from .asks import Asks
from .entries import require_printable


class SeparationBroken(ValueError):
    """A unit would take part again before the plan's separation has passed."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A release that is on disk as spent, and may be made once.

    Attributes:
        sequence: Its entry in the ledger.
        what: `round 3`, or the name of another release.
        noise_multiplier: None where the release has none.
        index: Number of rounds reserved before this one, by any training. A round that fails keeps
            its index. None: it is no round.
    """

    sequence: int
    what: str
    noise_multiplier: float | None
    index: int | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice of this training's hyper-parameters, where the ledger knows it.

    Attributes:
        how: In words for the privacy statement.
        chosen: Winning settings, as overrides.
        settings: Digest of all training settings.
        reserved: Entry of the reservation that pays; None: no client's data was used.
    """

    how: str
    chosen: str
    settings: str
    reserved: int | None


_ROUNDING = 1.0 + 1e-12  # of a sum of parts of a cap
_ANOTHER_MACHINE = 1e-9  # relative: its floating-point functions may round differently
_RANDOMNESS = (SecureRandom.SECURE_KIND, SecureRandom.INSECURE_KIND)


class ParticipationCapReached(PrivacyBudgetExhausted):
    """A unit would take part more often than the plan allows; nothing was released or charged."""


class TrainingState:
    """The state after a plan's entry and those of its training so far.

    Attributes:
        plan: That of its entry, or of a choice since.
        gate: The plan's filter, with everything spent so far.
        rounds: Number of reserved rounds by the event each is charged as.
        others: Number of other reserved releases by event.
        multipliers: Noise multiplier of each reserved round, in order.
        attempts: Number of reservations of each round, by its number.
        participations: Each unit's rounds, where rounds name units; its asks, for a buffer.
        taken_of_cap: Part of a participation cap that each unit's rounds take.
        last_index: Index at which each unit last took part, where rounds name units.
        group_of: Each unit's group, if any.
        reserved: Every reservation, by its entry.
        committed: Entries of committed reservations.
        waiting: Event of each uncommitted other release, by its entry.
        openings: Runs that have opened it.
        randomness: Every source of randomness that the ledger was opened with.
        choice: How hyper-parameters were chosen; None: unknown.
        changed_by_hand: Whether a later opening had other settings.
    """

    def __init__(self, plan: Plan) -> None:
        """Start with a plan, and nothing spent."""
        self.plan = plan
        self.gate = plan.filter()
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
        self.openings: set[str] = set()
        self.randomness: set[str] = set()
        self.choice: Choice | None = None
        self.changed_by_hand = False
        self._enforced: dict[int, Enforcement] = {}  # by the entry of a round's reservation

    @property
    def insecure(self) -> bool:
        """Whether an adversary could predict noise or coins of any opening."""
        return SecureRandom.INSECURE_KIND in self.randomness

    @property
    def history(self) -> FrozenHistory:
        """Every release that one unit is charged for so far.

        Under a participation cap it is the cap's worth of rounds, for all clients alike: how often
        one unit took part is private. Where units take turns, it is one unit's turns.
        """
        counted: Counter[PrivacyEvent] = Counter()
        for event, count in self.rounds.items():
            counted[self.plan.charged_event(event)] += count
        # Different events have no turns: the plan refuses them.
        rounds = {event: self.plan.charged_of(count) for event, count in counted.items()}
        return freeze([*rounds.items(), *self.others.items()])

    @property
    def charges_another_round(self) -> bool:
        """Whether one more reserved round raises a unit's largest charge."""
        reserved = self.rounds.total()
        return self.plan.charged_of(reserved + 1) > self.plan.charged_of(reserved)

    @property
    def enforcement(self) -> Enforcement:
        """The weakest enforcement of any release; `APP` where one shows nothing."""
        return weakest(self._enforced.get(entry, Enforcement.APP) for entry in self.reserved)

    def require_no_enforcement(self, entry: int) -> None:
        """Check that an entry reserves a round without written enforcement.

        Raises:
            ValueError: It reserves no round, or the enforcement is written.
        """
        is_round = entry in self.reserved and self.reserved[entry].index is not None
        if not is_round or entry in self._enforced:
            raise ValueError(f"entry {entry} is no round that waits for its enforcement")

    def require_rested(self, units: Iterable[str], index: int) -> None:
        """Check that units have rested before an index.

        Raises:
            SeparationBroken: One rested less than the plan's separation.
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
        """Tell whether a unit may join a round that takes `share` of a cap."""
        cap = self.plan.sampling.cap
        return cap is None or self.taken_of_cap.get(unit, 0.0) + share <= cap * _ROUNDING

    def require_participations_left(self, units: Iterable[str], share: float = 1.0) -> None:
        """Check that units may join a round that takes `share` of a cap.

        Raises:
            ParticipationCapReached: One has none left.
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
            ValueError: It was not.
        """
        if event not in dict(self.plan.other_releases):
            raise ValueError(
                f"{what} is not among the plan's other_releases: what was not declared before "
                "the first release may depend on it, and the plan's rule does not cover that. "
                "Declare it: other_releases=freeze([(event, times)])"
            )

    def require_declared_left(self, event: PrivacyEvent, what: str) -> None:
        """Check that another release was made less often than declared.

        One reserved and never committed may be repeated, and is charged twice.

        Raises:
            PrivacyBudgetExhausted: It was not.
        """
        declared = dict(self.plan.other_releases).get(event, 0)
        count = self.others[event] - list(self.waiting.values()).count(event)
        if count >= declared:
            raise PrivacyBudgetExhausted(
                f"{what} is among the plan's other_releases {declared} times, and was made as "
                "often: declare how often it is made"
            )

    def fields_of_round(
        self,
        number: int,
        participants: Sequence[str | int] | None,
    ) -> dict[str, Any]:
        """Return the fields of a round's next reservation, by plan and entries.

        Raises:
            PrivacyBudgetExhausted: The plan has no such round.
            ParticipationCapReached: A participant has none left.
            SeparationBroken: A participant has to rest.
            ValueError: Participants are missing or not wanted.
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
        if sampling.least_separation > 1 or isinstance(sampling, BufferedSampling):
            fields["index"] = turn
        if isinstance(sampling, CyclicSampling):
            fields["group"] = sampling.group_at(turn)
        units = self._units_of_round(participants)
        if units is not None:
            self.require_participations_left(units, self.plan.cap_share(noise_multiplier))
            self.require_rested(units, turn)
            fields["participants"] = units
        return fields

    def _units_of_round(self, participants: Sequence[str | int] | None) -> list[str] | None:
        """Return the units that a round names, sorted; None: it names none."""
        sampling = self.plan.sampling
        if isinstance(sampling, BufferedSampling):
            if participants is not None:
                raise ValueError(
                    "who fills a buffer is not known when its round is reserved: name units when "
                    "they are asked"
                )
            return None
        if participants is None:
            if sampling.cap is not None:
                raise ValueError("under a participation cap every round has to name participants")
            if sampling.least_separation > 1 and not isinstance(sampling, CyclicSampling):
                raise ValueError("under a separation every round has to name its participants")
            return None
        # Each unit of a group is charged for its turn.
        if isinstance(sampling, CyclicSampling) or not sampling.visible:
            raise ValueError(
                "the participants of a secret sample are secret: the plan's amplification rests "
                "on it, so they are not recorded"
            )
        units = sorted(str(unit) for unit in participants)
        if len(set(units)) != len(units):
            raise ValueError("a unit takes part in a round once, but participants repeat")
        return units

    def require_askable(self, units: Collection[str]) -> int:
        """Check that units may be asked now, and return the open index.

        Raises:
            ParticipationCapReached: One has none left.
            SeparationBroken: One has to rest.
            ValueError: One still owes an answer, or no index is open.
        """
        index = self.open_index()
        self.asks.require_idle(units)
        self.require_participations_left(units)
        self.require_rested(units, index)
        return index

    def require_foldable(self, units: Collection[str]) -> int:
        """Check that contributions may be added now, and return the open index.

        Raises:
            ValueError: One was not asked for, the buffer is full, or no index is open.
        """
        index = self.open_index()
        room = round(self.plan.sampling.expected_cohort(self.plan.num_units))
        self.asks.require_asked(units, room=room)
        return index

    def open_index(self) -> int:
        """Return the index reserved and not committed.

        Raises:
            ValueError: There is none, or the plan has no buffer.
        """
        if not isinstance(self.plan.sampling, BufferedSampling):
            raise ValueError(
                f"only for a buffer units are asked one by one, and the plan has "
                f"{self.plan.sampling}"
            )
        if self._newest is None or self._newest in self.committed:
            raise ValueError("no index is open: reserve a round before anybody is asked")
        return self.rounds.total() - 1

    def add(self, sequence: int, fields: dict[str, Any]) -> None:
        """Update the state by one entry.

        Raises:
            KeyError: A field is missing.
            TypeError: A field has another type.
            ValueError: It can't stand there, is not what the plan would have charged, or is
                unknown to this version.
        """
        try:
            self._add(sequence, fields)
        except PrivacyBudgetExhausted as error:
            raise ValueError(str(error)) from error

    def _add(self, sequence: int, fields: dict[str, Any]) -> None:
        kind = fields["kind"]
        match kind:
            case "run":
                self._require_as_planned(fields, opening_of(self.plan))
                if fields["randomness"] not in _RANDOMNESS:
                    raise ValueError(f"a source of noise '{fields['randomness']}' is unknown")
                for name in ("run", "rule", "time"):
                    require_printable(fields[name])
                self.randomness.add(fields["randomness"])
                self.openings.add(fields["run"])
                # The process that asked them has ended and adds no answer any more. If it has added
                # one, it was to the newest index.
                self.last_index |= dict.fromkeys(self.asks.forget(), self.rounds.total() - 1)
                if self.choice is not None and fields.get("settings") != self.choice.settings:
                    self.changed_by_hand = True
            case "assign":
                self._add_groups(fields["groups"])
            case "reserve":
                self._add_reservation(sequence, fields)
            case "ask" | "fold":
                self._add_units(kind, fields["index"], fields["units"])
            case "chosen":
                self._add_choice(fields)
            case "enforcement":
                reserved = fields["reserved"]
                self.require_no_enforcement(reserved)
                self._enforced[reserved] = Enforcement(fields["enforcement"])
            case "commit":
                reserved = fields["reserved"]
                if reserved not in self.reserved or reserved in self.committed:
                    raise ValueError(f"entry {reserved} is no reservation that waits for a commit")
                self.committed.add(reserved)
                self.waiting.pop(reserved, None)
            case _:
                raise ValueError(f"an entry of kind '{kind}' is unknown to this version")

    def _add_groups(self, groups: dict[str, int]) -> None:
        sampling = self.plan.sampling
        if not isinstance(sampling, GroupedSampling):
            raise ValueError("it assigns groups, and the plan has none")
        for unit, group in groups.items():
            if unit in self.group_of:
                raise ValueError(f"{unit} has group {self.group_of[unit]} for the whole training")
            if not 0 <= group < sampling.num_groups:
                raise ValueError(f"there is no group {group} of {sampling.num_groups}")
            self.group_of[unit] = group

    def _add_units(self, kind: str, index: int, units: list[str]) -> None:
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
        """Check that an entry has the fields that the plan gives: a forger may write less."""
        for name, value in planned.items():
            written = fields.get(name)
            if not _is_same(written, value):
                raise ValueError(f"its {name} is {written!r:.60}, and the plan's is {value!r:.60}")

    def require_choosable(self, plan: Plan, paid: int | None) -> None:
        """Check that a choice of hyper-parameters can stand here.

        `plan` has the chosen settings; `paid` is the entry of the reservation that pays, if any.

        Raises:
            ValueError: There was a choice or a round before, the plan differs in what is charged,
                or the reservation was not committed.
        """
        if self.choice is not None or self.rounds:
            raise ValueError("hyper-parameters are chosen once, before the first round")
        if paid is not None and paid not in self.committed:
            raise ValueError(f"entry {paid} is no release that could have been this choice")
        # The choice may change the updates, and nothing that is charged.
        if not plan.charges_like(self.plan):
            raise ValueError("a choice changes more of the plan than what a round releases")

    def _add_choice(self, fields: dict[str, Any]) -> None:
        chosen, paid = plan_from_dict(fields["plan"]), fields["reserved"]
        self.require_choosable(chosen, paid)
        self.plan = chosen
        self.choice = Choice(
            how=fields["how"], chosen=fields["chosen"], settings=fields["settings"], reserved=paid
        )

    def _add_reservation(self, sequence: int, fields: dict[str, Any]) -> None:
        event = event_from_dict(fields)
        is_round = "round" in fields
        if fields["run"] not in self.openings:
            raise ValueError("it belongs to no opening of its training")
        allowed = {"kind", "training", "run"}
        if is_round:
            # The fields are computed again, as an auditor's machine rounds them.
            planned = self.fields_of_round(fields["round"], fields.get("participants"))
            self._require_as_planned(fields, planned)
            what, index = f"round {fields['round']}", self.rounds.total()
        else:
            planned = event_to_dict(event)
            what, index = fields["what"], None
            allowed.add("what")
            require_printable(what)
            self.require_declared(event, f"'{what}'")
            self.require_declared_left(event, f"'{what}'")
        # Unread fields could still be shown to somebody.
        if extra := fields.keys() - planned.keys() - allowed:
            raise ValueError(f"its {min(extra)} is nothing that a reservation says")
        self.reserved[sequence] = Reservation(
            sequence=sequence,
            what=what,
            noise_multiplier=fields.get("noise_multiplier"),
            index=index,
        )
        if not is_round:
            self.gate.spend(event)
            self.others[event] += 1
            self.waiting[sequence] = event
            return
        # Beyond the cap, or at another group's turn, a round charges no unit more than before.
        if self.charges_another_round:
            self.gate.spend(self.plan.charged_event(event))
        self._newest = sequence
        self.asks.open()
        units = fields.get("participants", ())
        self.last_index |= dict.fromkeys(units, self.rounds.total())
        self.rounds[event] += 1
        self.multipliers.append(fields["noise_multiplier"])
        self.attempts[fields["round"]] += 1
        self._take_part(units, self.plan.cap_share(fields["noise_multiplier"]))


def opening_of(plan: Plan) -> dict[str, Any]:
    """Return an opening's fields of the plan."""
    return {
        "unit": plan.unit,
        "sampling": plan.sampling.kind,
        "sensitivity": plan.neighboring_relation.distance * plan.clipping_norm,
        "denominator": plan.denominator,
    }


def _is_same(written: object, planned: object) -> bool:
    """Tell whether an entry's value is the plan's, but for another machine's rounding."""
    if isinstance(planned, float):
        if isinstance(written, bool) or not isinstance(written, int | float):
            return False
        return math.isclose(written, planned, rel_tol=_ANOTHER_MACHINE)
    return type(written) is type(planned) and written == planned
