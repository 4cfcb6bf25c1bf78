"""What a cohort launches, copies and waits for, counted without a GPU: limits are what is reached.

Counted on pfl-research's CNN for CIFAR-10, with narrow layers: operators do not depend on widths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from launched import Launched
from small_networks import network
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_dp.clients.cohort import LocalTraining, UnitData, train_alone, train_units
from fl_dp.clients.cohort.image_layers import GROUPED, PRODUCTS, ImageLayers

MOST_MOVED = 20  # of a cohort: records, labels, order, weights, and each entry of its result
MOVES = ("cpu", "cuda", "item", "tolist", "__bool__", "__float__", "__int__")


class Moved(TorchFunctionMode):
    """Counts calls that move a tensor to another device, or wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        to_device = name == "to" and any(isinstance(arg, torch.device) for arg in args)
        if name in MOVES or to_device:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def counted(
    clients: int, optimizer: Any, *, together: bool = True, images: ImageLayers | None = None
) -> tuple[Launched, Moved]:
    units = [
        UnitData(features=torch.randn(50, 3, 8, 8), labels=torch.randint(10, (50,)), seed=seed)
        for seed in range(clients)
    ]
    training = LocalTraining(
        loss=partial(functional.cross_entropy, reduction="none"),
        optimizer=optimizer,
        batch_size=10,
    )
    model = network()
    with Moved() as moved, Launched() as launched:
        if together:
            ((places, _),) = train_units(model, units, training, at_once=64, images=images)
            assert len(places) == clients
        else:
            for unit in units:
                train_alone(model, unit, training)
    return launched, moved


@pytest.mark.parametrize(
    ("optimizer", "images", "most", "own_counters"),
    [
        (partial(torch.optim.SGD, lr=0.1), GROUPED, 458, 0),
        (partial(torch.optim.SGD, lr=0.1), PRODUCTS, 542, 0),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), GROUPED, 540, 0),
        (partial(torch.optim.Adam, lr=0.1), GROUPED, 804, 40),  # its number of steps is the host's
    ],
)
def test_a_client_costs_two_operators_and_neither_a_copy_nor_a_wait(
    optimizer: Any, images: ImageLayers, most: int, own_counters: int
) -> None:
    (few, moved_few), (many, moved_many) = (
        counted(clients, optimizer, images=images) for clients in (17, 32)
    )
    assert (many.operators - few.operators) / 15 <= 2  # the order of its records, its coins
    assert few.operators - 17 * 2 <= most
    assert few.waits == many.waits == own_counters
    assert moved_few.calls == moved_many.calls
    assert sum(moved_few.calls.values()) - own_counters <= MOST_MOVED


def test_alone_a_client_costs_more_so_the_count_has_power() -> None:
    launched, moved = counted(4, partial(torch.optim.SGD, lr=0.1), together=False)
    assert launched.operators / 4 > 100
    assert sum(moved.calls.values()) / 4 > 1


def test_a_wait_and_a_copy_are_counted() -> None:
    with Moved() as moved, Launched() as launched:
        values = torch.ones(3)
        float(values.sum().item())
        values[values > 0].cpu()
    assert launched.waits == 2
    assert moved.calls["item"] == moved.calls["cpu"] == 1
