"""A task's client under DP-SGD: its records, its settings and its node's ledger, put together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Context
from flwr.client import NumPyClient
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fl_dp.accounting import ExamplePlan
from fl_dp.clients import DPSGD, NodePrivacy, OpacusClient, fingerprint
from fl_dp.clients.node_privacy import in_simulation
from fl_dp.updates.instruction import EXAMPLE_PLAN_KEY

from .settings import Settings


def example_plan_of(config: Mapping[str, Any]) -> ExamplePlan | None:
    """Return the plan of DP-SGD in a message's config, None if there is none."""
    text = config.get(EXAMPLE_PLAN_KEY)
    return None if text is None else ExamplePlan.from_dict(json.loads(str(text)))


def private_client(
    model: nn.Module,
    features: Tensor,
    labels: Tensor,
    *,
    plan: ExamplePlan,
    settings: Settings,
    context: Context,
    config: Mapping[str, Any],
    unit: int,
) -> NumPyClient:
    """Return the client that trains on these records by DP-SGD and charges the node's ledger.

    Features `(n, ...)` and labels `(n,)` are on the model's device.

    Raises:
        ValueError: If a real node was started without a ledger: nothing is trained then.
    """
    node = NodePrivacy.of(context, config, unit=unit)
    if node.ledger is None:
        raise ValueError(
            "this node keeps no ledger, so it can't promise anything: start the SuperNode with "
            "--node-config 'ledger-path=\"/data/ledger.db\"'"
        )
    chosen = settings.dp_sgd
    records = Records(features, labels)
    print_of_data = fingerprint(features.cpu().numpy(), labels.cpu().numpy())
    return OpacusClient(
        model,
        DataLoader(records, collate_fn=_as_they_are),
        plan=plan,
        ledger=node.ledger,
        account=node.account(unit="example", fingerprint=print_of_data),
        budget=node.budget(plan.budget),
        dp_sgd=DPSGD(
            optimizer=lambda parameters: torch.optim.SGD(
                parameters, lr=settings.client.learning_rate
            ),
            expected_batch_size=chosen.expected_batch_size,
            grad_sample_mode=chosen.grad_sample_mode,
            physical_batch_size=chosen.physical_batch_size,
            # A server must not be able to switch it off.
            secure_randomness=chosen.secure_randomness or not in_simulation(),
        ),
    )


class Records(Dataset[tuple[Tensor, Tensor]]):
    """Records in memory, handed out a batch at a time instead of one by one."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        """Hold features `(n, ...)` and labels `(n,)`."""
        self.features = features
        self.labels = labels

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """Return one record."""
        return self.features[row], self.labels[row]

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Return a batch."""
        return self.features[rows], self.labels[rows]


def _as_they_are(batch: Any) -> Any:
    return batch
