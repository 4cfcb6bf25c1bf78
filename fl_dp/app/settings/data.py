"""Settings of the data that is learned from and of the model that learns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_dp.option_errors import OptionError
from fl_dp.tasks.datasets import OWN_DATA

from .checks import (
    absolute,
    at_least,
    between_0_and_1,
    choices,
    distinct,
    positive,
    rises,
    told,
)

OWN_DATA_KEYS = (
    "classes",
    "label_range",
    "label_column",
    "client_column",
    "columns",
    "image_shape",
    "mean",
    "std",
    "test_fraction",
)
"""Keys of `task` that are about somebody's own files, as `DataFormat` names them, too."""


@dataclass(kw_only=True)
class TaskSettings:
    """Data that is learned from, and its split over the clients.

    Attributes:
        name: `digits`, `breast_cancer`, `fashion_mnist`, `mnist`, `cifar10`, `adult` or
            `shakespeare`; `csv`, `parquet` or `folder` for your own data.
        num_clients: Clients of the roster, each one privacy unit. A simulated node hosts
            `simulation.units_per_node` of them, a real node hosts one.
        partition: `iid`, `dirichlet` (label skew by `alpha`), `shards` (by label), `natural` (the
            clients that the data set names; with fewer `num_clients` those with the most records)
            or `nodes` (no split: every SuperNode brings its own data).
        alpha: Dirichlet concentration; small values are far from iid.
        shards_per_client: Label shards that each client gets.
        clients: Names or patterns (`*`, `?`) of the natural clients whose records are used, to
            train on and, where it names them, of the test part; a `!` before one leaves them out:
            `['!hamlet: *']`. Null: all.
        records_per_client: Records of every client under `iid`, dealt out again where there are too
            few, so that clients share some; under `natural` the most of each; null deals out all
            records once.
        validation: Measure on a fixed fifth of the training part, which is then not trained on,
            instead of the test part: for choosing settings.
        data_dir: Folder of the data set; null is where packages and `fl-dp data` put it.
        classes: Your own data: names of the classes in the order of their labels; null takes the
            integers from 0, or the folders' names, that occur.
        label_range: Your own tables: public `[low, high]` of a label that is a number, which is
            predicted instead of a class; one outside counts as the nearer end.
        label_column: Your own tables: column of the label.
        client_column: Your own tables: column that names each row's client, for
            `task.partition=natural`.
        columns: Your own tables: columns that are features; null takes all others.
        image_shape: Your own images: `[channels, height, width]`, with 1 or 3 channels; null takes
            that of the first image.
        mean: Your own data: public numbers to subtract, one per column, or one per channel of
            the pixels over 255; null changes nothing.
        std: Your own data: public numbers to divide by then, as many as in `mean`.
        test_fraction: Your own data: share of the training rows to hold out where there is no test
            part, the same rows in every run.
    """

    name: str = told("digits")
    num_clients: int = told(200)
    partition: str = told("iid")
    alpha: float = told(0.5)
    shards_per_client: int = told(2)
    clients: list[str] | None = told(None)
    records_per_client: int | None = told(None)
    validation: bool = told(False)
    data_dir: str | None = None
    classes: list[str] | None = None
    label_range: list[float] | None = told(None)
    label_column: str = "label"
    client_column: str | None = None
    columns: list[str] | None = None
    image_shape: list[int] | None = told(None)
    mean: list[float] | None = None
    std: list[float] | None = None
    test_fraction: float | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        choices("task", self)
        for key in ("num_clients", "records_per_client"):
            at_least(f"task.{key}", getattr(self, key), 1)
        positive("task.alpha", self.alpha)
        at_least("task.shards_per_client", self.shards_per_client, 1)
        distinct("task.clients", self.clients, least=1)
        if self.records_per_client is not None and self.partition not in ("iid", "natural"):
            raise OptionError(
                "task.records_per_client is for task.partition=iid or natural, got "
                f"task.partition={self.partition}: leave it out"
            )
        if self.validation and self.partition == "nodes":
            raise OptionError(
                "task.validation holds out training rows, and with task.partition=nodes "
                "the server has none: leave it out"
            )
        self._check_own_data()

    def _check_own_data(self) -> None:
        for key in OWN_DATA_KEYS:
            default = self.__dataclass_fields__[key].default
            if self.name not in OWN_DATA and getattr(self, key) != default:
                raise OptionError(
                    f"task.{key} is for your own data (task=csv, task=parquet or task=folder): "
                    f"leave it out of task={self.name}"
                )
        distinct("task.classes", self.classes, least=2)
        of_classes = self.classes or self.name == "folder" or self.partition == "dirichlet"
        if self.label_range is not None and (of_classes or not rises(self.label_range)):
            raise OptionError(
                "task.label_range must be two numbers, the lower first, like [0, 5], of a label "
                "without classes: leave out task.classes, task=folder and "
                f"task.partition=dirichlet, got {self.label_range}"
            )
        distinct("task.columns", self.columns, least=1)
        for key, column in (("label", self.label_column), ("client", self.client_column)):
            if column in (self.columns or ()):
                raise OptionError(
                    f"task.columns has '{column}', which is task.{key}_column: it can't "
                    "be a feature, leave it out of one of them"
                )
        is_by_column = self.name in ("csv", "parquet") and self.partition == "natural"
        if is_by_column and self.client_column is None:
            raise OptionError(
                "task.partition=natural takes the clients from the table: write "
                "task.client_column too, the column that names each row's client"
            )
        if self.client_column == self.label_column:
            raise OptionError(f"task.client_column and task.label_column are both '{column}'")
        shape = [1, 1, 1] if self.image_shape is None else self.image_shape
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
            raise OptionError(
                "task.image_shape must be [channels, height, width] with 1 or 3 channels, "
                f"got {self.image_shape}"
            )
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise OptionError(
                "task.mean and task.std belong together: write as many numbers in both, got "
                f"{self.mean} and {self.std}"
            )
        for std in self.std or ():
            positive("task.std", std)
        if not all(map(math.isfinite, self.mean or ())):
            raise OptionError(f"task.mean must be finite, got {self.mean}")
        between_0_and_1("task.test_fraction", self.test_fraction)


@dataclass(kw_only=True)
class ModelSettings:
    """The model that is trained.

    Attributes:
        name: `logistic`, `mlp`, `cnn` or `resnet18` (GroupNorm, no max-pooling: 11.2 million
            parameters on CIFAR-10, 45 MB per message); for tokens `gru` or `lstm` (one layer; both
            need Opacus, which comes with `fl-dp[torch]`) or `transformer` (three layers of
            GPT-NeoX, with `fl-dp[transformers]`, which learns every next token of a record).
        hidden: Width of the hidden layers; for `resnet18` the channels of its first stage, doubled
            in each of the next three; of `gru` and `lstm` the hidden state; of `transformer`,
            which needs a multiple of 8, the width.
        shared: Names or patterns (`*`, `?`) of the parameters that clients share; each client
            trains the others too and keeps them on its node; null shares all.
        lora_rank: Train low-rank updates of the linear layers in place of the model (LoRA), of this
            rank; null trains the model itself.
        initial: First weights, an absolute safetensors file with the names and shapes of the
            model's `state_dict`; null draws them from `seed`. Nothing is promised to what they were
            trained on.
        initial_digest: SHA-256 that this file must have; null takes what it holds.
        lora_train: Factors of LoRA that are trained: `b` (A keeps its first values) or `both`.
    """

    name: str = told("logistic", tunable=True)
    hidden: int = told(64, tunable=True)
    shared: list[str] | None = None
    initial: str | None = None
    initial_digest: str | None = told(None)
    lora_rank: int | None = told(None)
    lora_train: str = told("b")

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
                "model.lora_rank=4 too, or leave it out"
            )
