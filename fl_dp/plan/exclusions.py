"""Options of a training that exclude each other: one row each, with the reason.

A plan checks all rows when it is made. A strategy checks them once more with what it alone knows:
the selection, the weights, what DP-SGD promises, and how updates travel. The guide's table is
written from the same rows.

To add an option that does not go with another, add a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    NeighboringRelation,
    OwnRatesSampling,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
    UtilityPoissonSampling,
    VisibleSampling,
)
from fl_dp.mechanisms import FixedClipping
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.option_errors import Exclusion
from fl_dp.updates.compression_options import CompressionOptions

from .correlation import Banded
from .distributed_noise import DistributedNoise
from .hosting import Hosting
from .noise import CentralNoise, ClientNoise, Noise
from .release import Release

_SEEN = "{sampling_rate=1} or {sampling=VisibleSampling(cohort=...)}"
_PLAIN = CompressionOptions()
_ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a training asks for, as far as rules look at it.

    Attributes:
        sampling: How each cohort is sampled.
        noise: Who adds it; None: no noise, and no promise to clients.
        release: What a round publishes.
        hosting: How units lie on nodes.
        neighboring_relation: Which populations are neighbours.
        num_clients: Declared units.
        participation_cap: Rounds of one client.
        unit: Of the promise.
        utility: What the selection asks clients for, if anything.
        charged_unit: Whose release the selection's own is, `client` or `record`.
        looks_at_norms: Whether the selection reads each update's norm.
        draws_cohorts: Whether the selection is more than coins, so that it has to be asked.
        weight_cap: Records that earn the full weight; None: all weigh the same.
        dp_sgd: Whether clients train by DP-SGD.
        compression: How updates travel.
        roster_may_grow: Whether more clients may take part than are declared.
    """

    sampling: Sampling
    noise: Noise | None = None
    release: Release = field(default_factory=lambda: Release(clipping=DEFAULT_CLIPPING))
    hosting: Hosting = field(default_factory=Hosting)
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    num_clients: int = 1
    participation_cap: int | None = None
    unit: str = "client"
    utility: str | None = None
    charged_unit: str = "client"
    looks_at_norms: bool = False
    draws_cohorts: bool = False
    weight_cap: float | None = None
    dp_sgd: bool = False
    compression: CompressionOptions = _PLAIN
    roster_may_grow: bool = False

    @property
    def units_per_node(self) -> int:
        """Units that a node hosts at most."""
        return self.hosting.units_per_node

    @property
    def nodes(self) -> int | None:
        """Nodes on which records lie."""
        return self.hosting.nodes

    @property
    def central(self) -> CentralNoise | None:
        """The server's noise, if it adds it."""
        return self.noise if isinstance(self.noise, CentralNoise) else None

    @property
    def local(self) -> bool:
        """Whether clients add the noise."""
        return isinstance(self.noise, ClientNoise)

    @property
    def shared(self) -> DistributedNoise | None:
        """The noise in shares under a secure sum, if it is."""
        return self.noise if isinstance(self.noise, DistributedNoise) else None

    @property
    def schedule(self) -> str:
        """The name of the noise's course over the rounds."""
        return "constant" if self.noise is None else self.noise.schedule.name

    @property
    def correlation(self) -> Banded | None:
        """How later noise takes earlier noise away, if it does."""
        return None if self.central is None else self.central.correlation

    @property
    def correlated(self) -> bool:
        """Whether later noise takes earlier noise away."""
        return self.correlation is not None

    @property
    def by_turns(self) -> bool:
        """Whether groups take turns."""
        return isinstance(self.sampling, CyclicSampling)

    @property
    def counted(self) -> bool:
        """Whether cohorts are drawn by number from the declared units."""
        law = self.sampling.inside if isinstance(self.sampling, CyclicSampling) else self.sampling
        return isinstance(law, FixedSizeSampling | TruncatedPoissonSampling)


def _is_coins(asked: Asked) -> bool:
    return isinstance(asked.sampling, PoissonSampling)


_LAWS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("sampling", "neighboring_relation"),
        when=lambda asked: (
            asked.neighboring_relation is _ADD_OR_REMOVE
            and isinstance(asked.sampling, TruncatedPoissonSampling)
        ),
        why="a truncated Poisson sample is charged for neighbours on a public roster: the cut "
        "shows how many others there are",
        instead="write {neighboring_relation=zero-out}",
        got=("neighboring_relation",),
    ),
    Exclusion(
        options=("sampling", "neighboring_relation"),
        when=lambda asked: (
            asked.neighboring_relation is _ADD_OR_REMOVE
            and isinstance(asked.sampling, UtilityPoissonSampling | VisibleSampling)
        ),
        why="a cohort that is chosen or seen needs a public roster, as a client that is not there "
        "can't be chosen; so nothing is promised under add-or-remove-one",
        instead="write {neighboring_relation=zero-out} with {sampling=?}",
    ),
    Exclusion(
        options=("sampling", "neighboring_relation"),
        when=lambda asked: (
            asked.by_turns and asked.neighboring_relation is not NeighboringRelation.ZERO_OUT
        ),
        why="groups that take turns are charged for zero-out neighbours on a public roster",
        instead="write {neighboring_relation=zero-out}",
        got=("neighboring_relation",),
    ),
    Exclusion(
        options=("sampling", "schedule"),
        when=lambda asked: asked.sampling.least_separation > 1 and asked.schedule != "constant",
        why="clients that take turns differ in the rounds that they take part in, and each is "
        "charged for the same noise",
        instead="use a constant {schedule}",
        got=("schedule",),
    ),
    Exclusion(
        options=("participation_cap", "sampling"),
        when=lambda asked: asked.participation_cap is not None and asked.by_turns,
        why="groups that take turns have every turn, and a participation cap would leave some out",
        instead="leave {participation_cap} out and plan fewer rounds, or write "
        "{sampling=VisibleSampling(cohort=..., separation=...)}",
    ),
    Exclusion(
        options=("participation_cap", "sampling"),
        when=lambda asked: asked.participation_cap is not None and not asked.sampling.visible,
        why="a participation cap needs to see who takes part, and sampling is only worth its "
        "amplification when nobody does",
        instead=f"leave {{participation_cap}} out, or write {_SEEN}",
        got=("sampling",),
    ),
    Exclusion(
        options=("participation_cap", "schedule"),
        when=lambda asked: (
            asked.participation_cap is not None
            and asked.schedule != "constant"
            and (asked.central is None or asked.sampling.buffered)
        ),
        why="clients differ in the rounds they take part in, and under a participation cap rounds "
        "of different noise add up only where the server declares it and knows whose round it is",
        instead="leave {participation_cap} out, or use a constant {schedule}",
        got=("schedule",),
    ),
)

_OWN_BUDGETS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("sampling",),
        when=lambda asked: isinstance(asked.sampling, OwnRatesSampling) and asked.noise is None,
        why="each group's rate is found for its own budget, and nobody spends one",
        instead="leave {sampling=?} out without privacy",
    ),
    Exclusion(
        options=("sampling", "client_scheme"),
        when=lambda asked: (
            isinstance(asked.sampling, OwnRatesSampling)
            and asked.sampling.visible
            and asked.central is not None
        ),
        why="groups that share the noise of a sum differ by how often they take part, and at rate "
        "1 all take part in every round",
        instead="write a smaller {sampling_rate}, or {client_scheme=...} for noise of their own",
    ),
    Exclusion(
        options=("sampling", "secure_sum"),
        when=lambda asked: (
            isinstance(asked.sampling, OwnRatesSampling) and asked.shared is not None
        ),
        why="all nodes of a secure sum are told one rate, and each group of {sampling=?} has its "
        "own",
        instead="leave it out: a node whose owner allows less adds noise alone once that is spent",
    ),
    Exclusion(
        options=("participation_cap", "sampling"),
        when=lambda asked: (
            isinstance(asked.sampling, OwnRatesSampling)
            and asked.sampling.visible
            and asked.participation_cap is not None
        ),
        why="groups with budgets of their own are charged for every round, and nobody's "
        "participations in {sampling=?} are counted",
        instead="leave {participation_cap} out and plan fewer rounds",
    ),
)

_UNITS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("nodes", "secure_sum"),
        when=lambda asked: asked.hosting.of_records and asked.shared is None,
        why="{nodes=?} lets nodes answer with sums of their records' gradients, which only a "
        "secure sum hides",
        instead="write {secure_sum=SecureSum(...)}, or leave {nodes} out",
    ),
    Exclusion(
        options=("nodes", "unit"),
        when=lambda asked: asked.hosting.of_records and asked.unit != "record",
        why="{nodes=?} says that units are records, and {unit=?} that they are not",
        instead="write {unit='record'}, or leave {nodes} out",
    ),
    Exclusion(
        options=("unit", "neighboring_relation"),
        when=lambda asked: (
            asked.unit == "record"
            and not asked.hosting.of_records
            and asked.neighboring_relation.distance != 2
        ),
        why="one record changes its client's whole update, by up to twice the clipping norm, so "
        "{unit='record'} needs replace-one neighbours",
        instead="write {neighboring_relation=replace-one}",
        got=("neighboring_relation",),
    ),
    Exclusion(
        options=("coins_at_nodes", "nodes"),
        when=lambda asked: asked.hosting.of_records and not asked.hosting.coins_at_nodes,
        why="nodes do not say how many records they have, so nobody else can draw them",
        instead="where units are records write {coins_at_nodes=True}",
    ),
    Exclusion(
        options=("clipping", "nodes"),
        when=lambda asked: (
            asked.hosting.of_records and not isinstance(asked.release.clipping, FixedClipping)
        ),
        why="where units are records one norm bounds the gradient of each, and nobody learns how "
        "many it clips",
        instead="write {clipping_norm=...}, and no other {clipping}",
    ),
    Exclusion(
        options=("metrics", "total_weight", "nodes"),
        when=lambda asked: (
            asked.hosting.of_records
            and bool(asked.release.metrics or asked.release.total_weight is not None)
        ),
        why="where units are records a node adds up their gradients and nothing else",
        instead="leave {metrics} and {total_weight} out",
    ),
    Exclusion(
        options=("dp_sgd", "nodes"),
        when=lambda asked: asked.hosting.of_records and asked.dp_sgd,
        why="where units are records a sum is a step of DP-SGD already, and clients take none of "
        "their own",
        instead="leave {record_plan} out",
    ),
    Exclusion(
        options=("selection", "unit"),
        when=lambda asked: asked.charged_unit == "record" and asked.unit == "client",
        why="the selection is charged for records and the plan promises something to clients",
        instead="make the plan with {unit='record'} and {neighboring_relation=replace-one}",
    ),
)

_HOSTS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("neighboring_relation", "units_per_node", "coins_at_nodes"),
        when=lambda asked: (
            asked.hosting.sums_at_nodes and asked.neighboring_relation is _ADD_OR_REMOVE
        ),
        why="a node sums its first {units_per_node=?} units at most: leaving one out moves the "
        "next one in, which is twice what add-or-remove-one is charged for",
        instead="write {neighboring_relation=zero-out}",
    ),
    Exclusion(
        options=("units_per_node", "sampling"),
        when=lambda asked: asked.counted and asked.num_clients % asked.units_per_node > 0,
        why="cohorts of a counted size are drawn from the declared units, and the server can't "
        "tell which node hosts fewer",
        instead="{units_per_node=?} has to divide {num_clients=?}",
    ),
    Exclusion(
        options=("coins_at_nodes", "sampling"),
        when=lambda asked: asked.hosting.coins_at_nodes and asked.by_turns,
        why="nodes that flip the coins themselves do not know whose turn it is",
        instead="with groups that take turns, let the server flip the coins: leave "
        "{coins_at_nodes=True} out",
    ),
    Exclusion(
        options=("coins_at_nodes", "sampling"),
        when=lambda asked: asked.hosting.coins_at_nodes and not _is_coins(asked),
        why="nodes that flip the coins themselves draw Poisson samples",
        instead="use {sampling=PoissonSampling}, not {sampling=?}",
    ),
    Exclusion(
        options=("coins_at_nodes", "selection"),
        when=lambda asked: asked.hosting.coins_at_nodes and asked.draws_cohorts,
        why="nodes that flip the coins themselves ask no selection",
        instead="use {selection=PoissonSelection} itself",
    ),
    Exclusion(
        options=("participation_cap", "coins_at_nodes"),
        when=lambda asked: asked.hosting.coins_at_nodes and asked.participation_cap is not None,
        why="a participation cap leaves units out, which nodes that flip the coins themselves do "
        "not know of",
        instead="leave {participation_cap} or {coins_at_nodes=True} out",
    ),
    Exclusion(
        options=("utility", "units_per_node"),
        when=lambda asked: asked.looks_at_norms and asked.hosting.sums_at_nodes,
        why="a node that sums its units does not tell the norm of each",
        instead="write {utility='loss'}, or have one unit a node and coins at the server",
    ),
    Exclusion(
        options=("compression.up", "units_per_node", "coins_at_nodes"),
        when=lambda asked: (
            asked.hosting.sums_at_nodes and asked.compression.up != "none" and asked.shared is None
        ),
        why="a node that sums its units answers in exact grid steps, without noise, and "
        "{compression.up=?} would round the exact sum",
        instead="leave it out, or have one unit a node and coins at the server",
    ),
)

_WEIGHTS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("total_weight", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.release.total_weight is not None,
        why="weights are made from what clients tell in the clear, and clients of a secure sum "
        "tell nothing",
        instead="with {secure_sum} leave {total_weight} out",
    ),
    Exclusion(
        options=("weight_cap", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.weight_cap is not None,
        why="{weight_cap} weighs clients by records that they tell in the clear, and clients of a "
        "secure sum tell nothing",
        instead="with {secure_sum} leave it out",
    ),
)

_NOISE_OVER_ROUNDS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("schedule", "correlation"),
        when=lambda asked: asked.correlated and asked.schedule != "constant",
        why="correlated noise is charged at one multiplier, and what a round costs would depend "
        "on the noise of later ones",
        instead="use a constant {schedule}, and let the server's learning rate fall instead",
        got=("schedule",),
    ),
    Exclusion(
        options=("correlation", "sampling"),
        when=lambda asked: asked.correlated and asked.sampling.least_separation == 1,
        why="where a client may take part in every round, correlated noise gains nothing: what "
        "its low frequencies gain in error, a client that always sends the same gains in "
        "sensitivity",
        instead="leave {correlation} out, or let clients rest by a smaller {sampling_rate}, "
        "{sampling=CyclicSampling(...)} or {sampling=VisibleSampling(cohort=..., separation=...)}",
    ),
)

_NOISE_AT_CLIENTS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("sampling", "client_scheme"),
        when=lambda asked: asked.local and asked.sampling.buffered,
        why="a buffer waits for answers that the server clips and sums, with noise of its own",
        instead="leave {client_scheme} out, or use {sampling=VisibleSampling(cohort=...)}",
    ),
    Exclusion(
        options=("units_per_node", "coins_at_nodes", "client_scheme"),
        when=lambda asked: asked.local and asked.hosting.sums_at_nodes,
        why="a node that sums its units clips them for noise at the server",
        instead="with several units a node, or coins at the nodes, leave {client_scheme} out",
    ),
    Exclusion(
        options=("metrics", "clipping", "client_scheme"),
        when=lambda asked: (
            asked.local
            and bool(
                asked.release.metrics
                or asked.release.adaptive_clipping is not None
                or len(asked.release.clipping.first_norms) > 1
            )
        ),
        why="{metrics}, adaptive clipping and per-layer clipping need noise at the server",
        instead="leave them out, or leave {client_scheme} out",
    ),
    Exclusion(
        options=("sampling", "client_scheme"),
        when=lambda asked: asked.local and not asked.sampling.visible,
        why="with noise at the clients the server sees each message and who sent it, so nothing "
        "is amplified",
        instead=f"with {{client_scheme}} write {_SEEN}",
        got=("sampling",),
    ),
    Exclusion(
        options=("selection", "client_scheme"),
        when=lambda asked: asked.local and asked.utility is not None,
        why="clients that trust nobody do not report their utility in the clear, here {utility=?}",
        instead="with noise at the clients, write {selection=PublicSelection(...)}",
    ),
)

_SECURE_SUMS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("sampling", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.sampling.buffered,
        why="a secure sum opens when all of its nodes have masked for one another, and a buffer is "
        "filled by whoever answers first",
        instead="leave {secure_sum} out, or use {sampling=VisibleSampling(cohort=...)}",
    ),
    Exclusion(
        options=("sampling", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.by_turns,
        why="groups that take turns leave most nodes out of a round, and a secure sum is planned "
        "for all of them",
        instead="with {secure_sum} write {sampling=VisibleSampling(cohort=..., separation=...)}",
    ),
    Exclusion(
        options=("sampling", "secure_sum"),
        when=lambda asked: (
            asked.shared is not None
            and not asked.sampling.visible
            and not asked.hosting.coins_at_nodes
        ),
        why="a cohort that only the server knows is no secret under {secure_sum}, as its noise is "
        "one share a member, and many coordinates of it tell how many there were",
        instead=f"write {{coins_at_nodes=True}}, {_SEEN}",
        got=("sampling",),
    ),
    Exclusion(
        options=("selection", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.utility is not None,
        why="clients of a secure sum do not report their utility in the clear, here {utility=?}",
        instead="with {secure_sum} write {selection=PublicSelection(...)}",
    ),
    Exclusion(
        options=("units_per_node", "sampling", "secure_sum"),
        when=lambda asked: (
            asked.shared is not None
            and isinstance(asked.sampling, VisibleSampling)
            and asked.units_per_node > 1
        ),
        why="a cohort of units would tell each node which of its own take part, and every node of "
        "a secure sum is sent the same",
        instead="write {sampling_rate=1} or {coins_at_nodes=True}, or have one unit a node",
        got=("sampling",),
    ),
    Exclusion(
        options=("neighboring_relation", "secure_sum"),
        when=lambda asked: (
            asked.shared is not None and asked.neighboring_relation is _ADD_OR_REMOVE
        ),
        why="a unit that is alone at its node takes its share of the noise with it",
        instead="with {secure_sum} write {neighboring_relation=zero-out}",
        got=("neighboring_relation",),
    ),
    Exclusion(
        options=("coins_at_nodes", "secure_sum.reply_after"),
        when=lambda asked: (
            asked.shared is not None
            and asked.hosting.coins_at_nodes
            and not asked.sampling.visible
            and asked.shared.secure_sum.reply_after is None
        ),
        why="a node whose coins drew nobody answers sooner, which shows its coins",
        instead="with {secure_sum} and {coins_at_nodes=True} write {sampling_rate=1}, or "
        "{secure_sum.reply_after=...}, in seconds",
    ),
    Exclusion(
        options=("compression.up", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.compression.up != "none",
        why="{compression.up=?} would change masked words, which then no longer add up",
        instead="with {secure_sum} leave it out, and write {secure_sum.bits=8} for half the bytes",
    ),
    Exclusion(
        options=("roster_may_grow", "secure_sum"),
        when=lambda asked: asked.shared is not None and asked.roster_may_grow,
        why="noise in shares is planned for as many nodes as there are",
        instead="with {secure_sum} leave {roster_may_grow=True} out",
    ),
)

_OTHERS: tuple[Exclusion[Asked], ...] = (
    Exclusion(
        options=("units_per_node", "coins_at_nodes", "sampling"),
        when=lambda asked: asked.sampling.buffered and asked.hosting.sums_at_nodes,
        why="in a buffer each unit counts by itself, with the model that it was sent and its own "
        "clipping, which a sum made at a node does not show",
        instead="write {units_per_node=1} and no {coins_at_nodes=True}",
    ),
    Exclusion(
        options=("roster_may_grow", "sampling"),
        when=lambda asked: asked.roster_may_grow and asked.by_turns,
        why="groups that take turns are dealt out of the declared clients",
        instead="leave {roster_may_grow=True} out, and declare as many as may ever come",
    ),
    Exclusion(
        options=("weight_cap", "metrics", "selection", "record_plan"),
        when=lambda asked: (
            asked.dp_sgd
            and bool(asked.weight_cap is not None or asked.utility or asked.release.metrics)
        ),
        why="clients that protect their records by DP-SGD report nothing else about them",
        instead="give no {weight_cap}, no {metrics}, and a {selection} that asks clients for no "
        "utility, or leave {record_plan} out",
    ),
)

EXCLUSIONS: tuple[Exclusion[Asked], ...] = (
    *_LAWS,
    *_OWN_BUDGETS,
    *_UNITS,
    *_WEIGHTS,
    *_HOSTS,
    *_NOISE_OVER_ROUNDS,
    *_NOISE_AT_CLIENTS,
    *_SECURE_SUMS,
    *_OTHERS,
)
"""Every combination that is always wrong, in the order in which they are looked for."""
