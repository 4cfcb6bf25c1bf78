"""Options that can't be combined with a kind of plan: one row each, with the reason.

Options that a kind can't have are no fields of it. These rows are about a strategy's other
options: selection, weights, DP-SGD inside clients, and encoding of updates. The guide's table is
written from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.option_errors import Exclusion
from fl_dp.updates.compression_options import CompressionOptions

from .plan_base import Plan

_PLAIN = CompressionOptions()


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """A training's options, as far as rules depend on them; see also `DPFedAvg`.

    Attributes:
        utility: Utility that the selection asks clients for, if any.
        charged_unit: Unit of the selection's own releases, `client` or `record`.
        looks_at_norms: Whether the selection reads each update's norm.
        draws_cohorts: Whether the selection is more than coins, and must be asked.
    """

    plan: Plan | None
    utility: str | None = None
    charged_unit: str = "client"
    looks_at_norms: bool = False
    draws_cohorts: bool = False
    weight_cap: float | None = None
    dp_sgd: bool = False
    compression: CompressionOptions = _PLAIN
    roster_may_grow: bool = False

    @property
    def sums_at_nodes(self) -> bool:
        """Whether nodes answer with sums of their units' updates."""
        return self.plan is not None and self.plan.hosting.sums_at_nodes

    @property
    def coins_at_nodes(self) -> bool:
        """Whether nodes flip the coins of their units."""
        return self.plan is not None and self.plan.hosting.coins_at_nodes

    @property
    def tells_nothing(self) -> bool:
        """Whether clients tell the server nothing in the clear."""
        return self.plan is not None and not self.plan.trusts_server

    @property
    def tells_the_server(self) -> bool:
        """Whether clients are asked for a utility, or for their number of records."""
        return self.utility is not None or self.weight_cap is not None

    @property
    def has_metrics(self) -> bool:
        """Whether each round releases clients' metrics."""
        return self.plan is not None and bool(self.plan.release.metrics)

    @property
    def masked(self) -> bool:
        """Whether updates are sent under masks, as integers that must add up."""
        return self.plan is not None and self.plan.masked

    @property
    def fixed_roster(self) -> bool:
        """Whether the plan is for the declared clients only."""
        return self.plan is not None and not self.plan.roster_can_grow


EXCLUSIONS: tuple[Exclusion[TrainingOptions], ...] = (
    Exclusion(
        options=("selection", "unit"),
        when=lambda asked: (
            asked.charged_unit == "record"
            and asked.plan is not None
            and asked.plan.unit == "client"
        ),
        why="the selection is charged for records and the plan promises something to clients",
        instead="make the plan with unit=record and neighboring_relation=replace-one",
    ),
    Exclusion(
        options=("coins_at_nodes", "selection"),
        when=lambda asked: asked.coins_at_nodes and asked.draws_cohorts,
        why="nodes that flip the coins themselves ask no selection",
        instead="leave coins_at_nodes out, or take the plain LawSelection",
    ),
    Exclusion(
        options=("utility", "units_per_node"),
        when=lambda asked: asked.looks_at_norms and asked.sums_at_nodes,
        why="a node that sums its units does not tell the norm of each",
        instead="write utility=loss, or have one unit a node and coins at the server",
    ),
    Exclusion(
        options=("compression.up", "units_per_node", "coins_at_nodes", "secure_sum"),
        when=lambda asked: asked.compression.encodes and (asked.sums_at_nodes or asked.masked),
        why="compressed updates would round sums that have to stay exact: those of a node's units, "
        "and masked ones, which then no longer add up",
        instead="leave compression.up out, or have one unit a node and coins at the server; secure "
        "sums take half the bytes by secure_sum.bits=8",
    ),
    Exclusion(
        options=("roster_may_grow", "groups", "secure_sum"),
        when=lambda asked: asked.fixed_roster and asked.roster_may_grow,
        why="shares of noise, and groups that take turns, are planned for the declared clients",
        instead="leave roster_may_grow out, and declare as many as may ever come",
    ),
    Exclusion(
        options=("dp_sgd", "max_records"),
        when=lambda asked: (
            asked.dp_sgd and asked.plan is not None and asked.plan.hosting.of_records
        ),
        why="where units are records a sum is a step of DP-SGD already, and clients take none of "
        "their own",
        instead="leave DP-SGD inside clients out",
    ),
    Exclusion(
        options=("weight_cap", "metrics", "utility", "dp_sgd"),
        when=lambda asked: (
            (asked.tells_nothing and asked.tells_the_server)
            or (asked.dp_sgd and (asked.tells_the_server or asked.has_metrics))
        ),
        why="clients that do not trust the server, or protect their records by DP-SGD, tell it "
        "nothing beside their update, neither a utility nor how many records they have",
        instead="give no weight_cap, a selection that asks clients for no utility, and with "
        "DP-SGD inside clients no metrics",
    ),
)
"""Every combination that is always wrong, in the order of the checks."""
