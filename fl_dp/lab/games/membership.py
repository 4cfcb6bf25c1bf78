"""The membership game on the app itself: many trainings, each with a random half of candidates.

Candidates are all clients, or all records of all clients. Each training is as by `fl-dp run`, over
a grid in this process instead of Flower's simulation engine. A candidate left out contributes
exactly zero: trainings with and without it are zero-out neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.common.typing import NDArrays, Scalar
from numpy.typing import NDArray
from torch import nn

from fl_dp.accounting import NeighboringRelation, epsilon, epsilon_delta_trade_off, freeze
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.trade_off import TradeOff, trade_off
from fl_dp.app.in_process import InProcessGrid, flower_in_silence
from fl_dp.app.planning import make_plan, make_record_plan, target_delta
from fl_dp.app.private_training import Records
from fl_dp.app.server import train
from fl_dp.app.settings import Settings
from fl_dp.app.task_client import TaskClient, hosted_units, train_many
from fl_dp.app.workload import dataset_of, model_of, records_of, set_shared, training_rows
from fl_dp.clients import NodeUnits, TrainedRows, numpy_client_app
from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
from fl_dp.guarantee import Against, Guarantee
from fl_dp.lab.attacks.membership.observations import (
    Observations,
    logit_confidence,
    mean_per_client,
)
from fl_dp.protocol.message_keys import RECORD_PLAN_KEY
from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.training import one_thread

UNITS = ("record", "client")
"""Candidates of the attack: records, or whole clients."""

FEWEST_MODELS = 4
_MOST_OTHERS = 2000  # records of the population: more say little, and RMIA compares with each
_MADE_UP = 500  # clients of the population: each a draw of test records, which others draw, too
_FEWEST_OTHERS = 20
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class MembershipPromise:
    """The promise to each candidate: its epsilon at `delta`.

    Attributes:
        history: All charges of one candidate.
        neighboring_relation: Difference of trainings with and without a candidate.
        unit: The candidate, of `UNITS`.
        against: The adversary of the promise.
    """

    epsilon: float
    delta: float
    history: FrozenHistory
    neighboring_relation: NeighboringRelation
    unit: str
    against: Against

    @property
    def guarantee(self) -> Guarantee:
        """The promise as every screen shows it."""
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            neighbours=self.neighboring_relation,
            against=self.against,
        )

    def curve(self) -> TradeOff:
        """The true-positive rate that epsilon and delta allow, by false-positive rate."""
        return epsilon_delta_trade_off(self.epsilon, self.delta)

    def full_curve(self) -> TradeOff:
        """The lower rate that the whole privacy-loss distribution allows.

        Raises:
            ValueError: If there is no such distribution, or it is too long to compute.
        """
        return trade_off(self.history, neighboring_relation=self.neighboring_relation)


@dataclass(frozen=True, kw_only=True)
class GameResult:
    """Input of attacks, and each model's accuracies in [0, 1].

    `train_accuracy` is on the members' records, `test_accuracy` on the public test part.
    """

    observations: Observations
    train_accuracy: Sequence[float]
    test_accuracy: Sequence[float]


def promise_to(settings: Settings, unit: str) -> MembershipPromise | None:
    """The promise to one candidate, a unit of `UNITS`; None if there is none.

    Raises:
        ValueError: If no game can be played, with what to write instead.
    """
    require_playable(settings, unit)
    settings = _as_played(settings)
    if unit == "record" and settings.protects_records:
        plan = make_record_plan(settings)
        assert plan is not None  # clients train by DP-SGD
        history = freeze({plan.event: plan.steps * plan.participations})
        relation = plan.neighboring_relation
        return MembershipPromise(
            epsilon=plan.budget.epsilon,
            delta=plan.budget.delta,
            history=history,
            neighboring_relation=relation,
            unit=unit,
            against=plan.against,
        )
    if not settings.protects_clients:
        return None
    of_clients = make_plan(settings)
    relation, delta = of_clients.neighboring_relation, target_delta(settings)
    if unit == "record":
        # A record moves its client's update to any other: clients that are replaced.
        relation = NeighboringRelation.REPLACE_ONE
        spent = epsilon(of_clients.history, delta, neighboring_relation=relation).best
    else:
        spent = of_clients.epsilon().best
    return MembershipPromise(
        epsilon=spent,
        delta=delta,
        history=of_clients.history,
        neighboring_relation=relation,
        unit=unit,
        against=of_clients.against,
    )


def _as_played(settings: Settings) -> Settings:
    """Settings without the check that ends a training if half of the candidates send zero."""
    if not settings.protects_clients:
        return settings
    return replace(settings, privacy=settings.promise.with_values(contribution_check=False))


def require_playable(settings: Settings, unit: str) -> None:
    """Check that a game can be played with these settings.

    Raises:
        ValueError: If not, with what to write instead.
    """
    if unit not in UNITS:
        raise ValueError(f"membership is that of a {' or a '.join(UNITS)}, got '{unit}'")
    privacy = settings.privacy
    if settings.task.partition == "nodes":
        raise ValueError(
            "only a simulation can be attacked, and with task.partition=nodes the data are on real "
            "nodes: choose another partition"
        )
    if privacy.noised_by in ("clients", "nodes"):
        raise ValueError(
            f"models of privacy={privacy.mode} are not trained in one process: attack those of "
            "privacy=central, of none or of dp_sgd"
        )
    if privacy.get("insecure_seed") is not None:
        raise ValueError(
            "with privacy.insecure_seed every training would draw the same noise, and a difference "
            "between two models would be free of it: leave it out"
        )
    if unit == "record" and settings.protects_records and settings.task.person_column is not None:
        raise ValueError(
            "a record of a person who has several is promised nothing by itself: leave "
            "task.person_column out, or attack clients"
        )
    if unit == "client" and privacy.unit == "record":
        raise ValueError("with privacy.unit=record nothing is promised to clients: attack records")


def play_membership(
    settings: Settings,
    unit: str,
    *,
    models: int,
    on_model: Callable[[], None] = lambda: None,
) -> GameResult:
    """Train models, each with a random half of the candidates, and query all of them.

    `settings.seed` draws members; noise and cohorts come from secret randomness. The settings have
    a number of `simulation.units_per_node`. `unit` is one of `UNITS`, `models` at least
    `FEWEST_MODELS`. `on_model` is called after each training.

    Raises:
        ValueError: If no game can be played, or a model diverged.
        RuntimeError: If a training failed.
    """
    require_playable(settings, unit)
    if models < FEWEST_MODELS:
        raise ValueError(f"{models} models are too few: train at least {FEWEST_MODELS}")
    dataset, parts = dataset_of(settings), training_rows(settings)
    clients, rows = _candidate_rows(parts)
    if len(np.unique(rows)) < len(rows):
        raise ValueError(
            "clients share records, so that one record is more than one client's: lower "
            "task.records_per_client or task.num_clients until there are enough for all"
        )
    draws = np.random.default_rng([settings.seed, 0xA77AC])
    num_candidates = len(rows) if unit == "record" else len(parts)
    coins = draws.random((models, num_candidates)) < 0.5
    inside = coins if unit == "record" else coins[:, clients]  # of each record
    others = _population(dataset, draws)
    labels, test_labels = dataset.labels(rows), dataset.labels(slice(None), "test")
    candidates, population, train_accuracy, test_accuracy = [], [], [], []
    with TemporaryDirectory(prefix="fl-dp-membership-") as folder:
        for number, chosen in enumerate(inside):
            members = np.zeros(len(dataset.train_y), dtype=np.bool_)
            members[rows[chosen]] = True
            arrays = train_with(settings, members, unit, Path(folder) / f"{number}")
            model = model_of(settings)
            set_shared(settings, model, arrays)
            logits = _logits(model, dataset, rows, "train")
            candidates.append(logit_confidence(logits, labels))
            train_accuracy.append(_accuracy(logits[chosen], labels[chosen]))
            test_logits = _logits(model, dataset, np.arange(len(test_labels)), "test")
            population.append(logit_confidence(test_logits[others], test_labels[others]))
            test_accuracy.append(_accuracy(test_logits, test_labels))
            on_model()
    of_candidates, of_others = np.stack(candidates), np.stack(population)
    if unit == "client":
        # A client without a record can't be looked for.
        present, client_of_record = np.unique(clients, return_inverse=True)
        of_candidates = mean_per_client(of_candidates, client_of_record, len(present))
        size = math.ceil(len(rows) / len(present))
        of_others = of_others[:, _made_up(len(others), size, draws)].mean(axis=2)
        coins = coins[:, present]
    return GameResult(
        observations=Observations(members=coins, candidates=of_candidates, population=of_others),
        train_accuracy=train_accuracy,
        test_accuracy=test_accuracy,
    )


class _Player(TaskClient):
    """A client of the task with the members of this training alone."""

    def __init__(
        self, context: Context, unit: int = 0, *, members: NDArray[np.bool_], whole: bool
    ) -> None:
        """Take the place of one of a node's units.

        `members` marks the training rows that are in. With `whole`, clients are in or out as a
        whole; one that is out sends the model back.
        """
        super().__init__(context, unit)
        self._members = members
        self._whole = whole

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train as usual. Without a record that changes nothing, but DP-SGD would add noise."""
        if self._whole and RECORD_PLAN_KEY in config:
            _, data = self._settings_and_data(config)
            if data is not None and not len(data[1]):
                return parameters, 1, {}
        return super().fit(parameters, config)

    def data(self, settings: Settings) -> tuple[Dataset, NDArray[np.int64]] | None:
        """The data set, and the members among the client's rows."""
        data = super().data(settings)
        if data is None:
            return None
        dataset, rows = data
        return dataset, rows[self._members[rows]]

    def records(self, settings: Settings) -> Records:
        """All of the client's records; those that are out have no content."""
        data = super().data(settings)
        assert data is not None  # every node has a client here
        dataset, rows = data
        return Records(*records_of(dataset, rows), fit=self._members[rows])


def train_with(
    settings: Settings, members: NDArray[np.bool_], unit: str, folder: Path
) -> ArrayRecord:
    """Train one model in this process and return it.

    The run and the ledgers go to `folder`, created here. `members`, bool `(n,)`, marks training
    rows; others contribute zero. `unit` is one of `UNITS`.

    Raises:
        RuntimeError: If the training failed.
    """
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    configs = [
        {
            PARTITION_ID_KEY: node,
            "num-partitions": nodes,
            # Where clients charge for themselves; in other trainings nothing is written there.
            "dp-ledger-path": str(folder / f"node-{node}.db"),
        }
        for node in range(nodes)
    ]
    grid = InProcessGrid(_app(members, whole=unit == "client"), configs)
    folder.mkdir()
    alone = replace(_as_played(settings), output_dir=str(folder), run_name="run", resume=None)
    with flower_in_silence(), one_thread():
        return train(grid, alone, run_id="membership").arrays


def _app(members: NDArray[np.bool_], *, whole: bool) -> ClientApp:
    client = partial(_Player, members=members, whole=whole)

    def member_parts(settings: Settings) -> list[NDArray[np.int64]]:
        return [part[members[part]] for part in training_rows(settings)]

    def together(
        context: Context, units: Sequence[int], model: ArrayRecord, config: dict[str, Any]
    ) -> Iterator[TrainedRows]:
        return train_many(context, units, model, config, parts_of=member_parts)

    return numpy_client_app(
        client, units=NodeUnits(client_fn=client, count=hosted_units, train_many=together)
    )


def _candidate_rows(
    parts: Sequence[NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The client and the training row of each client record."""
    clients = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return clients, np.concatenate(parts)


def _population(dataset: Dataset, draws: np.random.Generator) -> NDArray[np.int64]:
    """Test rows, on which no model is trained.

    Raises:
        ValueError: If there are too few.
    """
    available = len(dataset.test_y)
    if available < _FEWEST_OTHERS:
        raise ValueError(
            f"the test part has {available} rows, and attacks compare with records that no model "
            f"was trained on: bring at least {_FEWEST_OTHERS}"
        )
    return draws.permutation(available)[:_MOST_OTHERS]


def _made_up(available: int, size: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """The row numbers of made-up clients' records, int64 `(_MADE_UP, size)`."""
    size = min(size, available)
    return np.stack([draws.choice(available, size, replace=False) for _ in range(_MADE_UP)])


def _logits(
    model: nn.Module, dataset: Dataset, rows: NDArray[np.int64], split: str
) -> NDArray[np.float64]:
    """A model's outputs for some rows, float64 `(n, classes)`."""
    model.eval()
    device = next(model.parameters()).device
    batches = []
    with torch.no_grad():
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            features = dataset.features(rows[start : start + _ROWS_AT_ONCE], split)
            batches.append(model(torch.from_numpy(features).to(device)).cpu().numpy())
    return np.concatenate(batches).astype(np.float64)


def _accuracy(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    if not len(labels):
        return math.nan
    return float((logits.argmax(axis=1) == labels).mean())
