"""A participation of a client under DP-SGD: ours, bare Opacus steps, and an engine a round."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from side_by_side import Case
from small_cnn import small_cnn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.clients import DPSGD, OpacusClient, RecordWise
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.plan import RecordPlan
from fl_dp.tasks.models import get_arrays

IMAGES, BATCH, STEPS = 256, 32, 8
NOISE, CLIPPING_NORM, LEARNING_RATE = 1.1, 1.0, 0.1


class Images(TensorDataset):
    """Images in memory, handed out a batch at a time, to all sides alike."""

    record_wise = True

    def __getitems__(self, rows: list[int]) -> list[tuple[torch.Tensor, ...]]:
        """Return a batch as the only item of a list, which is what Opacus' collation asks for."""
        return [tuple(each[rows] for each in self.tensors)] if rows else []


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
        for mode in ("hooks", "ghost"):
            for secure in (False, True):
                kind = "our noise" if secure else "torch's noise"
                ours = client_round(data, Path(folder), mode=mode, secure=secure)
                cases.append(
                    Case(
                        name=f"{mode}, {kind}: bare steps",
                        peer="Opacus' steps alone",
                        ours=ours,
                        theirs=bare_steps(data, mode=mode),
                    )
                )
        cases.append(
            Case(
                name="hooks, our noise: engine a round",
                peer="a new engine and get_epsilon each round",
                ours=client_round(data, Path(folder), mode="hooks", secure=True),
                theirs=engine_a_round(data),
            )
        )
        yield cases


def client_round(data: Images, folder: Path, *, mode: str, secure: bool) -> Callable[[], object]:
    """Return one `fit` of ours: gate, charge, steps, commit, arrays."""
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
            ),
        )
        return client.fit(arrays, {})

    return fit


def bare_steps(data: Images, *, mode: str) -> Callable[[], object]:
    """Return the steps alone: everything was wrapped before the clock starts."""
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
    """Return what Flower's example does: a new engine, the steps, and Opacus' own epsilon."""

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
