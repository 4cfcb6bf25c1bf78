"""A client's participation in DP-SGD, and the cost of gradients record by record."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from side_by_side import Case
from small_cnn import small_cnn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.clients import DPSGD, OpacusClient, RecordWise
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.model_arrays import get_arrays
from fl_dp.plan import RecordPlan
from fl_dp.tasks.models import build_model

IMAGES, BATCH, STEPS = 256, 32, 8
NOISE, CLIPPING_NORM, LEARNING_RATE = 1.1, 1.0, 0.1
FEW_STEPS = 4
TEXTS: dict[str, Any] = {"num_classes": 80, "hidden": 64, "vocabulary_size": 80}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "cnn": ({"num_classes": 10, "hidden": 32}, (1, 28, 28)),
    "resnet18": ({"num_classes": 10, "hidden": 16}, (3, 32, 32)),
    "transformer": (TEXTS, (40,)),
    "lstm": (TEXTS, (40,)),
}
"""Of each model that comes with fl-dp: what it is built with, and the shape of its records."""


class Images(TensorDataset):
    """Images in memory, handed out batch by batch, to all sides alike."""

    record_wise = True

    def __getitems__(self, rows: list[int]) -> list[tuple[torch.Tensor, ...]]:
        """Return a batch as a list's only item, as Opacus' collation needs it."""
        return [tuple(tensor[rows] for tensor in self.tensors)] if rows else []


def first_of(batch: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """Take the batch out of its list."""
    return batch[0]


@contextlib.contextmanager
def dp_sgd(threads: int) -> Iterator[list[Case]]:
    """Compare a round of `OpacusClient`, its ledger on disk, with the steps alone."""
    warnings.filterwarnings("ignore")
    rng = np.random.default_rng(0)
    data = Images(
        torch.from_numpy(rng.normal(size=(IMAGES, 1, 28, 28)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 10, size=IMAGES)),
    )
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for mode, peer in (("records", "hooks"), ("hooks", "hooks"), ("ghost", "ghost")):
            for secure in (False, True):
                kind = "our noise" if secure else "torch's noise"
                ours = client_round(data, Path(folder), mode=mode, secure=secure)
                cases.append(
                    Case(
                        name=f"{mode}, {kind}: bare steps",
                        peer=f"Opacus' steps alone, {peer}",
                        ours=ours,
                        theirs=bare_steps(data, mode=peer),
                    )
                )
        cases.append(
            Case(
                name="records, our noise: engine a round",
                peer="a new engine and get_epsilon each round",
                ours=client_round(data, Path(folder), mode="records", secure=True),
                theirs=engine_a_round(data),
            )
        )
        yield cases


@contextlib.contextmanager
def gradients(threads: int) -> Iterator[list[Case]]:
    """Compare steps by the default way with steps by Opacus' hooks, and with plain SGD."""
    warnings.filterwarnings("ignore")
    generator = torch.Generator().manual_seed(0)
    cases = []
    for name, (arguments, shape) in MODELS.items():
        tokens = arguments.get("vocabulary_size")
        model = build_model(name, input_shape=shape, seed=0, **arguments)
        if tokens is None:
            features = torch.randn(BATCH, *shape, generator=generator)
        else:
            features = torch.randint(tokens, (BATCH, *shape), generator=generator)
        labels = torch.randint(10, (BATCH,), generator=generator)
        data = TensorDataset(features, labels)
        for peer in ("hooks", "plain SGD"):
            cases.append(
                Case(
                    name=f"{name}, {BATCH} records, {threads} threads: {peer}",
                    peer=f"steps by {peer}",
                    ours=private_steps(model, data),
                    theirs=peer_steps(model, data, hooks=peer == "hooks"),
                )
            )
    yield cases


def private_steps(model: nn.Module, data: TensorDataset) -> Callable[[], object]:
    """Steps on all records: gradients, clipping, noise, optimizer."""
    plan = RecordPlan.from_noise_multiplier(
        NOISE,
        delta=1e-5,
        max_epsilon=1e3,
        sampling_rate=1.0,
        steps=FEW_STEPS,
        participations=1,
        clipping_norm=CLIPPING_NORM,
    )
    return lambda: train_with_dp_sgd(model, DataLoader(data), plan=plan, how=DPSGD())


def peer_steps(model: nn.Module, data: TensorDataset, *, hooks: bool) -> Callable[[], object]:
    """Steps of Opacus' hooks, or of plain SGD, on all records as one batch."""
    model = copy.deepcopy(model)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    features, labels = data.tensors
    batches = [(features, labels)] * FEW_STEPS
    if not hooks:
        return lambda: steps(model, optimizer, nn.CrossEntropyLoss(), batches)
    wrapped, optimizer, _ = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=CLIPPING_NORM,
        poisson_sampling=False,
    )
    return lambda: steps(wrapped, optimizer, nn.CrossEntropyLoss(), batches)


def client_round(data: Images, folder: Path, *, mode: str, secure: bool) -> Callable[[], object]:
    """One `fit` of ours: gate, charge, steps, commit, arrays."""
    plan = RecordPlan.from_noise_multiplier(
        NOISE,
        delta=1e-5,
        max_epsilon=1e3,
        sampling_rate=BATCH / IMAGES,
        steps=STEPS,
        participations=1,
        clipping_norm=CLIPPING_NORM,
    )
    ledger = NodeLedger.open(folder / f"{mode}-{secure}-{len(list(folder.iterdir()))}.db")
    arrays = list(get_arrays(small_cnn()).values())
    loader = DataLoader(data, collate_fn=RecordWise(first_of))
    model = small_cnn()

    def fit() -> object:
        client = OpacusClient(
            model,
            loader,
            plan=plan,
            ledger=ledger,
            account=Account(unit="record", source="benchmark"),
            dp_sgd=DPSGD(
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
                grad_sample_mode=mode,
                secure_randomness=secure,
                example=(torch.zeros(2, 1, 28, 28), torch.arange(2)),
            ),
        )
        return client.fit(arrays, {})

    return fit


def bare_steps(data: Images, *, mode: str) -> Callable[[], object]:
    """The steps alone: everything was wrapped before the clock starts."""
    model = small_cnn()
    made = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=BATCH, collate_fn=first_of),
        noise_multiplier=NOISE,
        max_grad_norm=CLIPPING_NORM,
        grad_sample_mode=mode,
    )
    if mode == "ghost":
        wrapped, optimizer, criterion, loader = made
    else:
        (wrapped, optimizer, loader), criterion = made, nn.CrossEntropyLoss()
    return lambda: steps(wrapped, optimizer, criterion, loader)


def engine_a_round(data: Images) -> Callable[[], object]:
    """What Flower's example does: a new engine, the steps, and Opacus' own epsilon."""

    def fit() -> object:
        model, criterion = small_cnn(), nn.CrossEntropyLoss()
        engine = PrivacyEngine(accountant="prv")
        wrapped, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            data_loader=DataLoader(data, batch_size=BATCH, collate_fn=first_of),
            noise_multiplier=NOISE,
            max_grad_norm=CLIPPING_NORM,
        )
        steps(wrapped, optimizer, criterion, loader)
        return engine.get_epsilon(1e-5), list(get_arrays(model).values())

    return fit


def steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: nn.Module,
    loader: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Go through the loader once."""
    for images, labels in loader:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
