"""Privacy units that train a PyTorch module, said as options: so many are trained in one go.

>>> units = TorchUnits(
...     model=model,
...     loss=nn.CrossEntropyLoss(reduction="none"),
...     optimizer=partial(torch.optim.SGD, lr=0.1),
...     batch_size=10,
...     data=lambda context, unit: (images[unit], labels[unit]),
...     count=lambda context, config: 50,
... )
>>> app = numpy_client_app(units=units)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.mechanisms import SecureRandom
from fl_dp.model_arrays import get_arrays, sent_names, set_arrays
from fl_dp.user_code import Contained, Words, own_chance

from .cohort import LocalTraining, UnitData, train_alone, train_units
from .cohort.cohort_optimizers import OptimizerFn
from .cohort.local_training import LossFn
from .coins import coins_of
from .per_record.own_copies import own_copy_of
from .records import Config
from .trained_unit import TrainedRows, UnitReport
from .units import NodeUnits

_UNITS_IN_MEMORY = 256  # whose records a node holds at a time


@dataclass(frozen=True, kw_only=True)
class TorchUnits:
    """The privacy units that a node hosts, each of which trains the same module.

    Together or one by one is decided by the module, the options and the device; a log line says
    why. Coins of a unit's order and dropout follow from the run's seed, the round and the unit;
    without such a seed from the operating system.

    Attributes:
        model: The module, in training mode; it is not changed. Its parameters are exchanged, or
            its whole state, as the server sends.
        loss: Each record's loss, `(n,)`, such as `nn.CrossEntropyLoss(reduction="none")`.
        optimizer: Makes SGD, Adam, AdamW or Rprop, such as `partial(torch.optim.SGD, lr=0.1)`;
            another one is refused, as it may mix units.
        batch_size: Records a step.
        data: One unit's features and labels, `(n, ...)` each, from the node's `Context` and the
            unit's number. Of that unit alone; without records it contributes zero.
        count: As in `NodeUnits`.
        epochs: Passes over a unit's records.
    """

    model: nn.Module
    loss: LossFn
    optimizer: OptimizerFn
    batch_size: int
    data: Callable[[Context, int], tuple[Tensor, Tensor]]
    count: Callable[[Context, Config], int]
    epochs: int = 1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: As `LocalTraining`, or the module can't be copied for each unit.
        """
        own_copy_of(self.model)  # further copies share nothing, either
        _ = self.training

    @property
    def training(self) -> LocalTraining:
        """What each unit does."""
        return LocalTraining(
            loss=self.loss,
            optimizer=self.optimizer,
            batch_size=self.batch_size,
            epochs=self.epochs,
        )

    def of_node(self) -> NodeUnits:
        """The same units as a `NodeUnits`, trained together where a node hosts several."""
        return NodeUnits(
            client_fn=self.client_fn,
            count=self.count,
            train_many=self._train_many,
        )

    def client_fn(self, context: Context, unit: int = 0) -> NumPyClient:
        """The client of one unit."""
        return _Alone(self, context, unit)

    def arrays_fn(self, context: Context, config: Config) -> nn.Module:
        """The module that is trained, which a server compares with its model."""
        return self.model

    def records_of(self, context: Context, unit: int) -> tuple[Tensor, Tensor]:
        """One unit's features and labels."""
        features, labels = self.data(context, unit)
        return torch.as_tensor(features), torch.as_tensor(labels)

    def with_arrays(self, arrays: NDArrays) -> tuple[nn.Module, tuple[str, ...]]:
        """A copy of the module with the arrays sent, and their names."""
        model = copy.deepcopy(self.model)
        names = sent_names(model, arrays)
        set_arrays(model, arrays, names)
        return model, names

    def _train_many(
        self, context: Context, units: Sequence[int], arrays: ArrayRecord, config: Config
    ) -> Iterator[TrainedRows]:
        model, names = self.with_arrays(arrays.to_numpy_ndarrays())
        for start in range(0, len(units), _UNITS_IN_MEMORY):
            data: dict[int, UnitData] = {}
            coins = _Coins()
            with own_chance(coins) as seed_again:
                for unit in units[start : start + _UNITS_IN_MEMORY]:
                    coins.begin(context, config, unit)
                    seed_again()
                    with Contained():  # as the unit's own client, it tries again and fails alone
                        features, labels = self.records_of(context, unit)
                        data[unit] = UnitData(features=features, labels=labels, seed=coins.seed)
            read = list(data)
            trained = train_units(model, list(data.values()), self.training, names=names)
            for indices, vectors in trained:
                yield TrainedRows(
                    units=[read[index] for index in indices],
                    reports=[
                        UnitReport(num_examples=len(data[read[index]].labels), metrics={})
                        for index in indices
                    ],
                    vectors=vectors,
                )


class _Coins:
    """Coins of one unit after the other, wherever each is trained.

    Attributes:
        seed: Of its order of records and its dropout.
    """

    def __init__(self) -> None:
        self.seed = 0
        self._source: Words = SecureRandom()

    def begin(self, context: Context, config: Config, unit: int) -> None:
        """Begin a unit's."""
        self._source = coins_of(context, config, unit) or SecureRandom()
        self.seed = int(self._source.words(1)[0] >> 1)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Numbers for the process's generators, from which `data` may draw."""
        return self._source.words(count)


class _Alone(NumPyClient):
    """One unit, where a node hosts no other or has left it out."""

    def __init__(self, units: TorchUnits, context: Context, unit: int) -> None:
        self._units, self._context, self._unit = units, context, unit

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        model, names = self._units.with_arrays(parameters)
        coins = _Coins()
        coins.begin(self._context, config, self._unit)
        features, labels = self._units.records_of(self._context, self._unit)
        data = UnitData(features=features, labels=labels, seed=coins.seed)
        train_alone(model, data, self._units.training)
        return list(get_arrays(model, names).values()), len(labels), {}

    @torch.no_grad()
    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        model, _ = self._units.with_arrays(parameters)
        features, labels = self._units.records_of(self._context, self._unit)
        device = next((each.device for each in model.parameters()), features.device)
        outputs: Any = model.eval()(features.to(device))
        losses = self._units.loss(outputs, labels.to(device))
        return float(losses.mean()), len(labels), {}
