"""Canaries of a training in Flower's engine: what server and nodes both know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fl_dp.app.settings import Settings
from fl_dp.codec import decode_text
from fl_dp.lab.audit.canaries import Canaries

RUN_KEY = "fl-dp-canaries"
"""Key of Flower's run config: the JSON text of a `CanaryRun`."""

CANARY_METRIC = "fl-dp-canaries"
"""Reply metric of a node that hosts canaries: one more than the number of the first."""

MOST_CANARIES = 1000
"""Canaries of a training that has room for more."""

CANARIES_FILE = "canaries.npz"
"""File in the run's folder with what the releases told of each direction."""


@dataclass(frozen=True, kw_only=True)
class CanaryRun:
    """A training's canaries.

    They have their own nodes: beyond those of the task's clients, or, where cohorts are counted or
    dealt to groups, in place of the last ones.

    Attributes:
        seed: Seed of their directions and coins.
        in_place: Whether they take clients' places.
    """

    count: int
    seed: int
    in_place: bool = False

    @classmethod
    def fitting(cls, settings: Settings, size: int, count: int | None) -> CanaryRun:
        """`count` canaries for `size` coordinates; None: 1000, or as many as fit.

        Raises:
            ValueError: If the model or the roster has too little room.
        """
        in_place = takes_places(settings)
        if count is None:
            count = min(MOST_CANARIES, size // 2)
            if in_place:
                on_node = settings.simulation.units_at_node
                half = settings.task.num_clients // 2
                count = min(count, half) // on_node * on_node or on_node
        run = cls(count=count, seed=settings.seed, in_place=in_place)
        run.canaries(size)  # refuses more than fit
        run.require_places(settings)
        return run

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> CanaryRun:
        """Read the canaries from a run config.

        Raises:
            KeyError: If it has none.
        """
        return decode_text(cls, str(run_config[RUN_KEY]))

    def canaries(self, size: int) -> Canaries:
        """The canaries for a model of `size` coordinates."""
        return _canaries(self.count, size, self.seed)

    def first_on_node(self, settings: Settings, node: int) -> int | None:
        """A node's first canary, None if it hosts the task's clients."""
        nodes = settings.simulation.num_nodes(settings.task.num_clients)
        if self.in_place:
            nodes -= settings.simulation.num_nodes(self.count)
        beyond = node - nodes
        if beyond < 0:
            return None
        return beyond * settings.simulation.units_at_node

    def more_nodes(self, settings: Settings) -> int:
        """Return how many nodes canaries add to those of the task's clients."""
        return 0 if self.in_place else settings.simulation.num_nodes(self.count)

    def require_places(self, settings: Settings) -> None:
        """Check that canaries and clients share no node, as a node's sum is known as a whole.

        Raises:
            ValueError: If they do, or no client is left, with what to write.
        """
        if not self.in_place:
            return
        clients, on_node = settings.task.num_clients, settings.simulation.units_at_node
        if self.count >= clients:
            fewer = clients // 2 // on_node * on_node or on_node
            raise ValueError(
                f"canaries take the places of clients here, and {self.count} of {clients} would "
                f"leave nobody to train: write --canaries {fewer}, or more clients"
            )
        if clients % on_node or self.count % on_node:
            raise ValueError(
                f"canaries have nodes of their own, of simulation.units_per_node={on_node} "
                f"clients: that must divide the {clients} clients and the {self.count} canaries"
            )


@lru_cache(maxsize=1)
def _canaries(count: int, size: int, seed: int) -> Canaries:
    """A run's canaries; directions and coins are drawn once for all units."""
    return Canaries(count=count, size=size, seed=seed)


def takes_places(settings: Settings) -> bool:
    """Whether canaries take clients' places, as these are counted or dealt to groups."""
    return settings.privacy.option == "correlated" or settings.selection.option != "poisson"


def room_for_canaries(settings: Settings) -> list[str]:
    """The overrides that make room for canaries.

    Where they take clients' places, at least four nodes are equal: half can be the canaries'.
    """
    if not takes_places(settings):
        return ["roster_may_grow=true"]
    if isinstance(settings.simulation.units_per_node, int):
        return []
    clients = settings.task.num_clients
    sizes = range(1, max(1, clients // 4) + 1)
    on_node = max(size for size in sizes if not clients % size)
    return [f"simulation.units_per_node={on_node}"]


def require_auditable(settings: Settings) -> None:
    """Refuse trainings whose canaries would not be their claim's worst-case client.

    Raises:
        ValueError: With what to write instead.
    """
    wrong = {
        f"canaries are for noise of the server, or in shares: write privacy=central or "
        f"privacy=distributed, not privacy={settings.privacy.mode}": (
            settings.privacy.noised_by != "server"
        ),
        f"canary clients need secret coins, or cohorts that everybody sees: write "
        f"selection=poisson, public or own_budgets, not selection={settings.selection.name}": (
            settings.selection.name not in ("poisson", "public", "own_budgets")
        ),
        "canaries are on simulated nodes, which have no names: write selection.budgets and "
        "selection.shares, not selection.owners": settings.selection.get("owners") is not None,
        "a canary has one direction in the whole model: write clipping=fixed or "
        "clipping=adaptive": settings.clipping.name == "per_layer",
        "canaries hold no records: leave dp_sgd=on out": settings.protects_records,
        "canaries take more places than a cap allows: leave selection.participation_cap out, or "
        "write selection=public": (
            settings.selection.get("participation_cap") is not None
            and settings.selection.name != "public"
        ),
        "canaries are on simulated nodes: leave task.partition=nodes out": (
            settings.task.partition == "nodes"
        ),
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(text)
