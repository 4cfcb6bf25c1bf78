"""A small training of each kind of plan, from plan to statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_dp.strategies.companions import Beginning, Companions, Preparation, Start
from fl_dp.strategies.node_answers import Answers
from fl_dp.strategies.rehearsal import ask_identities
from fl_dp.strategies.round_loop import LoopOptions
from fl_dp.strategies.selection import selection_of
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from local_grid import Answer, LocalGrid, answer_with_app, answer_with_update
from secure_nodes import SecureNodes
from torch.utils.data import DataLoader, TensorDataset
from trainings import FixedClient, client_fn

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import OwnRatesSampling, PoissonSampling, VisibleSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.clients import NodeRecords, numpy_client_app
from fl_dp.mechanisms import FixedClipping, SecureRandom
from fl_dp.plan import (
    Banded,
    BufferedPlan,
    CentralPlan,
    CorrelatedPlan,
    DistributedPlan,
    DistributedRecordsPlan,
    GroupedPlan,
    LocalPlan,
    Plan,
    SecureSum,
)
from fl_dp.statement import privacy_statement, statement_markdown
from fl_dp.strategies import BufferedLoop, DPFedAvg, DPFedBuff, PrivateLoop
from fl_dp.updates import Compression

NODES = 8
_SIZE = 6  # of a model
_FIELDS: dict[str, Any] = {
    "budget": PrivacyBudget(epsilon=8.0, delta=1e-3),
    "rounds": 2,
    "num_clients": NODES,
}
_AT_SERVER: dict[str, Any] = _FIELDS | {"clipping": FixedClipping(norm=1.0)}
_TURNS = VisibleSampling(cohort=2, separation=2)
_OWN = OwnRatesSampling.at(0.5, budgets=(2.0, 8.0), shares=(0.5, 0.5))

PLANS: dict[str, Callable[[], Plan]] = {
    "central": lambda: CentralPlan(**_AT_SERVER, sampling=PoissonSampling(sampling_rate=0.5)),
    "correlated": lambda: CorrelatedPlan(
        **_AT_SERVER, sampling=_TURNS, correlation=Banded(coefficients=(4096, 2000))
    ),
    "buffered": lambda: BufferedPlan(**_AT_SERVER, sampling=BufferedSampling(cohort=2)),
    "grouped": lambda: GroupedPlan(**_AT_SERVER, sampling=_OWN),
    "local": lambda: LocalPlan(**_FIELDS, clipping=FixedClipping(norm=1.0)),
    "distributed": lambda: DistributedPlan(
        **_AT_SERVER, sampling=PoissonSampling(sampling_rate=1.0), secure_sum=SecureSum()
    ),
    "distributed_records": lambda: DistributedRecordsPlan(
        **_FIELDS,
        num_records=3 * NODES,
        max_records=3,
        sampling=PoissonSampling(sampling_rate=0.5),
        clipping=FixedClipping(norm=1.0),
        secure_sum=SecureSum(reply_after=600.0),
    ),
}
"""Drafts of each kind."""


class RecordNodes(SecureNodes):
    """Nodes of secure sums with three records each."""

    def app(self) -> Any:
        """The app, as a node runs it."""
        records = TensorDataset(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
        return numpy_client_app(
            records=NodeRecords(
                model_fn=lambda context, config: torch.nn.Linear(2, 2),
                loader_fn=lambda context, config: DataLoader(records),
            )
        )


def answer_of(plan: Plan, folder: Path) -> Answer:
    """A plan's nodes: plain Flower clients wherever they will do."""
    update = np.full(_SIZE, 0.1)
    if isinstance(plan, CentralPlan):
        return answer_with_update([{"w": update}] * NODES)
    if isinstance(plan, DistributedPlan):
        return SecureNodes(folder, [[[update]]] * NODES)
    if isinstance(plan, DistributedRecordsPlan):
        # What PyTorch imports for its first gradient, each forked process would import again.
        torch.func.grad(torch.sum)(torch.ones(1))
        return RecordNodes(folder, [[]] * NODES)
    return answer_with_app(numpy_client_app(client_fn(lambda _: FixedClient(0.1))), NODES)


def model_of(plan: Plan) -> ArrayRecord:
    """The model that is trained: a layer where records are, else six numbers."""
    if isinstance(plan, DistributedRecordsPlan):
        return ArrayRecord({"weight": Array(np.zeros((2, 2))), "bias": Array(np.zeros(2))})
    return ArrayRecord({"w": Array(np.zeros(_SIZE))})


def stated(draft: Plan, folder: Path) -> str:
    """Calibrate a plan, train all its rounds, and return the statement."""
    plan = draft.calibrated()
    strategy_class = DPFedBuff if isinstance(plan, BufferedPlan) else DPFedAvg
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = strategy_class(plan=plan, ledger=ledger)
        grid = LocalGrid(answer_of(plan, folder), NODES)
        strategy.start(grid, model_of(plan), num_rounds=plan.rounds, timeout=30.0)
        assert ledger.rounds_committed == plan.rounds
        return statement_markdown(privacy_statement(ledger))


class PlainMean:
    """The least server optimizer: the model plus the released mean."""

    weight_key = "num-examples"

    def instruct(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Sequence[int]
    ) -> RecordDict:
        """The model, and the config of a plain Flower client."""
        return RecordDict({"arrays": arrays, "config": config})

    def step(
        self,
        server_round: int,
        arrays: ArrayRecord,
        instruction: RecordDict,
        metrics: Mapping[str, float],
    ) -> tuple[ArrayRecord, None]:
        """What was released."""
        return arrays, None

    def state(self) -> dict[str, Any]:
        """None."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing to go on from."""


class NamesOnly(Preparation):  # type: ignore[misc]  # mypy knows it as strategies.companions
    """Asks nodes for the names under which their participations are counted, and tries nothing."""

    def of_nodes(self, beginning: Beginning) -> Answers:
        """Ask who they are."""
        return ask_identities(
            beginning.federation,
            beginning.nodes,
            config=ConfigRecord(),
            everyone=beginning.needs_everyone,
            round_timeout=beginning.lifetime,
        )


def promised(draft: Plan, folder: Path) -> None:
    """Calibrate a plan, train all its rounds, and state what was spent, with nothing around.

    A loop alone: no strategy of Flower, no log, no rehearsal; names are asked where they count.
    """
    plan = draft.calibrated()
    loop_class = BufferedLoop if isinstance(plan, BufferedPlan) else PrivateLoop
    options = LoopOptions(
        selection=selection_of(plan.sampling),
        weight_cap=None,
        window=None,
        roster_timeout=60.0,
        rng=SecureRandom(),
        after_round=None,
        record_plan=None,
        compression=Compression(),
    )
    companions = Companions()
    if not isinstance(plan, CentralPlan):
        companions = Companions(preparation=NamesOnly())
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        loop = loop_class(PlainMean(), options, plan=plan, ledger=ledger, companions=companions)
        start = Start(
            grid=LocalGrid(answer_of(plan, folder), NODES),
            initial_arrays=model_of(plan),
            num_rounds=plan.rounds,
            timeout=30.0,
            train_config=ConfigRecord(),
            evaluate_config=ConfigRecord(),
            evaluate_fn=None,
            should_stop=None,
        )
        loop.run(start, announce=lambda: None)
        assert ledger.rounds_committed == plan.rounds
        privacy_statement(ledger)
