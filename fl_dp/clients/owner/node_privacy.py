"""Privacy that a node's owner allows to spend: its ledger, its cap, and the name of its data.

A real SuperNode gets these when it starts:

    flower-supernode ... --node-config 'dp-ledger-path="/data/ledger.db" dp-max-epsilon=4.0'

The server has no influence on them. In Flower's simulation, where virtual nodes share the server's
machine, the server may name a folder of ledgers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flwr.app import Context

from fl_dp import files
from fl_dp.accounting import PrivacyBudget
from fl_dp.files import private_folder
from fl_dp.protocol.flower_compat import is_engine_s_worker
from fl_dp.protocol.instruction import NoiseInstruction, SumInstruction
from fl_dp.protocol.message_keys import SIMULATED_LEDGERS_KEY

from .mod_host import present_host
from .node_config import NodeConfig

if TYPE_CHECKING:
    from fl_dp.ledger import NodeLedger, Witness
    from fl_dp.ledger.node import Account, RunLimit, Use
    from fl_dp.plan import RecordPlan

logger = logging.getLogger("flwr.fl_dp.client")


@dataclass(frozen=True, kw_only=True)
class NodePrivacy:
    """The owner's side of every promise.

    Attributes:
        ledger: The ledger's file or database URL; None: the owner named none.
        cap: Cap over everything ever released from the node's data; None: only each run's budget.
        record_epsilon: Largest epsilon of one run under DP-SGD; None: as the run plans.
        source: A name of the node's data that stays the same when they change.
        run: Flower's id of the run that asks.
        witness_path: File or database URL of the ledger's witness; None: no witness.
        simulated_ledger: File of a simulated node's ledger if nobody names one; None: a real node.
    """

    ledger: str | None
    source: str
    run: int = 0
    witness_path: str | None = None
    cap: PrivacyBudget | None = None
    record_epsilon: float | None = None
    simulated_ledger: str | None = None

    @classmethod
    def from_context(cls, context: Context, config: Mapping[str, Any], *, unit: int = 0) -> Self:
        """Return what the owner's configuration allows.

        Only a simulation reads the message's config, for its folder of ledgers. `unit` is an index
        among the node's privacy units.

        Raises:
            NodeConfigError: The configuration is invalid (`NodeConfig.of`).
        """
        owner = NodeConfig.of(context.node_config)
        ledger, source, simulated = owner.ledger_path, owner.source, None
        if in_simulation():
            node = context.node_id if owner.partition_id is None else owner.partition_id
            simulated = str(simulated_run_folder(context) / f"node-{node}.db")
            if ledger is None and SIMULATED_LEDGERS_KEY in config:
                ledger = str(Path(str(config[SIMULATED_LEDGERS_KEY])) / f"node-{node}.db")
            # Units have names of their own in simulations alone, as the server numbers them.
            if unit:
                source = f"{source}/{unit}"
        return cls(
            ledger=ledger,
            source=source,
            run=context.run_id,
            witness_path=owner.witness_path,
            cap=owner.cap,
            record_epsilon=owner.record_epsilon,
            simulated_ledger=simulated,
        )

    @property
    def required_ledger(self) -> str:
        """The ledger; a simulated node without one has it in `~/.fl-dp/simulations/run-RUN_ID`.

        Raises:
            ValueError: A real node has none. Then nothing may be trained.
        """
        if self.ledger is not None:
            return self.ledger
        if self.simulated_ledger is None:
            raise ValueError(
                "this node keeps no ledger, so it can't promise anything: start the SuperNode with "
                "--node-config 'dp-ledger-path=\"/data/ledger.db\"'"
            )
        private_folder(Path(self.simulated_ledger).parent)
        return self.simulated_ledger

    @property
    def witness(self) -> Witness | None:
        """The witness, compared with the ledger whenever it is opened; None: none."""
        # Imported here, as it needs SQLAlchemy, and not every node has a ledger.
        from fl_dp.ledger import witness_at

        if self.witness_path is None:
            return None
        return witness_at(self.witness_path)

    def open_ledger(self) -> NodeLedger:
        """Open the required ledger to spend from, compared with its witness, if any.

        Raises:
            ValueError: A real node has no ledger.
            LedgerCorrupted: The ledger was altered, or put back to an older state.
            LedgerUnavailable: The ledger or its witness can't be read or written.
        """
        from fl_dp.ledger import NodeLedger  # needs SciPy

        ledger = NodeLedger.open(self.required_ledger, witness=self.witness)
        if self.witness_path is None and not in_simulation():
            _log_once(f"{ledger.unwitnessed} (dp-witness-path)")
        return ledger

    def plan(self, plan: RecordPlan) -> RecordPlan:
        """Return a run's plan with which the owner's own promise to each record holds.

        Raises:
            ValueError: No noise is enough for it.
        """
        if self.record_epsilon is None:
            return plan
        return plan.within(PrivacyBudget(epsilon=self.record_epsilon, delta=plan.budget.delta))

    def limit(self, budget: PrivacyBudget, *, training: str = "") -> RunLimit:
        """The limit of the run that asks for a budget, over that run alone.

        `training` is the training's name, the same after a restart; empty: it is Flower's run.
        """
        from fl_dp.ledger.node import RunLimit  # needs SciPy

        name = f"training {training}" if training else f"run {self.run}"
        return RunLimit(run=name, budget=budget)

    def limit_of_noise(self, asked: NoiseInstruction | SumInstruction) -> RunLimit | None:
        """The limit of a run without a trusted server; None: it names none.

        Raises:
            ValueError: Neither server nor owner names a budget.
        """
        delta = asked.delta
        if delta is None and self.cap is not None:
            delta = self.cap.delta
        if asked.epsilon is not None and delta is not None:
            return self.limit(PrivacyBudget(epsilon=asked.epsilon, delta=delta))
        if self.cap is None:
            raise ValueError(
                "the server names no budget, as its noise changes over the rounds, and the node's "
                "owner none: --node-config 'dp-max-epsilon=8.0 dp-max-delta=1e-5'"
            )
        return None

    def budget_of_noise(self, asked: NoiseInstruction | SumInstruction) -> PrivacyBudget:
        """The smaller of a run's limit and the owner's cap, without a trusted server.

        Raises:
            ValueError: Neither server nor owner names a budget.
        """
        limit, cap = self.limit_of_noise(asked), self.cap
        if limit is None:
            assert cap is not None  # `limit_of_noise` has checked
            return cap
        if cap is None:
            return limit.budget
        return PrivacyBudget(
            epsilon=min(limit.budget.epsilon, cap.epsilon),
            delta=min(limit.budget.delta, cap.delta),
        )

    def account(self, *, unit: str, fingerprint: str | None = None) -> Account:
        """The account of the node's data."""
        from fl_dp.ledger.node import Account  # needs SciPy

        return Account(unit=unit, source=self.source, fingerprint=fingerprint)

    def use(self, purpose: str) -> Use:
        """The purpose that the ledger records with a charge, for its owner."""
        from fl_dp.ledger.node import Use  # needs SciPy

        host = present_host()
        running = host.running_app()
        app = None if running is None else str(running)
        return Use(
            run=self.run,
            purpose=purpose,
            app=app,
            enforcement=host.enforcement(),
            message=host.message_id(),
        )


@lru_cache
def _log_once(line: str) -> None:
    logger.info("%s", line)


def simulated_run_folder(context: Context) -> Path:
    """The folder of a simulation's run: simulated nodes' data are new in each."""
    return files.simulations_folder() / f"run-{context.run_id}"


_plays_nodes = False  # per process, as a node's work may continue in another thread


@contextmanager
def simulated_nodes() -> Iterator[None]:
    """Declare all nodes of this process virtual for the block.

    For an engine that plays all nodes in one process; a message can't tell this.
    """
    global _plays_nodes
    _plays_nodes = True
    try:
        yield
    finally:
        _plays_nodes = False


def in_simulation() -> bool:
    """Tell whether this process plays all nodes, or is a worker of Flower's simulation engine."""
    return _plays_nodes or is_engine_s_worker()
