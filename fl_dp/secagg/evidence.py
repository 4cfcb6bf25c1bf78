"""Evidence that a node keeps of a run after its keys are gone, for its owner to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

from fl_dp.documents import LONGEST, document

from .directory import MOST_RUNS, Directory
from .key_pairs import KEY_BYTES
from .receipts import Receipt
from .roster import Roster
from .terms import SumTerms
from .texts import canonical, hex_bytes, object_of, require_ascending, require_integers

_MOST = 2**63 - 1
_NUMBERS = ("summed", "left_out", "missing")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A node's own view of one run. Nothing in it is secret, and nothing is made of data.

    Attributes:
        run: The run.
        identity: The node's, in hex.
        directory: As it was accepted, as JSON text.
        ended: Whether no receipt can come any more.
        last: Number of the last sum that the node took part in; 0: it took part in none.
        receipted: The last sum with a receipt: its `terms`, the `label` of the node's message in
            hex, the `receipt` and the directory's `epoch`; empty if there is none.
        summed: Numbers of sums with a receipt that has the node's message, checked when it came.
        left_out: Numbers of sums with a receipt that has not: the message was opened in none.
        missing: Numbers of sums without a receipt: what became of the message is not known.
        promised: Clients that do not collude in any sum that could be opened, by the run's terms;
            0: it had none.
    """

    run: int
    identity: str
    directory: str
    ended: bool
    last: int
    receipted: Mapping[str, str]
    summed: tuple[int, ...]
    left_out: tuple[int, ...]
    missing: tuple[int, ...]
    promised: int

    def to_json(self) -> str:
        """Return it as JSON text."""
        return canonical(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: If it is anything else.
        """
        keys = list(cls.__dataclass_fields__)
        given = object_of(text, keys, "evidence of a run", longest=LONGEST)  # of the owner's own
        require_integers(0, MOST_RUNS, run=given["run"])
        require_integers(0, _MOST, last=given["last"], promised=given["promised"])
        with document("evidence of a run"):
            texts = [given["identity"], given["directory"], *given["receipted"].values()]
            for name in _NUMBERS:
                require_ascending(_MOST, **{name: given[name]})
            if not all(isinstance(each, str) for each in texts):
                raise ValueError("identity, directory and what is receipted must be texts")
            if not isinstance(given["ended"], bool):
                raise ValueError("ended must be true or false")
            return cls(**given | {name: tuple(given[name]) for name in _NUMBERS})

    def findings(self, roster: Roster | None = None) -> tuple[str, ...]:
        """Check everything again, and return what does not hold; nothing if all does.

        Args:
            roster: The nodes that the owner knows of.
        """
        try:
            directory = Directory.from_json(self.directory)
            directory.check()
        except ValueError as error:
            return (f"the directory does not hold: {error}",)
        identity = hex_bytes(self.identity, KEY_BYTES, "identity")
        found = [] if roster is None else directory.strangers(roster)
        if identity not in directory.places:
            found.append("this node is not in the directory")
        elif self.receipted:
            found += self._receipt_findings(directory, identity)
        # While a run goes on, the receipt of its last sum comes with the next message.
        if overdue := [each for each in self.missing if self.ended or each != self.last]:
            found.append(
                f"no receipt came for sum {in_words(overdue)}: what became of it is unknown"
            )
        return tuple(found)

    def _receipt_findings(self, directory: Directory, identity: bytes) -> list[str]:
        try:
            directory = directory.as_of(int(self.receipted["epoch"]))
            place = directory.places[identity]
            terms = SumTerms.from_json(self.receipted["terms"])
            places = len(directory.entries)
            receipt = Receipt.from_json(self.receipted["receipt"], places=places)
            label = hex_bytes(self.receipted["label"], None, "label")
        except (KeyError, ValueError) as error:
            return [f"the last receipt can't be read: {error}"]
        found = []
        if terms.directory != directory.hash.hex():
            found.append("the terms of the last sum are of another directory")
        if not receipt.accounts_for(terms.hash, place, label):
            found.append("the last receipt is not of this node's message")
        if len(receipt.online) < terms.least:
            found.append(f"the last sum was opened over {len(receipt.online)} nodes, too few")
        good = terms.signers(directory, receipt.signatures, receipt.view)
        if good < terms.threshold:
            found.append(f"{good} members signed the last receipt, {terms.threshold} are needed")
        return found


def in_words(numbers: Sequence[int]) -> str:
    """Return ascending numbers in short, as `1-4, 7`."""
    ends = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    spans = [numbers[a:b] for a, b in pairwise([0, *ends, len(numbers)])]
    return ", ".join(f"{s[0]}" if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans if s)


def summary_of(evidence: Evidence) -> dict[str, Any]:
    """Return what an owner wants to see of a run at a glance."""
    directory = Directory.from_json(evidence.directory)
    document: dict[str, Any] = {
        "run": evidence.run,
        "nodes": len(directory.current),
        "directory": directory.hash.hex(),
        "roster": directory.roster_hash or None,
        "promised": evidence.promised,
        "last_sum": evidence.last,
        **{name: list(getattr(evidence, name)) for name in _NUMBERS},
        "receipted_sum": None,
    }
    if evidence.receipted:
        terms = SumTerms.from_json(evidence.receipted["terms"])
        places = len(directory.entries)
        receipt = Receipt.from_json(evidence.receipted["receipt"], places=places)
        document |= {
            "receipted_sum": terms.number,
            "repliers": len(receipt.online),
            "least": terms.least,
            "colluding": terms.colluding,
            "guaranteed": terms.noise.guaranteed,
        }
    return document
