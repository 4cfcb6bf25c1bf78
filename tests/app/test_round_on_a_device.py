"""What a round of units trained together launches, copies and waits for, from server to server.

Counted without a GPU, with rows left where they are: limits are what is reached.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from counted_operators import Counts, counted
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from small_networks import network
from torch import Tensor, nn

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.app import simulate
from fl_dp.clients import TorchUnits, numpy_client_app
from fl_dp.clients.cohort import together
from fl_dp.clients.cohort.image_layers import PRODUCTS
from fl_dp.mechanisms import FixedClipping
from fl_dp.model_arrays import get_arrays
from fl_dp.plan import CentralPlan
from fl_dp.strategies import DPFedAvg
from fl_dp.updates import clipped_sum

ROUNDS = 3
RECORDS = torch.ones(50, 3, 8, 8), torch.zeros(50, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped_sum, "_stays_there", lambda rows: True)
    monkeypatch.setattr(together, "units_at_once", lambda *_: 64)
    monkeypatch.setattr(together, "image_layers", lambda device: PRODUCTS)


def parameters() -> int:
    return sum(parameter.numel() for parameter in network().parameters())


def data(context: Context, unit: int) -> tuple[Tensor, Tensor]:
    return RECORDS


def round_of(clients: int, folder: Path) -> Counts:
    """Count the last round of a training in one process."""
    torch.manual_seed(0)
    model = network()
    units = TorchUnits(
        model=model,
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
        data=data,
        count=lambda context, config: clients,
    )
    plan = CentralPlan(
        budget=PrivacyBudget(epsilon=8.0, delta=1e-5),
        rounds=ROUNDS,
        num_clients=clients,
        sampling=PoissonSampling(sampling_rate=1.0),
        clipping=FixedClipping(norm=0.4),
        units_per_node=clients,
        contribution_check=False,
    ).calibrated()
    server = ServerApp()
    ends: list[Counts] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({name: Array(values) for name, values in get_arrays(model).items()})

        def ended(server_round: int, arrays: ArrayRecord) -> None:
            ends.append(Counts(*(Counter(part) for part in vars(running).values())))

        with PrivacyLedger.open(folder / f"{clients}.db", plan) as ledger:
            strategy = DPFedAvg(plan=plan, ledger=ledger)
            strategy.start(grid, start, num_rounds=ROUNDS, evaluate_fn=ended)

    with counted() as running:
        simulate(server, numpy_client_app(units=units), num_nodes=1)
    assert len(ends) == ROUNDS + 1
    before, after = (vars(counts).values() for counts in ends[-2:])
    return Counts(*(late - early for early, late in zip(before, after, strict=True)))


def test_a_round_costs_two_operators_a_client_and_one_vector_comes_to_the_host(
    tmp_path: Path,
) -> None:
    few, many = round_of(33, tmp_path), round_of(50, tmp_path)
    assert many.total - few.total <= 2 * 17  # the order of its records, its coins
    assert many.total <= 2 * 50 + 604
    assert many.copies == few.copies
    assert many.copies.total() <= 23
    # The sum at the end of the node's work, and then one norm a client, for the node's log alone.
    assert many.waits == few.waits == {"cpu": 1, "tolist": 1}
    assert many.to_host == {"cpu": parameters(), "tolist": 50}
