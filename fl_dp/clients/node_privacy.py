"""What a node's owner allows: its ledger, its cap, and the name of its data.

A real SuperNode says so when it starts:

    flower-supernode ... --node-config 'ledger-path="/data/ledger.db" max-epsilon=4.0'

The server has no say in it. In Flower's simulation, where nodes are not real and share the server's
machine, the ledgers lie in a folder that the server names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from flwr.app import Context

from fl_dp.accounting import Account, PrivacyBudget

LEDGER_PATH_KEY = "ledger-path"
MAX_EPSILON_KEY = "max-epsilon"
MAX_DELTA_KEY = "max-delta"
DATASET_NAME_KEY = "dataset-name"
UNIT_NAME_KEY = "unit-name"
"""Keys of `--node-config`."""

DEFAULT_MAX_DELTA = 1e-5
"""What goes with a `max-epsilon` that has no `max-delta`: else the server would choose it."""

SIMULATED_LEDGERS_KEY = "fl-dp-ledgers"
"""Config key of a message: the folder of ledgers in a simulation; real nodes do not look at it."""


@dataclass(frozen=True, kw_only=True)
class NodePrivacy:
    """The node owner's side of every promise.

    Attributes:
        ledger: File or database URL of the node's ledger; None: the owner named none.
        max_epsilon: Cap over everything that is ever released from the node's data; None: what
            each run asks for.
        max_delta: The delta that goes with it.
        source: A name of the node's data that stays the same when they change.
        simulated_ledger: Where a simulated node's ledger lies if nobody names one; None on a real
            node.
    """

    ledger: str | None
    source: str
    max_epsilon: float | None = None
    max_delta: float | None = None
    simulated_ledger: str | None = None

    @classmethod
    def of(cls, context: Context, config: Mapping[str, Any], *, unit: int = 0) -> Self:
        """Read the node's configuration.

        Args:
            context: The node's.
            config: The message's; only its folder of simulated ledgers is looked at, and only in a
                simulation.
            unit: Index among the privacy units that the node hosts.

        Raises:
            ValueError: If a cap is no positive number or has no ledger, or the ledger's path is not
                absolute.
        """
        node = context.node_config
        named = node.get(LEDGER_PATH_KEY)
        ledger = None if named is None else _absolute(str(named))
        max_epsilon = _cap(MAX_EPSILON_KEY, node.get(MAX_EPSILON_KEY))
        max_delta = _cap(MAX_DELTA_KEY, node.get(MAX_DELTA_KEY))
        if max_epsilon is not None and max_delta is None:
            max_delta = DEFAULT_MAX_DELTA
        if ledger is None and SIMULATED_LEDGERS_KEY in config and in_simulation():
            folder = Path(str(config[SIMULATED_LEDGERS_KEY]))
            ledger = str(folder / f"node-{node.get('partition-id', context.node_id)}.db")
        if max_epsilon is not None and ledger is None:
            raise ValueError(
                f"--node-config: {MAX_EPSILON_KEY} needs a ledger to count in: "
                'ledger-path="/data/ledger.db"'
            )
        name = _name_of(node)
        # The server numbers a node's units, so only where nothing is real are they apart.
        apart = unit and in_simulation()
        return cls(
            ledger=ledger,
            source=f"{name}/{unit}" if apart else name,
            max_epsilon=max_epsilon,
            max_delta=max_delta,
            simulated_ledger=_simulated_ledger(context) if in_simulation() else None,
        )

    @property
    def required_ledger(self) -> str:
        """The ledger; a simulated node without one has it in `~/.fl-dp/simulations/run-RUN_ID`.

        Raises:
            ValueError: If a real node was started without one. Nothing may be trained then.
        """
        if self.ledger is not None:
            return self.ledger
        if self.simulated_ledger is None:
            raise ValueError(
                "this node keeps no ledger, so it can't promise anything: start the SuperNode with "
                f"--node-config '{LEDGER_PATH_KEY}=\"/data/ledger.db\"'"
            )
        Path(self.simulated_ledger).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.simulated_ledger

    def budget(self, asked: PrivacyBudget) -> PrivacyBudget:
        """Return what a run may spend in all: what it asks for, as far as the owner allows."""
        epsilon, delta = asked.epsilon, asked.delta
        if self.max_epsilon is not None:
            epsilon = min(epsilon, self.max_epsilon)
        if self.max_delta is not None:
            delta = min(delta, self.max_delta)
        return PrivacyBudget(epsilon=epsilon, delta=delta)

    def account(self, *, unit: str, fingerprint: str | None = None) -> Account:
        """Return whose spending it is."""
        return Account(unit=unit, source=self.source, fingerprint=fingerprint)


def _absolute(ledger: str) -> str:
    if "://" not in ledger and not Path(ledger).is_absolute():
        raise ValueError(
            f"--node-config: {LEDGER_PATH_KEY} must be absolute, got '{ledger}': a ClientApp does "
            "not run where you started the SuperNode, and a second file would forget the first"
        )
    return ledger


def _name_of(node: Mapping[str, Any]) -> str:
    """Return the most lasting name that a node has for its data."""
    for key in (DATASET_NAME_KEY, UNIT_NAME_KEY):
        if key in node:
            return str(node[key])
    if "partition-id" in node:
        return f"partition-{node['partition-id']}"
    # Nameless nodes of one ledger count as one: too much is charged rather than too little.
    return "the data of this ledger"


def _simulated_ledger(context: Context) -> str:
    """Return a file for each run and node: a simulated node's data are new in each run."""
    node = context.node_config.get("partition-id", context.node_id)
    folder = Path.home() / ".fl-dp" / "simulations" / f"run-{context.run_id}"
    return str(folder / f"node-{node}.db")


def in_simulation() -> bool:
    """Whether this process is a worker of Flower's simulation engine.

    A SuperNode's processes never load Ray, so no server can pass for a simulation.
    """
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _cap(key: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"--node-config: {key} must be a positive number, got {value!r}")
    return float(value)
