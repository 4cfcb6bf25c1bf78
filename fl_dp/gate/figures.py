"""What a gate has done since its start, and what its owner's budget still allows.

For the owner's monitoring. No number depends on records: they follow messages, policy and ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fl_dp import clock
from fl_dp.clients.owner.node_config import NodeConfig, NodeConfigError
from fl_dp.ledger import LedgerCorrupted, LedgerUnavailable, NodeLedger
from fl_dp.ledger.node import Account

from .policy import GatePolicy, GatePromise
from .superlink_signs import Signs

_LEFT = (
    "Epsilon that one more run of Gaussian noise may cost, at the cap's delta, for one record or "
    "client as the policy promises, by the neighbours and against whom that run names."
)
_MINUTE = 60.0  # seconds for which a budget is shown: the whole ledger is read for it


@dataclass
class GateFigures:
    """Counts of one gate.

    Attributes:
        answers: Trainings and evaluations that were answered, with noise alone or not.
        refusals: Messages that were answered with an error.
        signs: What the last answer of the SuperLink told of it. None: there was none.
        seen: When that was, in seconds since 1970.
    """

    answers: int = 0
    refusals: int = 0
    signs: Signs | None = None
    seen: float = 0.0


class Figure(NamedTuple):
    """A number with its meaning in words."""

    name: str
    meaning: str
    value: float


class FiguresOfNode:
    """A gate's figures as its owner reads them."""

    def __init__(self, figures: GateFigures, policy: Path) -> None:
        """Show these figures, and the budget of a policy's file."""
        self._figures, self._policy = figures, policy
        self._left: float | None = None
        self._read = -_MINUTE

    def __call__(self) -> Iterator[Figure]:
        """Yield what is known now."""
        figures, signs = self._figures, self._figures.signs or Signs()
        ends = "End of the SuperLink's certificate, Unix time."
        ahead = "Seconds by which this machine's clock is ahead of the SuperLink's."
        for name, meaning, value in (
            ("answers", "Trainings and evaluations that were answered.", figures.answers),
            ("refusals", "Messages that were answered by an error.", figures.refusals),
            ("superlink_seen", "Last answer of the SuperLink, Unix time.", figures.seen),
            ("epsilon_left", _LEFT, self.left()),
            ("certificate_ends", ends, signs.certificate_ends),
            ("clock_ahead", ahead, signs.clock_ahead),
        ):
            if value is not None:
                yield Figure(f"fl_dp_node_{name}", meaning, value)

    def left(self) -> float | None:
        """Epsilon that is left, at most a minute old; None: there is no cap, or no such ledger."""
        if clock.now() - self._read >= _MINUTE:
            self._read, self._left = clock.now(), _left(self._policy)
        return self._left


def _left(policy: Path) -> float | None:
    try:
        gate = GatePolicy.read(policy)
    except NodeConfigError:
        return None
    owner = NodeConfig.of(gate.node_config)
    if owner.cap is None or owner.ledger_path is None:
        return None
    of_records = gate.keys.promise is GatePromise.RECORD
    account = Account(unit="record" if of_records else "client", source=owner.source)
    try:
        with NodeLedger.read(owner.ledger_path) as ledger:
            return ledger.spending_of_source(account).room(owner.cap)
    except FileNotFoundError:
        return owner.cap.epsilon
    except (LedgerCorrupted, LedgerUnavailable):
        return None
