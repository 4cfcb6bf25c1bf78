"""Participation cap of a plan: which units are left, told by names that outlast a run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger import PrivacyLedger

from .exchange import ATTEMPTS
from .rehearsal import Answers, named
from .roster import RosterIncomplete, Unit

logger = logging.getLogger("flwr.fl_dp")

_SOME = 5  # so many nodes are listed in a line
_BY_ID = "node-"  # no lasting name starts like this


class Participations:
    """Count of each unit's participations, over all runs on one ledger.

    Without a cap nobody is counted, every check passes, and the ledger charges everybody.
    """

    def __init__(
        self,
        cap: int | None = None,
        *,
        units_per_node: int = 1,
        ledger: PrivacyLedger | None = None,
    ) -> None:
        """Count by the ledger, up to `cap`."""
        self._cap = cap
        self._units_per_node = units_per_node
        self._ledger = ledger if cap is not None else None
        self._names: dict[int, str] | None = None

    def require_countable(self) -> None:
        """Check, before anybody is asked, that earlier participations can be counted on.

        Raises:
            ValueError: If they were counted by ids of an earlier run.
        """
        if any(name.startswith(_BY_ID) for name in self._taken):
            raise ValueError(
                "the ledger has counted participations by Flower's node ids, which change from run "
                "to run, so a cap can't go on: give each node a unit-name in its --node-config, "
                "and start a new ledger with what is left of the budget"
            )

    def needs_everyone(self, first: Answers) -> bool:
        """Tell, by the first answers of a rehearsal, whether every node has to say its name."""
        return self._cap is not None and bool(self._taken or named(first))

    def recognise(self, answers: Answers, nodes: Sequence[int]) -> None:
        """Take in the names of nodes.

        Raises:
            RosterIncomplete: If names count and a node does not tell its own.
        """
        if self._cap is not None:
            self._names = lasting_names(answers, nodes, spoken_for=self._taken)

    def left(self, roster: list[Unit]) -> list[Unit]:
        """Return the units that may take part once more."""
        if self._cap is None:
            return roster
        if self._names is not None:  # who came later, or can't be told apart, takes no part
            roster = [unit for unit in roster if unit.node in self._names]
        taken = self._taken
        return [unit for unit in roster if taken.get(self._name(unit), 0) < self._cap]

    def require_some_left(self, roster: list[Unit]) -> None:
        """Check that not everybody is at the cap.

        Raises:
            PrivacyBudgetExhausted: If everybody is.
        """
        if roster and not self.left(roster):
            raise PrivacyBudgetExhausted(
                f"every client has taken part {self._cap} times, the plan's participation_cap"
            )

    def names_of(self, cohort: Iterable[Unit]) -> list[str] | None:
        """Return the names that the ledger charges a cohort under; None: it charges everybody."""
        return None if self._cap is None else [self._name(unit) for unit in cohort]

    @property
    def _taken(self) -> dict[str, int]:
        return {} if self._ledger is None else self._ledger.participations

    def _name(self, unit: Unit) -> str:
        node = (self._names or {}).get(unit.node, f"{_BY_ID}{unit.node}")
        return node if self._units_per_node == 1 else f"{node}/{unit.number}"


def lasting_names(
    answers: Answers, nodes: Sequence[int], *, spoken_for: Collection[str]
) -> dict[int, str]:
    """Return the name of each node under which its participations are counted across runs.

    Flower's node ids change from run to run, so nodes are asked for a lasting name. Failing closed:
    whoever is not in the result can't be told from somebody who has used up its participations, and
    must take no part. That is a node whose name another one claims, too, and, if anybody has taken
    part before, one without a name. In a first run such a node goes by its id.

    Args:
        answers: Of the nodes to the identity query.
        nodes: Those that are there.
        spoken_for: Names under which the ledger has counted participations before.

    Raises:
        RosterIncomplete: If nodes did not answer, though others told their names or did before.
            Counted by its id, a node would be unknown to the next run, which could not go on.
    """
    claims = {node: name for node, name in named(answers).items() if not name.startswith(_BY_ID)}
    by_id = {node: f"{_BY_ID}{node}" for node in nodes}
    missing = [node for node in answers.asked if node not in answers.identities]
    if missing and (claims or spoken_for or answers.silent):
        raise RosterIncomplete(
            f"{len(missing)} of {len(nodes)} nodes did not tell their names within "
            f"{answers.timeout:.0f} s though asked {ATTEMPTS} times ({_listed(missing)}), and a "
            "participation cap counts by names: nothing is spent yet. Look at these nodes' logs, "
            "give them more time (roster_timeout), and start again"
        )
    if not claims and not spoken_for:
        logger.warning(
            "Clients tell no names: their participations are counted by Flower's node ids, and no "
            "other run can go on from this ledger. To change that, start each SuperNode with "
            "--node-config 'unit-name=\"...\"'"
        )
        return by_id
    claimants = Counter(claims.values())
    told = {node: name for node, name in claims.items() if claimants[name] == 1}
    if spoken_for:
        return told
    nameless = {node: name for node, name in by_id.items() if node not in claims}
    if nameless:
        logger.warning(
            "%d nodes tell no name (%s) and are counted by Flower's node ids, so that no other run "
            "can go on from this ledger: start them with --node-config 'unit-name=\"...\"'",
            len(nameless),
            _listed(list(nameless)),
        )
    return told | nameless


def _listed(nodes: Sequence[int]) -> str:
    more = ", ..." if len(nodes) > _SOME else ""
    return ", ".join(map(str, nodes[:_SOME])) + more
