"""Keys of the training data and of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_dp.option_errors import OptionError
from fl_dp.tasks.datasets import OWN_DATA, DataFormat, DataSource, client_indices

from .checks import (
    Count,
    Positive,
    absolute,
    at_least,
    between_0_and_1,
    choices,
    distinct,
    positive,
    rises,
    tracked,
)
from .option import Option, key, made_by, option


def dealt(
    source: DataSource,
    seed: int,
    *,
    num_clients: Count = 200,
    partition: str = "iid",
    alpha: Positive = 0.5,
    shards_per_client: Count = 2,
    records_per_client: Count | None = None,
) -> Sequence[NDArray[np.int64]]:
    """Return the training rows of each client.

    Args:
        source: The data.
        seed: Seed of the partition.
        num_clients: Clients of the roster, each one privacy unit.
        partition: Deals out rows: `iid`, `dirichlet` (label skew by `alpha`), `shards` (by label),
            `natural` (the data's own clients, largest first) or `nodes` (each SuperNode has its
            own).
        alpha: Dirichlet concentration: the smaller, the more label skew.
        shards_per_client: Label shards that each client gets.
        records_per_client: Records of each client under `iid`, shared if too few; at most, under
            `natural`. None deals out all once.
    """
    return client_indices(
        source,
        num_clients=num_clients,
        kind=partition,
        seed=seed,
        alpha=alpha,
        shards_per_client=shards_per_client,
        records_per_client=records_per_client,
    )


_FORMAT = made_by(
    DataFormat,
    classes=key(tracked=False),
    shares=key(),
    label_range=key(),
    label_column=key(tracked=False),
    client_column=key(tracked=False),
    person_column=key(tracked=False),
    columns=key(tracked=False),
    types=key(tracked=False),
    image_shape=key(),
    mean=key(tracked=False),
    std=key(tracked=False),
    test_fraction=key(),
)

OWN_DATA_KEYS = tuple(_FORMAT.keys)
"""Keys of `task` that describe the user's own files."""


class TaskOption(Option):
    """Data that is learned from, and its split over the clients."""

    if TYPE_CHECKING:
        name: str
        partition: str
        num_clients: int

    @property
    def measured_on(self) -> str:
        """The public rows of accuracy and loss: `test` or `validation`."""
        return "validation" if self.validation else "test"

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.records_per_client is not None and self.partition not in ("iid", "natural"):
            raise OptionError(
                "task.records_per_client is for task.partition=iid or natural, got "
                f"task.partition={self.partition}: leave it out",
                option="task.records_per_client",
            )
        if self.validation and self.partition == "nodes":
            raise OptionError(
                "task.validation holds out training rows, and with task.partition=nodes "
                "the server has none: leave it out",
                option="task.validation",
            )
        self._check_own_data()

    @property
    def unit_of_records(self) -> str:
        """The unit where records are protected: `person`, if they are told apart, or `record`."""
        return "record" if self.person_column is None else "person"

    @property
    def held_out_by(self) -> list[str]:
        """Settings by which rows of the user's own data measure the model after each round."""
        keys = {
            "task.validation=true": self.validation,
            f"task.test_fraction={self.test_fraction}": self.test_fraction is not None,
        }
        return [key for key, is_asked in keys.items() if is_asked and self.is_own]

    @property
    def is_own(self) -> bool:
        """Whether the data are the user's own, and not a public set."""
        return self.name in OWN_DATA

    def _check_own_data(self) -> None:
        for name in OWN_DATA_KEYS:
            default = self.__dataclass_fields__[name].default
            if not self.is_own and getattr(self, name) != default:
                raise OptionError(
                    f"task.{name} is for your own data (task=csv, task=parquet or task=folder): "
                    f"leave it out of task={self.name}",
                    option=f"task.{name}",
                )
        distinct("task.classes", self.classes, least=2)
        of_classes = self.classes or self.name == "folder" or self.partition == "dirichlet"
        if self.label_range is not None and (of_classes or not rises(self.label_range)):
            raise OptionError(
                "task.label_range must be two numbers, the lower first, like [0, 5], of a label "
                "without classes: leave out task.classes, task=folder and "
                f"task.partition=dirichlet, got {self.label_range}",
                option="task.label_range",
            )
        distinct("task.columns", self.columns, least=1)
        columns = {role: getattr(self, f"{role}_column") for role in ("label", "client", "person")}
        for role, column in columns.items():
            if column in (self.columns or ()):
                raise OptionError(
                    f"task.columns has '{column}', which is task.{role}_column: it can't "
                    "be a feature, leave it out of one of them",
                    option="task.columns",
                )
        is_by_column = self.name in ("csv", "parquet") and self.partition == "natural"
        if is_by_column and self.client_column is None:
            raise OptionError(
                "task.partition=natural takes the clients from the table: write "
                "task.client_column too, the column that names each row's client",
                option="task.client_column",
            )
        for role in ("client", "person"):
            if columns[role] == self.label_column:
                raise OptionError(
                    f"task.{role}_column and task.label_column are both '{self.label_column}'",
                    option=f"task.{role}_column",
                )
        if self.person_column is not None:
            self._check_persons()
        shape = [1, 1, 1] if self.image_shape is None else self.image_shape
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
            raise OptionError(
                "task.image_shape must be [channels, height, width] with 1 or 3 channels, "
                f"got {self.image_shape}",
                option="task.image_shape",
            )
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise OptionError(
                "task.mean and task.std belong together: write as many numbers in both, got "
                f"{self.mean} and {self.std}",
                option="task.mean",
            )
        for std in self.std or ():
            positive("task.std", std)
        if not all(map(math.isfinite, self.mean or ())):
            raise OptionError(f"task.mean must be finite, got {self.mean}", option="task.mean")
        between_0_and_1("task.test_fraction", self.test_fraction)

    def _check_persons(self) -> None:
        """Refuse what deals out rows, or has no column."""
        refused = {
            f"task={self.name}": self.name == "folder",
            f"task.partition={self.partition}": self.partition in ("dirichlet", "shards"),
            "task.records_per_client": self.records_per_client is not None,
        }
        for setting, is_refused in refused.items():
            if is_refused:
                raise OptionError(
                    f"task.person_column keeps a person's rows of a table together, and {setting} "
                    "deals out rows: write task.partition=iid, natural or nodes of a table, "
                    "without task.records_per_client",
                    option="task.person_column",
                )


TASK = option(
    "task",
    "",
    made_by(
        DataSource,
        name=key(default="digits"),
        clients=key(check=partial(distinct, least=1)),
        validation=key(),
        data_dir=key(tracked=False),
    ),
    made_by(
        dealt,
        num_clients=key(),
        partition=key(),
        alpha=key(),
        shards_per_client=key(),
        records_per_client=key(),
    ),
    _FORMAT,
    base=TaskOption,
)


@dataclass(kw_only=True)
class ModelSettings:
    """The model that is trained.

    Attributes:
        name: `logistic`, `mlp`, `cnn` or `resnet18` (11.2 million parameters on CIFAR-10, 45 MB per
            message). For tokens `gru`, `lstm` (both with `fl-dp[torch]`) or `transformer` (with
            `fl-dp[transformers]`).
        hidden: Width: of hidden layers, the first stage of `resnet18`, the state of `gru` and
            `lstm`, or `transformer` (a multiple of 8).
        shared: Names or patterns (`*`, `?`) of the shared parameters; each client trains and keeps
            the others; null: all.
        lora_rank: Rank of low-rank updates of the linear layers (LoRA), trained in place of the
            model; null trains the model.
        initial: First weights, an absolute safetensors file with the model's `state_dict`, whose
            training data get no promise; null draws them from `seed`.
        initial_digest: SHA-256 that this file must have; null accepts any.
        lora_train: Factors of LoRA to train: `b` (A keeps its first values) or `both`.
    """

    name: str = tracked("logistic", tunable=True)
    hidden: int = tracked(64, tunable=True)
    shared: list[str] | None = None
    initial: str | None = None
    initial_digest: str | None = tracked(None)
    lora_rank: int | None = tracked(None)
    lora_train: str = tracked("b")

    def __post_init__(self) -> None:
        """Check the values."""
        choices("model", self)
        at_least("model.hidden", self.hidden, 1)
        at_least("model.lora_rank", self.lora_rank, 1)
        distinct("model.shared", self.shared, least=1)
        absolute("model.initial", self.initial)
        if self.lora_rank is None and self.lora_train != "b":
            raise OptionError(
                f"model.lora_train={self.lora_train} is for LoRA: write "
                "model.lora_rank=4 too, or leave it out",
                option="model.lora_train",
            )
