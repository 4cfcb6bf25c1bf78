"""How much a section does, where, and until when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pfl_cifar10
import torch

CLASSES = 10

Row = dict[str, Any]
Write = Callable[[Row], None]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is done.

    Attributes:
        repeats: Turns of each case, if time suffices.
        units: Numbers of units trained together, a case each.
        images: Images of a unit.
        clients: Of pfl-research's CIFAR-10.
        records: Images of each of these clients.
        cohort: Clients expected in a round of it.
        users: Numbers of users of which a round takes that cohort.
        processes: Numbers of processes of pfl-research.
        pace_s: Seconds for which its rounds are timed.
        batch: Expected records in a sample of DP-SGD, and records in a plain step.
        steps: Steps of one participation.
        side: Height and width of the ResNet's images.
        width: Channels of the ResNet's first stage, and numbers of a token in the transformer.
        tokens: Tokens of a record.
        draws: Integers of noise drawn at once.
        tests: Options of pytest.
    """

    repeats: int
    units: tuple[int, ...]
    images: int
    clients: int
    records: int
    cohort: int
    users: tuple[int, ...]
    processes: tuple[int, ...]
    pace_s: float
    batch: int
    steps: int
    side: int
    width: int
    tokens: int
    draws: int
    tests: tuple[str, ...] = ()


FULL = Sizes(
    repeats=3,
    units=(100, 1000),
    images=20,
    clients=pfl_cifar10.CLIENTS,
    records=50,
    cohort=pfl_cifar10.COHORT,
    users=(1_000, 100_000),
    processes=(2, 4, 8),
    pace_s=8.0,
    batch=256,
    steps=10,
    side=32,
    width=64,
    tokens=128,
    draws=11_200_000,
)
SMALL = Sizes(
    repeats=1,
    units=(4, 9),
    images=12,
    clients=6,
    records=10,
    cohort=3,
    users=(6, 12),
    processes=(2,),
    pace_s=0.0,
    batch=2,
    steps=1,
    side=8,
    width=4,
    tokens=6,
    draws=200_000,
    tests=("-k", "label_out_of_range"),
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where a section runs, how much it does, and until when.

    Attributes:
        until: No further turn is begun after it, by `time.monotonic`.
        write: Keeps a row.
    """

    device: torch.device
    sizes: Sizes
    until: float
    write: Write
