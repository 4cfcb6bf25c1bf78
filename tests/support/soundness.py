"""The promise after a fault: nothing released uncharged, nothing twice, and the ledger verifies."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from stages import Place

from fl_dp.ledger import PrivacyLedger


class Spent(NamedTuple):
    """Counts of a training's ledger."""

    charged: int
    committed: int
    shown: int


def require_sound(place: Place) -> Spent:
    """Check a training's folder, whatever happened to it; return what was spent.

    Reading the ledger verifies its chain.
    """
    shown = [line["model"] for line in place.shown()]
    assert len(set(shown)) == len(shown)  # no model left twice
    with PrivacyLedger.read(place.ledger) as ledger:
        assert len(shown) <= ledger.rounds_committed <= ledger.rounds_spent
        assert ledger.rounds_spent <= ledger.plan.rounds
        assert ledger.epsilon().best <= ledger.plan.budget.epsilon
        return Spent(ledger.rounds_spent, ledger.rounds_committed, len(shown))


class Contribution(NamedTuple):
    """An answer in a buffered release.

    Attributes:
        unit: Whose, by lasting name.
        asked: The index that was open when it was asked.
        folded: The index whose release it is in.
    """

    unit: str
    asked: int
    folded: int


def require_sound_buffers(place: Place) -> list[Contribution]:
    """Check a training with buffers, whatever happened to it; return what is in its releases.

    Each release was charged under its own number before anybody was asked for it. Each answer is
    of an ask of the same process. A unit is in a release once, and asked within its cap.
    """
    require_sound(place)
    with PrivacyLedger.read(place.ledger) as ledger:
        entries, plan = [entry.fields for entry in ledger.entries], ledger.plan
    indices: list[int] = []
    asked: dict[str, int] = {}
    asks: Counter[str] = Counter()
    contributions: list[Contribution] = []
    for entry in entries:
        if entry["kind"] == "run":  # asks of a process that is gone are answered in no release
            asked = {}
        elif entry["kind"] == "reserve":
            indices.append(entry["index"])
        elif entry["kind"] in ("ask", "fold"):
            assert entry["index"] == indices[-1]
            for unit in entry["units"]:
                if entry["kind"] == "ask":
                    assert unit not in asked
                    asked[unit] = entry["index"]
                    asks[unit] += 1
                else:
                    contributions.append(Contribution(unit, asked.pop(unit), entry["index"]))
    assert indices == list(range(len(indices)))
    folded = Counter(contribution.folded for contribution in contributions)
    pairs = {(contribution.unit, contribution.folded) for contribution in contributions}
    assert len(pairs) == len(contributions)
    assert max(folded.values(), default=0) <= plan.denominator
    assert max(asks.values(), default=0) <= (plan.sampling.cap or plan.rounds)
    return contributions
