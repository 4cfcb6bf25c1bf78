"""State of a training's ledger, folded from its entries one by one. No disk, no lock.

Entry by entry is the one way in: what is spent can't depend on anything but the entries.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from fl_dp.accounting import PrivacyEvent, PrivacyFilter, event_from_dict
from fl_dp.plan import PrivacyPlan

from .entries import SCHEMA, require_schema


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A release that is on disk as spent and may now be made, once.

    Attributes:
        sequence: Its entry in the ledger.
        what: `round 3`, or the name of another release.
        noise_multiplier: Of the release, where it has one.
        index: Of a round: how many rounds were reserved in the ledger before it, by anybody. A
            round that fails keeps its index. None for another release.
    """

    sequence: int
    what: str
    noise_multiplier: float | None
    index: int | None


class TrainingState:
    """What the entries so far come to.

    Attributes:
        rounds: Rounds that were reserved, by what each is charged as.
        others: Other releases that were reserved, in the same way.
        multipliers: Noise multiplier of each reserved round, in their order.
        attempts: How often each round was reserved, by its number.
        participations: Rounds of each unit, as far as rounds said so.
        reserved: Every reservation, by its entry.
        committed: Entries of the reservations that were committed.
        randomness: Every source of randomness that the ledger was opened with.
        uncharged: Names of releases that no epsilon covers, in their order.
    """

    def __init__(self) -> None:
        """Start before the first entry."""
        self._plan: PrivacyPlan | None = None
        self._filter: PrivacyFilter | None = None
        self.rounds: Counter[PrivacyEvent] = Counter()
        self.others: Counter[PrivacyEvent] = Counter()
        self.multipliers: list[float] = []
        self.attempts: Counter[int] = Counter()
        self.participations: Counter[str] = Counter()
        self.reserved: dict[int, Reservation] = {}
        self.committed: set[int] = set()
        self.randomness: set[str] = set()
        self.uncharged: list[str] = []

    @property
    def plan(self) -> PrivacyPlan:
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
        """Whether a unit can be charged for a round more: not for more rounds than the cap."""
        cap = self.plan.participation_cap
        return cap is None or self.rounds.total() < cap

    def take_in(self, sequence: int, fields: dict[str, Any]) -> None:
        """Take in one entry.

        Args:
            sequence: Its number, from 1.
            fields: What it says.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field is of another type.
            ValueError: If it can't stand there or is unknown to this version.
        """
        kind = fields["kind"]
        if (kind == "plan") != (sequence == 1):
            raise ValueError("a ledger starts with its plan and has no other")
        match kind:
            case "plan":
                require_schema(fields["schema"], SCHEMA)
                self._plan = PrivacyPlan.from_dict(fields["plan"])
                self._filter = self._plan.filter()
            case "run":
                self.randomness.add(fields["randomness"])
            case "reserve":
                self._take_in_reservation(sequence, fields)
            case "uncharged":
                self.uncharged.append(str(fields["what"]))
            case "commit":
                reserved = fields["reserved"]
                if reserved not in self.reserved or reserved in self.committed:
                    raise ValueError(f"entry {reserved} is no reservation that waits for a commit")
                self.committed.add(reserved)
            case _:
                raise ValueError(f"an entry of kind '{kind}' is unknown to this version")

    def _take_in_reservation(self, sequence: int, fields: dict[str, Any]) -> None:
        event = event_from_dict(fields)
        is_round = "round" in fields
        self.reserved[sequence] = Reservation(
            sequence=sequence,
            what=f"round {fields['round']}" if is_round else fields["what"],
            noise_multiplier=fields.get("noise_multiplier"),
            index=self.rounds.total() if is_round else None,
        )
        # No unit takes part more often than the cap: rounds beyond it charge none of them more.
        if not is_round or self.charges_another_round:
            self.gate.spend(event)
        if not is_round:
            self.others[event] += 1
            return
        self.rounds[event] += 1
        self.multipliers.append(fields["noise_multiplier"])
        self.attempts[fields["round"]] += 1
        self.participations.update(fields.get("participants", ()))
