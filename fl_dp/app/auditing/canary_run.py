"""Canaries of one training through Flower's engine: what server and nodes both know of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fl_dp.app.settings import Settings
from fl_dp.audit.canaries import Canaries

RUN_KEY = "fl-dp-canaries"
"""Key of Flower's run config: the JSON text of a `CanaryRun`."""

CANARY_METRIC = "fl-dp-canaries"
"""Reply metric of a node that hosts canaries: an auditor's server may tell them from the others."""

CANARIES_FILE = "canaries.npz"
"""File in the run's folder with what the releases told of each direction."""


@dataclass(frozen=True, kw_only=True)
class CanaryRun:
    """How many canaries a training has, and which.

    Canaries live on nodes of their own, beyond those of the task's clients, as many on each.

    Attributes:
        count: How many.
        seed: Of their directions and coins.
    """

    count: int
    seed: int

    def to_json(self) -> str:
        """Return it for a run config."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> CanaryRun:
        """Read it from a run config.

        Raises:
            KeyError: If there is none.
        """
        return cls(**json.loads(str(run_config[RUN_KEY])))

    def canaries(self, size: int) -> Canaries:
        """Return the canaries of a model of so many coordinates."""
        return Canaries(count=self.count, size=size, seed=self.seed)

    def first_on_node(self, settings: Settings, node: int) -> int | None:
        """Return the first canary that a node hosts, None if it hosts the task's clients."""
        beyond = node - settings.simulation.num_nodes(settings.task.num_clients)
        return None if beyond < 0 else beyond * settings.simulation.units_at_node

    def more_nodes(self, settings: Settings) -> int:
        """Return how many nodes host the canaries."""
        return settings.simulation.num_nodes(self.count)


def require_auditable(settings: Settings) -> None:
    """Refuse trainings whose canaries would not be the worst-case client of their claim.

    Raises:
        ValueError: With what to write instead.
    """
    wrong = {
        f"canary clients are for the server's noise: write privacy=central, not "
        f"privacy={settings.privacy.mode}": settings.privacy.mode != "central",
        f"canary clients need secret coins: write selection=poisson, not "
        f"selection={settings.selection.name}": settings.selection.name != "poisson",
        "a canary has one direction in the whole model: write clipping=fixed or "
        "clipping=adaptive": settings.clipping.name == "per_layer",
        "canaries hold no records: leave dp_sgd=on out": settings.protects_records,
        "canaries take more places than a cap allows: leave selection.participation_cap out": (
            settings.selection.participation_cap is not None
        ),
        "canaries are for noise that is independent in each round: write "
        "privacy.noise=independent": settings.privacy.noise != "independent",
        "canaries are on simulated nodes: leave task.partition=nodes out": (
            settings.task.partition == "nodes"
        ),
        "a denominator of weights would tell of the canaries: leave weights.capped_denominator "
        "out": settings.weights.capped_denominator,
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(text)
