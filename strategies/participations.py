"""Who may take part under a cap, a separation or in groups, by lasting names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from fl_dp.accounting import OwnRatesSampling, PrivacyBudgetExhausted, Sampling
from fl_dp.accounting.grouped_sampling import GroupedSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.ledger import PrivacyLedger
from fl_dp.option_errors import OptionError

from .message_exchange import ATTEMPTS
from .node_answers import Answers, named
from .unit_roster import RosterIncomplete, Unit

logger = logging.getLogger("flwr.fl_dp")

_MOST_LISTED = 5  # nodes that a line of the log names at most
_BY_ID = "node-"  # no lasting name starts like this


class Participations:
    """Each unit's participations, over all runs on one ledger.

    A unit that was asked has taken part. If the plan has no cap, separation, groups or buffers,
    nobody is counted, every check passes, and the ledger charges everybody.
    """

    def __init__(
        self, ledger: PrivacyLedger | None = None, *, owners: Mapping[str, float] | None = None
    ) -> None:
        """Count by the ledger, as its plan says; without one nobody is counted.

        `owners` is the epsilon of each node by its lasting name, where owners have budgets of
        their own; unlisted nodes take no part. None: units are dealt to groups.

        Raises:
            OptionError: If a budget is none of the plan's groups.
        """
        self._chosen: dict[str, int] | None = None
        self._cap: int | None = None
        self._separation, self._units_per_node, self._most = 1, 1, 0
        self._grouped = self._buffered = False
        if ledger is not None:
            plan, hosting = ledger.plan, ledger.plan.hosting
            self._cap = plan.sampling.cap
            self._separation = plan.sampling.least_separation
            self._units_per_node = hosting.distinct_units
            self._most = hosting.nodes_of(plan.num_units) * self._units_per_node
            self._grouped = isinstance(plan.sampling, GroupedSampling)
            if owners is not None:
                self._chosen = _groups_by_name(owners, plan.sampling)
            # A unit is in one index at most once.
            self._buffered = isinstance(plan.sampling, BufferedSampling)
        self._counts = (
            self._cap is not None or self._separation > 1 or self._buffered or self._grouped
        )
        self._ledger = ledger if self._counts else None
        self._names: dict[int, str] | None = None

    def require_countable(self) -> None:
        """Check, before anybody is asked, that earlier participations can be counted on.

        Raises:
            ValueError: If they were counted by ids of an earlier run.
        """
        if any(name.startswith(_BY_ID) for name in self._ledger_names):
            raise ValueError(
                "the ledger has counted participations by Flower's node ids, which change from run "
                f"to run, so a {self._rule} can't go on: give each node a dp-unit-name in its "
                "--node-config, and start a new ledger with what is left of the budget"
            )

    def needs_everyone(self, first: Answers) -> bool:
        """Whether every node must tell its name, given a rehearsal's first answers."""
        return self._counts and bool(self._ledger_names or named(first))

    def recognise(self, answers: Answers, nodes: Sequence[int]) -> None:
        """Record nodes' names, and give each new unit its group, if any.

        Raises:
            RosterIncomplete: If names count and a node does not tell its own.
            ValueError: If there are more units than the plan declares groups for.
        """
        if not self._counts:
            return
        self._names = lasting_names(answers, nodes, earlier_names=self._ledger_names)
        if self._grouped and self._ledger is not None:
            numbers = range(self._units_per_node)
            units = [Unit(node, number) for node in self._names for number in numbers]
            self._assign(units, self._ledger)

    def _assign(self, units: Sequence[Unit], ledger: PrivacyLedger) -> None:
        """Give each new unit its group: its owner's choice, or else a dealt one."""
        nodes = [(self._names or {})[unit.node] for unit in units]
        names = [self._name(unit) for unit in units]
        chosen: dict[str, int] | None = None
        if self._chosen is not None:
            self._warn_of_strangers(nodes)
            chosen = {}
            for name, node in zip(names, nodes, strict=True):
                if node in self._chosen:
                    chosen[name] = self._chosen[node]
        ledger.assign(names, most=self._most, chosen=chosen)

    def _warn_of_strangers(self, nodes: Iterable[str]) -> None:
        strangers = sorted(set(nodes) - (self._chosen or {}).keys())
        if strangers:
            logger.warning(
                "%d nodes take no part, as nobody wrote down their epsilon; the first is %s",
                len(strangers),
                strangers[0],
            )

    def next_index(self) -> int | None:
        """The next round's index where it decides who may take part; else None."""
        if self._ledger is None or not (self._separation > 1 or self._buffered):
            return None
        return self._ledger.next_index()

    def available(
        self, roster: Sequence[Unit], index: int | None = None, *, server_round: int = 1
    ) -> Sequence[Unit]:
        """Units that may take part again, at that index and round where it matters.

        Names and the ledger alone decide, so excluding a unit never depends on data.
        """
        if self._ledger is None:
            return roster
        roster = self._told_apart(roster)
        if self._cap is not None:
            multipliers = self._ledger.plan.noise_multipliers
            noise = multipliers[min(server_round, len(multipliers)) - 1]
            below_cap = self._ledger.has_participations_left
            roster = [unit for unit in roster if below_cap(self._name(unit), noise)]
        if self._grouped:
            return self._grouped_units(roster, self._ledger, index)
        if index is None:
            return roster
        last, rested = self._ledger.last_index, index - self._separation
        return [unit for unit in roster if last.get(self._name(unit), rested) <= rested]

    def members(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """Units that are charged for every release other than a round, at their cap or not."""
        if self._ledger is None:
            return roster
        roster = self._told_apart(roster)
        return self._grouped_units(roster, self._ledger, None) if self._grouped else roster

    def _told_apart(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """All units but those of nodes that came later, or can't be told apart."""
        if self._names is None:
            return roster
        return [unit for unit in roster if unit.node in self._names]

    def _grouped_units(
        self, roster: Sequence[Unit], ledger: PrivacyLedger, index: int | None
    ) -> list[Unit]:
        """Units with a group; at an index, those whose turn it is."""
        groups = ledger.group_of
        units: list[Unit] = []
        for unit in roster:
            group = groups.get(self._name(unit))
            if group is None:
                continue
            if index is None or group == index % self._separation:
                units.append(unit)
        return units

    def require_some_left(self, roster: Sequence[Unit], *, server_round: int) -> None:
        """Check that not everybody is at the cap, or too close for a round's noise.

        Raises:
            PrivacyBudgetExhausted: If everybody is.
        """
        if self._cap is None or not roster:
            return
        if not self.available(roster, server_round=server_round):
            raise PrivacyBudgetExhausted(
                f"every client has taken part as often as the plan's participation cap of "
                f"{self._cap} allows"
            )

    def names_of(self, cohort: Iterable[Unit]) -> list[str] | None:
        """Names to charge for a cohort; None: the ledger charges everybody."""
        if not self._counts or self._grouped:
            return None
        return [self._name(unit) for unit in cohort]

    def groups_of(self, roster: Iterable[Unit]) -> list[int]:
        """Group of each unit that `available` returned; empty without groups."""
        if self._ledger is None or not self._grouped:
            return []
        groups = self._ledger.group_of
        return [groups[self._name(unit)] for unit in roster]

    def group_of(self, unit: Unit) -> int | None:
        """A unit's group, or None."""
        return None if self._ledger is None else self._ledger.group_of.get(self._name(unit))

    @property
    def _ledger_names(self) -> frozenset[str]:
        """Names that the ledger has counted or given a group."""
        if self._ledger is None:
            return frozenset()
        return frozenset(self._ledger.participations) | frozenset(self._ledger.group_of)

    @property
    def _rule(self) -> str:
        if self._grouped:
            return "training in groups"
        if self._separation > 1:
            return "separation"
        if self._cap is not None:
            return "cap"
        return "training with buffers"

    def _name(self, unit: Unit) -> str:
        node = (self._names or {}).get(unit.node, f"{_BY_ID}{unit.node}")
        return node if self._units_per_node == 1 else f"{node}/{unit.number}"


def _groups_by_name(owners: Mapping[str, float], law: Sampling) -> dict[str, int]:
    if not isinstance(law, OwnRatesSampling):
        raise OptionError(
            "owners says each node's own epsilon, and the plan has one for all: write budgets",
            option="owners",
        )
    budgets = [group.budget for group in law.own_groups]
    unknown = sorted(set(owners.values()) - set(budgets))
    if unknown:
        raise OptionError(
            f"owners has an epsilon of {unknown[0]:g}, and the plan's budgets are {budgets}",
            option="owners",
        )
    return {name: budgets.index(epsilon) for name, epsilon in owners.items()}


def lasting_names(
    answers: Answers, nodes: Sequence[int], *, earlier_names: Collection[str]
) -> dict[int, str]:
    """Each node's name, under which its participations are counted across runs.

    Flower's node ids change from run to run, so nodes are asked for a lasting name. Fails closed:
    a node missing from the result can't be distinguished from one at its cap, and is excluded.
    Missing are nodes that claim one name and, if any unit has taken part before, nodes without a
    name. In a first run a node without a name is counted by its id.

    Raises:
        RosterIncomplete: If nodes did not answer, though others told their names or did before.
            Counted by id, a node would be unknown to the next run, which could not go on.
    """
    claims = {node: name for node, name in named(answers).items() if not name.startswith(_BY_ID)}
    by_id = {node: f"{_BY_ID}{node}" for node in nodes}
    missing = [node for node in answers.asked if node not in answers.identities]
    if missing and (claims or earlier_names or answers.silent):
        raise RosterIncomplete(
            f"{len(missing)} of {len(nodes)} nodes did not tell their names within "
            f"{answers.timeout:.0f} s though asked {ATTEMPTS} times ({_listed(missing)}), and a "
            "participation cap counts by names, as do clients that take turns: nothing is spent "
            "yet. Look at these nodes' logs, give them more time (roster_timeout), and start again"
        )
    if not claims and not earlier_names:
        logger.warning(
            "Clients tell no names: their participations are counted by Flower's node ids, and no "
            "other run can go on from this ledger. To change that, start each SuperNode with "
            "--node-config 'dp-unit-name=\"...\"'"
        )
        return by_id
    claimants = Counter(claims.values())
    unique = {node: name for node, name in claims.items() if claimants[name] == 1}
    if earlier_names:
        return unique
    nameless = {node: name for node, name in by_id.items() if node not in claims}
    if nameless:
        logger.warning(
            "%d nodes tell no name (%s) and are counted by Flower's node ids, so that no other run "
            "can go on from this ledger: start them with --node-config 'dp-unit-name=\"...\"'",
            len(nameless),
            _listed(list(nameless)),
        )
    return unique | nameless


def _listed(nodes: Sequence[int]) -> str:
    more = ", ..." if len(nodes) > _MOST_LISTED else ""
    return ", ".join(map(str, nodes[:_MOST_LISTED])) + more
