"""Clients of this process that are trained in one go, before each answers a message of its own.

    >>> ahead = TrainedAhead(module, parts, training)
    >>> grid = InProcessGrid(app, configs, before=ahead.train)

Privacy: as one by one. A row is one client's own, by its records and its coins alone
(`train_units`), and is what that client's `fit` returns. All that bounds or noises an update comes
after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType
from flwr.common.typing import NDArrays
from numpy.typing import NDArray
from torch import nn

from fl_dp.clients.cohort import LocalTraining, UnitData, train_units
from fl_dp.clients.coins import coins_of
from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
from fl_dp.clients.per_record.own_copies import own_copy_of
from fl_dp.clients.records import config_of, instruction_of
from fl_dp.mechanisms import SecureRandom
from fl_dp.model_arrays import get_arrays, set_arrays, trained_names
from fl_dp.updates.arrays import own_copy
from fl_dp.user_code import Contained, own_chance, seed_of_torch

from .client_arrays import Pair

_MOST_BYTES = 256 << 20  # of trained models that wait for their messages, and of records
_MOST_CLIENTS = 256


class TrainedAhead:
    """Trains a client whose message is next, with those that wait with the same model.

    Whoever is left out, by a failure or as the only one, is trained by its own message.
    """

    def __init__(self, module: nn.Module, parts: Sequence[Pair], training: LocalTraining) -> None:
        """Set what clients train, and the records of each.

        Raises:
            ValueError: The module can't be copied for each client.
        """
        self._module = own_copy_of(module)
        self._parts, self._training = parts, training
        self._names = trained_names(module)
        self._like = list(get_arrays(module, self._names).values())
        of_model = sum(values.nbytes for values in self._like)
        of_records = max(records.nbytes + labels.nbytes for records, labels in parts)
        most = _MOST_BYTES // max(of_model + of_records, 1)
        self._most = min(max(most, 1), _MOST_CLIENTS)
        self._model: ArrayRecord | None = None
        self._begun: set[int] = set()
        self._rows: dict[int, NDArray[np.floating]] = {}

    def train(self, waiting: Iterable[tuple[Message, Context]]) -> None:
        """Train the first of these clients, if it was not yet, and others up to a limit.

        Messages are not changed. Nothing is trained for a node that draws for itself who takes
        part, or for a question.
        """
        messages = iter(waiting)
        asked, context = next(messages)
        model, first = self._asked(asked, context)
        if model is None:
            return
        if model is not self._model:
            self._model, self._begun, self._rows = model, set(), {}
        if first in self._begun:
            return
        others = (
            (part, _seed(message, context))
            for (other, part), message, context in ((self._asked(*one), *one) for one in messages)
            if other is model and part not in self._begun
        )
        chosen = dict([(first, _seed(asked, context)), *islice(others, self._most - 1)])
        self._begun.update(chosen)
        if len(chosen) > 1:
            with Contained(), own_chance():
                self._train(model, chosen)

    def arrays_of(self, part: int, parameters: NDArrays) -> NDArrays | None:
        """What one client has trained from these arrays, once; None: nothing."""
        row = self._rows.pop(part, None)
        sent = [own_copy(array) for array in (self._model or {}).values()]
        if row is None or not _are_equal(sent, parameters):
            return None
        sizes = np.cumsum([values.size for values in self._like])[:-1]
        return [
            piece.reshape(values.shape).astype(values.dtype)
            for piece, values in zip(np.split(row, sizes), self._like, strict=True)
        ]

    def _asked(self, message: Message, context: Context) -> tuple[ArrayRecord | None, int]:
        """The model that a client is to train, None if it is not, and its part of the data."""
        part = int(context.node_config[PARTITION_ID_KEY])
        models = list(message.content.array_records.values())
        if message.metadata.message_type != MessageType.TRAIN or len(models) != 1:
            return None, part
        instruction = instruction_of(message)
        draws = instruction is not None and instruction.sampling_rate is not None
        return (None if draws else models[0]), part

    def _train(self, model: ArrayRecord, seeds: Mapping[int, int]) -> None:
        """Train clients, by each one's seed."""
        set_arrays(self._module, [own_copy(array) for array in model.values()], self._names)
        units = [
            UnitData(features=self._parts[part][0], labels=self._parts[part][1], seed=seed)
            for part, seed in seeds.items()
        ]
        chosen = list(seeds)
        trained = train_units(self._module, units, self._training, names=self._names)
        for indices, vectors in trained:
            rows = vectors.cpu().numpy()
            self._rows |= {chosen[index]: row for index, row in zip(indices, rows, strict=True)}


def _seed(message: Message, context: Context) -> int:
    """Seed of a client's coins: what its own message would give it."""
    coins = coins_of(context, config_of(message))
    return seed_of_torch(SecureRandom() if coins is None else coins)


def _are_equal(sent: NDArrays, others: NDArrays) -> bool:
    return len(sent) == len(others) and all(map(np.array_equal, sent, others))
