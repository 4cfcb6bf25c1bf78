"""Clients that protect their records by DP-SGD, alone or under a plan for clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from local_grid import Answer, answer_with_app
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainings import FixedClient, Training, client_fn, plan_of, record, train

from fl_dp import PrivacyBudget
from fl_dp.accounting import PoissonSampling
from fl_dp.clients import DPSGD, OpacusClient, exchanged_arrays, numpy_client_app
from fl_dp.codec import decode_text
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import FixedClipping, ScalarMetric
from fl_dp.plan import RecordPlan
from fl_dp.protocol.message_keys import RECORD_PLAN_KEY
from fl_dp.statement import record_statement
from fl_dp.strategies import (
    DPFedAvg,
    Draw,
    LawSelection,
    Selection,
    Unit,
    UnprotectedFedAvg,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),  # of a first layer
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]

N = 6
RECORDS = RecordPlan(
    budget=PrivacyBudget(epsilon=3.4, delta=1e-5),
    noise_multiplier=1.0,
    sampling_rate=0.1,
    steps=5,
    participations=2,
    clipping_norm=1.0,
)
"""A budget of three participations, of which two are planned."""
EVERYBODY = LawSelection(PoissonSampling(sampling_rate=1.0))


def fixed_clients(update: float = 1.0) -> Answer:
    return answer_with_app(numpy_client_app(client_fn(lambda node: FixedClient(update))), N)


def alone(
    answer: Answer,
    model: ArrayRecord | None = None,
    *,
    rounds: int,
    selection: Selection = EVERYBODY,
) -> Training:
    """A training that promises something to records alone."""
    model = record(w=np.zeros(3)) if model is None else model
    how: dict[str, Any] = dict(nodes=N, rounds=rounds, selection=selection)
    return train(None, None, answer, model, record_plan=RECORDS, **how)


def plans_sent(training: Training) -> set[str]:
    """The plans in all train messages."""
    return {
        str(config[RECORD_PLAN_KEY])
        for message in training.grid.sent
        if message.metadata.message_type == "train"
        for config in message.content.config_records.values()
    }


# What is sent.


@pytest.mark.parametrize("central", [False, True], ids=["alone", "under a plan for clients"])
def test_every_train_message_carries_the_plan(tmp_path: Path, central: bool) -> None:
    if central:
        plan, model = plan_of(N, rounds=2), record(w=np.zeros(3))
        training = train(tmp_path, plan, fixed_clients(), model, record_plan=RECORDS)
    else:
        training = alone(fixed_clients(), rounds=2)
    assert len([m for m in training.grid.sent if m.metadata.message_type == "train"]) == 2 * N
    [sent] = plans_sent(training)
    assert decode_text(RecordPlan, sent) == RECORDS


# How often a client was asked.


class InTurn(LawSelection):
    """Asks the first node in each round and one more in turn."""

    def select(self, draw: Draw) -> list[Unit]:
        first, *others = sorted(draw.roster)
        return [first, others[draw.server_round % len(others)]]


def test_the_most_participations_are_those_of_the_client_that_was_asked_most() -> None:
    training = alone(
        fixed_clients(), rounds=4, selection=InTurn(PoissonSampling(sampling_rate=0.3))
    )
    asked = [m.metadata.dst_node_id for m in training.grid.sent]
    assert len(asked) == 8
    assert training.strategy.most_participations == max(map(asked.count, asked)) == 4


def test_where_cohorts_are_secret_every_round_counts_for_everybody(tmp_path: Path) -> None:
    plan = plan_of(N, rounds=5, sampling_rate=0.2)
    training = train(
        tmp_path, plan, fixed_clients(), record(w=np.zeros(3)), rounds=4, record_plan=RECORDS
    )
    assert training.strategy.most_participations == 4


# What is refused.


# A whole training.

FEATURES = 4


def model_of() -> nn.Module:
    layer = nn.Linear(FEATURES, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer)


def records_of(node: int, count: int = 200) -> TensorDataset:
    generator = torch.Generator().manual_seed(node)
    features = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(features, (features[:, 0] > 0).long())


def private_clients(folder: Path, spent_before: tuple[int, ...] = ()) -> Answer:
    """Clients with DP-SGD, each with a ledger; those in `spent_before` can't afford another."""
    for node in spent_before:
        with NodeLedger.open(folder / f"node-{node}.db") as ledger:
            ledger.charge(
                account_of(node),
                RECORDS.event,
                count=3 * RECORDS.steps,
                budget=RECORDS.budget,
                what="an earlier run",
            )

    def client(context: Context) -> NumPyClient:
        node = int(context.node_config["partition-id"])
        return OpacusClient(
            model_of(),
            DataLoader(records_of(node)),
            plan=RECORDS,
            ledger=folder / f"node-{node}.db",
            account=account_of(node),
            budget=RECORDS.budget,  # the owner's cap, over the earlier run too
            dp_sgd=DPSGD(
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
                expected_batch_size=20.0,
            ),
        )

    return answer_with_app(numpy_client_app(client), N)


def account_of(node: int) -> Account:
    return Account(unit="record", source=f"ward-{node}")


def rounds_spent(folder: Path) -> list[int]:
    counts = []
    for node in range(N):
        with NodeLedger.open(folder / f"node-{node}.db") as ledger:
            counts.append(sum(count for _, count in ledger.spending(account_of(node)).history))
    return [count // RECORDS.steps for count in counts]


def accuracy(arrays: ArrayRecord) -> float:
    weight, bias = arrays.to_numpy_ndarrays()
    features, labels = records_of(1000, 1000).tensors
    right = (features.numpy() @ weight.T + bias).argmax(axis=1) == labels.numpy()
    return float(right.mean())


def test_clients_whose_budget_is_spent_drop_out_and_the_training_goes_on(tmp_path: Path) -> None:
    answer = private_clients(tmp_path, spent_before=(0, 1))
    training = alone(answer, exchanged_arrays(model_of()), rounds=5)
    assert rounds_spent(tmp_path) == [3] * N
    moves = [np.abs(move).max() for move in training.moves("0.weight")]
    assert all(move > 0 for move in moves[:3])
    assert moves[3:] == [0.0, 0.0]
    assert accuracy(training.result.arrays) > 0.85
    statement = record_statement(
        RECORDS, participations=training.strategy.most_participations, num_clients=N
    ).to_dict()
    assert statement["participations"] == 5
    assert statement["epsilon"] == {"filter": RECORDS.budget.epsilon}


def test_records_and_clients_can_be_promised_something_in_one_training(tmp_path: Path) -> None:
    plan = plan_of(N, rounds=2, noise_multiplier=1e-3, clipping=FixedClipping(norm=10.0))
    training = train(
        tmp_path,
        plan,
        private_clients(tmp_path),
        exchanged_arrays(model_of()),
        record_plan=RECORDS,
    )
    assert rounds_spent(tmp_path) == [2] * N
    assert training.ledger is not None
    assert training.ledger.rounds_spent == 2
    assert accuracy(training.result.arrays) > 0.8


def test_a_second_run_goes_on_spending_from_the_nodes_ledgers(tmp_path: Path) -> None:
    for _ in range(2):
        alone(private_clients(tmp_path), exchanged_arrays(model_of()), rounds=2)
    assert rounds_spent(tmp_path) == [3] * N


def strategy_of(open_ledger: Any, plan: Any = None, **options: Any) -> Any:
    if plan is None:
        return UnprotectedFedAvg(record_plan=RECORDS, **{"selection": EVERYBODY} | options)
    return DPFedAvg(plan=plan, ledger=open_ledger(plan), record_plan=RECORDS, **options)


@pytest.mark.parametrize("central", [False, True])
def test_a_weight_by_the_number_of_records_is_refused(open_ledger: Any, central: bool) -> None:
    with pytest.raises(ValueError, match=r"tell it nothing beside their .* give no weight_cap"):
        strategy_of(open_ledger, plan_of(N) if central else None, weight_cap=10.0)


def test_metrics_of_clients_are_refused(open_ledger: Any) -> None:
    metric = ScalarMetric(name="loss", low=0.0, high=4.0)
    plan = plan_of(N, metrics=(metric,))
    with pytest.raises(ValueError, match="no metrics"):
        strategy_of(open_ledger, plan)


def test_a_selection_by_what_clients_report_is_refused(open_ledger: Any) -> None:
    selection = LawSelection(PoissonSampling(sampling_rate=1.0))
    selection.utility = "loss"
    with pytest.raises(ValueError, match="asks clients for no utility"):
        strategy_of(open_ledger, selection=selection)
