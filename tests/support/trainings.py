"""A whole private training on a local grid, from a plan to its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flat_plans import flat_plan
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Result
from local_grid import INTRODUCTION, Answer, LocalGrid, introducing, reply

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import FixedClipping, SecureRandom
from fl_dp.plan import CentralPlan, CorrelatedPlan
from fl_dp.protocol.instruction import RoundInstruction, applied_noise
from fl_dp.protocol.introduction import Ability, NodeIdentity
from fl_dp.protocol.message_keys import NOISED_KEY
from fl_dp.strategies import DPFedAvg, UnprotectedFedAvg

SIX_SIGMA = 6.0  # two in a billion draws lie further out


def plan_of(num_clients: int, *, sampling_rate: float = 1.0, **changes: Any) -> Plan:
    """A plan whose budget is no matter; any field can be changed."""
    fields: dict[str, Any] = dict(
        budget=PrivacyBudget(epsilon=1e15, delta=1e-6),
        rounds=1,
        sampling=PoissonSampling(sampling_rate=sampling_rate),
        noise_multiplier=0.5,
        clipping=FixedClipping(norm=1.0),
        num_clients=num_clients,
        contribution_check=False,  # has tests of its own; here updates may be zero
    )
    return flat_plan(**(fields | changes))


def budgeted(
    folder: Path, inner: Any = None, *, kind: type[DPFedAvg] = DPFedAvg, **changes: Any
) -> DPFedAvg:
    """A strategy of `with_budget`, with a ledger in a folder; any argument can be changed."""
    arguments: dict[str, Any] = dict(
        epsilon=2.0,
        rounds=2,
        num_clients=4,
        sampling_rate=1.0,
        clipping_norm=1.0,
        ledger=folder / "ledger.db",
    )
    return kind.with_budget(inner, **(arguments | changes))


def record(**arrays: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def numbers(arrays: ArrayRecord) -> dict[str, Any]:
    return {str(name): array.numpy() for name, array in arrays.items()}


def able(*abilities: Ability) -> Callable[[Answer], Answer]:
    """Let a function that answers train messages also say what its app can do."""

    def introduced(answer: Answer) -> Answer:
        def answered(message: Message, node: int) -> Message | None:
            if message.metadata.message_type != INTRODUCTION:
                return answer(message, node)
            identity = NodeIdentity(abilities=frozenset(abilities)).to_config()
            return Message(RecordDict({"identity": identity}), reply_to=message)

        return introducing(answered)

    return introduced


def noised(message: Message, **arrays: Any) -> Message:
    """Reply as an app that has added a round's noise to these arrays."""
    answer = reply(message, arrays)
    instruction = RoundInstruction.from_config(dict(message.content["config"]))
    assert instruction is not None
    answer.content[NOISED_KEY] = applied_noise(instruction)
    return answer


@dataclass
class Training:
    """What became of it.

    Attributes:
        models: Arrays by name, the first model included.
        clipping_norms: Those of each round, and then those of a next one.
        ledger: Closed, as far as it had read.
    """

    result: Result
    strategy: DPFedAvg | UnprotectedFedAvg
    grid: LocalGrid
    ledger: PrivacyLedger | None
    models: list[dict[str, Any]]
    clipping_norms: list[tuple[float, ...] | None]

    def moves(self, name: str = "w") -> list[Any]:
        """What each round did to an array."""
        return [
            after[name] - before[name]
            for before, after in zip(self.models, self.models[1:], strict=False)
        ]

    @property
    def move(self) -> Any:
        """What the last round did to `w`."""
        return self.moves()[-1]


def train(
    folder: Path | None,
    plan: Plan | None,
    answer: Answer,
    model: ArrayRecord,
    *,
    nodes: int | None = None,
    rounds: int | None = None,
    timeout: float = 60.0,
    rng: SecureRandom | None = None,
    inner: Any = None,
    units_per_node: int = 1,
    coins_at_nodes: bool = False,
    **options: Any,
) -> Training:
    """Train on a local grid, the plan's rounds on the plan's clients unless said otherwise.

    The folder is for the ledger; None without a plan. Without a plan, training is without privacy.
    `rng` goes to strategy and ledger, `units_per_node` and `coins_at_nodes` to the plan, other
    options to the strategy. `inner` is the server optimizer, `timeout` that of a round.
    """
    if plan is not None and (units_per_node > 1 or coins_at_nodes):
        assert isinstance(plan, CentralPlan | CorrelatedPlan)
        hosting: dict[str, Any] = {"units_per_node": units_per_node}
        if coins_at_nodes:
            hosting["coins_at_nodes"] = True
        plan = replace(plan, **hosting)
    if nodes is None:
        assert plan is not None
        nodes = plan.num_clients
    grid = LocalGrid(answer, nodes)
    ledger = None
    if plan is not None:
        assert folder is not None
        ledger = PrivacyLedger.open(folder / "ledger.db", plan, rng=rng)
    models: list[dict[str, Any]] = []
    norms: list[tuple[float, ...] | None] = []

    def look(_: int, arrays: ArrayRecord) -> None:
        models.append(numbers(arrays))
        norms.append(strategy.clipping_norms if isinstance(strategy, DPFedAvg) else None)

    try:
        strategy: DPFedAvg | UnprotectedFedAvg
        if plan is not None and ledger is not None:
            strategy = DPFedAvg(inner, plan=plan, ledger=ledger, rng=rng, **options)
        else:
            strategy = UnprotectedFedAvg(inner, rng=rng, **options)
        result = strategy.start(
            grid,
            model,
            num_rounds=rounds or (plan.rounds if plan is not None else 1),
            timeout=timeout,
            evaluate_fn=look,
        )
    finally:
        if ledger is not None:
            ledger.close()
    return Training(
        result=result,
        strategy=strategy,
        grid=grid,
        ledger=ledger,
        models=models,
        clipping_norms=norms,
    )


class FixedClient(NumPyClient):
    """Adds one update to the model's first array, and says what it was told."""

    def __init__(
        self, update: Any, *, num_examples: Any = 10, metrics: dict[str, Any] | None = None
    ) -> None:
        self.update = update
        self.num_examples = num_examples
        self.metrics = metrics or {}

    def fit(self, parameters: Any, config: Any) -> Any:
        first = (parameters[0] + self.update).astype(parameters[0].dtype)
        return [first, *parameters[1:]], self.num_examples, dict(self.metrics)


ClientOf = Callable[[int], FixedClient]


def client_fn(client_of: ClientOf) -> Callable[[Context], NumPyClient]:
    """One client a node, by its place in the roster."""
    return lambda context: client_of(int(context.node_config["partition-id"]))
