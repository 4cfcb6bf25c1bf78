"""A task's client under DP-SGD: its records, settings and node's ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fl_dp.clients import DPSGD, NodeRecords, OpacusClient, Persons, RecordWise
from fl_dp.clients.owner.node_privacy import in_simulation
from fl_dp.codec import decode_text
from fl_dp.ledger.fingerprint import fingerprint, fingerprint_of_files
from fl_dp.plan import RecordPlan
from fl_dp.protocol.message_keys import RECORD_PLAN_KEY
from fl_dp.tasks.datasets.forms import Form
from fl_dp.tasks.training import SquaredError

from .settings import Settings
from .settings.dp_sgd import record_steps

_EXAMPLES = 4


def record_plan_of(config: Mapping[str, Any]) -> RecordPlan:
    """The DP-SGD plan in a message's config."""
    return decode_text(RecordPlan, str(config[RECORD_PLAN_KEY]))


@dataclass(eq=False)
class Records(Dataset[tuple[Tensor, Tensor]]):
    """Records in memory, handed out in batches instead of one by one.

    Attributes:
        features: Shape `(n, ...)`.
        labels: Shape `(n,)`.
        fit: Which rows could be read as records, `(n,)`; None if all could.
        folder: Folder whose files hold these records and nobody else's; None without one.
        persons: Each row's person, `(n,)`; -1 for a row of nobody. None: records are the units.
    """

    record_wise = True

    features: Tensor
    labels: Tensor
    _: KW_ONLY
    fit: NDArray[np.bool_] | None = None
    folder: str | None = None
    persons: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Number of rows, unreadable ones included: it is public."""
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """One record."""
        return self.features[row], self.labels[row]

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """A batch, without unreadable rows."""
        if self.fit is not None:
            rows = [row for row in rows if self.fit[row]]
        return self.features[rows], self.labels[rows]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All features and labels, in their order."""
        return self.features, self.labels

    @property
    def fingerprint(self) -> str:
        """Digest that identifies these records."""
        if self.folder is not None:
            return fingerprint_of_files(self.folder)
        return fingerprint(self.features.cpu().numpy(), self.labels.cpu().numpy())

    def loader(self) -> DataLoader[Any]:
        """A loader of the units: records, or persons with theirs."""
        units: Any = self if self.persons is None else Persons(self, self.persons)
        return DataLoader(units, collate_fn=RecordWise(_as_they_are))


def private_client(
    model: nn.Module,
    load: Callable[[], Records],
    *,
    plan: RecordPlan,
    settings: Settings,
    context: Context,
    config: Mapping[str, Any],
    unit: int,
    form: Form | None = None,
) -> NumPyClient:
    """A client that charges, then trains by DP-SGD on what `load` returns.

    Records are on the model's device. `form` is their public form, if there is one.

    Raises:
        ValueError: A real node was started without a ledger; nothing is trained.
    """
    steps = settings.record_training.make_by(record_steps)
    _require_comparable(steps["grad_sample_mode"], form)
    # A server must not be able to switch it off.
    steps["secure_randomness"] |= not in_simulation()
    loaded: list[Records] = []

    def loader() -> DataLoader[Any]:
        loaded.append(load())
        return loaded[-1].loader()

    return OpacusClient.on_node(
        context,
        model,
        loader,
        plan=plan,
        unit=unit,
        config=config,
        dp_sgd=DPSGD(
            criterion=_criterion(settings),
            optimizer=lambda parameters: torch.optim.SGD(
                parameters, lr=settings.client.learning_rate
            ),
            example=_example(form),
            **steps,
        ),
        fingerprint_of=lambda _: loaded[-1].fingerprint,
    )


def node_records(
    build: Callable[[], nn.Module],
    load: Callable[[], Records],
    *,
    settings: Settings,
    form: Form | None = None,
) -> NodeRecords:
    """A client's records as units of secure sums; see `private_client`."""
    return NodeRecords(
        model_fn=lambda context, config: build(),
        loader_fn=lambda context, config: load().loader(),
        unit=settings.task.unit_of_records,
        dp_sgd=DPSGD(
            criterion=_criterion(settings),
            example=_example(form),
        ),
    )


def _example(form: Form | None) -> tuple[Tensor, Tensor] | None:
    return None if form is None else example_of(form)


def example_of(form: Form) -> tuple[Tensor, Tensor]:
    """Made-up features and labels of a form, on the CPU."""
    if form.vocabulary_size is None:
        features = torch.zeros(_EXAMPLES, *form.input_shape)
    else:
        tokens = torch.arange(_EXAMPLES * math.prod(form.input_shape)) % form.vocabulary_size
        features = tokens.view(_EXAMPLES, *form.input_shape)
    if form.is_of_numbers:
        return features, torch.linspace(-1.0, 1.0, _EXAMPLES)
    return features, torch.arange(_EXAMPLES) % form.num_classes


def _require_comparable(mode: str, form: Form | None) -> None:
    """Refuse Opacus' gradients where no made-up record can be compared."""
    if form is None and mode in ("hooks", "ghost"):
        raise ValueError(
            f"dp_sgd.grad_sample_mode={mode} is compared with gradients of single records "
            "on made-up ones, and the settings do not say what a record looks like: write "
            "task.classes and task.columns or task.image_shape, or leave the key out"
        )


def _criterion(settings: Settings) -> nn.Module:
    # A node whose own schema says otherwise has another model than the one that was sent.
    if settings.task.label_range is None:
        return nn.CrossEntropyLoss()
    return SquaredError()


def _as_they_are(batch: Any) -> Any:
    return batch
